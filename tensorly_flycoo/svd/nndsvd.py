"""Non-negative initial guesses from singular vectors (NNDSVD), without the right vectors.

Both vectors of a singular pair are split into positive and negative parts, and the pair of parts
with the larger product of norms is kept. A right vector has an element for every column of the
unfolding, but only the norms of its two parts are needed; empty columns add nothing to them.
"""

import numpy as np

from ..base.array_modules import Array, array_module
from ..base.checks import num_cells
from ..tensor.pieces import sum_values
from .unfolding import Unfolding


def make_left_vectors_non_negative(
    unfolding: Unfolding, left: Array, values: Array, kind: str = "nndsvda"
) -> Array:
    """Make the left factor of NNDSVD from leading singular vectors (I_mode, R), of any sign.

    "nndsvda" replaces elements below the rounding unit by the mean of all cells, "nndsvd" by zero.
    The column of a zero singular value is meaningless. ``2 * nnz * R`` operations; the workspace is
    a few numbers per non-empty column. Boutsidis and Gallopoulos, "SVD based initialization: A head
    start for nonnegative matrix factorization", Pattern Recognition 41, 2008.

    >>> from tensorly_flycoo import FlycooTensor
    >>> unfolding = Unfolding(FlycooTensor([[0, 1], [2, 0]], [4.0, 9.0], shape=(3, 3)), 0)
    >>> left, values = unfolding.svd(1)
    >>> make_left_vectors_non_negative(unfolding, left, values, "nndsvd").round(3).tolist()
    [[0.0], [3.0], [0.0]]
    """
    if kind not in ("nndsvd", "nndsvda"):
        raise ValueError(f"non_negative is {kind!r}, expected True, 'nndsvda' or 'nndsvd'")
    parts = _choose_parts(unfolding, left, values)
    # The leading pair has one sign, so both parts together are the vector itself.
    leading_vector = np.abs(left[:, :1])
    leading_scale = np.sqrt(values[:1])
    parts[:, :1] = leading_scale * leading_vector
    eps = np.finfo(unfolding.dtype).eps
    if kind == "nndsvd":
        return np.maximum(parts - eps, 0)
    x = unfolding.tensor
    total = sum_values(x._layout, x._engine)
    mean = left.dtype.type(total / num_cells(x.shape))
    return array_module(left).where(parts < eps, mean, parts)


def _choose_parts(unfolding: Unfolding, left: Array, values: Array) -> Array:
    """Return, scaled, the part of each left vector with the larger product of norms."""
    xp = array_module(left)
    right_positive_norms, right_negative_norms = _find_right_norms(unfolding, left, values)
    positive_part = np.maximum(left, 0)
    negative_part = np.maximum(-left, 0)
    positive_norms = np.linalg.norm(positive_part, axis=0)
    negative_norms = np.linalg.norm(negative_part, axis=0)
    positive_products = right_positive_norms * positive_norms
    negative_products = right_negative_norms * negative_norms
    # One choice for each component.
    is_positive = positive_products > negative_products
    parts = xp.where(is_positive, positive_part, negative_part)
    norms = xp.where(is_positive, positive_norms, negative_norms)
    products = xp.where(is_positive, positive_products, negative_products)
    # The part has norm 1 before it is scaled; a part of zeros stays one.
    scales = np.sqrt(values * products)
    divisors = xp.where(norms > 0, norms, 1)
    return parts * (scales / divisors)


def _find_right_norms(unfolding: Unfolding, left: Array, values: Array) -> Array:
    """Compute the norms (2, R) of the positive and negative parts of the right vectors."""
    gram, scale = unfolding.gram
    xp = array_module(left)
    rank = left.shape[1]
    squares = xp.zeros((2, rank))
    # A value alone in its column gives an element with the sign of its product with the part.
    squares += _weigh_single_squares(gram.squares, np.maximum(left, 0))
    flipped_squares = _weigh_single_squares(gram.squares, np.minimum(left, 0))
    squares += flipped_squares[::-1]  # times a negative part, signs change
    # All other columns: their products with the left vectors, some columns at a time.
    left_rows = left[gram.rows].astype(gram.dtype)
    left_block = xp.ascontiguousarray(left_rows)
    for squares_of_columns in gram.reduce_right_products(left_block, _sum_squares_by_sign):
        squares += squares_of_columns
    # The right vectors are these products over the singular values.
    norms = scale * np.sqrt(squares)
    divisors = xp.where(values > 0, values, 1)
    return (norms / divisors).astype(left.dtype)


def _weigh_single_squares(squares: Array, part: Array) -> Array:
    """Sum the squares (2, I) of values alone in their columns, times those of a part: (2, R)."""
    xp = array_module(part)
    positive_squares, negative_squares = squares
    weights = part.astype(np.float64) ** 2
    return xp.stack([positive_squares @ weights, negative_squares @ weights])


def _sum_squares_by_sign(right: Array) -> Array:
    """Sum the squares of the positive and of the negative elements of each column: (2, R)."""
    xp = array_module(right)
    sums = []
    for part in (np.maximum(right, 0), np.minimum(right, 0)):
        squares = part.astype(np.float64) ** 2
        sums.append(squares.sum(axis=0))
    return xp.stack(sums)

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
    parts[:, :1] = np.sqrt(values[:1]) * np.abs(left[:, :1])  # the leading pair has one sign
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
    right_norms = _find_right_norms(unfolding, left, values)
    signed_parts = [np.maximum(left, 0), np.maximum(-left, 0)]
    left_norms = [np.linalg.norm(part, axis=0) for part in signed_parts]
    products = [norms * left_norms[sign] for sign, norms in enumerate(right_norms)]
    is_positive = products[0] > products[1]
    parts = xp.where(is_positive, *signed_parts)
    norms = xp.where(is_positive, *left_norms)
    scales = np.sqrt(values * xp.where(is_positive, *products))
    return parts * (scales / xp.where(norms > 0, norms, 1))


def _find_right_norms(unfolding: Unfolding, left: Array, values: Array) -> Array:
    """Compute the norms (2, R) of the positive and negative parts of the right vectors."""
    gram, scale = unfolding.gram
    xp = array_module(left)
    squares = xp.zeros((2, left.shape[1]))
    # A value alone in its column gives an element with the sign of its product with the part.
    squares += _weigh_single_squares(gram.squares, np.maximum(left, 0))
    negative_squares = _weigh_single_squares(gram.squares, np.minimum(left, 0))
    squares += negative_squares[::-1]  # times a negative part, signs change
    block = xp.ascontiguousarray(left[gram.rows].astype(gram.dtype))
    for part in gram.reduce_right_products(block, _sum_squares_by_sign):
        squares += part
    norms = scale * np.sqrt(squares)
    return (norms / xp.where(values > 0, values, 1)).astype(left.dtype)


def _weigh_single_squares(squares: Array, part: Array) -> Array:
    """Sum the squares (2, I) of values alone in their columns, times those of a part: (2, R)."""
    weights = part.astype(np.float64) ** 2
    return array_module(part).stack([squares_of_sign @ weights for squares_of_sign in squares])


def _sum_squares_by_sign(right: Array) -> Array:
    """Sum the squares of the positive and of the negative elements of each column: (2, R)."""
    parts = [np.maximum(right, 0), np.minimum(right, 0)]
    squares = [part.astype(np.float64) ** 2 for part in parts]
    return array_module(right).stack([square.sum(axis=0) for square in squares])

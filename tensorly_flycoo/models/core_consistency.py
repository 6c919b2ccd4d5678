"""Core consistency: a CP model judged by the Tucker core that its factors would have."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_factors, check_weights
from ..engines.tall import qr
from ..loop.masks import find_missing
from ..loop.model_uses import check_model, choose_mask
from ..ops.cp_entries import take_model
from ..ops.ttmc import merge_modes, multiply_nonempty_rows
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.tensor import FlycooTensor

#: Numbers of the largest intermediate array, unless a single column of a factor needs more.
_BLOCK_NUMBERS = 2**25


@mirror
def core_consistency(x: LabelledData, cp_tensor: Any, mask: Mask = None) -> float:
    r"""Compute the core consistency of a CP model, at most 100.

    .. math:: 100 - \frac{100}{R} \sum (G - I)^2, \quad G = x \times_1 A_1^+ \dots \times_N A_N^+

    where :math:`I` is 1 on its superdiagonal and 0 elsewhere, and the weights belong to
    :math:`A_1`. Near 100, the components do not interact, as the CP model assumes. Near 0 or below,
    there are too many of them, or the model does not suit the data. The result equals that of
    `tlviz.model_evaluation.core_consistency`, which takes a dense tensor; here neither a dense
    tensor nor the whole core is formed.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
        With two modes or more.
    cp_tensor : CPTensor or (weights, factors)
        With the dtype of `x`.
    mask : sparse.COO or array, optional
        As for `parafac`: missing cells, which get the values of the model. By default those that
        `x` knows (`LabelledTensor.unknown`), else those of the mask with which the model was
        fitted.

    Returns
    -------
    float
        At most 100.

    Raises
    ------
    TypeError
        If `x` is not sparse, or weights or factors have the wrong array type or dtype.
    ValueError
        If `x` has one mode, a shape does not match, the labels or modes of `x` differ from those of
        a `LabelledCP`, or `cp_tensor` is no CP model, or one of `observed_parafac`, to which
        cells without a row are unknown, or has a loss by which its values are no means of `x`.

    Notes
    -----
    At most about ``nnz * R**(ndim - 1)`` operations, and the fewer the more modes can be merged:
    adjacent ones whose indices have few combinations. The workspace has ``R**(ndim - 2)`` numbers
    for each non-empty index of the shortest mode, or up to 256 MB if that is more. Modes are merged
    in a copy of the tensor, which is kept as long as `x`. Missing cells are listed, and cost what
    nonzeros do. A QR decomposition of each factor gives
    its pseudo-inverse, in which singular values below rounding error count as zero (tlviz divides
    by them).

    References
    ----------
    Bro and Kiers, "A new efficient method for determining the number of components in PARAFAC
    models", Journal of Chemometrics 17, 2003. Papalexakis and Faloutsos, "Fast efficient and
    scalable core consistency diagnostic for the PARAFAC decomposition for big sparse tensors",
    ICASSP 2015, arXiv 1503.03355.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, factors = planted_tensor((20, 30, 40), 2, nnz_per_component=200, random_state=0)
    >>> round(core_consistency(x, (None, factors)), 6)
    100.0
    """
    record = check_model("core_consistency", cp_tensor, x)
    mask = choose_mask(record, x, mask)
    x = as_flycoo(x, check_coords=True)
    if mask is not None:
        x = _impute(x, cp_tensor, mask)
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}, expected two modes or more")
    weights, factors = take_model(cp_tensor)
    factors = check_factors(factors, x.shape, x.dtype, x._engine.array_type)
    rank = factors[0].shape[1]
    if weights is not None:
        check_weights(weights, rank, x.dtype, x._engine.array_type)
        factors = [factors[0] * weights, *factors[1:]]
    inverses = [_invert_transposed(factor) for factor in factors]
    difference = 0.0  # squared, of the core and one with ones on its superdiagonal
    for start, block_on_device in _iterate_core(x, inverses):
        block = move(block_on_device, np)  # compiling CuPy's sums would take seconds
        # The superdiagonal has equal indices in all modes; the last ones count from `start` here.
        num_columns = block.shape[-1]
        components = np.arange(start, start + num_columns)
        first_indices = (components,) * (x.ndim - 1)
        last_index = components - start
        block[(*first_indices, last_index)] -= 1
        squares = block**2
        difference += float(squares.sum(dtype=np.float64))
    return 100 - 100 * difference / rank


def _impute(x: FlycooTensor, cp_tensor: Any, mask: Any) -> FlycooTensor:
    """Return a tensor with the values of a model at its missing cells."""
    missing = find_missing(x, mask, lists=True)
    if missing is None:
        return x
    weights, factors = take_model(cp_tensor)
    values = missing.impute(weights, factors)
    return missing.fill(values)


def _invert_transposed(factor: Array) -> Array:
    """Return the transposed pseudo-inverse (I, R) of a factor, by its QR decomposition."""
    # A = Q R has the pseudo-inverse R^+ Q^T, of which this is the transposed.
    q, r = qr(factor)
    host_r = move(r, np).astype(np.float64)
    transposed_inverse = np.linalg.pinv(host_r).T.astype(q.dtype)
    return q @ array_module(q).asarray(transposed_inverse)


def _iterate_core(x: FlycooTensor, inverses: list[Array]) -> Iterator[tuple[int, Array]]:
    """Yield blocks of the core, (R, ..., R, n), and the place of each along the last axis.

    The core is `x` times all transposed `inverses`. Some modes are merged into one, whose rows are
    the combinations of their indices. First the other modes are multiplied, which leaves a row of
    products for each combination; then the merged modes.
    """
    xp = x._engine.xp
    rank = inverses[0].shape[1]
    merged = _choose_merged(x, rank)
    other_modes = [n for n in range(x.ndim) if n not in merged]
    last_mode = other_modes[-1]
    merged_tensor, merged_mode, places = merge_modes(x, merged, x.dtype)
    # A block takes some columns of the last factor: as many as the workspace allows.
    num_full_modes = len(other_modes) - 1
    products_per_column = _count_rows(x, merged) * rank**num_full_modes
    block_size = max(1, _BLOCK_NUMBERS // products_per_column)
    factors = {places[n]: inverses[n] for n in other_modes}
    for start in range(0, rank, block_size):
        columns = inverses[last_mode][:, start : start + block_size]
        factors[places[last_mode]] = xp.ascontiguousarray(columns)
        rows, numbers = multiply_nonempty_rows(merged_tensor, merged_mode, factors)
        if start == 0:  # the rows are the same for all columns
            num_combinations = merged_tensor.shape[merged_mode]
            ids = xp.arange(num_combinations)[numbers]
            products = _multiply_merged(x, merged, inverses, ids)
        # The merged modes come first; the sequence of modes does not change the sum of squares.
        block = products.T @ rows
        num_columns = columns.shape[1]
        block_shape = (rank,) * (x.ndim - 1) + (num_columns,)
        yield start, block.reshape(block_shape)


def _multiply_merged(
    x: FlycooTensor, merged: Sequence[int], inverses: list[Array], ids: Array
) -> Array:
    """Return, for rows of merged modes, all products of one column of each: (n, R**len(merged)).

    Each of the `ids` (n,) numbers one combination of the modes' indices, the last mode fastest; so
    does the place of a product number the combination of its columns.
    """
    last_mode = merged[-1]
    indices = ids % x.shape[last_mode]
    products = inverses[last_mode][indices]
    # From the last mode to the first: `prefixes` number the combinations of this mode and those
    # before it, so that the remainder is its own index.
    prefixes = ids
    for mode in merged[-2::-1]:
        prefixes = prefixes // x.shape[mode + 1]
        indices = prefixes % x.shape[mode]
        rows = inverses[mode][indices]
        outer_products = rows[:, :, None] * products[:, None, :]
        products = outer_products.reshape(len(outer_products), -1)
    return products


def _choose_merged(x: FlycooTensor, rank: int) -> Sequence[int]:
    """Choose modes to merge, adjacent ones, so that the core takes the fewest operations.

    It is the shortest mode alone if that takes at most four times as many: merging costs a copy.
    """

    def count_operations(modes: Sequence[int]) -> int:
        # The other modes are multiplied nonzero by nonzero, the merged ones row by row.
        num_other_modes = x.ndim - len(modes)
        num_of_others = x.nnz * rank**num_other_modes
        num_of_merged = _count_rows(x, modes) * rank**x.ndim
        return num_of_others + num_of_merged

    shortest_mode = min(range(x.ndim), key=lambda n: x.shape[n])
    shortest = [shortest_mode]
    candidates = []
    for first, end in combinations(range(x.ndim + 1), 2):
        modes = range(first, end)
        # The array of `_multiply_merged`, which is formed whole.
        num_products = _count_rows(x, modes) * rank ** len(modes)
        if len(modes) < x.ndim and num_products <= _BLOCK_NUMBERS:
            candidates.append(modes)
    best = min(candidates, key=count_operations, default=shortest)
    if 4 * count_operations(best) < count_operations(shortest):
        return list(best)
    return shortest


def _count_rows(x: FlycooTensor, modes: Sequence[int]) -> int:
    """Return the most combinations of the modes' indices that nonzeros can have, at least 1."""
    num_combinations = math.prod(x.shape[n] for n in modes)
    return max(1, min(num_combinations, x.nnz))

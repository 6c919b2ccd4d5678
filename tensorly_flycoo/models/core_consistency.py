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
        numbers = np.arange(start, start + block.shape[-1])
        superdiagonal = (numbers,) * (x.ndim - 1)
        block[(*superdiagonal, numbers - start)] -= 1
        difference += float((block**2).sum(dtype=np.float64))
    return 100 - 100 * difference / rank


def _impute(x: FlycooTensor, cp_tensor: Any, mask: Any) -> FlycooTensor:
    """Return a tensor with the values of a model at its missing cells."""
    missing = find_missing(x, mask, lists=True)
    if missing is None:
        return x
    return missing.fill(missing.impute(*take_model(cp_tensor)))


def _invert_transposed(factor: Array) -> Array:
    """Return the transposed pseudo-inverse (I, R) of a factor, by its QR decomposition."""
    q, r = qr(factor)
    inverse = np.linalg.pinv(move(r, np).astype(np.float64)).T
    return q @ array_module(q).asarray(inverse.astype(q.dtype))


def _iterate_core(x: FlycooTensor, inverses: list[Array]) -> Iterator[tuple[int, Array]]:
    """Yield blocks of the core, (R, ..., R, n), and the place of each along the last axis.

    The core is `x` times all transposed `inverses`. Some modes are merged into one, whose rows are
    the combinations of their indices. First the other modes are multiplied, which leaves a row of
    products for each combination; then the merged modes.
    """
    rank = inverses[0].shape[1]
    merged = _choose_merged(x, rank)
    other_modes = [n for n in range(x.ndim) if n not in merged]
    last = other_modes[-1]
    merged_tensor, merged_mode, places = merge_modes(x, merged, x.dtype)
    # A block takes some columns of the last factor: as many as the workspace allows.
    products_per_column = _count_rows(x, merged) * rank ** (len(other_modes) - 1)
    block_size = max(1, _BLOCK_NUMBERS // products_per_column)
    factors = {places[n]: inverses[n] for n in other_modes}
    for start in range(0, rank, block_size):
        columns = inverses[last][:, start : start + block_size]
        factors[places[last]] = array_module(columns).ascontiguousarray(columns)
        rows, numbers = multiply_nonempty_rows(merged_tensor, merged_mode, factors)
        if start == 0:  # the rows are the same for all columns
            ids = x._engine.xp.arange(merged_tensor.shape[merged_mode])[numbers]
            products = _multiply_merged(x, merged, inverses, ids)
        block = products.T @ rows
        yield start, block.reshape((rank,) * (x.ndim - 1) + (columns.shape[1],))


def _multiply_merged(
    x: FlycooTensor, merged: Sequence[int], inverses: list[Array], ids: Array
) -> Array:
    """Return, for rows of merged modes, all products of one column of each: (n, R**len(merged)).

    Each of the `ids` (n,) numbers one combination of the modes' indices, the last mode fastest; so
    does the place of a product number the combination of its columns.
    """
    products = inverses[merged[-1]][ids % x.shape[merged[-1]]]
    for n in merged[-2::-1]:
        ids = ids // x.shape[n + 1]
        products = inverses[n][ids % x.shape[n], :, None] * products[:, None]
        products = products.reshape(len(products), -1)
    return products


def _choose_merged(x: FlycooTensor, rank: int) -> Sequence[int]:
    """Choose modes to merge, adjacent ones, so that the core takes the fewest operations.

    It is the shortest mode alone if that takes at most four times as many: merging costs a copy.
    """

    def count_operations(modes: Sequence[int]) -> int:
        num_products = x.nnz * rank ** (x.ndim - len(modes))
        return num_products + _count_rows(x, modes) * rank**x.ndim

    shortest = [min(range(x.ndim), key=lambda n: x.shape[n])]
    fitting = []
    for first, end in combinations(range(x.ndim + 1), 2):
        modes = range(first, end)
        is_small = _count_rows(x, modes) * rank ** len(modes) <= _BLOCK_NUMBERS
        if len(modes) < x.ndim and is_small:
            fitting.append(modes)
    best = min(fitting, key=count_operations, default=shortest)
    if 4 * count_operations(best) < count_operations(shortest):
        return list(best)
    return shortest


def _count_rows(x: FlycooTensor, modes: Sequence[int]) -> int:
    """Return the most combinations of the modes' indices that nonzeros can have, at least 1."""
    num_combinations = math.prod(x.shape[n] for n in modes)
    return max(1, min(num_combinations, x.nnz))

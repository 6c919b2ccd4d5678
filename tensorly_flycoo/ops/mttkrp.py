"""MTTKRP, where CP decompositions of a sparse tensor spend most of their time; also of ratios."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base.array_modules import Array, share
from ..base.checks import check_factors, check_mode, check_out, check_weights
from ..base.reporting import log_compilation
from ..format.group_passes import LastPass
from ..spread.row_shards import RowShards, find_sharding
from ..spread.spread_layout import SpreadLayout
from ..tensor.coo_cache import as_flycoo
from ..tensor.labelled import number_modes
from ..tensor.memory import attempt
from ..tensor.mirroring import mirror
from ..tensor.tensor import FlycooTensor

if TYPE_CHECKING:
    from sparse import SparseArray


@mirror
def mttkrp(
    x: FlycooTensor | SparseArray,
    factors: Sequence[Array],
    mode: int | str,
    *,
    weights: Array | None = None,
    out: Array | None = None,
) -> Array:
    r"""Multiply the matricised tensor by the Khatri-Rao product of the factors.

    .. math:: M[i, r] = w_r \sum_{k : c_{d,k} = i} v_k \prod_{n \ne d} F_n[c_{n,k}, r]

    over the nonzeros :math:`v_k` of `x`; d is `mode`. Neither the unfolding nor the Khatri-Rao
    product is formed.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
        A COO is converted once, and the result cached while the COO lives unchanged; a loop of
        your own is fastest with a FlycooTensor.
    factors : sequence of array (I_n, R)
        One for each mode, with the dtype and on the device of `x`: CuPy arrays for a tensor on a
        GPU, else NumPy arrays. The factor of `mode` is not read. If `x` is on several GPUs, they
        are on the first, or some are `RowShards`, such as those of a decomposition.
    mode : int or str
        From 0 to ndim - 1; or its name, if `x` is a LabelledTensor.
    weights : array (R,), optional
        Scales of the columns; on the device of `x`.
    out : array (I_mode, R), optional
        C-contiguous and on the device of `x`; receives the result. It may be ``factors[mode]``.

    Returns
    -------
    array (I_mode, R)
        `out`, or a new array; `RowShards` if a factor is. Rows without nonzeros are zero.

    Raises
    ------
    TypeError
        If `x` is not sparse, or factors, weights or `out` have the wrong array type or dtype.
    ValueError
        If `mode` is out of range, a shape or rank does not fit, `out` overlaps an argument that is
        read, an array is on a GPU other than the current one, or `x` is on several GPUs and the
        current one is not the first.
    MemoryError
        If memory runs out; the message says what was asked for and what is free. The tensor remains
        valid.

    Notes
    -----
    ``nnz * R * ndim`` floating-point operations. With layout "remap", modes are cheapest in the
    order 0, 1, ..., ndim - 1, 0, ...: any other mode is reached by remapping through the modes in
    between, one pass over the nonzeros each. The other layouts have no preferred order.

    A mode in a group (``x.groups``) takes a pass for the group, of which nothing is kept, and a
    product with the group's other factors. For all modes from the same factors take `mttkrps`.

    The workspace is at most ndim rows of `out` for every 512 nonzeros. Each element has an error of
    at most ``(row_nnz + ndim) * eps`` times the sum of its terms' absolute values. The result is
    the same to the bit for any number of threads, in every run and in every layout.

    Of factors, only the rows of indices with nonzeros are read. But a group of modes that has a row
    for each combination of indices multiplies those that do not occur by zero: there an inf or nan
    in the factor of another mode of the group makes its column of the result nan, as in dense
    arithmetic. ``FlycooTensor(..., groups=None)`` has no such groups.

    References
    ----------
    Wijeratne, Kannan, Prasanna, Computing Frontiers 2024, doi 10.1145/3649153.3649187, Algorithms
    2 to 5.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, mttkrp
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> factors = [np.ones((size, 2)) for size in x.shape]
    >>> mttkrp(x, factors, mode=0)
    array([[2., 2.],
           [3., 3.],
           [0., 0.]])
    """
    number = number_modes(x, mode)
    return mttkrp_in_sweep(x, factors, number, None, weights=weights, out=out, converts=False)


@mirror
def mttkrps(
    x: FlycooTensor | SparseArray, factors: Sequence[Array], *, weights: Array | None = None
) -> list[Array]:
    """Compute the MTTKRPs of all modes from one set of factors, as a gradient needs them.

    The results are those of `mttkrp` for each mode, to the bit. Modes of one group share a pass
    over the nonzeros (``x.groups``), where single calls of `mttkrp` make one pass each.

    Parameters
    ----------
    x, factors, weights
        As for `mttkrp`, but all factors are read.

    Returns
    -------
    list of array (I_n, R)
        A new array for each mode; `RowShards` if a factor is. Rows without nonzeros are zero.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `mttkrp` does.

    Notes
    -----
    One pass over the nonzeros for each of the G groups, ``nnz * R * G`` floating-point operations
    each, and the products inside the groups. The workspace is that of `mttkrp`, and the MTTKRP of
    one group at a time: a row for each combination of its indices.

    Examples
    --------
    The gradient of ``0.5 * norm(x - model)**2`` by the first factor:

    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, mttkrps
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> factors = [np.ones((size, 2)) for size in x.shape]
    >>> grams = [factor.T @ factor for factor in factors]
    >>> products = mttkrps(x, factors)
    >>> factors[0] @ (grams[1] * grams[2]) - products[0]
    array([[10., 10.],
           [ 9.,  9.],
           [12., 12.]])
    """
    x, factors, last_pass = as_flycoo(x, check_coords=True), list(factors), LastPass()
    options: dict[str, Any] = {"weights": weights, "converts": False}
    return [mttkrp_in_sweep(x, factors, mode, last_pass, **options) for mode in range(x.ndim)]


def mttkrp_in_sweep(
    x: FlycooTensor | SparseArray,
    factors: Sequence[Array | RowShards],
    mode: int,
    last_pass: LastPass | None,
    *,
    weights: Array | None = None,
    out: Array | None = None,
    converts: bool = True,
) -> Array | RowShards:
    """Compute what `mttkrp` does, from the last pass over the nonzeros if it serves this mode.

    With `converts` factors may have any precision: ADMM's dual variables are float64 whatever the
    tensor is, and its factors become so too.
    """
    x, given = as_flycoo(x, check_coords=True), factors
    engine, layout = x._engine, x._layout
    record_format, array_type = layout.record_format, engine.array_type
    sizes, dtype = record_format.shape, record_format.dtype
    mode = check_mode(mode, len(sizes))
    spread = layout if isinstance(layout, SpreadLayout) else None
    types = (array_type,) if spread is None else (array_type, RowShards)
    factors = check_factors(factors, sizes, dtype, *types, converts=converts)
    shape = (sizes[mode], factors[0].shape[1])
    if weights is not None:
        weights = share(weights)
        check_weights(weights, shape[1], dtype, array_type)
    if spread is not None:
        spread.devices.check_current()
        if not any(isinstance(factor, RowShards) for factor in factors):
            spread = None  # the result is a plain array
    if spread is not None:
        if out is not None:
            on = "x is on several devices"
            raise TypeError(f"out is given, but {on}: the result is a new RowShards")
        for n, factor in enumerate(factors):
            if isinstance(factor, RowShards) and factor.sharding != find_sharding(spread, n):
                raise ValueError(
                    f"factors[{n}] is sharded otherwise than mode {n} of x: give a plain array, "
                    "such as tl.to_numpy returns"
                )
    else:
        if out is not None:
            read = {f"factors[{n}]": factor for n, factor in enumerate(factors) if n != mode}
            read_too = [*read.items(), *([] if weights is None else [("weights", weights)])]
            check_out(out, shape, dtype, array_type, read_too, engine.xp.may_share_memory)
        arrays = {"x": layout.get_copies()[0], "factors": factors}
        engine.check_arrays(arrays if out is None else {**arrays, "out": out})
    inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
    find_rows = None if last_pass is None else functools.partial(last_pass.find, given, mode)
    options: dict[str, Any] = {"weights": weights, "find_rows": find_rows}

    def multiply() -> Array | RowShards:
        if spread is not None:
            return spread.apply_sharded("mttkrp", engine, inputs, mode, shape, **options)[0]
        result = engine.xp.empty(shape, dtype) if out is None else out
        layout.apply("mttkrp", engine, inputs, mode, result, **options)
        return result

    with log_compilation():
        return attempt(f"mttkrp of mode {mode} and rank {shape[1]}", multiply)


def mttkrp_of_ratios(
    x: FlycooTensor,
    factors: Sequence[Array],
    mode: int,
    smallest: float | None,
    *,
    wants_logs: bool = False,
    stays: bool = False,
) -> tuple[Array, Array | None]:
    r"""Compute the MTTKRP of :math:`v_k / m_k`, with the values m of a CP model at the nonzeros.

    The model divides as `smallest` where it is smaller; if that is None, values are multiplied by
    it: :math:`v_k m_k`. With `wants_logs` the second result is the sum of :math:`v_k \log m_k`, a
    float64 array () on the device. With `stays`, layout "remap" stays in `mode`.

    One pass over the nonzeros, with the workspace and the reproducible bits of `mttkrp`.
    """
    engine, (rank, size) = x._engine, (factors[0].shape[1], x.shape[mode])
    options: dict[str, Any] = {"smallest": smallest, "wants_sum": wants_logs, "stays": stays}

    def compute() -> tuple[Array, Array | None]:
        out, inputs = engine.xp.empty((size, rank), x.dtype), dict(enumerate(factors))
        return out, x._layout.apply("mttkrp_of_ratios", engine, inputs, mode, out, **options)

    return attempt(f"an MTTKRP of ratios of mode {mode} and rank {rank}", compute)

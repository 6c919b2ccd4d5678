"""MTTKRP, where CP decompositions of a sparse tensor spend most of their time; also of ratios."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array, share
from ..base.checks import check_factors, check_mode, check_out, check_weights
from ..base.reporting import log_compilation
from ..engines import Engine
from ..engines.narrow_rows import NarrowRows
from ..engines.out_of_memory import attempt
from ..format.group_passes import GroupRows
from ..format.primitives import MTTKRP, MTTKRP_OF_RATIOS
from ..spread.row_shards import RowShards
from ..spread.spread_layout import SpreadLayout
from ..tensor.coo_cache import SparseData, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.labelled import number_modes
from ..tensor.tensor import FlycooTensor


@mirror
def mttkrp(
    x: SparseData,
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
        One for each mode, with the dtype of `x`; moved to its device. The factor of `mode` is not
        read. If `x` is on several GPUs, they are on the first, or some are `RowShards`, such as
        those of a decomposition.
    mode : int or str
        From 0 to ndim - 1; or its name, if `x` is a LabelledTensor.
    weights : array (R,), optional
        Scales of the columns.
    out : array (I_mode, R), optional
        C-contiguous; receives the result. It may be ``factors[mode]``.

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
    at most ``(ndim + a) * eps / 2`` times the sum of its terms' absolute values: a is the number of
    additions that a term goes through, at most ``2048 + row_nnz / 2048`` without slabs and groups.
    The result is the same to the bit for any number of threads, in every run and in every layout.

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
    x = as_flycoo(x, check_coords=True)
    number = check_mode(number, x.ndim)
    factors, weights = check_operands(x, factors, weights)
    if out is not None:
        _check_result(out, x, factors, number, weights)
    return _explain_memory(x, factors, number, weights=weights, out=out)


def _check_result(
    out: Array, x: FlycooTensor, factors: Sequence[Any], mode: int, weights: Array | None
) -> None:
    """Refuse an array for the result that does not fit, or that overlaps one that is read."""
    if RowShards in map(type, factors):
        raise TypeError("out is given, but x is on several devices: the result is a new RowShards")
    arrays_read = [(f"factors[{n}]", factor) for n, factor in enumerate(factors) if n != mode]
    if weights is not None:
        arrays_read.append(("weights", weights))
    engine = x._engine
    shape = (x.shape[mode], factors[0].shape[1])
    check_out(out, shape, x.dtype, engine.array_type, arrays_read, engine.xp.may_share_memory)
    engine.check_arrays({"out": out})


@mirror
def mttkrps(
    x: SparseData, factors: Sequence[Array], *, weights: Array | None = None
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
    x = as_flycoo(x, check_coords=True)
    factors, weights = check_operands(x, factors, weights)
    last_pass = LastPass()
    return [
        _explain_memory(x, factors, mode, last_pass=last_pass, weights=weights)
        for mode in range(x.ndim)
    ]


class LastPass:
    """The last pass in one decomposition: T of each piece, and the factors it was computed from.

    It serves the later modes of the same group if the factors outside of the group are the very
    same arrays; in the sweep that made it they must not be changed in place.
    """

    #: Takes the factors and a mode; returns what adds to T all that its pass does not know.
    find_completion: Callable[..., Callable[[Array], object] | None] | None = None

    def __init__(self) -> None:
        # For each piece T, the factors outside of the group, and the mode which used it last.
        self._pieces: dict[int, tuple[GroupRows, list[Any], int]] = {}

    def find(
        self,
        factors: Sequence[Any],
        mode: int,
        group: Sequence[int],
        make: Callable[[], Array],
        piece: int = 0,
    ) -> GroupRows:
        """Return T of a piece for `mode`; if the last one does not serve, free it, `make` one."""
        outer_factors = [*factors[: group[0]], *factors[group[-1] + 1 :]]
        rows, last_factors, last_mode = self._pieces.pop(piece, (None, [], -1))
        serves = (
            rows is not None
            and rows.is_known
            and group[0] <= last_mode < mode
            and all(map(operator.is_, outer_factors, last_factors))
        )
        if rows is None or not serves:
            del rows  # before the next ones take as much memory
            complete = None
            if self.find_completion is not None:
                complete = self.find_completion(factors, mode)
            rows = GroupRows(make(), complete=complete)
        if mode < group[-1]:
            self._pieces[piece] = (rows, outer_factors, mode)
        return rows


def check_operands(
    x: FlycooTensor, factors: Sequence[Any], weights: Array | None = None, converts: bool = False
) -> tuple[list[Any], Array | None]:
    """Return factors and weights as `multiply` takes them; refuse those that do not fit `x`.

    With `converts` factors may have any precision.
    """
    dtype = x.dtype
    array_type = x._engine.array_type
    types = [array_type]
    if isinstance(x._layout, SpreadLayout):
        types.append(RowShards)
    factors = check_factors(factors, x.shape, dtype, *types, converts=converts)
    if weights is not None:
        weights = share(weights)
        check_weights(weights, factors[0].shape[1], dtype, array_type)
    check_devices(x, factors)
    return factors, weights


def check_devices(x: FlycooTensor, factors: Sequence[Any]) -> None:
    """Refuse factors that are not on the devices of `x`, or are spread over them otherwise."""
    layout = x._layout
    if not isinstance(layout, SpreadLayout):
        x._engine.check_arrays({"x": layout.get_copies()[0], "factors": factors})
        return
    layout.devices.check_current()
    for n, factor in enumerate(factors):
        if isinstance(factor, RowShards) and factor.sharding != layout.shardings[n]:
            raise ValueError(
                f"factors[{n}] is sharded otherwise than mode {n} of x: give a plain array, "
                "such as tl.to_numpy returns"
            )


def _explain_memory(x: FlycooTensor, factors: Sequence[Any], mode: int, **options: Any) -> Any:
    """Call `multiply`; a MemoryError says what needed the memory."""
    compute = functools.partial(multiply, x._layout, x._engine, factors, mode, **options)
    rank = factors[0].shape[1]
    with log_compilation():
        return attempt(f"mttkrp of mode {mode} and rank {rank}", compute)


def multiply(
    layout: Any,
    engine: Engine,
    factors: Sequence[Any],
    mode: int,
    last_pass: LastPass | None = None,
    weights: Array | None = None,
    out: Array | None = None,
    narrow: Mapping[int, NarrowRows] | None = None,
) -> Array | RowShards:
    """Compute an MTTKRP in a loop: from the last pass over the nonzeros if it serves.

    The loop has called `check_devices` for its start. Later only types, shapes and dtypes of
    factors are looked at, lest kernels read past the end of an array that a callback put there;
    those in another precision are converted, as ADMM's are, whose dual variables are float64.

    `narrow` are the narrow copies of all factors but that of `mode`: the result has the same bits.
    """
    record_format = layout.record_format
    sizes = record_format.shape
    dtype = record_format.dtype
    rank = factors[0].shape[-1]
    types: Any = (engine.array_type, RowShards)
    operands = factors
    for factor, size in zip(factors, sizes, strict=True):
        is_alike = isinstance(factor, types) and factor.shape == (size, rank)
        if not is_alike or factor.dtype != dtype:
            operands = check_factors(factors, sizes, dtype, *types, converts=True)
            break
    if narrow is not None and len(layout.groups) == len(sizes):
        return _multiply_narrow(layout, engine, narrow, mode, (sizes[mode], rank), weights)
    inputs = dict(enumerate(operands))
    del inputs[mode]
    find_rows = None
    if last_pass is not None:
        # It knows factors by their identity, which those that are converted have lost.
        find_rows = functools.partial(last_pass.find, factors, mode)
    shape = (sizes[mode], rank)
    if RowShards in map(type, operands):
        sharded, *_ = layout.apply_sharded(
            MTTKRP, engine, inputs, mode, shape, weights=weights, find_rows=find_rows
        )
        return sharded
    if out is None:
        out = engine.xp.empty(shape, dtype)
    layout.apply(MTTKRP, engine, inputs, mode, out, weights=weights, find_rows=find_rows)
    return out


def _multiply_narrow(
    layout: Any,
    engine: Engine,
    narrow: Mapping[int, NarrowRows],
    mode: int,
    shape: tuple[int, int],
    weights: Array | None,
) -> Array | RowShards:
    """Compute an MTTKRP from narrow rows; their scales are powers of two, which round nothing."""
    scales = [copy.scales for copy in narrow.values()]
    if weights is not None:
        scales.append(weights)
    options = {"weights": functools.reduce(np.multiply, scales)}
    inputs = {n: copy.rows for n, copy in narrow.items()}
    if RowShards in map(type, inputs.values()):
        sharded, _ = layout.apply_sharded(MTTKRP, engine, inputs, mode, shape, **options)
        return sharded
    out = engine.xp.empty(shape, layout.record_format.dtype)
    layout.apply(MTTKRP, engine, inputs, mode, out, **options)
    return out


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

    Where m is less than `smallest`, that divides in its place. If `smallest` is None, values are
    multiplied by the model instead: :math:`v_k m_k`. With `wants_logs` the second result is the sum
    of :math:`v_k \log m_k`, a float64 array () on the device. With `stays`, layout "remap" stays in
    `mode`.

    One pass over the nonzeros, with the workspace and the reproducible bits of `mttkrp`.
    """
    engine = x._engine
    rank = factors[0].shape[1]

    def compute() -> tuple[Array, Array | None]:
        out = engine.xp.empty((x.shape[mode], rank), x.dtype)
        log_sum = x._layout.apply(
            MTTKRP_OF_RATIOS,
            engine,
            dict(enumerate(factors)),
            mode,
            out,
            smallest=smallest,
            wants_sum=wants_logs,
            stays=stays,
        )
        return out, log_sum

    return attempt(f"an MTTKRP of ratios of mode {mode} and rank {rank}", compute)

"""Updates of the rows of a factor by a rule, on a GPU."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ..row_rules import NUM_MEASURES, Method, Operator, RowRule
from . import launch, tall, tuning
from .launch import DirectKernel, get_direct_kernel
from .macros import step_rows_macros, sweep_rows_macros, wide_rows_macros
from .tall import row_stride
from .updates import add_columns

#: The members of `structs.ROW_UPDATE`, as the module `struct` names them.
_ROW_UPDATE = "9Q4q4d4i"

#: Rows lie less than this apart, in numbers: distances within 32 rows fit 31 bits.
_STRIDE_LIMIT = 2**26


@dataclass(frozen=True)
class _Kernel:
    """A kernel that updates rows, and the cut of its work."""

    kernel: DirectKernel
    block_size: int
    choose_rows_per_block: Callable[[int], int]
    workspace_rows: int = 0  # of a block


def update_rows(
    rule: RowRule,
    targets: Array,
    rows: Array,
    dual: Array | None,
    num_steps: int,
    penalty: Array | None,
    matrix: Array,
) -> tuple[Array, Array | None, Array]:
    """Implement `Engine.update_rows`; the host waits for nothing."""
    targets, rows = _make_readable(targets), _make_readable(rows)
    dual = None if dual is None else _make_readable(dual)
    new_rows = _make_rows(rows)
    new_dual = None if dual is None else _make_rows(rows)
    measures = cupy.zeros((num_steps, NUM_MEASURES[rule.method]))
    if len(rows) > 0:  # no grid is that small
        matrix = cupy.ascontiguousarray(matrix)
        for first in range(0, num_steps, tuning.MAX_ROW_STEPS):
            part = measures[first : first + tuning.MAX_ROW_STEPS]
            _launch(rule, (targets, rows, dual), (matrix, penalty), (new_rows, new_dual), part)
            rows, dual = new_rows, new_dual  # the kernels may write what they read
    return new_rows, new_dual, measures


def _make_readable(matrix: Array) -> Array:
    """Return a matrix whose rows kernels can read: itself, or a copy."""
    return matrix if row_stride(matrix) < _STRIDE_LIMIT else cupy.ascontiguousarray(matrix)


def _make_rows(like: Array) -> Array:
    """Allocate a matrix whose rows are padded as `tall.solve_rows` pads them."""
    num_rows, rank = like.shape
    padded_rank = tuning.choose_row_nbytes(like.itemsize * rank) // like.itemsize
    return cupy.empty((num_rows, padded_rank), like.dtype)[:, :rank]


def _launch(
    rule: RowRule,
    inputs: tuple[Array, Array, Array | None],
    small: tuple[Array, Array | None],
    outputs: tuple[Array, Array | None],
    measures: Array,
) -> None:
    """Take as many steps as there are rows of `measures`; write what they measure there."""
    targets, rows, dual = inputs
    matrix, penalty = small
    new_rows, new_dual = outputs
    num_rows, rank = rows.shape
    chosen = _get_kernel(
        rule.method,
        rule.operator is Operator.GROUP_LASSO,
        rank,
        rows.dtype,
        rows.data.device_id,
    )
    rows_per_block = chosen.choose_rows_per_block(num_rows)
    num_blocks = -(-num_rows // rows_per_block)
    workspace = cupy.empty((num_blocks * chosen.workspace_rows, rank), rows.dtype)
    block_sums = cupy.empty((num_blocks, *measures.shape))
    low, high, scale = _describe_operator(rule)
    chosen.kernel(
        (num_blocks, 1),
        chosen.block_size,
        targets.data.ptr,
        rows.data.ptr,
        launch.find_address(dual),
        matrix.data.ptr,
        launch.find_address(penalty),
        new_rows.data.ptr,
        launch.find_address(new_dual),
        workspace.data.ptr,
        block_sums.data.ptr,
        num_rows,
        row_stride(targets),
        row_stride(rows),
        0 if dual is None else row_stride(dual),
        low,
        high,
        scale,
        rule.strength,
        rank,
        row_stride(new_rows),
        rows_per_block,
        len(measures),
    )
    if measures.size > 0:
        add_columns(block_sums, measures)


def _describe_operator(rule: RowRule) -> tuple[float, float, float]:
    """Return the bounds and the scale of `Operator` (`row_rules.cuh`)."""
    descriptions = {
        Operator.NONE: (0.0, 0.0, 1.0),
        Operator.NON_NEGATIVE: (-math.inf, 0.0, 1.0),
        Operator.L1: (-rule.strength, rule.strength, 1.0),
        Operator.L2_SQUARE: (0.0, 0.0, 1 / (1 + 2 * rule.strength)),
        Operator.GROUP_LASSO: (0.0, 0.0, 1.0),
    }
    return descriptions[rule.operator]


@functools.cache
def _get_kernel(
    method: Method, is_group_lasso: bool, rank: int, dtype: np.dtype, device_id: int
) -> _Kernel:
    """Return the fastest kernel for a rank, on the current device, `device_id`."""
    room = tall.find_room(device_id)
    if method is Method.HALS:
        sweep_cut = tuning.cut_sweep(rank, dtype.itemsize)
        if sweep_cut is not None and sweep_cut.shared_nbytes <= room:
            return _get_sweeping_kernel(sweep_cut, dtype, device_id)
    elif tall.suits_rank(rank, dtype, device_id):
        step_cut = tuning.cut_steps(rank, dtype.itemsize, has_norms=is_group_lasso)
        if step_cut.shared_nbytes <= room:
            return _get_stepping_kernel(step_cut, method, is_group_lasso, dtype, device_id)
    return _get_wide_kernel(method, is_group_lasso, dtype, device_id)


def _get_sweeping_kernel(cut: tuning.SweepCut, dtype: np.dtype, device_id: int) -> _Kernel:
    """Return the kernel of `sweep_rows.cu`."""
    kernel = get_direct_kernel(
        "sweep_rows.cu",
        "sweep_rows",
        _ROW_UPDATE,
        device_id,
        cut.shared_nbytes,
        **sweep_rows_macros(cut, dtype),
    )
    choose = functools.partial(tuning.choose_rows_per_block, step=32 * cut.num_rows)
    return _Kernel(kernel, 32 * cut.num_warps, choose)


def _get_stepping_kernel(
    cut: tuning.StepCut, method: Method, is_group_lasso: bool, dtype: np.dtype, device_id: int
) -> _Kernel:
    """Return the kernel of `step_rows.cu`."""
    kernel = get_direct_kernel(
        "step_rows.cu",
        "step_rows",
        _ROW_UPDATE,
        device_id,
        cut.shared_nbytes,
        **step_rows_macros(cut, method, is_group_lasso, dtype),
    )
    return _Kernel(kernel, cut.block_size, tuning.choose_rows_per_block)


def _get_wide_kernel(
    method: Method, is_group_lasso: bool, dtype: np.dtype, device_id: int
) -> _Kernel:
    """Return the kernel of `wide_rows.cu`."""
    kernel = get_direct_kernel(
        "wide_rows.cu",
        "wide_rows",
        _ROW_UPDATE,
        device_id,
        **wide_rows_macros(method, is_group_lasso, dtype),
    )
    workspace_rows = 0 if method is Method.HALS else 2 * tuning.WIDE_ROWS * tuning.WIDE_WARPS
    block_size = 32 * tuning.WIDE_WARPS
    return _Kernel(kernel, block_size, tuning.choose_wide_rows_per_block, workspace_rows)


def invert_penalized(gram: Array) -> tuple[Array, Array]:
    """Implement `Engine.invert_penalized` for a rank that suits `tall`; the host does not wait."""
    exact = gram.astype(np.float64)
    rank = len(exact)
    penalty = exact.trace() / rank
    # A matrix of zeros has a pseudo-inverse of zeros.
    inverse = tall.invert(exact + penalty * cupy.eye(rank))
    return cupy.ndarray(exact.shape, np.float64, memptr=inverse.memory), penalty

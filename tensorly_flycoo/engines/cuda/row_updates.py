"""Updates of the rows of a factor by a rule, on a GPU.

A launch takes some steps of all rows, and each of its blocks measures them. A second launch adds up
what the blocks measured. If the GPU is to decide how many steps are enough, that launch finds out,
and a third one takes so many again, or returns at once if none was in vain: the host waits for
nothing.

Where steps of non-negative ADMM may have levels, another variant of a kernel takes them. It can
also find the peaks of each block, of which array functions find those of all rows. Where a rank has
no such variant, array functions take these steps.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ..levelled_steps import step_by_arrays
from ..row_rules import NUM_MEASURES, Method, Operator, ReadMeasures, RowRule
from . import launch, tall, tuning
from .launch import DirectKernel, get_direct_kernel, row_stride
from .macros import add_measures_macros, step_rows_macros, sweep_rows_macros, wide_rows_macros

#: The members of `structs.ROW_UPDATE` and of `structs.STEP_MEASURES`, as the module `struct` names
#: them.
_ROW_UPDATE = f"9Q4q4d4iQ{tuning.MAX_ROW_STEPS}dQ"
_STEP_MEASURES = "4Qd2i"

#: Rows lie less than this apart, in numbers: distances within 32 rows fit 31 bits.
_STRIDE_LIMIT = 2**26


@dataclass(frozen=True)
class _Variant:
    """What kernels are specialised for, beside ranks and dtypes."""

    method: Method
    is_group_lasso: bool = False
    has_levels: bool = False


#: The variant that takes steps to levels.
_LEVELLED = _Variant(Method.ADMM, has_levels=True)


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
    if _has_levels(rule) and not _suits_levels(rows):
        assert dual is not None
        assert penalty is not None
        updated = step_by_arrays(rule, targets, rows, dual, num_steps, penalty, matrix)
        return updated[:3]
    return _take_steps(rule, targets, rows, dual, num_steps, penalty, matrix)


def find_peaks(
    rule: RowRule, targets: Array, rows: Array, dual: Array, penalty: Array, matrix: Array
) -> Array:
    """Implement `Engine.find_peaks`; the host waits for nothing."""
    num_steps = len(rule.levels)
    if not _suits_levels(rows):
        *_, peaks = step_by_arrays(rule, targets, rows, dual, num_steps, penalty, matrix)
        return peaks
    peaks = cupy.full((num_steps, rows.shape[1]), -math.inf)
    _, _, measures = _take_steps(rule, targets, rows, dual, num_steps, penalty, matrix, peaks)
    has_nan = cupy.isnan(measures).any(axis=1, keepdims=True)  # comparisons leave them out
    return cupy.where(has_nan, math.nan, peaks)


def _take_steps(
    rule: RowRule,
    targets: Array,
    rows: Array,
    dual: Array | None,
    num_steps: int,
    penalty: Array | None,
    matrix: Array,
    peaks: Array | None = None,
) -> tuple[Array, Array | None, Array]:
    """Take steps as `update_rows` does; if there are rows, write their `peaks` (num_steps, R)."""
    targets, rows, dual, matrix = _make_all_readable(targets, rows, dual, matrix)
    new_rows = _make_rows(rows)
    new_dual = None if dual is None else _make_rows(rows)
    num_measures = NUM_MEASURES[rule.method]
    if len(rows) == 0:  # no grid is that small
        return new_rows, new_dual, cupy.zeros((num_steps, num_measures))
    measures = cupy.empty((num_steps, num_measures))
    for first in range(0, num_steps, tuning.MAX_ROW_STEPS):
        these = slice(first, first + tuning.MAX_ROW_STEPS)
        part = measures[these]
        steps = _Steps(
            replace(rule, levels=rule.levels[these]),
            (targets, rows, dual),
            (matrix, penalty),
            (new_rows, new_dual),
            len(part),
            wants_peaks=peaks is not None,
        )
        steps.take()
        if num_measures > 0:
            steps.add_measures(part)
        if peaks is not None:
            peaks[these] = steps.find_peaks()
        rows, dual = new_rows, new_dual  # the kernels may write what they read
    return new_rows, new_dual, measures


def update_rows_until(
    rule: RowRule,
    targets: Array,
    rows: Array,
    dual: Array | None,
    num_steps: int,
    penalty: Array | None,
    matrix: Array,
    tolerance: float,
    wants_measures: bool,
) -> tuple[Array, Array | None, ReadMeasures | None] | None:
    """Implement `Engine.update_rows_until` for the steps of a launch."""
    if len(rows) == 0 or not 0 < num_steps <= tuning.MAX_ROW_STEPS:
        return None
    targets, rows, dual, matrix = _make_all_readable(targets, rows, dual, matrix)
    new_rows = _make_rows(rows)
    new_dual = None if dual is None else _make_rows(rows)
    measures = cupy.empty((num_steps, NUM_MEASURES[rule.method]))
    num_again = cupy.empty(1, np.int32)
    report = _take_report(rows.data.device_id) if wants_measures else None
    steps = _Steps(rule, (targets, rows, dual), (matrix, penalty), (new_rows, new_dual), num_steps)
    steps.take()
    steps.add_measures(measures, tolerance, num_again, report)
    steps.take(num_again)
    read = None if report is None else functools.partial(report.read, measures.shape)
    return new_rows, new_dual, read


def _make_all_readable(
    targets: Array, rows: Array, dual: Array | None, matrix: Array
) -> tuple[Array, Array, Array | None, Array]:
    """Return the arguments as kernels read them."""
    return (
        _make_readable(targets),
        _make_readable(rows),
        None if dual is None else _make_readable(dual),
        cupy.ascontiguousarray(matrix),
    )


def _make_readable(matrix: Array) -> Array:
    """Return a matrix whose rows kernels can read: itself, or a copy."""
    return matrix if row_stride(matrix) < _STRIDE_LIMIT else cupy.ascontiguousarray(matrix)


def _make_rows(like: Array) -> Array:
    """Allocate a matrix whose rows are padded as `tall.solve_rows` pads them."""
    num_rows, rank = like.shape
    padded_rank = tuning.choose_row_nbytes(like.itemsize * rank) // like.itemsize
    return cupy.empty((num_rows, padded_rank), like.dtype)[:, :rank]


class _Steps:
    """Some steps of all rows: what launches need for them."""

    def __init__(
        self,
        rule: RowRule,
        inputs: tuple[Array, Array, Array | None],
        small: tuple[Array, Array | None],
        outputs: tuple[Array, Array | None],
        num_steps: int,
        wants_peaks: bool = False,
    ) -> None:
        targets, rows, dual = inputs
        matrix, penalty = small
        new_rows, new_dual = outputs
        num_rows, rank = rows.shape
        self._method = rule.method
        self._device_id = rows.data.device_id
        variant = _Variant(
            rule.method,
            is_group_lasso=rule.operator is Operator.GROUP_LASSO,
            has_levels=wants_peaks or _has_levels(rule),
        )
        self._kernel = _get_kernel(variant, rank, rows.dtype, self._device_id)
        self._num_steps = num_steps
        rows_per_block = self._kernel.choose_rows_per_block(num_rows)
        self._num_blocks = -(-num_rows // rows_per_block)
        num_workspace_rows = self._num_blocks * self._kernel.workspace_rows
        self._workspace = cupy.empty((num_workspace_rows, rank), rows.dtype)
        num_sums = self._num_blocks * num_steps * NUM_MEASURES[rule.method]
        self._block_sums = cupy.empty(num_sums)
        self._block_peaks = None
        if wants_peaks:
            self._block_peaks = cupy.empty((self._num_blocks, num_steps, rank), rows.dtype)
        num_missing = tuning.MAX_ROW_STEPS - len(rule.levels)
        self._levels = rule.levels + (math.nan,) * num_missing
        self._arguments = (
            targets.data.ptr,
            rows.data.ptr,
            launch.find_address(dual),
            matrix.data.ptr,
            launch.find_address(penalty),
            new_rows.data.ptr,
            launch.find_address(new_dual),
            self._workspace.data.ptr,
            self._block_sums.data.ptr,
            num_rows,
            row_stride(targets),
            row_stride(rows),
            0 if dual is None else row_stride(dual),
            *_describe_operator(rule),
            rule.strength,
            rank,
            row_stride(new_rows),
            rows_per_block,
            num_steps,
        )

    def take(self, num_again: Array | None = None) -> None:
        """Take the steps; or again as many as `num_again` (1,) says, from the same inputs."""
        self._kernel.kernel(
            (self._num_blocks, 1),
            self._kernel.block_size,
            *self._arguments,
            launch.find_address(num_again),
            *self._levels,
            launch.find_address(self._block_peaks),
        )

    def find_peaks(self) -> Array:
        """Return the peaks of all rows, (num_steps, R), as if no number was nan."""
        assert self._block_peaks is not None
        return self._block_peaks.max(axis=0)

    def add_measures(
        self,
        measures: Array,
        tolerance: float = 0.0,
        num_again: Array | None = None,
        report: "_Report | None" = None,
    ) -> None:
        """Write what the steps measured, and how many of them to take again, if that is wanted."""
        kernel, block_size = _get_adding_kernel(self._method, self._device_id)
        kernel(
            (1, 1),
            block_size,
            self._block_sums.data.ptr,
            measures.data.ptr,
            launch.find_address(num_again),
            0 if report is None else report.address,
            tolerance,
            self._num_blocks,
            self._num_steps,
        )
        if report is not None:
            report.is_written.record(cupy.cuda.get_current_stream())


class _Report:
    """Memory of the host to which a GPU writes what the steps of an update measured."""

    def __init__(self, device_id: int) -> None:
        # How many steps were needed, and up to four numbers of each.
        num_numbers = 1 + 4 * tuning.MAX_ROW_STEPS
        memory = cupy.cuda.alloc_pinned_memory(8 * num_numbers)
        self.address = memory.ptr
        self.is_written = cupy.cuda.Event(disable_timing=True)
        self._numbers = np.frombuffer(memory, np.float64, num_numbers)
        self._device_id = device_id

    def read(self, shape: tuple[int, int]) -> list[list[float]]:
        """Wait for the measures of some steps; return those that were needed, and be free again."""
        self.is_written.synchronize()
        num_needed = int(self._numbers[0])
        measures = self._numbers[1 : 1 + math.prod(shape)].reshape(shape)
        needed = measures[:num_needed].tolist()
        _free_reports[self._device_id].append(self)
        return needed


#: All reports: a GPU may still write one that nobody has read, after an error.
_reports: list[_Report] = []

#: Those that are free, by device.
_free_reports: dict[int, list[_Report]] = defaultdict(list)


def _take_report(device_id: int) -> _Report:
    """Return a report that is free, of the current device."""
    try:
        return _free_reports[device_id].pop()
    except IndexError:
        report = _Report(device_id)
        _reports.append(report)
        return report


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
def _get_adding_kernel(method: Method, device_id: int) -> tuple[DirectKernel, int]:
    """Return the kernel of `add_measures.cu`, and the threads of its block."""
    kernel = get_direct_kernel(
        "add_measures.cu", "add_measures", _STEP_MEASURES, device_id, **add_measures_macros(method)
    )
    num_numbers = tuning.MAX_ROW_STEPS * NUM_MEASURES[method]
    return kernel, tuning.NUM_MEASURE_PARTS * num_numbers


def _has_levels(rule: RowRule) -> bool:
    """Return whether a step has a level."""
    return not all(map(math.isnan, rule.levels))


def _suits_levels(rows: Array) -> bool:
    """Return whether a kernel takes steps to levels, and finds peaks, of such rows."""
    return _cut_steps(_LEVELLED, rows.shape[1], rows.dtype, rows.data.device_id) is not None


@functools.cache
def _get_kernel(variant: _Variant, rank: int, dtype: np.dtype, device_id: int) -> _Kernel:
    """Return the fastest kernel for a rank, on the current device, `device_id`."""
    if variant.method is Method.HALS:
        room = tall.find_room(device_id)
        sweep_cut = tuning.cut_sweep(rank, dtype.itemsize)
        if sweep_cut is not None and sweep_cut.shared_nbytes <= room:
            return _get_sweeping_kernel(sweep_cut, dtype, device_id)
        return _get_wide_kernel(variant, dtype, device_id)
    step_cut = _cut_steps(variant, rank, dtype, device_id)
    if step_cut is None:
        return _get_wide_kernel(variant, dtype, device_id)
    return _get_stepping_kernel(step_cut, variant, dtype, device_id)


def _cut_steps(
    variant: _Variant, rank: int, dtype: np.dtype, device_id: int
) -> tuning.StepCut | None:
    """Return the cut of `step_rows.cu`, or None if the current device does not suit it."""
    if not tall.suits_rank(rank, dtype, device_id):
        return None
    cut = tuning.cut_steps(
        rank, dtype.itemsize, has_norms=variant.is_group_lasso, has_levels=variant.has_levels
    )
    return cut if cut.shared_nbytes <= tall.find_room(device_id) else None


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
    cut: tuning.StepCut, variant: _Variant, dtype: np.dtype, device_id: int
) -> _Kernel:
    """Return the kernel of `step_rows.cu`."""
    kernel = get_direct_kernel(
        "step_rows.cu",
        "step_rows",
        _ROW_UPDATE,
        device_id,
        cut.shared_nbytes,
        **step_rows_macros(cut, variant.method, variant.is_group_lasso, dtype, variant.has_levels),
    )
    step = cut.group_rows * cut.num_groups
    choose = functools.partial(tuning.choose_rows_per_block, step=step)
    return _Kernel(kernel, cut.block_size, choose)


def _get_wide_kernel(variant: _Variant, dtype: np.dtype, device_id: int) -> _Kernel:
    """Return the kernel of `wide_rows.cu`, for a variant without levels."""
    kernel = get_direct_kernel(
        "wide_rows.cu",
        "wide_rows",
        _ROW_UPDATE,
        device_id,
        **wide_rows_macros(variant.method, variant.is_group_lasso, dtype),
    )
    workspace_rows = (
        0 if variant.method is Method.HALS else 2 * tuning.WIDE_ROWS * tuning.WIDE_WARPS
    )
    block_size = 32 * tuning.WIDE_WARPS
    return _Kernel(kernel, block_size, tuning.choose_wide_rows_per_block, workspace_rows)

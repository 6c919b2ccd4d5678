"""The CUDA engine: the kernels of `kernels/`, launched through CuPy.

Launches go to CuPy's current stream, memory comes from CuPy's pool, and all arrays of a tensor are
on the GPU that was current when it was built.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...base.array_modules import is_cupy
from ...base.checks import check_current_gpu
from ...format.layout import Layout
from ...format.packing import RecordFormat
from ...format.primitives import Step
from ..protocol import Engine, Factors
from . import exchange, group_products, launch, mersenne_twister, tall, tuning, updates
from .carries import Carries, add_carries, allocate_carries
from .compact_ids import find_bits, list_parts
from .macros import Ratios, mttkrp_macros, ttmc_macros
from .primitives import CudaPrimitives, launch_on_unfolding
from .staging import CudaStager
from .structs import (
    carries_nbytes,
    make_launch_arguments,
    make_operands,
    make_ranks,
    row_pitch,
    slot_nbytes,
)


class Workspace(NamedTuple):
    """The memory of one MTTKRP: the other modes' factors, with adjacent columns, and carries."""

    arrays: list[Array]
    pitches: list[int]  # bytes from row to row of each
    carries: Carries


#: The most multiplications for a Gram matrix worth forming: they take a few tenths of a second.
_MAX_GRAM_OPERATIONS = 10**13

#: Multiplications of dense blocks that take as long as adding the product of one pair of entries.
_PAIR_COST = 2**9

#: Elements of a dense block of columns whose Gram matrix is computed at a time.
_GRAM_BLOCK_SIZE = 2**24


class CudaEngine(CudaPrimitives, Engine):
    """CUDA kernels, on CuPy arrays."""

    name = "cuda"
    array_type = cupy.ndarray
    tall = tall
    make_stager = CudaStager

    def choose_sizes(self, record_format: RecordFormat) -> tuple[int, int]:
        slot = slot_nbytes(record_format.merged)
        gpu = launch.current_gpu()
        tile_size = tuning.choose_tile_size(slot, record_format.merged.ndim - 1, gpu)
        return tile_size, tuning.BUCKET_SIZE

    def receive(self, coords: Array, values: Array) -> tuple[Array, Array]:
        if is_cupy(coords):  # host arrays are copied block by block in `pack`
            self.check_arrays({"coords": coords, "values": values})
        return coords, values

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        # Records of a streamed slab are on the host.
        arrays = {name: a for name, a in arrays.items() if not isinstance(a, np.ndarray)}
        check_current_gpu(arrays, cupy.cuda.runtime.getDevice())

    def count_free_nbytes(self) -> int:
        free, _ = cupy.cuda.runtime.memGetInfo()
        pool: Any = getattr(cupy.cuda.get_allocator(), "__self__", None)
        if not hasattr(pool, "get_limit"):  # not a pool: it holds nothing back for later
            return free
        free = free + pool.free_bytes()
        limit = pool.get_limit()
        return min(free, limit - pool.used_bytes()) if limit else free

    def mttkrp(
        self,
        layout: Layout,
        factors: Factors,
        mode: int,
        out: Array,
        weights: Array | None = None,
        stays: bool = False,
    ) -> None:
        workspace = self.allocate_workspace(layout, factors, mode, out)
        with layout.step(mode, self, stays) as step:
            if layout.tilings[mode].carry_rows.shape[0] == 0:
                out.fill(0)
                return
            scales = None if weights is None else cupy.ascontiguousarray(weights)
            kernel = _find_kernel(layout, step, mode, workspace, out)
            if self.is_logging():
                used = {"kernel": "mttkrp_remap.cu", "cut": kernel.cut}
                self.log("mttkrp", layout.name, mode=mode, **used)
            kernel.launch(step, workspace, scales, out)
            add_carries(workspace.carries, out)

    def mttkrp_of_ratios(
        self,
        layout: Layout,
        factors: Factors,
        mode: int,
        out: Array,
        smallest: float | None,
        wants_sum: bool = False,
        stays: bool = False,
    ) -> Array | None:
        arrays, pitches, carries = workspace = self.allocate_workspace(layout, factors, mode, out)
        with layout.step(mode, self, stays) as step:
            num_tiles = layout.tilings[mode].carry_rows.shape[0]
            if num_tiles == 0:
                out.fill(0)
                return cupy.zeros(()) if wants_sum else None
            ratios = Ratios.DIVIDE_AND_LOG if wants_sum else Ratios.DIVIDE
            if smallest is None:
                ratios = Ratios.MULTIPLY
            kernel = _find_kernel(layout, step, mode, workspace, out, ratios)
            self.log("ratios", layout.name, mode=mode, kernel="mttkrp_remap.cu", cut=kernel.cut)
            log_sums = cupy.empty((num_tiles, kernel.block_size // 32)) if wants_sum else None
            model = {"model_factor": arrays[-1].data.ptr, "model_row_nbytes": pitches[-1]}
            if log_sums is not None:
                model["log_sums"] = log_sums.data.ptr
            inputs = Workspace(arrays[:-1], pitches[:-1], carries)
            kernel.launch(step, inputs, None, out, smallest=smallest or 0.0, **model)
            add_carries(carries, out)
            return None if log_sums is None else log_sums.sum()

    def allocate_workspace(
        self, layout: Layout, factors: Factors, mode: int, out: Array
    ) -> Workspace:
        """Return the factors as kernels read them, that of `mode` last, and memory for carries."""
        arrays = [factors[n] for n in sorted(factors) if n != mode]
        if mode in factors:
            arrays.append(factors[mode])
        arrays = [f if _is_readable(f) else cupy.ascontiguousarray(f) for f in arrays]
        carry_rows = layout.tilings[mode].carry_rows
        carries = allocate_carries(carry_rows.size, out.shape[1], out.dtype, carry_rows)
        pitches = [row_pitch(array) for array in arrays]
        if math.gcd(16, *pitches) < 16:  # the rows of one are not aligned
            arrays = _align_rows(arrays, layout.records.shape[0])
            pitches = [row_pitch(array) for array in arrays]
        return Workspace(arrays, pitches, carries)

    combine_rows = staticmethod(group_products.combine_rows)
    contract_rows = staticmethod(group_products.contract_rows)
    add_parts = staticmethod(exchange.add_parts)

    def ttmc(
        self, layout: Layout, inputs: Factors, mode: int, out: Array, slots: Array | None = None
    ) -> None:
        assert layout.merged is layout.record_format, "TTMc knows no groups"
        record_format = layout.record_format
        tiling = layout.tilings[mode]
        num_tiles = tiling.carry_rows.shape[0]
        num_columns = out.shape[1]
        if num_tiles == 0:
            out.fill(0)
            return
        cut = tuning.cut_columns(num_columns, len(inputs))
        block_size = tuning.choose_block_size(layout.tile_size)
        num_runs = num_tiles * (block_size // cut.group_size)
        carries = allocate_carries(num_runs, num_columns, out.dtype)
        arrays = [f if _is_readable(f) else cupy.ascontiguousarray(f) for f in inputs.values()]
        occupancy = tuning.choose_occupancy(launch.current_gpu(), len(inputs))
        slot_dtype = np.dtype(np.uint32) if slots is None else slots.dtype
        with layout.step(mode, self, stays=True) as step:
            if len(out) > layout.count_nonempty_rows(mode):
                out.fill(0)
            types = (slot_dtype, find_bits(step.pull_ids))
            macros = ttmc_macros(record_format, layout.tile_size, cut, occupancy, *types)
            kernel = launch.get_kernel("ttmc.cu", "ttmc", **macros)
            self.log("ttmc", layout.name, mode=mode, kernel="ttmc.cu", cut=cut)
            arguments = (
                make_operands(record_format, mode, inputs, arrays),
                make_ranks(arrays),
                np.int64(step.records.shape[0]),
                np.int64(step.bucket_size),
                tiling.carry_rows,
                slots,
                step.records,
                *list_parts(step.pull_ids),
                np.int64(num_columns),
                out,
                np.uint64(carries.rows),
                np.uint64(carries.sums),
            )
            shared_nbytes = layout.tile_size * slot_nbytes(record_format)
            sizes = (num_tiles, cut.num_parts, block_size)
            launch.launch_tiles(kernel, *sizes, arguments, shared_nbytes)
            add_carries(carries, out)

    def gram(self, coords: Array, values: Array, diagonal: Array) -> Array:
        if values.ndim == 2:  # one matrix beside the other
            shifts = cupy.arange(values.shape[1])[:, None] * (coords[:1, -1:] + 1)
            pair = cupy.broadcast_arrays(coords[0] + shifts, coords[1])
            coords = cupy.stack(pair).reshape(2, -1)
            values = values.T.reshape(-1)
        # cuSPARSE adds in no fixed order.
        gram = _add_pairs(coords, values, diagonal.size)
        if gram is None:
            gram = _multiply_dense(coords, values, diagonal.size)
        launch_on_unfolding("add_diagonal", diagonal.size, diagonal, gram)
        return gram

    def is_gram_cheap(self, size: int, num_groups: int) -> bool:
        return size**2 * num_groups <= _MAX_GRAM_OPERATIONS

    def draw_uniform(self, random: Any, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        if mersenne_twister.suits(random, shape):
            return mersenne_twister.draw_uniform(random, shape, dtype)
        return super().draw_uniform(random, shape, dtype)

    def invert_products(self, grams: Sequence[Array], dtype: np.dtype) -> Array | None:
        fits = 0 < len(grams) <= tall.MAX_GRAMS and tall.suits_rank(grams[0].shape[1], dtype)
        return tall.invert_products(grams, dtype) if fits else None

    invert_sums = staticmethod(updates.invert_sums)
    scale_rows = staticmethod(updates.scale_rows)
    measure_steps = staticmethod(updates.measure_steps)
    extrapolate = staticmethod(updates.extrapolate)
    sweep_nonnegative = staticmethod(updates.sweep_nonnegative)


def _add_pairs(coords: Array, values: Array, size: int) -> Array | None:
    """Compute a Gram matrix from the pairs of entries of each column, or None if they are many."""
    nnz = values.size
    num_pairs = cupy.zeros(1, np.uint64)
    if nnz == 0:
        return cupy.zeros((size, size))
    launch_on_unfolding("count_pairs", nnz, coords, num_pairs)
    if int(num_pairs[0]) * _PAIR_COST > size**2 * (int(coords[0, -1]) + 1):
        return None
    parts = cupy.zeros((2, size, size), np.uint64)
    launch_on_unfolding("add_pairs", nnz, np.int64(size), coords, values, parts)
    launch_on_unfolding("finish_pairs", size**2, np.int64(size), parts)
    return parts[0].view(np.float64)


def _multiply_dense(coords: Array, values: Array, size: int) -> Array:
    """Compute a Gram matrix from dense blocks of columns."""
    nnz = values.size
    num_columns = int(coords[0, -1]) + 1
    step = max(1, min(_GRAM_BLOCK_SIZE // max(size, 1), num_columns))
    memory = cupy.empty((step, size))
    gram = None
    for first in range(0, num_columns, step):
        block = memory[: num_columns - first]
        block.data.memset_async(0, block.nbytes)
        sizes = map(np.int64, (first, first + block.shape[0], size))
        launch_on_unfolding("fill_columns", nnz, *sizes, coords, values, block)
        gram = block.T @ block if gram is None else np.add(gram, block.T @ block, out=gram)
    return gram


def _is_readable(factor: Array) -> bool:
    """Return whether kernels can read the rows of a factor where they are."""
    row_nbytes, column_nbytes = factor.strides
    return column_nbytes == factor.itemsize and 0 < row_nbytes < 2**32


def _align_rows(arrays: list[Array], nnz: int) -> list[Array]:
    """Copy factors (I_n, R) to rows aligned for loads, if that pays and memory suffices.

    No bit of the result changes: the order of additions does not depend on how rows are loaded.
    """
    row_nbytes = tuning.choose_row_nbytes(arrays[0].shape[1] * arrays[0].itemsize)
    is_aligned = [row_pitch(a) % min(row_nbytes, 16) == 0 for a in arrays]
    pairs = list(zip(arrays, is_aligned, strict=True))
    copied = [a for a, is_so in pairs if not is_so]
    if not copied:
        return arrays
    num_rows = sum(a.shape[0] for a in copied)
    alignment = _common_alignment(copied, [row_pitch(a) for a in copied])
    if not tuning.pays_to_align(num_rows, alignment, nnz, len(arrays)):
        return arrays
    try:
        return [a if is_so else pad_rows(a, row_nbytes) for a, is_so in pairs]
    except cupy.cuda.memory.OutOfMemoryError:
        return arrays


def pad_rows(array: Array, row_nbytes: int) -> Array:
    """Copy a matrix to one whose rows begin `row_nbytes` apart, with unused zeros in between."""
    num_rows, rank = array.shape
    padded = cupy.zeros((num_rows, row_nbytes // array.itemsize), array.dtype)
    padded[:, :rank] = array
    return padded[:, :rank]


class MttkrpKernel:
    """A specialisation of `mttkrp_remap.cu`, with all arguments but the arrays.

    Rows of factors and of results have the two `alignments`.
    """

    def __init__(
        self,
        layout: Layout,
        step: Step,
        mode: int,
        rank: int,
        alignments: tuple[int, int],
        ratios: Ratios,
    ) -> None:
        record_format = layout.merged
        tiling = layout.tilings[mode]
        inputs = [n for n in range(record_format.ndim) if n != mode]
        self.cut = cut = tuning.cut_rank(rank, record_format.dtype.itemsize, *alignments)
        self.block_size = tuning.choose_block_size(layout.tile_size)
        self._num_tiles = tiling.carry_rows.shape[0]
        num_empty = tiling.empty_rows.shape[0]
        # All of them but those that a launch sets.
        same = self._arguments = make_launch_arguments(record_format, mode, inputs)
        same.rank, same.nnz, same.bucket_size = rank, step.records.shape[0], int(step.bucket_size)
        same.num_empty = num_empty
        same.empty_share = -(-num_empty // self._num_tiles)
        same.carry_rows, same.empty_rows = _point_at(tiling.carry_rows, tiling.empty_rows)
        same.pull_ids, same.pull_highs = _point_at(*list_parts(step.pull_ids))
        runs = step.remap_ids
        remap_dtype = None
        if runs is not None:
            remap_dtype = runs.shifts.dtype
            same.max_runs = runs.max_runs
            same.run_starts, same.run_counts = _point_at(runs.starts, runs.counts)
            same.run_shifts = runs.shifts.data.ptr
            same.write_lows, same.write_highs = _point_at(*list_parts(step.write_order))
        occupancy = tuning.choose_occupancy(launch.current_gpu(), len(inputs))
        types = (tiling.empty_rows.dtype, find_bits(step.pull_ids), remap_dtype)
        macros = mttkrp_macros(record_format, layout.tile_size, cut, occupancy, *types, ratios)
        kernel = launch.get_kernel("mttkrp_remap.cu", "mttkrp", **macros)
        # The tile, and the carry-outs between its groups of threads.
        shared_nbytes = layout.tile_size * slot_nbytes(record_format)
        shared_nbytes += carries_nbytes(record_format.dtype, cut, self.block_size)
        self._kernel = launch.DirectKernel(kernel, f"{ctypes.sizeof(same)}sQ", shared_nbytes)

    def launch(
        self,
        step: Step,
        workspace: Workspace,
        weights: Array | None,
        out: Array,
        **model: Any,
    ) -> None:
        """Launch it, for a workspace with the other modes' factors; `model` is more arguments."""
        arrays, pitches, carries = workspace
        arguments = type(self._arguments).from_buffer_copy(self._arguments)
        operands = arguments.operands
        operands.factors[: len(arrays)] = [array.data.ptr for array in arrays]
        operands.row_nbytes[: len(arrays)] = pitches
        arguments.records = step.records.data.ptr
        arguments.out = out.data.ptr
        arguments.spare = 0 if step.spare is None else step.spare.data.ptr
        arguments.partial_rows = carries.sums
        scales = 0 if weights is None else weights.data.ptr
        for name, value in model.items():
            setattr(arguments, name, value)
        # Launched as by `launch.launch_tiles`.
        for first_tile in range(0, self._num_tiles, launch.MAX_GRID):
            arguments.first_tile = first_tile
            grid = (min(self._num_tiles - first_tile, launch.MAX_GRID), self.cut.num_parts)
            self._kernel(grid, self.block_size, bytes(arguments), scales)


def _point_at(*arrays: Array | None) -> list[int]:
    """Return the addresses of arrays, 0 for None."""
    return [0 if array is None else array.data.ptr for array in arrays]


def _find_kernel(
    layout: Layout,
    step: Step,
    mode: int,
    workspace: Workspace,
    out: Array,
    ratios: Ratios = Ratios.NONE,
) -> MttkrpKernel:
    """Return the kernel for a mode; it is prepared once, and kept while the layout lives."""
    rank = out.shape[1]
    of_out = _common_alignment([out], [rank * out.itemsize])
    alignments = (_common_alignment(workspace.arrays, workspace.pitches), of_out)
    key = (mode, rank, alignments, step.spare is None, ratios)
    if key not in layout.prepared:
        layout.prepared[key] = MttkrpKernel(layout, step, mode, rank, alignments, ratios)
    return layout.prepared[key]


def _common_alignment(arrays: list[Array], pitches: list[int]) -> int:
    """Return the largest power of two, up to 16, that divides the addresses of all rows."""
    bits = 16
    for array, pitch in zip(arrays, pitches, strict=True):
        bits |= array.data.ptr | pitch
    return bits & -bits


#: The only instance.
CUDA = CudaEngine()

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
from ...format.packed_records import PackedRecords
from ...format.packing import RecordFormat
from ...format.primitives import Step
from ..protocol import Engine, Factors
from ..row_blocks import Rows, list_blocks
from . import (
    exchange,
    group_products,
    launch,
    mersenne_twister,
    narrow_rows,
    row_updates,
    tall,
    tuning,
    updates,
)
from .carries import Carries, add_carries, allocate_carries
from .compact_ids import PackedIds, find_bits, list_parts
from .macros import Ratios, mttkrp_macros, ttmc_macros
from .packed_records import pack
from .primitives import CudaPrimitives, launch_on_unfolding
from .staging import CudaStager
from .structs import (
    carries_nbytes,
    make_launch_arguments,
    make_operands,
    make_ranks,
    make_row_blocks,
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
    most_row_blocks = 8
    pack_records = staticmethod(pack)

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
        on_host = (np.ndarray, PackedRecords)
        on_gpu = {name: array for name, array in arrays.items() if not isinstance(array, on_host)}
        check_current_gpu(on_gpu, cupy.cuda.runtime.getDevice())

    def count_free_nbytes(self) -> int:
        free, _ = cupy.cuda.runtime.memGetInfo()
        pool: Any = getattr(cupy.cuda.get_allocator(), "__self__", None)
        if not hasattr(pool, "get_limit"):  # not a pool: it holds nothing back for later
            return free
        free += pool.free_bytes()
        limit = pool.get_limit()
        if limit:
            free = min(free, limit - pool.used_bytes())
        return free

    def mttkrp(
        self,
        layout: Layout,
        factors: Factors,
        mode: int,
        out: Rows,
        weights: Array | None = None,
        stays: bool = False,
    ) -> None:
        """Implement `Engine.mttkrp`: a launch for all tiles, then those that add their carries."""
        workspace = self.allocate_workspace(layout, factors, mode, out)
        with layout.step(mode, self, stays) as step:
            if layout.tilings[mode].carry_rows.shape[0] == 0:  # no nonzeros
                out.fill(0)
                return
            scales = None if weights is None else cupy.ascontiguousarray(weights)
            kernel = _find_kernel(layout, step, mode, workspace, out)
            if self.is_logging():
                self.log("mttkrp", layout.name, mode=mode, kernel="mttkrp_remap.cu", cut=kernel.cut)
            kernel.launch(step, workspace, scales, out)
            add_carries(workspace.carries, out)

    def mttkrp_of_ratios(
        self,
        layout: Layout,
        factors: Factors,
        mode: int,
        out: Rows,
        smallest: float | None,
        wants_sum: bool = False,
        stays: bool = False,
    ) -> Array | None:
        """Implement `Engine.mttkrp_of_ratios`, by the kernel of MTTKRP with ratios switched on."""
        workspace = self.allocate_workspace(layout, factors, mode, out)
        arrays, pitches, carries = workspace
        if smallest is None:
            ratios = Ratios.MULTIPLY
        elif wants_sum:
            ratios = Ratios.DIVIDE_AND_LOG
        else:
            ratios = Ratios.DIVIDE
        with layout.step(mode, self, stays) as step:
            num_tiles = layout.tilings[mode].carry_rows.shape[0]
            if num_tiles == 0:
                out.fill(0)
                return cupy.zeros(()) if wants_sum else None
            kernel = _find_kernel(layout, step, mode, workspace, out, ratios)
            self.log("ratios", layout.name, mode=mode, kernel="mttkrp_remap.cu", cut=kernel.cut)
            log_sums = None
            if wants_sum:  # a sum for each warp of each tile
                log_sums = cupy.empty((num_tiles, kernel.block_size // 32))
            # The factor of `mode` comes last: the model's values need it, the product does not.
            kernel.launch(
                step,
                Workspace(arrays[:-1], pitches[:-1], carries),
                weights=None,
                out=out,
                smallest=smallest or 0.0,
                model_factor=arrays[-1].data.ptr,
                model_row_nbytes=pitches[-1],
                log_sums=launch.find_address(log_sums),
            )
            add_carries(carries, out)
            if log_sums is None:
                return None
            return log_sums.sum()

    def allocate_workspace(
        self, layout: Layout, factors: Factors, mode: int, out: Rows
    ) -> Workspace:
        """Return the factors as kernels read them, that of `mode` last, and memory for carries."""
        inputs = [factors[n] for n in sorted(factors) if n != mode]
        if mode in factors:
            inputs.append(factors[mode])
        arrays = [_make_readable(factor) for factor in inputs]
        carry_rows = layout.tilings[mode].carry_rows
        carries = allocate_carries(carry_rows.size, out.shape[1], out.dtype, carry_rows)
        pitches = [row_pitch(array) for array in arrays]
        if math.gcd(16, *pitches) < 16:  # the rows of one are not aligned
            arrays = _align_rows(arrays, layout.records.shape[0], out.itemsize)
            pitches = [row_pitch(array) for array in arrays]
        return Workspace(arrays, pitches, carries)

    find_scales = staticmethod(narrow_rows.find_scales)
    round_rows = staticmethod(narrow_rows.round_rows)
    narrow_pays = staticmethod(tuning.narrow_pays)
    combine_rows = staticmethod(group_products.combine_rows)
    contract_rows = staticmethod(group_products.contract_rows)
    add_parts = staticmethod(exchange.add_parts)

    def ttmc(
        self, layout: Layout, inputs: Factors, mode: int, out: Array, slots: Array | None = None
    ) -> None:
        """Implement `Engine.ttmc`: a launch for all tiles, then those that add their carries."""
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
        # Each group of threads has a run of a tile's nonzeros, and leaves a partial row.
        num_runs = num_tiles * (block_size // cut.group_size)
        carries = allocate_carries(num_runs, num_columns, out.dtype)
        arrays = [_make_readable(factor) for factor in inputs.values()]
        occupancy = tuning.choose_occupancy(launch.current_gpu(), len(inputs))

        with layout.step(mode, self, stays=True) as step:
            if len(out) > layout.count_nonempty_rows(mode):
                out.fill(0)  # the kernel writes no rows without nonzeros
            macros = ttmc_macros(
                record_format,
                layout.tile_size,
                cut,
                occupancy,
                slot_dtype=np.dtype(np.uint32) if slots is None else slots.dtype,
                pull_bits=find_bits(step.pull_ids),
            )
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
            launch.launch_tiles(
                kernel,
                num_tiles,
                cut.num_parts,
                block_size,
                arguments,
                shared_nbytes=layout.tile_size * slot_nbytes(record_format),
            )
            add_carries(carries, out)

    def gram(self, coords: Array, values: Array, diagonal: Array) -> Array:
        """Implement `Engine.gram` by pairs of entries, or by dense blocks if these are many."""
        if values.ndim == 2:
            coords, values = _place_side_by_side(coords, values)
        # Not by cuSPARSE, which adds in no fixed order.
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
        if not 0 < len(grams) <= tall.MAX_GRAMS or not tall.suits_rank(grams[0].shape[1], dtype):
            return None
        return tall.invert_products(grams, dtype)

    invert_sums = staticmethod(updates.invert_sums)
    scale_rows = staticmethod(updates.scale_rows)
    measure_steps = staticmethod(updates.measure_steps)
    extrapolate = staticmethod(updates.extrapolate)
    update_rows = staticmethod(row_updates.update_rows)
    update_rows_until = staticmethod(row_updates.update_rows_until)
    find_peaks = staticmethod(row_updates.find_peaks)

    def invert_penalized(self, gram: Array) -> tuple[Array, Array]:
        if tall.suits_rank(len(gram), np.dtype(np.float32)):  # of whichever precision
            return tall.invert_penalized(gram)
        return super().invert_penalized(gram)


def _place_side_by_side(coords: Array, values: Array) -> tuple[Array, Array]:
    """Make K matrices of values (n, K) one, whose columns are those of each matrix in turn."""
    num_columns = coords[:1, -1:] + 1  # of each; an array, since reading it would wait for the GPU
    shifts = cupy.arange(values.shape[1])[:, None] * num_columns
    columns, rows = cupy.broadcast_arrays(coords[0] + shifts, coords[1])
    return cupy.stack([columns, rows]).reshape(2, -1), values.T.reshape(-1)


def _add_pairs(coords: Array, values: Array, size: int) -> Array | None:
    """Compute a Gram matrix from the pairs of entries of each column, or None if they are many."""
    nnz = values.size
    if nnz == 0:
        return cupy.zeros((size, size))
    num_pairs = cupy.zeros(1, np.uint64)
    launch_on_unfolding("count_pairs", nnz, coords, num_pairs)
    num_columns = int(coords[0, -1]) + 1
    if int(num_pairs[0]) * _PAIR_COST > size**2 * num_columns:
        return None
    parts = cupy.zeros((2, size, size), np.uint64)
    launch_on_unfolding("add_pairs", nnz, np.int64(size), coords, values, parts)
    launch_on_unfolding("finish_pairs", size**2, np.int64(size), parts)
    return parts[0].view(np.float64)


def _multiply_dense(coords: Array, values: Array, size: int) -> Array:
    """Compute a Gram matrix from dense blocks of columns."""
    num_columns = int(coords[0, -1]) + 1
    columns_per_block = max(1, min(_GRAM_BLOCK_SIZE // max(size, 1), num_columns))
    memory = cupy.empty((columns_per_block, size))
    gram = None
    for start in range(0, num_columns, columns_per_block):
        block = memory[: num_columns - start]
        block.data.memset_async(0, block.nbytes)
        launch_on_unfolding(
            "fill_columns",
            values.size,
            np.int64(start),
            np.int64(start + block.shape[0]),
            np.int64(size),
            coords,
            values,
            block,
        )
        product = block.T @ block
        if gram is None:
            gram = product
        else:
            gram += product
    return gram


def _make_readable(factor: Array) -> Array:
    """Return a factor whose rows kernels can read: itself, or a copy."""
    row_nbytes, column_nbytes = factor.strides
    is_readable = column_nbytes == factor.itemsize and 0 < row_nbytes < 2**32
    return factor if is_readable else cupy.ascontiguousarray(factor)


def _align_rows(arrays: list[Array], nnz: int, itemsize: int) -> list[Array]:
    """Copy factors (I_n, R) to rows aligned for loads, if that pays and memory suffices.

    No bit of the result changes: the order of additions does not depend on how rows are loaded.
    The values of the tensor have `itemsize` bytes.
    """
    unaligned = [array for array in arrays if not _is_aligned(array, itemsize)]
    if not unaligned:
        return arrays
    num_rows = sum(array.shape[0] for array in unaligned)
    pitches = [row_pitch(array) for array in unaligned]
    alignment = _common_alignment(unaligned, pitches, itemsize)
    if not tuning.pays_to_align(num_rows, alignment, nnz, len(arrays)):
        return arrays
    try:
        return [
            array if _is_aligned(array, itemsize) else pad_rows(array, _choose_pitch(array))
            for array in arrays
        ]
    except cupy.cuda.memory.OutOfMemoryError:
        return arrays


def _is_aligned(array: Array, itemsize: int) -> bool:
    """Return whether the rows are aligned for loads of as many numbers as 16 bytes of values."""
    most_nbytes = 16 * array.itemsize // itemsize
    return row_pitch(array) % min(_choose_pitch(array), most_nbytes) == 0


def _choose_pitch(array: Array) -> int:
    """Choose how far apart the rows of a factor should be."""
    return tuning.choose_row_nbytes(array.shape[1] * array.itemsize)


def pad_rows(array: Array, row_nbytes: int) -> Array:
    """Copy a matrix to one whose rows begin `row_nbytes` apart, with unused zeros in between."""
    num_rows, rank = array.shape
    padded = cupy.zeros((num_rows, row_nbytes // array.itemsize), array.dtype)
    padded[:, :rank] = array
    return padded[:, :rank]


class MttkrpKernel:
    """A specialisation of `mttkrp_remap.cu`, with all arguments but the arrays.

    Rows of factors and of results have the two `alignments`. Those of factors may be narrow, those
    of results in several blocks.
    """

    def __init__(
        self,
        layout: Layout,
        step: Step,
        mode: int,
        rank: int,
        alignments: tuple[int, int],
        ratios: Ratios,
        is_narrow: bool,
        num_out_blocks: int,
    ) -> None:
        record_format = layout.merged
        tiling = layout.tilings[mode]
        inputs = [n for n in range(record_format.ndim) if n != mode]
        itemsize = record_format.dtype.itemsize
        num_loads = 1 if ratios else tuning.choose_num_loads(rank, itemsize, len(inputs))
        self.cut = tuning.cut_rank(rank, itemsize, *alignments, num_loads)
        self.block_size = tuning.choose_block_size(layout.tile_size)
        self._num_tiles = tiling.carry_rows.shape[0]
        self._arguments = _make_arguments(layout, step, mode, inputs, rank, num_out_blocks)
        runs = step.remap_ids
        macros = mttkrp_macros(
            record_format,
            layout.tile_size,
            self.cut,
            occupancy=tuning.choose_occupancy(launch.current_gpu(), len(inputs)),
            empty_dtype=tiling.empty_rows.dtype,
            pull_bits=find_bits(step.pull_ids),
            remap_dtype=None if runs is None else runs.shifts.dtype,
            ratios=ratios,
            is_narrow=is_narrow,
            num_out_blocks=num_out_blocks,
        )
        kernel = launch.get_kernel("mttkrp_remap.cu", "mttkrp", **macros)
        # The tile, and the carry-outs between its groups of threads.
        shared_nbytes = layout.tile_size * slot_nbytes(record_format)
        shared_nbytes += carries_nbytes(record_format.dtype, self.cut, self.block_size)
        # The structure as it is, and the address of the weights.
        formats = f"{ctypes.sizeof(self._arguments)}sQ"
        self._kernel = launch.DirectKernel(kernel, formats, shared_nbytes)

    def launch(
        self,
        step: Step,
        workspace: Workspace,
        weights: Array | None,
        out: Rows,
        **model: Any,
    ) -> None:
        """Launch it for a workspace with the other modes' factors, and for weights or None.

        With ratios, `model` are the members of `LaunchArguments` that say where the model is.
        """
        arrays, pitches, carries = workspace
        arguments = type(self._arguments).from_buffer_copy(self._arguments)
        operands = arguments.operands
        operands.factors[: len(arrays)] = [array.data.ptr for array in arrays]
        operands.row_nbytes[: len(arrays)] = pitches
        arguments.records = step.records.data.ptr
        row_blocks = make_row_blocks(list_blocks(out))
        arguments.out = type(arguments.out).from_buffer_copy(row_blocks)
        arguments.spare = launch.find_address(step.spare)
        arguments.partial_rows = carries.sums
        for name, value in model.items():
            setattr(arguments, name, value)
        weights_address = launch.find_address(weights)
        # Launched as by `launch.launch_tiles`.
        for first_tile in range(0, self._num_tiles, launch.MAX_GRID):
            arguments.first_tile = first_tile
            grid = (min(self._num_tiles - first_tile, launch.MAX_GRID), self.cut.num_parts)
            self._kernel(grid, self.block_size, bytes(arguments), weights_address)


def _make_arguments(
    layout: Layout, step: Step, mode: int, inputs: list[int], rank: int, num_out_blocks: int
) -> Any:
    """Make `LaunchArguments` with all members that stay the same while the layout lives.

    The others are set by `MttkrpKernel.launch`, and zero here.
    """
    tiling = layout.tilings[mode]
    arguments = make_launch_arguments(layout.merged, mode, inputs, num_out_blocks)
    arguments.rank = rank
    arguments.nnz = step.records.shape[0]
    arguments.bucket_size = int(step.bucket_size)
    arguments.carry_rows = tiling.carry_rows.data.ptr
    # Each tile writes zeros to its share of the rows without nonzeros.
    num_empty = tiling.empty_rows.shape[0]
    num_tiles = tiling.carry_rows.shape[0]
    arguments.empty_rows = tiling.empty_rows.data.ptr
    arguments.num_empty = num_empty
    arguments.empty_share = -(-num_empty // num_tiles)
    arguments.pull_ids, arguments.pull_highs = _find_addresses(step.pull_ids)
    runs = step.remap_ids
    if runs is not None:
        arguments.max_runs = runs.max_runs
        arguments.run_starts = runs.starts.data.ptr
        arguments.run_counts = runs.counts.data.ptr
        arguments.run_shifts = runs.shifts.data.ptr
        arguments.write_lows, arguments.write_highs = _find_addresses(step.write_order)
    return arguments


def _find_addresses(ids: PackedIds | Array | None) -> tuple[int, int]:
    """Return the addresses of the low and the high bits of ids: see `list_parts`."""
    lows, highs = list_parts(ids)
    return launch.find_address(lows), launch.find_address(highs)


def _find_kernel(
    layout: Layout,
    step: Step,
    mode: int,
    workspace: Workspace,
    out: Rows,
    ratios: Ratios = Ratios.NONE,
) -> MttkrpKernel:
    """Return the kernel for a mode; it is prepared once, and kept while the layout lives."""
    rank = out.shape[1]
    blocks = list_blocks(out)
    num_blocks = len(blocks)
    alignments = (
        _common_alignment(workspace.arrays, workspace.pitches, out.itemsize),
        _common_alignment(blocks, [rank * out.itemsize] * num_blocks, out.itemsize),
    )
    is_narrow = any(array.dtype != out.dtype for array in workspace.arrays)  # then all are
    key = (mode, rank, alignments, step.spare is None, ratios, is_narrow, num_blocks)
    if key not in layout.prepared:
        settings = (rank, alignments, ratios, is_narrow, num_blocks)
        layout.prepared[key] = MttkrpKernel(layout, step, mode, *settings)
    return layout.prepared[key]


def _common_alignment(arrays: Sequence[Array], pitches: list[int], itemsize: int) -> int:
    """Return the largest power of two, up to 16, that divides the addresses of all rows.

    Narrow numbers count as if they had `itemsize` bytes.
    """
    bits = 16
    for array, pitch in zip(arrays, pitches, strict=True):
        bits |= (array.data.ptr | pitch) * (itemsize // array.itemsize)
    return bits & -bits  # the lowest bit that is set in any


#: The only instance.
CUDA = CudaEngine()

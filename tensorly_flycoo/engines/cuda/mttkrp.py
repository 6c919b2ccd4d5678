"""The MTTKRP kernel of one mode, prepared once and launched at each call; and its carry-outs."""

import functools
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...base.array_modules import Array
from ...format.layout import Layout
from ...format.primitives import Step
from . import launch, tuning
from .compact_ids import find_bits, list_parts
from .macros import mttkrp_macros
from .structs import carries_dtype, operands_format, row_pitch, slot_nbytes, split_operands

#: Arrays begin at multiples of this many bytes.
_ALIGNMENT = 16

#: Warps of a block: with more, registers would spill.
_MAX_WARPS = 16


class Level(NamedTuple):
    """Tiles, or segments of tiles, or segments of these, and which of them a launch adds to one."""

    size: int
    rows: int  # address of int64 (size,): the rows that they inherit
    sums: int  # address of their partial rows (size, R); in `_lay_out` both are offsets
    run: int  # how many a warp adds


class Carries(NamedTuple):
    """Partial rows, and the rows of the result to which they belong."""

    memory: Any  # a MemoryPointer; holds all of them
    levels: list[Level]  # from the tiles to a single segment


def allocate_carries(
    num_tiles: int, num_columns: int, dtype: np.dtype, carry_rows: Array | None = None
) -> Carries:
    """Allocate memory for the partial rows of tiles; for their rows too if `carry_rows` is None."""
    levels, nbytes = _lay_out(num_tiles, num_columns, dtype.itemsize, tuning.SEGMENT)
    memory = cupy.cuda.alloc(nbytes)
    start = memory.ptr
    placed = [Level(count, start + rows, start + sums, run) for count, rows, sums, run in levels]
    if carry_rows is not None:
        placed[0] = placed[0]._replace(rows=carry_rows.data.ptr)
    return Carries(memory, placed)


@functools.lru_cache(maxsize=1024)
def _lay_out(
    num_tiles: int, num_columns: int, itemsize: int, segment: int
) -> tuple[list[Level], int]:
    """Return the levels, with offsets for addresses, and the bytes of all."""
    levels, nbytes, count, num_warps = [], 0, num_tiles, _count_warps(segment)
    while True:
        sums = nbytes + _round_up(8 * count)
        # All warps of the last block have tiles, even if there are few.
        run = min(segment, -(-count // num_warps) * num_warps) // num_warps
        levels.append(Level(count, nbytes, sums, run))
        nbytes = sums + _round_up(count * num_columns * itemsize)
        if count <= 1:
            return levels, nbytes
        count = -(-count // (run * num_warps))


def _count_warps(segment: int) -> int:
    return min(_MAX_WARPS, segment)


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def add_carries(carries: Carries, out: Array) -> None:
    """Add the partial rows of all tiles to `out`; very long rows take several launches."""
    num_warps, num_columns, address = _count_warps(tuning.SEGMENT), out.shape[1], out.data.ptr
    macros = {"VALUE": out.dtype, "NUM_WARPS": num_warps}
    kernel = launch.get_direct_kernel(
        "partial_rows.cu", "add_partial_rows", "qiQi4Q", out.data.device_id, **macros
    )
    for (count, rows, sums, run), segments in itertools.pairwise(carries.levels):
        arguments = (count, run, rows, num_columns, sums, address, segments.rows, segments.sums)
        kernel((segments.size, -(-num_columns // 32)), 32 * num_warps, *arguments)


class MttkrpKernel:
    """A specialisation of `mttkrp_remap.cu`, with all arguments but the arrays.

    It is for factors and results whose rows have these alignments; `ratios` is as for
    `mttkrp_macros`.
    """

    def __init__(
        self,
        layout: Layout,
        step: Step,
        mode: int,
        rank: int,
        alignments: tuple[int, int],
        ratios: int,
    ) -> None:
        record_format, tiling = layout.record_format, layout.tilings[mode]
        inputs = [n for n in range(record_format.ndim) if n != mode]
        self.cut = cut = tuning.cut_rank(rank, record_format.dtype.itemsize, *alignments)
        self.block_size = tuning.choose_block_size(layout.tile_size)
        self._num_tiles, num_empty = tiling.carry_rows.shape[0], tiling.empty_rows.shape[0]
        self._operands = split_operands(record_format, mode, inputs)
        self._no_inputs = [] if inputs else [0]  # stands for the factors of a tensor of one mode
        self._tiling = (
            step.records.shape[0], num_empty, -(-num_empty // self._num_tiles), step.bucket_size,
            tiling.carry_rows.data.ptr, tiling.empty_rows.data.ptr,
        )  # fmt: skip
        self._pull_ids = _list_addresses(list_parts(step.pull_ids))
        runs, self._targets, remap_dtype = step.remap_ids, (0,) * 6, None
        if runs is not None:
            order, remap_dtype = list_parts(step.write_order), runs.shifts.dtype
            arrays = (runs.starts, runs.counts, runs.shifts)
            self._targets = (*_list_addresses(arrays), runs.max_runs, *_list_addresses(order))
        occupancy = tuning.choose_occupancy(launch.current_gpu(), len(inputs), rank)
        types = (tiling.empty_rows.dtype, find_bits(step.pull_ids), remap_dtype)
        macros = mttkrp_macros(record_format, layout.tile_size, cut, occupancy, *types, ratios)
        kernel = launch.get_kernel("mttkrp_remap.cu", "mttkrp", **macros)
        of_model = f"QI{record_format.dtype.char}Q" if ratios else ""
        formats = f"q{operands_format(len(inputs))}4q9Qi2Qi3Q{of_model}"
        # The tile, and the carry-outs between its groups of threads.
        carries_nbytes = carries_dtype(record_format.dtype, cut, self.block_size).itemsize
        shared_nbytes = layout.tile_size * slot_nbytes(record_format) + carries_nbytes
        self._kernel = launch.DirectKernel(kernel, formats, shared_nbytes)

    def launch(
        self,
        step: Step,
        arrays: list[Array],
        weights: Array | None,
        out: Array,
        carries: Carries,
        model: tuple = (),
    ) -> None:
        """Launch it, for the factors `arrays` of the other modes.

        With ratios, `model` has the address and row pitch of the mode's own factor, the smallest
        number to divide by, and the address of the sums of logarithms.
        """
        arguments = (
            self._operands[0],
            *[array.data.ptr for array in arrays], *self._no_inputs,
            *[row_pitch(array) for array in arrays], *self._no_inputs,
            self._operands[1], *self._tiling,
            step.records.data.ptr, *self._pull_ids,
            0 if step.spare is None else step.spare.data.ptr, *self._targets,
            out.shape[1], 0 if weights is None else weights.data.ptr, out.data.ptr,
            carries.levels[0][2], *model,
        )  # fmt: skip
        # The kernel's first argument is the first tile: see `launch.launch_tiles`.
        for first_tile in range(0, self._num_tiles, launch.MAX_GRID):
            grid = (min(self._num_tiles - first_tile, launch.MAX_GRID), self.cut.num_parts)
            self._kernel(grid, self.block_size, first_tile, *arguments)


def _list_addresses(arrays: Iterable[Array | None]) -> tuple[int, ...]:
    return tuple(0 if array is None else array.data.ptr for array in arrays)

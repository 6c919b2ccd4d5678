"""The MTTKRP kernel of one mode, prepared once and launched at each call."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from ...array_modules import Array
from ...format.layout import Layout, Step
from . import launch, tuning
from .carries import Carries
from .compact_ids import find_bits, list_parts
from .direct import DirectKernel
from .macros import mttkrp_macros
from .structs import carries_dtype, operands_format, row_pitch, slot_nbytes, split_operands


@dataclass(frozen=True)
class MttkrpKernel:
    """A specialisation of `mttkrp.cu`, with all arguments but the arrays."""

    kernel: DirectKernel
    cut: tuning.RankCut
    operands: tuple[bytes, bytes]  # what `split_operands` returns
    no_inputs: list[int]  # stands for the factors of a tensor of one mode
    num_tiles: int
    block_size: int
    tiling: tuple[int, ...]  # the numbers that follow the operands, and the addresses of its arrays
    pull_ids: tuple[int, ...]  # where records are: addresses, and a number
    targets: tuple[int, ...]  # where they go for the next mode

    @classmethod
    def prepare(
        cls,
        layout: Layout,
        step: Step,
        mode: int,
        rank: int,
        alignments: tuple[int, int],
        ratios: int,
    ) -> Self:
        """Prepare the kernel, for factors and results whose rows have these alignments.

        `ratios` is as for `mttkrp_macros`.
        """
        record_format, tiling = layout.record_format, layout.tilings[mode]
        inputs = [n for n in range(record_format.ndim) if n != mode]
        cut = tuning.cut_rank(rank, record_format.dtype.itemsize, *alignments)
        num_tiles, num_empty = tiling.carry_rows.shape[0], tiling.empty_rows.shape[0]
        numbers = (step.records.shape[0], num_empty, -(-num_empty // num_tiles), step.bucket_size)
        return cls(
            _load_kernel(layout, step, mode, rank, cut, ratios),
            cut,
            split_operands(record_format, mode, inputs),
            [] if inputs else [0],
            num_tiles,
            tuning.choose_block_size(layout.tile_size),
            (*numbers, tiling.carry_rows.data.ptr, tiling.empty_rows.data.ptr),
            _list_addresses(list_parts(step.pull_ids)),
            (0,) * 6 if step.remap_ids is None else _list_targets(step),
        )

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
            self.operands[0],
            *[array.data.ptr for array in arrays], *self.no_inputs,
            *[row_pitch(array) for array in arrays], *self.no_inputs,
            self.operands[1], *self.tiling,
            step.records.data.ptr, *self.pull_ids,
            0 if step.spare is None else step.spare.data.ptr, *self.targets,
            out.shape[1], 0 if weights is None else weights.data.ptr, out.data.ptr,
            carries.levels[0][2], *model,
        )  # fmt: skip
        # The kernel's first argument is the first tile: see `launch.launch_tiles`.
        for first_tile in range(0, self.num_tiles, launch.MAX_GRID):
            grid = (min(self.num_tiles - first_tile, launch.MAX_GRID), self.cut.num_parts)
            self.kernel(grid, self.block_size, first_tile, *arguments)


def _load_kernel(
    layout: Layout, step: Step, mode: int, rank: int, cut: tuning.RankCut, ratios: int
) -> DirectKernel:
    record_format, num_inputs = layout.record_format, layout.record_format.ndim - 1
    macros = mttkrp_macros(
        record_format,
        layout.tile_size,
        cut,
        tuning.choose_occupancy(launch.current_gpu(), num_inputs, rank),
        layout.tilings[mode].empty_rows.dtype,
        find_bits(step.pull_ids),
        None if step.remap_ids is None else step.remap_ids.shifts.dtype,
        ratios,
    )
    # The tile, and the carry-outs between its groups of threads.
    block_size = tuning.choose_block_size(layout.tile_size)
    carries_nbytes = carries_dtype(record_format.dtype, cut, block_size).itemsize
    shared_nbytes = layout.tile_size * slot_nbytes(record_format) + carries_nbytes
    kernel = launch.get_kernel("mttkrp.cu", "mttkrp", **macros)
    of_model = f"QI{record_format.dtype.char}Q" if ratios else ""
    formats = f"q{operands_format(num_inputs)}4q9Qi2Qi3Q{of_model}"
    return DirectKernel(kernel, formats, shared_nbytes)


def _list_targets(step: Step) -> tuple[int, ...]:
    """Return the arguments that say where records go."""
    runs, order = step.remap_ids, step.write_order
    arrays = (runs.starts, runs.counts, runs.shifts)
    return (*_list_addresses(arrays), runs.max_runs, *_list_addresses(list_parts(order)))


def _list_addresses(arrays: Iterable[Array | None]) -> tuple[int, ...]:
    return tuple(0 if array is None else array.data.ptr for array in arrays)

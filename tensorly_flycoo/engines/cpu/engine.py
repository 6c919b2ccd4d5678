"""The CPU engine: kernels compiled by numba, run on several threads.

Threads: numba's number (`numba.set_num_threads`, NUMBA_NUM_THREADS). Results do not depend on it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy import ndarray as Array

from ...base.array_modules import move
from ...base.devices import Devices
from ...format.layout import Layout
from ...format.packing import RecordFormat
from ...format.primitives import Step, list_nonempty_rows
from ..protocol import Engine, Factors
from . import mttkrp, narrow_rows, products, ratios, row_updates, threads, updates
from . import ttmc as ttmc_kernels
from .builders import SlabThreads
from .free_memory import count_free_nbytes
from .imputing import CpuEntries
from .primitives import CpuPrimitives
from .products import GroupFactor
from .records import CACHE_LINE_NBYTES, Fields, Storage, Tiles, allocate_lines, list_places
from .segments import LEAST_NNZ, find_segments, mttkrp_segments

# The CPU's launch sizes; `launch` in `threads.py` cuts a loop over tiles or rows into parts.

#: Nonzeros of a tile, and of a bucket (128 KB of 16-byte records: it stays in a core's L2 cache
#: while records are pulled out of it). Measured on a Xeon with 1 MB of L2.
TILE_SIZE = 2048
BUCKET_SIZE = 8192

#: A row of ratios that is not computed at once is computed in steps of so many bytes: a choice.
_STEP_NBYTES = (128, 64)

#: Nonzeros for each row of a factor, from which on an aligned copy of the factor is worth it.
_READS_A_COPY = 512


class CpuEngine(CpuPrimitives, Engine):
    """Kernels compiled by numba, on NumPy arrays."""

    name = "cpu"
    array_type = np.ndarray
    entries = CpuEntries

    def choose_sizes(self, record_format: RecordFormat) -> tuple[int, int]:
        return TILE_SIZE, BUCKET_SIZE

    def choose_builders(self, num_slabs: int) -> Devices:
        return self.devices or SlabThreads(num_slabs)

    def receive(self, coords: Array, values: Array) -> tuple[Array, Array]:
        return move(coords, np), move(values, np)

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        pass  # the CPU reads every NumPy array

    def mttkrp(
        self,
        layout: Layout,
        factors: Factors,
        mode: int,
        out: Array,
        weights: Array | None = None,
        stays: bool = False,
    ) -> None:
        """Implement `Engine.mttkrp`: a pass over the tiles, then their carries are added."""
        arrays, partial_rows = self.allocate_workspace(layout, factors, mode, out)
        carry_rows = layout.tilings[mode].carry_rows
        lanes, tail_lanes = mttkrp.choose_lanes(out.shape[1], out.itemsize)
        # The only factor, of a group, may be a tuple of the factors of the group's modes.
        are_apart = len(arrays) == 1 and isinstance(arrays[0], tuple)
        reads_ahead = None
        if not are_apart:
            reads_ahead = _find_reads_ahead(arrays, out.itemsize, len(lanes))
        with layout.step(mode, self, stays) as step:
            nnz = step.records.shape[0]
            if nnz == 0:
                out[...] = 0
                return
            arguments = _gather_arguments(
                layout,
                step,
                mode,
                arrays,
                out,
                partial_rows,
                lanes,
                tail_lanes,
                reads_ahead,
                are_apart,
            )
            work_ns = _estimate_ns(layout, step, out)
            # Segments serve a factor that does not fit the cache; the bits are the same. Where rows
            # are read ahead, tiles are faster.
            segments = None
            if nnz >= LEAST_NNZ and not reads_ahead and not are_apart:
                segments = find_segments(layout, step, mode, arrays)
            if self.is_logging():
                kernel = "mttkrp_segments" if segments else "mttkrp_tiles"
                self.log("mttkrp", layout.name, mode=mode, kernel=kernel, num_lanes=len(lanes))
            if segments:
                num_windows = segments.starts.size - 1
                threads.launch(mttkrp_segments, num_windows, segments, *arguments, work_ns=work_ns)
            else:
                num_tiles = carry_rows.size
                threads.launch(mttkrp.mttkrp_tiles, num_tiles, *arguments, work_ns=work_ns)
            # Rows that began in an earlier tile: added after all tiles, in their order.
            mttkrp.add_partial_rows(carry_rows, partial_rows, out)
            if weights is not None and (weights != 1).any():
                np.multiply(out, weights, out=out)

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
        """Implement `Engine.mttkrp_of_ratios`: a pass over the tiles, each with its sum of logs."""
        (*arrays, factor), partial_rows = self.allocate_workspace(layout, factors, mode, out)
        carry_rows = layout.tilings[mode].carry_rows
        num_lanes = _choose_lanes(out)
        num_tiles = carry_rows.size
        with layout.step(mode, self, stays) as step:
            if step.records.shape[0] == 0:
                out[...] = 0
                return np.zeros(()) if wants_sum else None
            tiles, storage, operands = _gather_arguments(
                layout, step, mode, tuple(arrays), out, partial_rows, (0,) * num_lanes
            )
            log_sums = np.empty(num_tiles) if wants_sum else None
            typed_smallest = None if smallest is None else out.dtype.type(smallest)
            model = ratios.Model(factor, typed_smallest, log_sums)
            # A row that does not fit the lanes is computed in steps. None, not False: numba then
            # compiles a kernel without the loop over steps.
            has_steps = None if out.shape[1] == num_lanes else True
            self.log("ratios", layout.name, mode=mode, kernel="ratio_tiles", num_lanes=num_lanes)
            threads.launch(
                ratios.ratio_tiles,
                num_tiles,
                tiles,
                storage,
                operands,
                model,
                has_steps,
                work_ns=3 * _estimate_ns(layout, step, out),
            )
            mttkrp.add_partial_rows(carry_rows, partial_rows, out)
            # Not `sum`, which adds pairwise: the order is from the first tile to the last.
            return None if log_sums is None else np.asarray(0.0 + log_sums.cumsum()[-1])

    def allocate_workspace(
        self, layout: Layout, factors: Factors, mode: int, out: Array
    ) -> tuple[tuple[Any, ...], Array]:
        """Return the factors as kernels read them, that of `mode` last, and memory for carries.

        That of a group, if it is the only one, may be a tuple of the factors of its modes.
        """
        num_tiles = layout.tilings[mode].carry_rows.size
        most_rows = num_tiles * layout.tile_size // _READS_A_COPY
        partial_rows = np.empty((num_tiles, out.shape[1]), out.dtype)
        modes = sorted(factors)
        if mode in factors:
            modes.remove(mode)
            modes.append(mode)
        arrays: list[Any] = []
        for n in modes:
            factor = factors[n]
            if not isinstance(factor, GroupFactor):
                arrays.append(_align(factor, most_rows))
            elif len(modes) == 1 and factor.is_read_apart():
                members = [_align(member, most_rows) for member in factor.factors]
                arrays.append(tuple(members))
            else:
                arrays.append(_align(factor.combine(), most_rows))
        return tuple(arrays), partial_rows

    def make_group_factor(
        self, layout: Layout, factors: Sequence[Array], number: int
    ) -> GroupFactor:
        key = ("nonempty rows", number)
        if key not in layout.prepared:
            layout.prepared[key] = _find_used_rows(layout, number)
        bits = layout.record_format.bits_below[number]
        return GroupFactor(factors, bits, layout.prepared[key])

    def scale_rows(self, product: Array, factor: Array, scales: Array, sums: Array) -> None:
        updates.add_up(updates.scale_blocks, (product, factor, scales), sums[None])

    def measure_steps(self, factors: Sequence[Array], sums: Array) -> None:
        updates.add_up(updates.measure_blocks, tuple(factors), sums)

    def extrapolate(self, factors: Sequence[Array], step: float, sums: Array) -> Array:
        moved = np.empty(factors[0].shape, factors[0].dtype)
        powers = np.array([2 * step, step**2], moved.dtype)
        updates.add_up(updates.extrapolate_blocks, (moved, tuple(factors), powers), sums[None])
        return moved

    def ttmc(
        self, layout: Layout, inputs: Factors, mode: int, out: Array, slots: Array | None = None
    ) -> None:
        """Implement `Engine.ttmc`: a pass over the tiles, then their carries are added."""
        assert layout.merged is layout.record_format, "TTMc knows no groups"
        record_format = layout.record_format
        carry_rows = layout.tilings[mode].carry_rows
        num_tiles = carry_rows.size
        partial_rows = np.empty((num_tiles, out.shape[1]), out.dtype)
        if inputs:
            fields = Fields.of(record_format, inputs)
            factors = list(inputs.values())
        else:  # with a single mode each nonzero takes row 0 of a factor of ones
            zero = (0,)
            fields = Fields(zero, zero, zero)
            factors = [np.ones((1, 1), out.dtype)]
        kronecker = ttmc_kernels.lay_out_factors(fields, factors)
        row_slots = list_places(slots, layout.merged.shape[mode])
        output = (Fields.of(record_format, [mode]), row_slots, out, partial_rows)
        with layout.step(mode, self, stays=True) as step:
            if len(out) > layout.count_nonempty_rows(mode):  # some rows get no products
                out[...] = 0
            if step.records.shape[0] == 0:
                return
            tiles = Tiles(layout.tile_size, step.bucket_size, carry_rows)
            storage = Storage.of(step, record_format)
            num_lanes = len(kronecker.lanes)
            self.log("ttmc", layout.name, mode=mode, kernel="ttmc_tiles", num_lanes=num_lanes)
            threads.launch(
                ttmc_kernels.ttmc_tiles,
                num_tiles,
                tiles,
                storage,
                kronecker,
                output,
                work_ns=_estimate_ns(layout, step, out),
            )
            # Carries are numbered by row, the rows of `out` by slot.
            out_rows = carry_rows
            if row_slots.size > 0:
                slots_of_rows = row_slots[carry_rows].astype(np.int64)
                out_rows = np.where(carry_rows >= 0, slots_of_rows, carry_rows)
            mttkrp.add_partial_rows(out_rows, partial_rows, out)

    def gram(self, coords: Array, values: Array, diagonal: Array) -> Array:
        """Implement `Engine.gram`: each thread adds the products to a band of rows."""
        columns, ids = coords
        size = diagonal.size
        matrix_values = np.atleast_2d(values.T).T  # (n, K)
        starts = np.append(np.flatnonzero(np.diff(columns, prepend=-1)), columns.size)
        gram = np.zeros((size, size))
        squares = np.zeros(size)  # of the entries of each row
        # Each band reads all entries, so use only one for each thread. Edges that grow like a
        # square root give the bands of the triangle equal areas.
        num_bands = numba.get_num_threads()
        edges = np.sqrt(np.linspace(0, 1, num_bands + 1)) * size
        num_products = matrix_values.shape[1] * np.square(np.diff(starts)).sum() / 2
        threads.launch(
            mttkrp.add_gram,
            num_bands,
            edges.astype(np.uint64),
            starts,
            ids,
            matrix_values,
            gram,
            squares,
            work_ns=num_products,
        )
        np.fill_diagonal(gram, squares + diagonal)
        return gram

    count_free_nbytes = staticmethod(count_free_nbytes)
    find_scales = staticmethod(narrow_rows.find_scales)
    round_rows = staticmethod(narrow_rows.round_rows)
    narrow_pays = staticmethod(narrow_rows.narrow_pays)
    combine_rows = staticmethod(products.combine_rows)
    contract_rows = staticmethod(products.contract_rows)
    update_rows = staticmethod(row_updates.update_rows)
    find_peaks = staticmethod(row_updates.find_peaks)


def _find_reads_ahead(factors: Sequence[Any], itemsize: int, num_lanes: int) -> bool | None:
    """Return True if MTTKRP should prefetch rows of the factors, else None.

    Its values have `itemsize` bytes, and a step has so many lanes.

    While rows are on their way from memory, a processor begins with later nonzeros. Widening narrow
    rows fills up its queues, so that it begins with fewer. Rows of less than a cache line do not
    need it.
    """
    if not factors:
        return None
    is_narrow = factors[0].itemsize < itemsize
    fills_line = num_lanes * factors[0].itemsize >= CACHE_LINE_NBYTES
    return (is_narrow and fills_line) or None


def _align(factor: Array, most_rows: int) -> Array:
    """Return a factor as kernels read it, its rows in as few cache lines as can be.

    A row in one line more takes up to 1.4 times as long to read. A factor of more than `most_rows`
    rows is not copied.
    """
    if not factor.flags.carray:
        factor = np.require(factor, requirements=("C", "A", "W"))
    has_whole_lines = factor.shape[1] * factor.itemsize % CACHE_LINE_NBYTES == 0
    if not has_whole_lines or len(factor) > most_rows:
        return factor
    if factor.__array_interface__["data"][0] % CACHE_LINE_NBYTES == 0:
        return factor
    aligned = allocate_lines(factor.shape, factor.dtype)
    aligned[...] = factor
    return aligned


def _estimate_ns(layout: Layout, step: Step, out: Array) -> float:
    """Estimate the work of MTTKRP: 4 ns for a record and 1 ns for 128 bytes of a factor's row."""
    num_inputs = layout.record_format.ndim - 1
    row_nbytes = out.shape[1] * out.itemsize
    return step.records.shape[0] * (4 + num_inputs * row_nbytes / 128)


def _choose_lanes(out: Array) -> int:
    """Return the lanes of ratios: all columns, or the choice that computes the fewest twice."""
    rank = out.shape[1]
    num_lanes = mttkrp.count_lanes(out)
    if num_lanes == rank:
        return num_lanes
    choices = [mttkrp.count_lanes(out, nbytes) for nbytes in _STEP_NBYTES]
    return min(choices, key=lambda num_lanes: -rank % num_lanes)


def _gather_arguments(
    layout: Layout,
    step: Step,
    mode: int,
    factors: tuple[Any, ...],
    out: Array,
    partial_rows: Array,
    lanes: tuple[int, ...],
    tail_lanes: tuple[int, ...] | None = None,
    reads_ahead: bool | None = None,
    are_apart: bool = False,
) -> tuple[Tiles, Storage, mttkrp.Operands]:
    """Return the arguments of the loops that compute MTTKRP; see `_prepare_mode`."""
    key = ("arguments", mode, are_apart)
    if key not in layout.prepared:
        layout.prepared[key] = _prepare_mode(layout, step, mode, are_apart)
    tiles, out_field, factor_fields = layout.prepared[key]
    operands = mttkrp.Operands(
        fields=factor_fields,
        factors=factors,
        out_field=out_field,
        out=out,
        partial_rows=partial_rows,
        lanes=lanes,
        tail_lanes=tail_lanes,
        reads_ahead=reads_ahead,
    )
    return tiles, Storage.of(step, layout.record_format), operands


def _find_used_rows(layout: Layout, mode: int) -> Array | None:
    """List the rows of a mode that have nonzeros; None if all have."""
    empty_rows = layout.tilings[mode].empty_rows
    if empty_rows.size == 0:
        return None
    return list_nonempty_rows(empty_rows, layout.merged.shape[mode])


def _prepare_mode(
    layout: Layout, step: Step, mode: int, are_apart: bool
) -> tuple[Tiles, Fields, Fields]:
    """Return the tiles of a mode, its field, and those of the other modes.

    The others are groups or, if factors `are_apart`, the modes of groups.
    """
    tiling = layout.tilings[mode]
    tiles = Tiles(layout.tile_size, step.bucket_size, tiling.carry_rows, tiling.empty_rows)
    others = [n for n in range(layout.merged.ndim) if n != mode]
    if are_apart:
        modes = [n for other in others for n in layout.groups[other]]
        fields = Fields.of(layout.record_format, modes)
    else:
        fields = Fields.of(layout.merged, others)
    return tiles, Fields.of(layout.merged, [mode]), fields


#: The only instance.
CPU = CpuEngine()

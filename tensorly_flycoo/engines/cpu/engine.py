"""The CPU engine: kernels compiled by numba, run on several threads.

Threads: numba's number (`numba.set_num_threads`, NUMBA_NUM_THREADS). Results do not depend on it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy import ndarray as Array

from ...base.array_modules import move
from ...format.layout import Layout
from ...format.packing import RecordFormat
from ...format.primitives import Step
from ..protocol import Engine, Factors
from . import mttkrp, products, ratios, threads, updates
from . import ttmc as ttmc_kernels
from .free_memory import count_free_nbytes
from .imputing import CpuEntries
from .primitives import CpuPrimitives
from .records import Fields, Storage, Tiles, list_places
from .segments import LEAST_NNZ, find_segments, mttkrp_segments

#: Nonzeros of a tile, and of a bucket (128 KB of 16-byte records: it stays in a core's L2 cache
#: while records are pulled out of it). Measured on a Xeon with 1 MB of L2.
TILE_SIZE = 2048
BUCKET_SIZE = 8192

#: A row of ratios that is not computed at once is computed in steps of so many bytes: a choice.
_STEP_NBYTES = (128, 64)

#: Rows that a sweep updates together: with their targets they stay in a core's cache.
_SWEEP_ROWS = 64

#: Nonzeros for each row of a factor, from which on an aligned copy of the factor is worth it.
_READS_A_COPY = 512

_CACHE_LINE_NBYTES = 64


class CpuEngine(CpuPrimitives, Engine):
    """Kernels compiled by numba, on NumPy arrays."""

    name = "cpu"
    array_type = np.ndarray
    entries = CpuEntries

    def choose_sizes(self, record_format: RecordFormat) -> tuple[int, int]:
        return TILE_SIZE, BUCKET_SIZE

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
        arrays, partial_rows = self.allocate_workspace(layout, factors, mode, out)
        carry_rows = layout.tilings[mode].carry_rows
        num_lanes = mttkrp.count_lanes(out)
        with layout.step(mode, self, stays) as step:
            nnz = step.records.shape[0]
            if nnz == 0:
                out[...] = 0
                return
            is_large = nnz >= LEAST_NNZ
            segments = find_segments(layout, step, mode, arrays) if is_large else None
            loop = mttkrp_segments if segments else mttkrp.mttkrp_tiles
            if self.is_logging():
                used = {"kernel": loop.__name__, "num_lanes": num_lanes}
                self.log("mttkrp", layout.name, mode=mode, **used)
            operands = (arrays, out, partial_rows)
            arguments: Any = _gather_arguments(layout, step, mode, operands, num_lanes)
            work_ns = _estimate_ns(layout, step, out)
            count = carry_rows.size
            if segments:
                count = segments.starts.size - 1
                arguments = (segments, *arguments)
            threads.launch(loop, count, *arguments, work_ns=work_ns)
            mttkrp.add_partial_rows(carry_rows, partial_rows, out)
            if weights is not None:
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
        (*arrays, factor), partial_rows = self.allocate_workspace(layout, factors, mode, out)
        carry_rows = layout.tilings[mode].carry_rows
        num_lanes = _choose_lanes(out)
        num_tiles = carry_rows.size
        with layout.step(mode, self, stays) as step:
            if step.records.shape[0] == 0:
                out[...] = 0
                return np.zeros(()) if wants_sum else None
            operands = (tuple(arrays), out, partial_rows)
            arguments = _gather_arguments(layout, step, mode, operands, num_lanes)
            log_sums = np.empty(num_tiles) if wants_sum else None
            least = None if smallest is None else out.dtype.type(smallest)
            has_steps = None if out.shape[1] == num_lanes else True
            more = ratios.Model(factor, least, log_sums), has_steps
            self.log("ratios", layout.name, mode=mode, kernel="ratio_tiles", num_lanes=num_lanes)
            work_ns = 3 * _estimate_ns(layout, step, out)
            threads.launch(ratios.ratio_tiles, num_tiles, *arguments, *more, work_ns=work_ns)
            mttkrp.add_partial_rows(carry_rows, partial_rows, out)
            # Unlike a sum, adds from the first to the last.
            return None if log_sums is None else np.asarray(0.0 + log_sums.cumsum()[-1])

    def allocate_workspace(
        self, layout: Layout, factors: Factors, mode: int, out: Array
    ) -> tuple[tuple[Array, ...], Array]:
        """Return the factors as kernels read them, that of `mode` last, and memory for carries."""
        num_tiles = layout.tilings[mode].carry_rows.size
        most = num_tiles * layout.tile_size // _READS_A_COPY
        arrays = [_align(factors[n], most) for n in sorted(factors) if n != mode]
        if mode in factors:
            arrays.append(_align(factors[mode], most))
        return tuple(arrays), np.empty((num_tiles, out.shape[1]), out.dtype)

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
        assert layout.merged is layout.record_format, "TTMc knows no groups"
        record_format = layout.record_format
        tiling = layout.tilings[mode]
        partial_rows = np.empty((tiling.carry_rows.size, out.shape[1]), out.dtype)
        # With a single mode each nonzero takes row 0 of a factor of ones.
        zero = (np.uint64(0),)
        fields = Fields.of(record_format, inputs) if inputs else Fields(zero, zero, zero)
        factors = list(inputs.values()) or [np.ones((1, 1), out.dtype)]
        kronecker = ttmc_kernels.lay_out_factors(fields, factors)
        slots = list_places(slots, layout.merged.shape[mode])
        output = (Fields.of(record_format, [mode]), slots, out, partial_rows)
        with layout.step(mode, self, stays=True) as step:
            if len(out) > layout.count_nonempty_rows(mode):
                out[...] = 0
            if step.records.shape[0] == 0:
                return
            tiles = Tiles(layout.tile_size, step.bucket_size, tiling.carry_rows)
            storage = Storage.of(step, record_format)
            num_tiles = tiling.carry_rows.shape[0]
            num_lanes = len(kronecker.lanes)
            self.log("ttmc", layout.name, mode=mode, kernel="ttmc_tiles", num_lanes=num_lanes)
            work_ns = _estimate_ns(layout, step, out)
            arguments = (tiles, storage, kronecker, output)
            threads.launch(ttmc_kernels.ttmc_tiles, num_tiles, *arguments, work_ns=work_ns)
            rows = tiling.carry_rows
            if slots.size > 0:
                rows = np.where(rows >= 0, slots[rows].astype(np.int64), rows)
            mttkrp.add_partial_rows(rows, partial_rows, out)

    def gram(self, coords: Array, values: Array, diagonal: Array) -> Array:
        (columns, ids), size, values = coords, diagonal.size, np.atleast_2d(values.T).T
        starts = np.append(np.flatnonzero(np.diff(columns, prepend=-1)), columns.size)
        gram = np.zeros((size, size))
        own_diagonal = np.zeros(size)
        # Each band reads all entries, so use only one for each thread. Edges that grow like a
        # square root give the bands of the triangle equal areas.
        num_bands = numba.get_num_threads()
        edges = np.sqrt(np.linspace(0, 1, num_bands + 1)) * size
        arguments = (edges.astype(np.uint64), starts, ids, values, gram, own_diagonal)
        num_products = values.shape[1] * np.square(np.diff(starts)).sum() / 2
        threads.launch(mttkrp.add_gram, num_bands, *arguments, work_ns=num_products)
        np.fill_diagonal(gram, own_diagonal + diagonal)
        return gram

    def sweep_nonnegative(
        self, targets: Array, gram: Array, rows: Array, shift: float
    ) -> tuple[float, int]:
        num_blocks = -(-rows.shape[0] // _SWEEP_ROWS)
        errors = np.zeros(num_blocks)
        changes = np.zeros(num_blocks, np.int64)
        problem = (targets, gram, shift, _SWEEP_ROWS)
        arguments = (problem, rows, errors, changes)
        work_ns = rows.size * rows.shape[1]
        threads.launch(updates.sweep_nonnegative, num_blocks, *arguments, work_ns=work_ns)
        return errors.sum(), changes.sum()

    count_free_nbytes = staticmethod(count_free_nbytes)
    combine_rows = staticmethod(products.combine_rows)
    contract_rows = staticmethod(products.contract_rows)


def _align(factor: Array, most: int) -> Array:
    """Return a factor as kernels read it, its rows in as few cache lines as can be.

    NumPy aligns to 16 bytes only. A row in one line more takes up to 1.4 times as long to read. A
    factor of more than `most` rows is not copied.
    """
    if not factor.flags.carray:
        factor = np.require(factor, requirements=("C", "A", "W"))
    if factor.shape[1] * factor.itemsize % _CACHE_LINE_NBYTES or len(factor) > most:
        return factor
    if factor.__array_interface__["data"][0] % _CACHE_LINE_NBYTES == 0:
        return factor
    memory = np.empty(factor.nbytes + _CACHE_LINE_NBYTES, np.uint8)
    start = -memory.__array_interface__["data"][0] % _CACHE_LINE_NBYTES
    aligned = memory[start : start + factor.nbytes].view(factor.dtype).reshape(factor.shape)
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
    layout: Layout, step: Step, mode: int, operands: Any, num_lanes: int
) -> tuple[Tiles, Storage, mttkrp.Operands]:
    """Return the arguments of the loops that compute MTTKRP."""
    (arrays, out, partial_rows), tiling = operands, layout.tilings[mode]
    if mode not in layout.prepared:
        sizes = (layout.tile_size, step.bucket_size)
        tiles = Tiles(*sizes, tiling.carry_rows, tiling.empty_rows)
        field = Fields.of(layout.merged, [mode])
        others = Fields.of(layout.merged, [n for n in range(layout.merged.ndim) if n != mode])
        layout.prepared[mode] = tiles, field, others
    tiles, field, others = layout.prepared[mode]
    operands = mttkrp.Operands(others, arrays, field, out, partial_rows, (0,) * num_lanes)
    return tiles, Storage.of(step, layout.record_format), operands


#: The only instance.
CPU = CpuEngine()

"""The primitives of unfoldings on a GPU: few kernels, since each takes long to compile."""

from typing import Any

import cupy
import numpy as np

from ...array_modules import Array
from ...format.packing import RecordFormat
from ...format.unfolding_primitives import UnfoldingPrimitives, is_whole
from . import launch, tuning
from .macros import list_shared_macros, place_vectors_macros, split_columns_macros
from .rows import list_empty_rows, store_places
from .structs import make_columns


class CudaUnfoldings(UnfoldingPrimitives):
    """Kernels, and CuPy's radix sorts."""

    def split_columns(
        self, records: Array, record_format: RecordFormat, mode: int, places: Array | None
    ) -> tuple[Array, Array, Array]:
        nnz = records.shape[0]
        is_first, values = cupy.empty(nnz + 1, bool), cupy.empty(nnz)
        rows = cupy.empty(nnz, np.uint32)
        macros = split_columns_macros(record_format, None if places is None else places.dtype)
        kernel = launch.get_kernel("split_columns.cu", "split_columns", **macros)
        arguments = (
            make_columns(record_format, mode), np.int64(nnz), records,
            np.uint64(0) if places is None else places, is_first, rows, values,
        )  # fmt: skip
        launch.launch_items(kernel, nnz + 1, tuning.BLOCK_SIZE, arguments)
        return is_first, rows, values

    def sum_single_squares(
        self, is_first: Array, rows: Array, values: Array, num_rows: int, scale: float
    ) -> Array:
        # Integers: their sums do not depend on the order of additions. With few rows, threads
        # would wait for each other to add; so each adds to one of several copies.
        num_copies = min(max(1, tuning.NUM_SQUARE_SUMS // num_rows), tuning.MAX_SQUARE_COPIES)
        parts = cupy.zeros((num_copies, 2, 2, num_rows), np.uint64)
        sizes = (np.int64(num_rows), np.int64(num_copies))
        arguments = (is_first, rows, values, np.float64(scale), *sizes, parts)
        _launch_on_squares("sum_single_squares", values.size, *arguments)
        squares = cupy.empty((2, num_rows))
        _launch_on_squares("add_parts", squares.size, *sizes, parts, squares)
        return squares

    def list_shared(
        self, is_first: Array, rows: Array, values: Array, num_rows: int, scale: float
    ) -> tuple[Array, Array, Array]:
        macros = list_shared_macros()
        kernel = launch.get_kernel("list_shared.cu", "list_shared", **macros)
        num_blocks = -(-values.size // macros["ENTRIES_PER_BLOCK"])
        is_free, starts = cupy.empty(num_rows, bool), cupy.empty((num_blocks, 2), np.int64)
        is_free.data.memset_async(1, is_free.nbytes)
        nonzeros = (np.int64(values.size), is_first, rows, values, np.float64(scale))

        def launch_all(count: int, *targets: Any) -> None:
            arguments = (*nonzeros, starts, np.int64(count), *targets)
            if num_blocks > 0:
                launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)

        launch_all(0, is_free, *launch.pass_none([None] * 3))
        counts = starts.get()
        ends = counts.cumsum(axis=0)
        starts.set(ends - counts)
        coupled_rows = list_empty_rows(is_free, np.dtype(np.int64))
        slots = cupy.empty(num_rows, np.uint32)
        store_places(coupled_rows, None, positions=slots)
        num_shared = int(counts[:, 0].sum())
        coords, shared_values = cupy.empty((2, num_shared), np.int64), cupy.empty(num_shared)
        if num_shared > 0:
            launch_all(num_shared, *launch.pass_none([None]), slots, coords, shared_values)
        return coupled_rows, coords, shared_values

    def add_signs(self, squares: Array, rows: Array) -> Array:
        sums = cupy.empty(rows.size)
        num_rows = np.int64(squares.shape[1])
        _launch_on_squares("add_signs", rows.size, rows, num_rows, squares, sums)
        return sums

    def find_largest_sums(
        self, squares: Array, excluded: Array, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        # Sorting the bits of sums, inverted, is a radix sort, and sorts in descending order.
        keys = cupy.empty(squares.shape[1], np.uint64)
        _launch_on_squares("make_keys", keys.size, squares, keys)
        _launch_on_squares("exclude_keys", excluded.size, excluded, keys)
        rows = cupy.argsort(keys, kind="stable")[:count].get()
        keys.sort()  # once more, since CuPy would compile a gather
        sums = np.invert(keys[:count].get()).view(np.float64)
        return rows[sums > 0], sums[sums > 0]

    def place_vectors(
        self,
        vectors: Array,
        rows: Array | None,
        sources: np.ndarray,
        signs: np.ndarray,
        shape: tuple[int, int],
        dtype: np.dtype,
    ) -> Array:
        is_same = is_whole(vectors, rows, sources, shape, dtype)
        placed = vectors if is_same else cupy.zeros(shape, dtype)
        macros = place_vectors_macros(vectors.dtype, placed.dtype)
        kernel = launch.get_kernel("place_vectors.cu", "place_vectors", **macros)
        strides = (np.int64(stride // vectors.itemsize) for stride in vectors.strides)
        arguments = (
            np.int64(vectors.shape[0]), np.int64(sources.size), vectors, *strides,
            *launch.pass_none([rows]), cupy.asarray(np.stack([sources, signs])),
            np.int64(shape[1]), placed,
        )  # fmt: skip
        num_items = (vectors.shape[0] + 1) * sources.size
        launch.launch_items(kernel, num_items, tuning.BLOCK_SIZE, arguments)
        return placed


def _launch_on_squares(name: str, num_items: int, *arguments: Any) -> None:
    """Launch an entry of `single_squares.cu` for a number of items."""
    kernel = launch.get_kernel("single_squares.cu", name)
    arguments = (np.int64(num_items), *arguments)
    launch.launch_items(kernel, num_items, tuning.BLOCK_SIZE, arguments)

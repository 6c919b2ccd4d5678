"""The ids of a remap plan in as few bytes as they need."""

from dataclasses import dataclass
from typing import Self

import cupy
import numpy as np

from ...array_modules import Array
from ...format.compact_ids import CompactIds
from . import launch, tuning
from .id_bits import IdBits
from .macros import runs_macros, split_ids_macros


@dataclass(frozen=True)
class SplitIds(CompactIds):
    """Ids whose low bits are words, and of whose high bits several share a byte.

    Attributes
    ----------
    bits : IdBits
    low : array (nnz,)
        The low bits.
    high : uint8 array
        The other bits, the first id's lowest in each byte; empty if there are none.
    dtype : numpy.dtype
        The type of the ids if each has a word.
    """

    bits: IdBits
    low: Array
    high: Array
    dtype: np.dtype

    @classmethod
    def split(cls, ids: Array, limit: int) -> Self:
        """Split ids below `limit`."""
        bits, count = IdBits.of(limit), ids.size
        _, num_high = bits.count_bytes(count)
        low, high = cupy.empty(count, bits.low_dtype), cupy.empty(num_high, np.uint8)
        kernel = _get_kernel("split_ids", ids.dtype, bits)
        arguments = (np.int64(count), ids, low, high)
        launch.launch_items(kernel, num_high or count, tuning.BLOCK_SIZE, arguments)
        return cls(bits, low, high, ids.dtype)

    @property
    def nbytes(self) -> int:
        return self.low.nbytes + self.high.nbytes

    def expand(self) -> Array:
        ids = cupy.empty(self.low.size, self.dtype)
        kernel = _get_kernel("join_ids", self.dtype, self.bits)
        arguments = (np.int64(ids.size), self.low, self.high, ids)
        launch.launch_items(kernel, ids.size, tuning.BLOCK_SIZE, arguments)
        return ids


@dataclass(frozen=True)
class RunIds(CompactIds):
    """Ids that ascend within each tile, as runs of consecutive ones.

    Attributes
    ----------
    tile_size, nnz : int
    starts : uint32 array
        A bit for each place: a run starts there.
    counts : uint16 array
        For each word of `starts` the number of runs that start before it in its tile.
    shifts : unsigned integer array (num_tiles, max_runs)
        For each run its ids less their places in the tile.
    """

    tile_size: int
    nnz: int
    starts: Array
    counts: Array
    shifts: Array

    @classmethod
    def find(cls, ids: Array, tile_size: int, max_runs: int) -> Self:
        """Find the runs, of which a tile has `max_runs` at most."""
        num_words, num_tiles = -(-ids.size // 32), -(-ids.size // tile_size)
        starts, counts = cupy.empty(num_words, np.uint32), cupy.empty(num_words, np.uint16)
        shifts = cupy.empty((num_tiles, max_runs), ids.dtype)
        kernel = launch.get_kernel("find_runs.cu", "find_runs", **runs_macros(tile_size, ids.dtype))
        sizes = (np.int64(num_tiles), np.int64(ids.size))
        arguments = (*sizes, ids, starts, counts, shifts, np.int32(max_runs))
        launch.launch_items(kernel, 32 * num_tiles, tuning.BLOCK_SIZE, arguments)
        return cls(tile_size, ids.size, starts, counts, shifts)

    @property
    def max_runs(self) -> int:
        """The most runs of a tile."""
        return self.shifts.shape[1]

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.counts.nbytes + self.shifts.nbytes

    def expand(self) -> Array:
        ids = cupy.empty(self.nnz, self.shifts.dtype)
        kernel = launch.get_kernel(
            "find_runs.cu", "list_ids", **runs_macros(self.tile_size, ids.dtype)
        )
        arrays = (self.starts, self.counts, self.shifts, np.int32(self.max_runs))
        arguments = (np.int64(ids.size), *arrays, ids)
        launch.launch_items(kernel, ids.size, tuning.BLOCK_SIZE, arguments)
        return ids


def count_plan_nbytes(nnz: int, tile_size: int, bucket_size: int, itemsize: int) -> int:
    """Count the bytes of one mode's ids: pulled through, pushed to, and in which order."""
    num_words, num_tiles = -(-nnz // 32), -(-nnz // tile_size)
    runs = 6 * num_words + itemsize * num_tiles * count_runs(nnz, tile_size, bucket_size)
    split = (IdBits.of(limit).count_bytes(nnz) for limit in (bucket_size, tile_size))
    return runs + sum(map(sum, split))


def count_runs(nnz: int, tile_size: int, bucket_size: int) -> int:
    """Return the most runs of a tile: its records in one bucket have consecutive remap ids."""
    return max(1, min(tile_size, -(-nnz // bucket_size)))


def list_parts(ids: SplitIds | Array | None) -> tuple[Array | None, Array | None]:
    """Return the arrays of a kernel's `Ids`."""
    return (ids.low, ids.high) if isinstance(ids, SplitIds) else (ids, None)


def find_bits(ids: SplitIds | Array | None) -> IdBits | None:
    """Return the bits of ids, compact or not."""
    if ids is None:
        return None
    return ids.bits if isinstance(ids, SplitIds) else IdBits(ids.dtype)


def _get_kernel(name: str, dtype: np.dtype, bits: IdBits) -> cupy.RawKernel:
    return launch.get_kernel("split_ids.cu", name, **split_ids_macros(dtype, bits))

"""The ids of a remap plan in as few bytes as they need."""

from dataclasses import dataclass
from typing import Self

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...format.remap import count_runs
from . import launch, tuning
from .macros import IdBits, cut_tile, split_ids_macros


@dataclass(frozen=True)
class PackedIds:
    """Ids in few bits, in the order in which the threads of tiles read them: see `ids.cuh`."""

    bits: IdBits
    lows: Array  # the low bits of the ids of whole tiles
    highs: Array  # uint8: the other bits; empty if there are none
    nnz: int
    tile_size: int

    @classmethod
    def split(cls, ids: Array, limit: int, tile_size: int) -> Self:
        """Pack ids (nnz,) below `limit`."""
        bits = IdBits.of(limit, tile_size)
        num_tiles = -(-ids.size // tile_size)
        num_places = num_tiles * tile_size
        lows = cupy.empty(num_places, bits.low_dtype)
        highs = cupy.empty(num_places * bits.high_bits // 8, np.uint8)
        macros = split_ids_macros(ids.dtype, bits, tile_size)
        kernel = launch.get_kernel("split_ids.cu", "split_ids", **macros)
        launch.launch_items(
            kernel,
            num_tiles * tuning.choose_block_size(tile_size),
            (np.int64(ids.size), np.int64(num_tiles), ids, lows, highs),
        )
        return cls(bits, lows, highs, nnz=ids.size, tile_size=tile_size)

    @property
    def nbytes(self) -> int:
        return self.lows.nbytes + self.highs.nbytes

    def find_positions(self, dtype: np.dtype, bucket_size: int) -> Array:
        """Return the positions (nnz,) of ids that count from the starts of buckets."""
        positions = cupy.empty(self.nnz, dtype)
        macros = split_ids_macros(positions.dtype, self.bits, self.tile_size)
        kernel = launch.get_kernel("split_ids.cu", "join_ids", **macros)
        arguments = (np.int64(self.nnz), np.int64(bucket_size), self.lows, self.highs, positions)
        launch.launch_items(kernel, self.nnz, arguments)
        return positions


@dataclass(frozen=True)
class RunIds:
    """Ids that ascend within each tile, as runs of consecutive ones."""

    starts: Array  # uint32: a bit for each place of whole tiles: a run starts there
    counts: Array  # uint16: for each word of `starts`, the tile's runs that start before it
    shifts: Array  # (num_tiles, max_runs): each run's ids less their places in the tile

    @classmethod
    def find(cls, ids: Array, tile_size: int, max_runs: int) -> Self:
        """Find the runs, of which a tile has `max_runs` at most."""
        num_tiles = -(-ids.size // tile_size)
        num_words = num_tiles * tile_size // 32
        starts = cupy.empty(num_words, np.uint32)
        counts = cupy.empty(num_words, np.uint16)
        shifts = cupy.empty((num_tiles, max_runs), ids.dtype)
        macros = {"REMAP_ID": ids.dtype, **cut_tile(tile_size)}
        kernel = launch.get_kernel("find_runs.cu", "find_runs", **macros)
        arguments = (
            np.int64(num_tiles),
            np.int64(ids.size),
            ids,
            starts,
            counts,
            shifts,
            np.int32(max_runs),
        )
        # A warp has a tile.
        launch.launch_items(
            kernel, 32 * num_tiles, arguments, block_size=tuning.choose_block_size(tile_size)
        )
        return cls(starts, counts, shifts)

    @property
    def max_runs(self) -> int:
        """The most runs of a tile."""
        return self.shifts.shape[1]

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.counts.nbytes + self.shifts.nbytes


def count_plan_nbytes(nnz: int, tile_size: int, bucket_size: int, itemsize: int) -> int:
    """Count the bytes of one mode's ids: pulled through, pushed to, and in which order."""
    pull_ids = IdBits.of(bucket_size, tile_size).count_nbytes(nnz, tile_size)
    write_order = IdBits.of(tile_size, tile_size).count_nbytes(nnz, tile_size)
    # `RunIds`: a uint32 and a uint16 for 32 places, and the shift of each run.
    tile_nbytes = 6 * tile_size // 32 + itemsize * count_runs(nnz, tile_size, bucket_size)
    num_tiles = -(-nnz // tile_size)
    return num_tiles * tile_nbytes + pull_ids + write_order


def list_parts(ids: PackedIds | Array | None) -> tuple[Array | None, Array | None]:
    """Return the arrays of a kernel's `Sources`: the low and the high bits; all ids if unpacked."""
    if isinstance(ids, PackedIds):
        return ids.lows, ids.highs
    return ids, None


def find_bits(ids: PackedIds | Array | None) -> IdBits | None:
    """Return the bits of ids, packed or not."""
    if ids is None:
        return None
    if isinstance(ids, PackedIds):
        return ids.bits
    return IdBits(ids.dtype)

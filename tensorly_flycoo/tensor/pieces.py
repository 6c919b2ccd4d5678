"""The pieces of a tensor that are read one after the other: its slabs, or all of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ..base.array_modules import Array, has_true, move
from ..base.checks import check_sums
from ..base.devices import Devices, OneDevice
from ..engines import Engine
from ..format.layout import Layout
from ..format.ordering import compute_norm
from ..spread.building import count_rows
from ..spread.row_shards import gather_each
from ..spread.slab_layout import AnyLayout, SlabLayout


@dataclass(frozen=True)
class Piece:
    """A slab, or a whole tensor, with the coordinates of the whole tensor.

    Records are read while `hold_records` makes their device the current one.
    """

    layout: Layout
    xp: ModuleType
    devices: Devices
    home: int = 0
    cut_mode: int = 0
    start: int = 0

    @contextlib.contextmanager
    def hold_records(self) -> Iterator[Array]:
        """Keep the records in place; yield them in any order."""
        with self.devices.use(self.home), self.layout.hold_records() as records:
            yield records

    def read_rows(self, records: Array, mode: int) -> Array:
        """Read the coordinates (nnz,) of one mode, as uint32."""
        rows = self.layout.record_format.rows(records, mode, self.xp)
        if mode == self.cut_mode and self.start:
            rows += rows.dtype.type(self.start)
        return rows

    def read_coords(self, records: Array) -> Array:
        """Read all coordinates (ndim, nnz), as int64."""
        coords = self.layout.record_format.coords(records, self.xp)
        if self.start:
            coords[self.cut_mode] += self.start
        return coords

    def read_values(self, records: Array) -> Array:
        """View the values (nnz,) inside the records."""
        return self.layout.record_format.values(records)

    def iterate_nonzeros(self, block_size: int) -> Iterator[tuple[Array, Array]]:
        """Yield coords (ndim, n) and values (n,), `block_size` nonzeros at a time, in any order.

        Each block is on the piece's device, which is current meanwhile.
        """
        with self.hold_records() as records:
            for start in range(0, records.shape[0], block_size):
                block = records[start : start + block_size]
                yield self.read_coords(block), self.read_values(block)

    def take_own(self, coords: Array) -> tuple[Array, Array]:
        """Return the coords (ndim, n) that are inside, with rows from 0; and which they are."""
        rows = coords[self.cut_mode] - self.start
        is_own = (rows >= 0) & (rows < self.layout.record_format.shape[self.cut_mode])
        own = coords[:, is_own]
        own[self.cut_mode] -= self.start
        return own, is_own

    def sort_records(self, engine: Engine) -> Array:
        """Copy the records in the order of modes 0, 1, ..., ndim - 1."""
        with self.devices.use(self.home), self.layout.hold_first_order(engine) as (records, places):
            return records.copy() if places is None else engine.gather(records, places)


def list_pieces(layout: AnyLayout, xp: ModuleType) -> list[Piece]:
    """List the slabs of a tensor in the order of their rows, or the tensor as one piece."""
    if not isinstance(layout, SlabLayout):
        return [Piece(layout, xp, OneDevice(xp))]
    devices = layout.devices
    cut_mode = layout.cut_mode
    return [Piece(s.layout, xp, devices, s.home, cut_mode, s.rows.start) for s in layout.slabs]


def run(
    function: Callable[..., Any],
    layout: AnyLayout,
    engine: Engine,
    *args: Any,
    arrays: Sequence[Array] | None = None,
) -> Iterator:
    """Yield ``function(piece, *args)`` for each piece of a tensor; it stays where the piece is.

    `arrays`, if given, are one more argument, a list; each is brought to each device once.
    """
    found = list_pieces(layout, engine.xp)
    devices = found[0].devices
    homes = [piece.home for piece in found]
    there = gather_each(arrays or (), devices, dict.fromkeys(homes))
    for piece in found:
        place = (piece.layout, piece.cut_mode, piece.start)
        more = () if arrays is None else ([on_each[piece.home] for on_each in there],)
        yield devices.run(piece.home, call_with_piece, function, engine, *place, *args, *more)


def map_pieces(
    function: Callable[..., Array], layout: AnyLayout, engine: Engine, *args: Any, **options: Any
) -> Iterator[Array]:
    """Yield the arrays of `run`, brought to the first device or the host; with the same options."""
    devices = list_pieces(layout, engine.xp)[0].devices
    for result in devices.launch(run(function, layout, engine, *args, **options)):
        yield devices.collect([result])[0]


def call_with_piece(
    function: Callable[..., Array],
    engine: Engine,
    layout: Layout,
    cut_mode: int,
    start: int,
    *args: Any,
) -> Any:
    """Call a function of a slab, on the slab's device, which is the current one."""
    return function(Piece(layout, engine.xp, OneDevice(engine.xp), 0, cut_mode, start), *args)


def read_nonzeros(piece: Piece) -> tuple[Array, Array]:
    """Return the coords (ndim, nnz) and values (nnz,) of a piece, in any order."""
    with piece.hold_records() as records:
        return piece.read_coords(records), piece.read_values(records).copy()


def count_nonzeros(layout: AnyLayout, engine: Engine, mode: int) -> Array:
    """Count the nonzeros in each row of a mode, on the host: int64 (size,)."""
    found = map_pieces(_count_rows, layout, engine, mode, layout.record_format.shape[mode])
    return sum(move(counts, np) for counts in found)


def _count_rows(piece: Piece, mode: int, size: int) -> Array:
    with piece.hold_records() as records:
        return count_rows(piece.read_rows(records, mode), size)


def sum_values(layout: AnyLayout, engine: Engine) -> float:
    """Add up the values, to the same bits in whatever order they lie.

    They are rounded to multiples of a power of 2, about ``2**-62`` of the largest value times their
    number. The sum of these is exact.
    """
    extremes = (map_pieces(find_extreme, layout, engine, name) for name in ("max", "min"))
    largest = max((abs(float(own)) for found in extremes for own in found if own.size), default=0)
    shift = 62 - math.frexp(largest)[1] - layout.nnz.bit_length()
    total = sum(int(part) for part in map_pieces(_sum_scaled, layout, engine, shift))
    return float(np.ldexp(float(total), -shift))


def _sum_scaled(piece: Piece, shift: int) -> Array:
    """Sum the values times a power of 2, as integers."""
    with piece.hold_records() as records:
        scaled = piece.xp.ldexp(piece.read_values(records).astype(np.float64), shift)
        return piece.xp.rint(scaled).astype(np.int64).sum()


def check_piece(piece: Piece) -> np.ndarray:
    """Refuse values that are not finite."""
    for values in piece.layout.iterate_values():
        check_sums(values)
    return np.zeros(0)


def find_extreme(piece: Piece, name: str) -> Array:
    """Find the "max" or "min" of the nonzeros; an empty array if there are none."""
    with piece.hold_records() as records:
        values = piece.read_values(records)
        return getattr(values, name)() if values.size else np.zeros(0)


def has_zeros(piece: Piece) -> np.ndarray:
    """Return whether any stored value is zero."""
    return np.array(any(has_true(values == 0) for values in piece.layout.iterate_values()))


def find_norm(piece: Piece, engine: Engine) -> np.ndarray:
    """Return the norm, summed in the order of modes 0, 1, ..., ndim - 1."""
    return np.array(compute_norm(piece.read_values(piece.sort_records(engine)), engine))

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
    home: int = 0  # the number of the device where it is
    cut_mode: int = 0  # the mode that is cut into slabs
    start: int = 0  # its first row of that mode

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
        is_inside = (rows >= 0) & (rows < self.layout.record_format.shape[self.cut_mode])
        inside = coords[:, is_inside]
        inside[self.cut_mode] -= self.start
        return inside, is_inside

    def sort_records(self, engine: Engine) -> Array:
        """Copy the records in the order of modes 0, 1, ..., ndim - 1."""
        with self.devices.use(self.home), self.layout.hold_first_order(engine) as (records, places):
            if places is None:
                return records.copy()
            return engine.gather(records, places)


def list_pieces(layout: AnyLayout, xp: ModuleType) -> list[Piece]:
    """List the slabs of a tensor in the order of their rows, or the tensor as one piece."""
    if not isinstance(layout, SlabLayout):
        return [Piece(layout, xp, OneDevice(xp))]
    return [
        Piece(slab.layout, xp, layout.devices, slab.home, layout.cut_mode, slab.rows.start)
        for slab in layout.slabs
    ]


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
    all_pieces = list_pieces(layout, engine.xp)
    devices = all_pieces[0].devices
    homes = dict.fromkeys(piece.home for piece in all_pieces)  # each once, in their order
    copies = gather_each(arrays or (), devices, homes)  # of each array, by device
    for piece in all_pieces:
        piece_args = args
        if arrays is not None:
            piece_args = (*args, [by_home[piece.home] for by_home in copies])
        yield devices.run(
            piece.home,
            call_with_piece,
            function,
            engine,
            piece.layout,
            piece.cut_mode,
            piece.start,
            *piece_args,
        )


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
    devices = OneDevice(engine.xp)
    piece = Piece(layout, engine.xp, devices, cut_mode=cut_mode, start=start)
    return function(piece, *args)


def read_nonzeros(piece: Piece) -> tuple[Array, Array]:
    """Return the coords (ndim, nnz) and values (nnz,) of a piece, in any order."""
    with piece.hold_records() as records:
        return piece.read_coords(records), piece.read_values(records).copy()


def count_nonzeros(layout: AnyLayout, engine: Engine, mode: int) -> Array:
    """Count the nonzeros in each row of a mode, on the host: int64 (size,)."""
    size = layout.record_format.shape[mode]
    counts_of_pieces = map_pieces(_count_rows, layout, engine, mode, size)
    return sum(move(counts, np) for counts in counts_of_pieces)


def _count_rows(piece: Piece, mode: int, size: int) -> Array:
    """Count the nonzeros of a piece in each row of a mode of the whole tensor."""
    with piece.hold_records() as records:
        return count_rows(piece.read_rows(records, mode), size)


def sum_values(layout: AnyLayout, engine: Engine) -> float:
    """Add up the values, to the same bits in whatever order they lie.

    They are rounded to multiples of a power of 2, about ``2**-62`` of the largest value times their
    number. The sum of these is exact.
    """
    largest = 0.0
    for name in ("max", "min"):
        for extreme in map_pieces(find_extreme, layout, engine, name):
            if extreme.size:
                largest = max(largest, abs(float(extreme)))
    _, exponent = math.frexp(largest)
    shift = 62 - exponent - layout.nnz.bit_length()  # so that the sum fits in an int64
    total = sum(int(part) for part in map_pieces(_sum_scaled, layout, engine, shift))
    return float(np.ldexp(float(total), -shift))


def _sum_scaled(piece: Piece, shift: int) -> Array:
    """Sum the values times a power of 2, as integers."""
    xp = piece.xp
    with piece.hold_records() as records:
        values = piece.read_values(records).astype(np.float64)
        integers = xp.rint(xp.ldexp(values, shift)).astype(np.int64)
        return integers.sum()


def check_piece(piece: Piece) -> np.ndarray:
    """Refuse values that are not finite."""
    for values in piece.layout.iterate_values():
        check_sums(values)
    return np.zeros(0)


def find_extreme(piece: Piece, name: str) -> Array:
    """Find the "max" or "min" of the nonzeros; an empty array if there are none."""
    with piece.hold_records() as records:
        values = piece.read_values(records)
        if values.size == 0:
            return np.zeros(0)
        return getattr(values, name)()


def has_zeros(piece: Piece) -> np.ndarray:
    """Return whether any stored value is zero."""
    has_zero = any(has_true(values == 0) for values in piece.layout.iterate_values())
    return np.array(has_zero)


def find_norm(piece: Piece, engine: Engine) -> np.ndarray:
    """Return the norm, summed in the order of modes 0, 1, ..., ndim - 1."""
    values = piece.read_values(piece.sort_records(engine))
    return np.array(compute_norm(values, engine))

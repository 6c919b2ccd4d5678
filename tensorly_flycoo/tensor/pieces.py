"""The pieces of a tensor that are read one after the other: its slabs, or all of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from ..array_modules import Array
from ..devices import Devices, OneDevice
from ..format.layout import Layout
from ..format.slab_layout import AnyLayout, SlabLayout


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

    def bring(self, array: Array) -> Array:
        """Return an array on the first device."""
        return self.devices.bring(array, 0)


def iterate_nonzeros(
    layout: AnyLayout, xp: ModuleType, block_size: int
) -> Iterator[tuple[Array, Array]]:
    """Yield coords (ndim, n) and values (n,), `block_size` nonzeros at a time, in any order.

    Each block is on its slab's device, which is current meanwhile.
    """
    for piece in iterate_pieces(layout, xp):
        with piece.hold_records() as records:
            for start in range(0, records.shape[0], block_size):
                block = records[start : start + block_size]
                yield piece.read_coords(block), piece.read_values(block)


def iterate_pieces(layout: AnyLayout, xp: ModuleType) -> Iterator[Piece]:
    """Yield the slabs of a tensor in the order of their rows, or the tensor as one piece."""
    if not isinstance(layout, SlabLayout):
        yield Piece(layout, xp, OneDevice(xp))
        return
    for slab in layout.slabs:
        start = slab.rows.start
        yield Piece(slab.layout, xp, layout.devices, slab.home, layout.cut_mode, start)


def sum_values(layout: AnyLayout, xp: ModuleType) -> float:
    """Add up the values, to the same bits in whatever order they lie.

    They are rounded to multiples of a power of 2, about ``2**-62`` of the largest value times their
    number. The sum of these is exact.
    """
    largest = 0.0
    for values in _iterate_values(layout, xp):
        largest = max(largest, float(abs(values).max()))
    shift, total = 62 - math.frexp(largest)[1] - layout.nnz.bit_length(), 0
    for values in _iterate_values(layout, xp):
        scaled = xp.ldexp(values.astype(np.float64), shift)
        total += int(xp.rint(scaled).astype(np.int64).sum())
    return float(np.ldexp(float(total), -shift))


def _iterate_values(layout: AnyLayout, xp: ModuleType) -> Iterator[Array]:
    """Yield the values of one piece after the other, in any order, but no empty ones."""
    for piece in iterate_pieces(layout, xp):
        if piece.layout.nnz:
            with piece.hold_records() as records:
                yield piece.read_values(records)

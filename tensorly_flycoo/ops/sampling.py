"""Sampled fibres and entries of a sparse tensor, found by bisection in its sorted nonzeros."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array, move
from ..base.devices import bring_each
from ..engines import Engine
from ..spread.slab_layout import AnyLayout, SlabLayout
from ..spread.streamed import StreamedLayout
from ..tensor.cells import count_before, find_places, omit_entries
from ..tensor.indexing import list_ranges
from ..tensor.pieces import Piece, count_nonzeros, map_pieces, read_nonzeros
from ..tensor.tensor import FlycooTensor


class NonzeroSampler:
    """A sampler of entries and fibres of a tensor or slab, by bisection in its sorted nonzeros.

    The nonzeros stay packed, sorted by modes 0, 1, ..., ndim - 1: shared with the tensor if its
    layout never moves them, else copied once. The first call of `fibres` also sorts and keeps, for
    each mode but the last, an order in which its fibres are contiguous: 4 bytes per nonzero and
    mode. Each look-up takes ``log2(nnz)`` steps.
    """

    def __init__(self, layout: AnyLayout, engine: Engine) -> None:
        self._record_format = layout.record_format
        self.shape = self._record_format.shape
        self.ndim = self._record_format.ndim
        self.nnz = layout.nnz
        self.dtype = self._record_format.dtype
        self._xp = engine.xp
        self._primitives = engine
        with layout.hold_first_order(engine) as (records, places):
            if places is not None:
                records = engine.gather(records, places)
            elif isinstance(layout, StreamedLayout):
                records = records.copy()  # from memory that the next records take
            self._records = records

    @functools.cached_property
    def _orders(self) -> list[Array | None]:
        """For each mode, the order by the modes after it, cyclically, and last by itself."""
        order: Array | None = None  # for the last mode, the order of the records
        orders = [order]
        for mode in range(self.ndim - 1, 0, -1):
            order = self._primitives.sort_places(self._records, self._record_format, [mode], order)
            orders.insert(0, order)
        return orders

    def take(self, places: Any) -> tuple[Array, Array]:
        """Return coordinates (ndim, count) and values (count,) of the records at some places."""
        records = self.take_records(places)
        read_rows = self._record_format.rows
        coords = [read_rows(records, mode, self._xp) for mode in range(self.ndim)]
        return self._xp.stack(coords), self._record_format.values(records)

    def take_records(self, places: Any) -> Array:
        """Return the records (count, num_words) of some nonzeros, as `take` does."""
        return self._records[places]

    def entries(self, coords: Array | Sequence[Array]) -> Array:
        """Return the entries (count,) at `coords`, one integer array (count,) per mode."""
        first, last = self._find(None, dict(enumerate(coords)))
        entries = self._xp.zeros(first.shape, self.dtype)
        is_stored = first < last
        records = self._records[first[is_stored]]
        entries[is_stored] = self._record_format.values(records)
        return entries

    def fibres(self, mode: int, coords: Mapping[int, Array]) -> tuple[Array, Array, Array]:
        """Return fibres of a mode, given by their indices (count,) in each other mode.

        For each nonzero in them, fibre by fibre: the number of its fibre, its row, and its value.
        """
        xp = self._xp
        order = self._orders[mode]
        following = [*range(mode + 1, self.ndim), *range(mode)]
        first, last = self._find(order, {n: coords[n] for n in following})
        fibres, places = list_ranges(first, last, xp)
        if order is not None:
            places = order[places]
        records = self._records[places]
        rows = self._record_format.rows(records, mode, xp).astype(np.int64)
        return fibres, rows, self._record_format.values(records)

    def _find(self, order: Array | None, wanted: dict[int, Array]) -> tuple[Array, Array]:
        """Find where nonzeros at `wanted` coordinates begin and end in an order by these modes."""

        def read(places: Array) -> Iterator[Array]:
            if order is not None:
                places = order[places]
            records = self._records[places]
            return (self._record_format.rows(records, mode, self._xp) for mode in wanted)

        coords = [*wanted.values()]
        first = count_before(read, self.nnz, coords, self._xp)
        last = count_before(read, self.nnz, coords, self._xp, or_equal=True)
        return first, last


class SlabSampler:
    """A sampler of the nonzeros of a tensor in slabs, each on its device."""

    def __init__(self, layout: SlabLayout, engine: Engine) -> None:
        self._layout = layout
        self._xp = engine.xp
        self.shape = layout.record_format.shape
        self.nnz = layout.nnz
        self._ends = np.cumsum([slab.layout.nnz for slab in layout.slabs])
        devices = layout.devices
        self._samplers = [
            devices.run(slab.home, NonzeroSampler, slab.layout, engine) for slab in layout.slabs
        ]

    def take(self, places: Any) -> tuple[Array, Array]:
        """Take nonzeros as `NonzeroSampler.take` does; places count through slab after slab."""
        layout = self._layout
        xp = self._xp
        if isinstance(places, slice):
            places = xp.arange(*places.indices(self.nnz))
        selections, slab_places = self._divide(places)
        records_of_slabs = self._take_records(slab_places)
        coords = xp.empty((layout.record_format.ndim, places.size), np.int64)
        values = xp.empty(places.size, layout.record_format.dtype)
        for slab, selection, records in zip(
            layout.slabs, selections, records_of_slabs, strict=True
        ):
            record_format = slab.layout.record_format
            slab_coords = record_format.coords(records, xp)
            slab_coords[layout.cut_mode] += slab.rows.start
            coords[:, selection] = slab_coords
            values[selection] = record_format.values(records)
        return coords, values

    def _divide(self, places: Array) -> tuple[list[Array], list[Array]]:
        """Divide places by slab: which of them are in each one, and what they are there."""
        xp = self._xp
        slab_numbers = xp.searchsorted(xp.asarray(self._ends), places, side="right")
        selections = []
        slab_places = []
        starts = [0, *self._ends[:-1].tolist()]
        for number, start in enumerate(starts):
            selection = xp.flatnonzero(slab_numbers == number)
            selections.append(selection)
            slab_places.append(places[selection] - start)
        return selections, slab_places

    def _take_records(self, slab_places: list[Array]) -> list[Array]:
        """Take the records at some places of each slab, where it is; bring them here."""
        slabs = self._layout.slabs
        devices = self._layout.devices
        brought_places = bring_each(devices, slab_places, [slab.home for slab in slabs])
        tasks = (
            devices.run(slab.home, NonzeroSampler.take_records, sampler, brought)
            for slab, sampler, brought in zip(slabs, self._samplers, brought_places, strict=True)
        )
        return devices.collect(list(devices.launch(tasks)))


def make_sampler(x: FlycooTensor) -> NonzeroSampler | SlabSampler:
    """Make a sampler that takes nonzeros of a tensor, or of its slabs, by their places."""
    if isinstance(x._layout, SlabLayout):
        return SlabSampler(x._layout, x._engine)
    return NonzeroSampler(x._layout, x._engine)


def find_chances(x: FlycooTensor, coords: Array) -> np.ndarray:
    """Return the probability of each cell (count,), if indices come from separate nonzeros."""
    chances = np.ones(coords.shape[1])
    for mode, rows in enumerate(move(coords, np)):
        chances *= count_nonzeros(x._layout, x._engine, mode)[rows] / x.nnz
    return chances


#: Entries are many if they are more than one in so many nonzeros.
_MANY = 4


def split_entries(x: FlycooTensor, coords: Array) -> tuple[Array, FlycooTensor]:
    """Return the entries (count,) of a tensor at coords (ndim, count), and the tensor without them.

    The coords are sorted, without duplicates. The second is `x` itself if it has no nonzeros there.
    """
    parts = map_pieces(_find_entries, x._layout, x._engine, x._engine, arrays=[coords])
    # Each entry is in one piece: the others have a zero there.
    entries = functools.reduce(operator.add, parts)
    if not move(entries, np).any():  # compiling CuPy's `any` would take seconds
        return entries, x
    return entries, omit_entries(x, range(x.ndim), coords)


def _find_entries(piece: Piece, engine: Engine, arrays: Sequence[Array]) -> Array:
    """Return the entries (count,) of a piece; zeros outside."""
    (coords,) = arrays
    entries = engine.xp.zeros(coords.shape[1], piece.layout.record_format.dtype)
    # Few entries are looked up among the nonzeros, whose records are read for that; of many, the
    # nonzeros are looked up among them.
    if coords.shape[1] > piece.layout.nnz // _MANY:
        stored_coords, values = read_nonzeros(piece)
        is_wanted, places = find_places(coords, stored_coords, engine.xp)
        entries[places] = values[is_wanted]
        return entries
    coords_inside, is_inside = piece.take_own(coords)
    sampler = NonzeroSampler(piece.layout, engine)
    entries[is_inside] = sampler.entries(coords_inside)
    return entries

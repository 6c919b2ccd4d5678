"""The columns of an unfolding of a tensor in slabs, in groups that no column is split between.

A slab has all nonzeros of its rows of the cut mode. So in the unfolding along any other mode a
column belongs to one slab, and the slabs are the groups. Along the cut mode columns are shared
between slabs. There a group has all nonzeros with some rows of the longest other mode, which are
taken from all slabs when it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..array_modules import Array
from ..format.ordering import take_marked
from ..format.partition import count_rows, find_edges, list_rows
from ..tensor.pieces import Piece, call_with_piece
from .shared_columns import Entries

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.layout import Layout
    from ..format.packing import RecordFormat
    from ..format.slab_layout import AnyLayout, Slab, SlabLayout


@contextlib.contextmanager
def hold_columns(
    layout: AnyLayout, mode: int, engine: Engine
) -> Iterator[tuple[Array, Array | None]]:
    """Yield the records, and places that order them column by column with ascending rows.

    The order is by modes mode + 1, ..., N - 1, 0, ..., mode. For mode 0 it is by N - 1, ..., 0
    instead: the order of mode N - 1, which needs no sort.
    """
    ndim = layout.record_format.ndim
    with layout.hold_order(0 if mode else ndim - 1, engine) as (records, places):
        if mode:
            later_modes = range(ndim - 1, mode, -1)
            places = engine.sort_places(records, layout.record_format, later_modes, places)
        yield records, places


def list_entries(engine: Engine, layout: AnyLayout, mode: int) -> Entries:
    """List the nonzeros column by column, in an order that does not depend on the layout."""
    with hold_columns(layout, mode, engine) as (records, places):
        return Entries(*engine.split_columns(records, layout.record_format, mode, places))


def iterate_groups(layout: SlabLayout, mode: int, engine: Engine) -> Iterator[tuple[int, Entries]]:
    """Yield the device of each group of columns, and its nonzeros there: a result of `Devices.run`.

    Groups depend on the nonzeros and the number of slabs only. Rows are those of the whole tensor.
    There is one group at a time, with what it is made from; along the cut mode one on each device.
    """
    if mode == layout.cut_mode:
        yield from _iterate_across_slabs(layout, engine)
        return
    for slab in layout.slabs:
        yield slab.home, layout.devices.run(slab.home, list_entries, engine, slab.layout, mode)


def _iterate_across_slabs(layout: SlabLayout, engine: Engine) -> Iterator[tuple[int, Entries]]:
    """Yield what `iterate_groups` does, for the cut mode."""
    record_format, mode, devices = layout.record_format, layout.cut_mode, layout.devices
    others = [n for n in range(record_format.ndim) if n != mode]
    split_mode = max(others, key=lambda n: record_format.shape[n], default=None)
    groups = [None] if split_mode is None else _cut_evenly(layout, split_mode, engine)
    for first in range(0, len(groups), devices.count):
        requests = []
        for home, rows in enumerate(groups[first : first + devices.count]):
            parts = [_take_part(layout, slab, split_mode, rows, engine) for slab in layout.slabs]
            requests.append((parts, home))
            del parts
        gathered = devices.gather(requests)
        del requests
        for home in range(len(gathered)):
            arguments = (engine, gathered[home], record_format, mode)
            gathered[home] = None
            entries = devices.run(home, _sort_columns, *arguments)
            del arguments
            yield home, entries
            del entries


def _cut_evenly(layout: SlabLayout, mode: int, engine: Engine) -> list[range]:
    """Cut a mode into rows with about equally many nonzeros, one part for each slab."""
    devices, counts = layout.devices, np.zeros(layout.record_format.shape[mode], np.int64)

    def count() -> Iterator[Array]:
        for slab in layout.slabs:
            yield devices.run(slab.home, _count_rows, engine, slab.layout, mode)

    for own in devices.launch(count()):
        counts += devices.fetch([own])[0]
    return list_rows(find_edges(counts, layout.num_slabs))


def _take_part(
    layout: SlabLayout, slab: Slab, mode: int | None, rows: range | None, engine: Engine
) -> Array:
    """Copy the nonzeros of a slab that have one of `rows`, on its device."""
    place = (slab.layout, layout.cut_mode, slab.rows.start)
    options = (engine, layout.record_format, mode, rows)
    return layout.devices.run(slab.home, call_with_piece, _take_rows, engine, *place, *options)


# On the device of a slab or a group


def _count_rows(engine: Engine, layout: Layout, mode: int) -> Array:
    with layout.hold_records() as records:
        rows = layout.record_format.rows(records, mode, engine.xp)
        return count_rows(rows, layout.record_format.shape[mode])


def _take_rows(
    piece: Piece, engine: Engine, record_format: RecordFormat, mode: int | None, rows: range | None
) -> Array:
    """Copy the nonzeros that have one of `rows` of a mode, as records of the whole tensor."""
    with piece.hold_records() as records:
        if mode is not None and rows is not None:
            numbers = piece.read_rows(records, mode)
            records = take_marked(records, (numbers >= rows.start) & (numbers < rows.stop))
        coords, values = piece.read_coords(records), piece.read_values(records)
        return record_format.pack(coords, values, engine.xp, engine.block_size)


def _sort_columns(
    engine: Engine, records: Array, record_format: RecordFormat, mode: int
) -> Entries:
    """List the nonzeros column by column.

    Within a slab the order of the records depends on what was computed before: sort by all modes.
    """
    others = [n for n in range(record_format.ndim) if n != mode]
    places = engine.sort_places(records, record_format, [mode, *others])
    return Entries(*engine.split_columns(records, record_format, mode, places))

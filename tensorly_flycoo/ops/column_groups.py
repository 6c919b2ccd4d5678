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
from ..devices import assign_homes
from ..format.ordering import take_marked
from ..format.partition import count_rows, find_edges, list_rows
from ..tensor.pieces import Piece, iterate_pieces
from .shared_columns import Entries

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.packing import RecordFormat
    from ..format.slab_layout import AnyLayout, SlabLayout


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


def iterate_groups(layout: SlabLayout, mode: int, engine: Engine) -> Iterator[tuple[int, Entries]]:
    """Yield for each group of columns its device, and its nonzeros there.

    They depend on the nonzeros and the number of slabs only. Rows are those of the whole tensor.
    At any time there is one group, and what it is made from.
    """
    if mode == layout.cut_mode:
        yield from _iterate_across_slabs(layout, engine)
        return
    for slab in layout.slabs:
        with layout.devices.use(slab.home), hold_columns(slab.layout, mode, engine) as held:
            entries = _split(*held, slab.layout.record_format, mode, engine)
        yield slab.home, entries
        del entries


def _split(
    records: Array, places: Array | None, record_format: RecordFormat, mode: int, engine: Engine
) -> Entries:
    return Entries(*engine.split_columns(records, record_format, mode, places))


def _iterate_across_slabs(layout: SlabLayout, engine: Engine) -> Iterator[tuple[int, Entries]]:
    """Yield what `iterate_groups` does, for the cut mode."""
    record_format, mode = layout.record_format, layout.cut_mode
    others = [n for n in range(record_format.ndim) if n != mode]
    # Within a slab the order of the records depends on what was computed before: sort by all modes.
    modes = [mode, *others]
    split_mode = max(others, key=lambda n: record_format.shape[n], default=None)
    groups = [None] if split_mode is None else _cut_evenly(layout, split_mode, engine)
    for rows, home in zip(groups, assign_homes(len(groups), layout.devices.count), strict=True):
        pieces = iterate_pieces(layout, engine.xp)
        parts = [_take_rows(piece, record_format, split_mode, rows, engine) for piece in pieces]
        (records,) = layout.devices.gather([(parts, home)])
        del parts
        with layout.devices.use(home):
            places = engine.sort_places(records, record_format, modes)
            entries = _split(records, places, record_format, mode, engine)
            del records, places
        yield home, entries
        del entries


def _cut_evenly(layout: SlabLayout, mode: int, engine: Engine) -> list[range]:
    """Cut a mode into rows with about equally many nonzeros, one part for each slab."""
    counts = np.zeros(layout.record_format.shape[mode], np.int64)
    for piece in iterate_pieces(layout, engine.xp):
        with piece.hold_records() as records:
            rows = piece.read_rows(records, mode)
            counts += layout.devices.fetch(count_rows(rows, counts.size))
    return list_rows(find_edges(counts, layout.num_slabs))


def _take_rows(
    piece: Piece, record_format: RecordFormat, mode: int | None, rows: range | None, engine: Engine
) -> Array:
    """Copy the nonzeros of a slab that have one of `rows`, as records of the whole tensor."""
    with piece.hold_records() as records:
        if mode is not None and rows is not None:
            numbers = piece.read_rows(records, mode)
            records = take_marked(records, (numbers >= rows.start) & (numbers < rows.stop))
        arguments = (piece.read_coords(records), piece.read_values(records))
        return record_format.pack(*arguments, engine.xp, engine.block_size)

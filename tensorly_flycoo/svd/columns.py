"""The columns of an unfolding, in groups that no column is split between.

A tensor in one piece is one group. A slab has all nonzeros of its rows of the cut mode. So in the
unfolding along any other mode a column belongs to one slab, and the slabs are the groups. Along the
cut mode columns are shared between slabs. There a group has all nonzeros with some rows of the
longest other mode, taken from all slabs when it is needed. All that is computed of a group is
computed on its device, which may be in another process: see `Devices.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array
from ..base.reporting import log_compilation
from ..format.ordering import take_marked
from ..format.primitives import MTTKRP, Entries, ModeRows
from ..spread.building import find_edges, list_rows
from ..spread.slab_layout import AnyLayout, SlabLayout
from ..spread.whole_layout import build_slabs
from ..tensor.pieces import Piece, call_with_piece, count_nonzeros, list_pieces

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.layout import Layout
    from ..format.packing import RecordFormat

#: Columns to multiply at a time, or as many as there are rows if that is more: the product of all
#: of them could be much larger than a factor.
_COLUMNS_AT_ONCE = 2**22

#: A product with a Gram matrix whose intermediate and final results are larger is computed for as
#: many vectors at a time as fit, in whole steps, but at least one step.
_MAX_PRODUCT_NBYTES = 2**32
_VECTORS_STEP = 8


class Columns:
    """The columns of the unfolding of a tensor along one mode: iterates over their groups.

    Yields the device of each group, and its `Entries` there: a result of `Devices.run`. Their rows
    are those of the whole tensor. One group exists at a time, or, along the cut mode, one on each
    device. `entries` are those of a tensor in one piece, else None.
    """

    def __init__(self, layout: AnyLayout, mode: int, engine: Engine) -> None:
        self.layout = layout
        self.mode = mode
        self.engine = engine
        self.num_rows = layout.record_format.shape[mode]
        self.devices = list_pieces(layout, engine.xp)[0].devices
        self.entries: Entries | None = None
        if not isinstance(layout, SlabLayout):
            self.entries = list_entries(engine, layout, mode)

    def __iter__(self) -> Iterator[tuple[int, Entries]]:
        layout = self.layout
        run = self.devices.run
        if not isinstance(layout, SlabLayout):
            assert self.entries is not None
            yield 0, self.entries
        elif self.mode == layout.cut_mode:
            yield from _iterate_across_slabs(layout, self.engine)
        else:
            for slab in layout.slabs:
                yield slab.home, run(slab.home, list_entries, self.engine, slab.layout, self.mode)

    def transpose(self, counts: list[int], scale: float) -> AnyLayout:
        """Build the transposed matrix, divided by `scale`; the groups have `counts` columns."""

        def number_columns() -> Iterator[tuple[Array, Array]]:
            first = 0
            for count, (home, entries) in zip(counts, self, strict=True):
                yield self.devices.run(home, _number_columns, self.engine, entries, first, scale)
                del entries
                first += count

        shape = (sum(counts), self.num_rows)
        if isinstance(self.layout, SlabLayout):
            return _build_in_slabs(self.layout, number_columns(), shape, self.engine)
        ((coords, values),) = number_columns()
        return build_matrix(coords, values, shape, self.engine)


def _build_in_slabs(
    layout: SlabLayout, parts: Iterable[tuple[Array, Array]], shape: tuple[int, int], engine: Engine
) -> SlabLayout:
    """Build a matrix from coords (2, n) and values (n,), in as many slabs as another tensor.

    The arrays pass through the host, unless the slabs are in other processes.
    """
    if layout.build_elsewhere is not None:
        return layout.build_elsewhere(parts, "replicated", shape, np.dtype(np.float64))
    coords_of_parts = []
    values_of_parts = []
    for coords, values in parts:
        coords_of_parts.append(layout.devices.fetch([coords]))
        values_of_parts.append(layout.devices.fetch([values]))
    coords = np.concatenate(coords_of_parts, axis=-1)
    values = np.concatenate(values_of_parts, axis=-1)
    del coords_of_parts, values_of_parts
    coords, values = engine.receive(coords, values)
    cut = engine.choose_cut(shape, values.dtype)
    return build_slabs(engine, "replicated", coords, values, cut, layout.num_slabs)


def build_matrix(
    coords: Array, values: Array, shape: tuple[int, int], engine: Engine, name: str = "replicated"
) -> Layout:
    """Build a matrix that is multiplied from both sides, on the current device."""
    with log_compilation():
        return engine.build_piece(name, coords, values, shape)


def _iterate_across_slabs(layout: SlabLayout, engine: Engine) -> Iterator[tuple[int, Entries]]:
    """Yield the groups of columns along the cut mode, as many at a time as there are devices."""
    record_format = layout.record_format
    mode = layout.cut_mode
    devices = layout.devices
    split_mode, groups = _split_longest_mode(layout, engine)
    for first in range(0, len(groups), devices.count):
        requests = []
        for home, rows in enumerate(groups[first : first + devices.count]):
            parts = [
                devices.run(
                    slab.home,
                    call_with_piece,
                    _take_rows,
                    # The piece: a slab, whose rows of the cut mode begin at `start`.
                    engine,
                    slab.layout,
                    mode,
                    slab.rows.start,
                    # The arguments of `_take_rows` after the piece.
                    engine,
                    record_format,
                    split_mode,
                    rows,
                )
                for slab in layout.slabs
            ]
            requests.append((parts, home))
            del parts
        gathered = devices.gather(requests)
        del requests
        for home in range(len(gathered)):
            # The list gives up each group's records: sorting them takes much memory.
            records = gathered[home]
            gathered[home] = None
            entries = devices.run(home, _sort_columns, engine, records, record_format, mode)
            del records
            yield home, entries
            del entries


def _split_longest_mode(
    layout: SlabLayout, engine: Engine
) -> tuple[int | None, Sequence[range | None]]:
    """Split the longest of the modes that are not cut into rows with about equally many nonzeros.

    Returns the mode, and as many ranges as there are slabs. A vector has no such mode: then None,
    and one None in place of ranges.
    """
    shape = layout.record_format.shape
    column_modes = [n for n in range(len(shape)) if n != layout.cut_mode]
    if not column_modes:
        return None, [None]
    longest = max(column_modes, key=lambda n: shape[n])
    counts = count_nonzeros(layout, engine, longest)
    return longest, list_rows(find_edges(counts, layout.num_slabs))


# On the device of a slab or a group


def list_entries(engine: Engine, layout: Layout, mode: int) -> Entries:
    """List the nonzeros column by column: by modes mode + 1, ..., N - 1, 0, ..., mode.

    Rows ascend in each column. For mode 0 it is by N - 1, ..., 0 instead: the order of mode N - 1,
    which needs no sort.
    """
    record_format = layout.record_format
    ndim = record_format.ndim
    if mode == 0:
        with layout.hold_last_order(engine) as (records, places):
            return engine.split_columns(ModeRows(records, record_format, mode, places))
    with layout.hold_first_order(engine) as (records, places):
        later_modes = range(ndim - 1, mode, -1)
        places = engine.sort_places(records, record_format, later_modes, places)
        return engine.split_columns(ModeRows(records, record_format, mode, places))


def _take_rows(
    piece: Piece, engine: Engine, record_format: RecordFormat, mode: int | None, rows: range | None
) -> Array:
    """Copy the nonzeros that have one of `rows` of a mode, as records of the whole tensor."""
    with piece.hold_records() as records:
        if mode is not None and rows is not None:
            numbers = piece.read_rows(records, mode)
            is_taken = (numbers >= rows.start) & (numbers < rows.stop)
            records = take_marked(records, is_taken)
        coords = piece.read_coords(records)
        values = piece.read_values(records)
        return engine.pack(coords, values, record_format)[0]


def _sort_columns(
    engine: Engine, records: Array, record_format: RecordFormat, mode: int
) -> Entries:
    """List the nonzeros column by column, by all modes: their order in a slab varies."""
    column_modes = [n for n in range(record_format.ndim) if n != mode]
    places = engine.sort_places(records, record_format, [mode, *column_modes])
    return engine.split_columns(ModeRows(records, record_format, mode, places))


def _number_columns(
    engine: Engine, entries: Entries, first: int, scale: float
) -> tuple[Array, Array]:
    """Return coords and values for the transposed matrix; columns are numbered from `first` on."""
    is_first, rows, values = entries
    columns = engine.xp.cumsum(is_first[:-1]) + (first - 1)
    return engine.xp.stack([columns, rows.astype(np.int64)]), values / scale


class SharedColumns:
    """The columns of a group with at least two nonzeros each, multiplied some at a time.

    `entries` are those of the matrix times `scale`, a power of two. Blocks that are multiplied have
    a row for each of `rows`: those with nonzeros in shared columns, ascending. All have one dtype.
    """

    def __init__(self, entries: Entries, scale: float, num_rows: int, engine: Engine) -> None:
        self._engine = engine
        self.rows, self._coords, self._values = engine.list_shared(entries, num_rows, scale)
        num_shared = int(self._values.size)
        self.num_columns = 0
        if num_shared:
            self.num_columns = int(self._coords[0, -1]) + 1  # they are numbered in their order
        self._columns_at_once = max(_COLUMNS_AT_ONCE, self.rows.size)
        #: With those that are not shared.
        self.num_all_columns = int(entries.values.size) - num_shared + self.num_columns
        self._tensors: list[Layout] = []

    def add_singles(self, diagonal: Array, dtype: DTypeLike) -> None:
        """Add to the Gram matrix a diagonal: for each row with an element, a column of its root.

        All columns then are one matrix, in the smallest layout; the entries are given up.
        """
        xp = self._engine.xp
        rows = xp.flatnonzero(diagonal)
        num_singles = int(rows.size)
        single_columns = self.num_columns + xp.arange(num_singles)
        single_coords = xp.stack([single_columns, rows])
        coords = xp.concatenate([self._coords, single_coords], axis=1)
        self._coords = None
        roots = xp.sqrt(diagonal[rows])
        values = xp.concatenate([self._values, roots]).astype(dtype)
        self._values = None
        shape = (self.num_columns + num_singles, self.rows.size)
        self._tensors = [build_matrix(coords, values, shape, self._engine, "indexed")]

    def count(self) -> np.ndarray:
        """Count all columns, the shared ones, and the parts in which these are multiplied."""
        num_parts = -(-self.num_columns // self._columns_at_once)
        return np.array([self.num_all_columns, self.num_columns, num_parts])

    def form_gram(self, diagonal: Array | None = None) -> Array:
        """Return the Gram matrix of the rows, float64, plus a diagonal; see `Engine.gram`."""
        if self._coords is None:  # after `add_singles` the columns hold the diagonal
            dtype = self._tensors[0].record_format.dtype
            identity = self._engine.xp.eye(self.rows.size, dtype=dtype)
            return self.multiply_gram(identity).astype(np.float64)
        if diagonal is None:
            diagonal = self._engine.xp.zeros(self.rows.size)
        return self._engine.gram(self._coords, self._values, diagonal)

    def multiply_gram(self, block: Array, mode: int = 0, total: Array | None = None) -> Array:
        """Return the product of the Gram matrix of the rows and a block (size, k).

        With mode 1 it is that of the columns, after `add_singles`. It is added to `total` in place.
        """
        if total is None:
            total = self._engine.xp.zeros(block.shape, block.dtype)
        for columns in self._list_tensors(block.dtype):
            step_nbytes = sum(columns.record_format.shape) * _VECTORS_STEP * block.itemsize
            num_steps = max(1, _MAX_PRODUCT_NBYTES // step_nbytes)
            width = num_steps * _VECTORS_STEP
            for first in range(0, block.shape[1], width):
                part = slice(first, first + width)
                vectors = self._engine.xp.ascontiguousarray(block[:, part])
                product = self._multiply(columns, vectors, mode)
                total[:, part] += self._multiply(columns, product, 1 - mode)
                del product  # before the next one takes as much memory
        return total

    def multiply(self, block: Array) -> Array:
        """Return the product of the matrix, after `add_singles`, and a block."""
        return self._multiply(self._tensors[0], block, 1)

    def reduce_right_product(
        self, number: int, block: Array, function: Callable[[Array], Any]
    ) -> Any:
        """Apply a function to the product of a part, transposed, and a block: (n, k)."""
        part = self._list_tensors(block.dtype)[number]
        product = self._multiply(part, block, 0)
        return function(product[: self.num_columns])  # without those of `add_singles`

    def _multiply(self, columns: Layout, block: Array, mode: int) -> Array:
        """Multiply columns by a block with a row for each row of theirs (mode 0), or back."""
        shape = (columns.record_format.shape[mode], block.shape[1])
        out = self._engine.xp.empty(shape, block.dtype)
        columns.apply(MTTKRP, self._engine, {1 - mode: block}, mode, out)
        return out

    def _list_tensors(self, dtype: DTypeLike) -> list[Layout]:
        """Return the columns, some at a time, as tensors (num_columns, size); builds them once."""
        if self._tensors:
            return self._tensors
        coords = self._coords
        values = self._values
        xp = self._engine.xp
        step = self._columns_at_once
        firsts = range(0, self.num_columns, step)
        starts = [0]  # where the entries of each part begin
        if len(firsts) > 1:
            starts = xp.searchsorted(coords[0], xp.asarray(firsts)).tolist()
        ends = [*starts[1:], values.size]
        tensors = []
        for first, start, end in zip(firsts, starts, ends, strict=False):
            part_coords = coords[:, start:end]
            if first > 0:
                part_coords = part_coords - xp.asarray([[first], [0]])
            part_values = values[start:end].astype(dtype, copy=False)
            num_part_columns = min(step, self.num_columns - first)
            shape = (num_part_columns, self.rows.size)
            tensors.append(build_matrix(part_coords, part_values, shape, self._engine))
        self._tensors = tensors
        return tensors

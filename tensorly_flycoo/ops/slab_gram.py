"""The Gram matrix of an unfolding of a tensor in slabs: a sum over groups of its columns.

Squares of values alone in their columns, Gram matrices and products with them add over the groups
of `column_groups`. They are added on the first device, one group after the other, so that results
depend on the number of slabs only. What is computed for a group is computed on its device, which
may be in another process: see `Devices.run`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..array_modules import Array
from ..format.layouts import LAYOUT_CLASSES
from ..format.slab_layout import SlabLayout
from ..linalg.leading_pairs import MAX_GRAM_SIZE
from .column_groups import iterate_groups
from .shared_columns import Entries, SharedColumns
from .unfolding_gram import UnfoldingGram, choose_dtype, is_cheap_to_form

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..tensor.tensor import FlycooTensor

#: Rows of Gram matrices that are added at a time.
_ROWS_AT_ONCE = 256


class _Sums(NamedTuple):
    """What a group adds to the sums over all groups, and its shared columns, on its device."""

    home: int
    shared: Any  # SharedColumns, or a stand-in
    total: float
    squares: Array  # float64 (2, num_rows)
    rows: Array  # int64 (size,): those with nonzeros in shared columns
    num_columns: int  # all that are not empty
    num_shared: int
    num_parts: int


class _Group(NamedTuple):
    """Shared columns on one device, and the places of their rows among the coupled rows."""

    home: int
    shared: Any
    slots: Array
    num_parts: int


class SlabGram(UnfoldingGram):
    """``A @ A.T`` of an unfolding A of a tensor in slabs, on the first device.

    With up to 8192 rows each group's Gram matrix is added to one matrix at once, if that is cheap,
    and only one group is there at a time. Otherwise the shared columns of all groups are kept, each
    on its device. `scale` is a power of two such that the sum of the squares of A, divided by its
    square, is at most 1.
    """

    def __init__(
        self, x: FlycooTensor, mode: int, scale: float, dtype: DTypeLike, is_exact: bool
    ) -> None:
        assert isinstance(x._layout, SlabLayout)
        self._engine, self._is_exact = x._engine, is_exact
        self._layout, self._mode, self._scale = x._layout, mode, scale
        xp, num_rows = self._engine.xp, x.shape[mode]
        # Of n nonzeros at most n // 2 are the first ones of shared columns.
        self._forms_at_once = is_cheap_to_form(self._engine, num_rows, x.nnz // 2)
        self._gram = xp.zeros((num_rows, num_rows)) if self._forms_at_once else None
        self.total, self.squares = 0.0, xp.zeros((2, num_rows))
        is_coupled, counts, kept = xp.zeros(num_rows, bool), [], []
        for sums in self._iterate_sums():
            self.total += sums.total
            self.squares += sums.squares
            is_coupled[sums.rows] = True
            counts.append((sums.num_columns, sums.num_shared))
            if self._gram is not None:
                self._add_gram(self._gram, sums.home, sums.shared, sums.rows)
            else:
                kept.append(sums._replace(squares=None))
            del sums
        self.rows = xp.flatnonzero(is_coupled)
        self.size = int(self.rows.size)
        self.dtype = choose_dtype(self.size, dtype)
        self._diagonal = self._engine.add_signs(self.squares, self.rows)
        self._groups = [self._number_rows(sums, is_coupled) for sums in kept]
        num_columns, self._num_shared = (sum(own) for own in zip(*counts, strict=True))
        if self._gram is not None and self.size < num_rows:
            self._gram = self._gram[self.rows[:, None], self.rows]
        num_used = num_rows - int(self._layout.find_empty_rows(mode).size)
        is_few = 0 < num_columns <= MAX_GRAM_SIZE and num_columns < num_used
        self.columns = self._build_columns([own[0] for own in counts]) if is_few else None

    def _build_columns(self, counts: list[int]) -> SlabLayout:
        """Build the transposed matrix from the groups, which have `counts` columns."""
        engine, scale, run = self._engine, self._scale, self._layout.devices.run

        def place() -> Iterator[tuple[Array, Array]]:
            first = 0
            for count, (home, entries) in zip(counts, self._iterate_groups(), strict=True):
                yield run(home, _number_columns, engine, entries, first, scale)
                del entries
                first += count

        shape = (sum(counts), self.squares.shape[1])
        return build_in_slabs(self._layout, place(), shape, engine)

    def _iterate_groups(self) -> Iterator[tuple[int, Entries]]:
        return iterate_groups(self._layout, self._mode, self._engine)

    def _iterate_sums(self) -> Iterator[_Sums]:
        """List the columns of all groups, on their devices."""
        devices = self._layout.devices
        for home, shared, parts in devices.launch(self._start_sums()):
            total, squares, rows, counts = devices.collect(parts)
            yield _Sums(
                home, shared, float(total[0]) / self._scale, squares, rows, *counts.tolist()
            )
            del shared, parts, squares

    def _start_sums(self) -> Iterator[tuple[int, Any, list[Array]]]:
        """Yield each group's device, its shared columns, and what `_Sums` has of it, there."""
        num_rows, engine = self.squares.shape[1], self._engine
        for home, entries in self._iterate_groups():
            run = functools.partial(self._layout.devices.run, home)
            total = run(_add_values, entries)
            squares = run(_sum_squares, engine, entries, num_rows, self._scale)
            shared = run(SharedColumns, entries, self._scale, num_rows, engine)
            counts, rows = run(_count_columns, entries, shared), run(getattr, shared, "rows")
            del entries
            yield home, shared, [total, squares, rows, counts]
            del shared, squares

    def _add_gram(self, gram: Array, home: int, shared: Any, places: Array) -> None:
        """Add the Gram matrix of a group at the places of its rows, in place."""
        if places.size == 0:
            return
        part = self._run(home, SharedColumns.form_gram, shared)
        for start in range(0, part.shape[0], _ROWS_AT_ONCE):  # each addition copies its rows
            block = slice(start, start + _ROWS_AT_ONCE)
            gram[places[block, None], places] += part[block]

    def _run(self, home: int, function: Callable[..., Any], *args: Any) -> Array:
        """Call a function on a device; bring its result to the first one."""
        devices = self._layout.devices
        (result,) = devices.collect([devices.run(home, function, *args)])
        return result

    def _number_rows(self, sums: _Sums, is_coupled: Array) -> _Group:
        slots = (self._engine.xp.cumsum(is_coupled) - 1)[sums.rows]
        self._layout.devices.run(sums.home, setattr, sums.shared, "dtype", self.dtype)
        return _Group(sums.home, sums.shared, slots, sums.num_parts)

    # Of the coupled rows

    def is_cheap_to_form(self) -> bool:
        cheap = is_cheap_to_form(self._engine, self.size, self._num_shared)
        return self._forms_at_once or cheap

    def form(self) -> Array:
        xp = self._engine.xp
        gram = xp.zeros((self.size, self.size)) if self._gram is None else self._gram.copy()
        for home, shared, slots, _ in self._groups:
            self._add_gram(gram, home, shared, slots)
        places = xp.arange(self.size)
        gram[places, places] += self._diagonal
        return gram

    def multiply(self, block: Array) -> Array:
        xp, devices = self._engine.xp, self._layout.devices
        total = block * self._diagonal.astype(self.dtype)[:, None]
        if self._gram is not None:
            lower = xp.tril(self._gram)
            total += lower @ block + xp.tril(lower, -1).T @ block
        products = devices.launch(self._start_product(group, block) for group in self._groups)
        for group, product in zip(self._groups, products, strict=True):
            total[group.slots] += devices.collect([product])[0]
        return total

    def _start_product(self, group: _Group, block: Array) -> Array:
        own_block = self._bring_rows(group, block)
        arguments = (SharedColumns.multiply_gram, group.shared, own_block)
        return self._layout.devices.run(group.home, *arguments)

    def _bring_rows(self, group: _Group, block: Array) -> Array:
        """Return the rows of a group, on its device."""
        own_block = self._engine.xp.ascontiguousarray(block[group.slots])
        return self._layout.devices.bring(own_block, group.home)

    def reduce_right_products(
        self, block: Array, function: Callable[[Array], Array]
    ) -> Iterator[Array]:
        devices = self._layout.devices
        for part in devices.launch(self._start_right_products(block, function)):
            yield devices.collect([part])[0]

    def _start_right_products(
        self, block: Array, function: Callable[[Array], Array]
    ) -> Iterator[Array]:
        for group in self._iterate_shared():
            own_block = self._bring_rows(group, block)
            for number in range(group.num_parts):
                arguments = (group.shared, number, own_block, function)
                run = self._layout.devices.run
                yield run(group.home, SharedColumns.reduce_right_product, *arguments)

    def _iterate_shared(self) -> Iterator[_Group]:
        """Yield the groups; list them again if they are not kept."""
        if not self._forms_at_once:
            yield from self._groups
            return
        is_coupled = self._engine.xp.zeros(self.squares.shape[1], bool)
        is_coupled[self.rows] = True
        for sums in self._iterate_sums():
            yield self._number_rows(sums, is_coupled)
            del sums


@functools.singledispatch
def build_in_slabs(
    layout: SlabLayout,
    parts: Iterable[tuple[Array, Array]],
    shape: tuple[int, int],
    engine: Engine,
) -> SlabLayout:
    """Build a matrix from coords (2, n) and values (n,), in as many slabs as another tensor.

    The arrays pass through the host.
    """
    found = []
    for part in parts:
        found.append(layout.devices.fetch(part))
        del part
    coords, values = (np.concatenate(own, axis=-1) for own in zip(*found, strict=True))
    del found
    coords, values = engine.receive(coords, values)
    record_format = engine.choose_cut(shape, values.dtype).record_format
    options = (record_format, layout.num_slabs, engine, layout.devices)
    return type(layout).build(LAYOUT_CLASSES["replicated"], coords, values, *options)


# On the device of a group


def _add_values(entries: Entries) -> Array:
    return entries.values.sum(keepdims=True)


def _sum_squares(engine: Engine, entries: Entries, num_rows: int, scale: float) -> Array:
    return engine.sum_single_squares(*entries, num_rows, scale)


def _count_columns(entries: Entries, shared: SharedColumns) -> np.ndarray:
    """Count the columns, the shared ones, and their parts; on the host."""
    num_columns = int(entries.is_first[:-1].sum())
    return np.array([num_columns, shared.num_columns, shared.num_parts])


def _number_columns(
    engine: Engine, entries: Entries, first: int, scale: float
) -> tuple[Array, Array]:
    """Return coords and values for the transposed matrix; columns are numbered from `first` on."""
    is_first, rows, values = entries
    columns = engine.xp.cumsum(is_first[:-1]) + (first - 1)
    return engine.xp.stack([columns, rows.astype(np.int64)]), values / scale

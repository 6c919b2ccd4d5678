"""The Gram matrix of an unfolding of a tensor in slabs: a sum over groups of its columns.

Squares of values alone in their columns, Gram matrices and products with them add over the groups
of `column_groups`. They are added on the first device, one group after the other, so that results
depend on the number of slabs only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..array_modules import Array
from ..checks import SURELY_FREE_NBYTES
from ..format.layouts import LAYOUT_CLASSES
from ..format.slab_layout import SlabLayout
from ..linalg.leading_pairs import MAX_GRAM_SIZE
from ..tensor.memory import RefusedMemory, format_nbytes
from .column_groups import iterate_groups
from .shared_columns import Entries, SharedColumns
from .svd_memory import count_svd_nbytes
from .unfolding_gram import UnfoldingGram, choose_dtype, is_cheap_to_form

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..tensor.tensor import FlycooTensor

#: Rows of Gram matrices that are added at a time.
_ROWS_AT_ONCE = 256


class _Group(NamedTuple):
    """Shared columns on one device, and the places of their rows among the coupled rows."""

    home: int
    shared: SharedColumns
    slots: Array


class SlabGram(UnfoldingGram):
    """``A @ A.T`` of an unfolding A of a tensor in slabs, on the first device.

    With up to 8192 rows each group's Gram matrix is added to one matrix at once, if that is cheap,
    and only one group is there at a time. Otherwise the shared columns of all groups are kept, each
    on its device.

    Parameters
    ----------
    x : FlycooTensor
        In slabs.
    mode : int
    scale : float
        A power of two. The sum of the squares of A is at most 1 when divided by its square.
    dtype, is_exact
        As for `UnfoldingGram`.

    Raises
    ------
    MemoryError
        If the parts do not fit; it names init="random".
    """

    def __init__(
        self, x: FlycooTensor, mode: int, scale: float, dtype: DTypeLike, is_exact: bool
    ) -> None:
        assert isinstance(x._layout, SlabLayout)
        _check_memory(x, mode)
        self._engine, self._is_exact = x._engine, is_exact
        self._layout, self._mode, self._scale = x._layout, mode, scale
        xp, num_rows = self._engine.xp, x.shape[mode]
        # Of n nonzeros at most n // 2 are the first ones of shared columns.
        self._forms_at_once = is_cheap_to_form(self._engine, num_rows, x.nnz // 2)
        self._gram = xp.zeros((num_rows, num_rows)) if self._forms_at_once else None
        self.total, self.squares = 0.0, xp.zeros((2, num_rows))
        is_coupled, few, kept = xp.zeros(num_rows, bool), _FewColumns(), []
        for home, entries in iterate_groups(self._layout, mode, self._engine):
            shared = self._add_group(home, entries, few)
            is_coupled[self._bring(shared.rows)] = True
            if not self._forms_at_once:
                kept.append((home, shared))
            del entries, shared
        self.rows = xp.flatnonzero(is_coupled)
        self.size = int(self.rows.size)
        self.dtype = choose_dtype(self.size, dtype)
        self._diagonal = self._engine.add_signs(self.squares, self.rows)
        self._groups = [self._number_rows(home, shared, is_coupled) for home, shared in kept]
        self._num_columns = sum(group.shared.num_columns for group in self._groups)
        if self._gram is not None and self.size < num_rows:
            self._gram = self._gram[self.rows[:, None], self.rows]
        self.columns = few.build(self._layout, num_rows, self._engine)

    def _bring(self, array: Array) -> Array:
        return self._layout.devices.bring(array, 0)

    def _add_group(self, home: int, entries: Entries, few: _FewColumns) -> SharedColumns:
        """Add the sums of a group; return its shared columns."""
        num_rows, scale, engine = self.squares.shape[1], self._scale, self._engine
        with self._layout.devices.use(home):
            total = float(entries.values.sum()) / scale
            squares = engine.sum_single_squares(*entries, num_rows, scale)
            shared = SharedColumns(entries, scale, num_rows, engine)
            few.add(entries, shared, scale, self._layout)
        self.total += total
        self.squares += self._bring(squares)
        if self._gram is not None:
            self._add_gram(self._gram, home, shared, shared.rows)
        return shared

    def _add_gram(self, gram: Array, home: int, shared: SharedColumns, places: Array) -> None:
        """Add the Gram matrix of a group at the places of its rows, in place."""
        if places.size == 0:
            return
        with self._layout.devices.use(home):
            part = shared.form_gram(self._engine.xp.zeros(shared.rows.size))
        places, part = self._bring(places), self._bring(part)
        for start in range(0, part.shape[0], _ROWS_AT_ONCE):  # each addition copies its rows
            block = slice(start, start + _ROWS_AT_ONCE)
            gram[places[block, None], places] += part[block]

    def _number_rows(self, home: int, shared: SharedColumns, is_coupled: Array) -> _Group:
        slots = (self._engine.xp.cumsum(is_coupled) - 1)[self._bring(shared.rows)]
        shared.dtype = self.dtype
        return _Group(home, shared, slots)

    # Of the coupled rows

    def is_cheap_to_form(self) -> bool:
        cheap = is_cheap_to_form(self._engine, self.size, self._num_columns)
        return self._forms_at_once or cheap

    def form(self) -> Array:
        xp = self._engine.xp
        gram = xp.zeros((self.size, self.size)) if self._gram is None else self._gram.copy()
        for home, shared, slots in self._groups:
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
        for home, shared, slots in self._groups:
            own_block = xp.ascontiguousarray(block[slots])
            with devices.use(home):
                product = xp.zeros(own_block.shape, self.dtype)
                shared.add_gram_product(product, devices.bring(own_block, home))
            total[slots] += self._bring(product)
        return total

    def iterate_right_products(self, block: Array) -> Iterator[Array]:
        """Yield ``A.T @ block`` for some shared columns at a time, each on the first device."""
        devices, xp = self._layout.devices, self._engine.xp
        for home, shared, slots in self._iterate_shared():
            own_block = xp.ascontiguousarray(block[slots])
            with devices.use(home):
                products = shared.iterate_right_products(devices.bring(own_block, home))
            while True:
                with devices.use(home):
                    product = next(products, None)
                if product is None:
                    break
                yield self._bring(product)

    def _iterate_shared(self) -> Iterator[_Group]:
        """Yield the groups; list them again if they are not kept."""
        if not self._forms_at_once:
            yield from self._groups
            return
        num_rows, engine = self.squares.shape[1], self._engine
        is_coupled = engine.xp.zeros(num_rows, bool)
        is_coupled[self.rows] = True
        for home, entries in iterate_groups(self._layout, self._mode, engine):
            with self._layout.devices.use(home):
                shared = SharedColumns(entries, self._scale, num_rows, engine)
            del entries
            yield self._number_rows(home, shared, is_coupled)


def _check_memory(x: FlycooTensor, mode: int) -> None:
    """Refuse at once what does not fit if nonzeros are spread evenly; others need more."""
    sizes = (x._engine, x.shape, x.nnz, x.dtype)
    needed, free = count_svd_nbytes(*sizes, mode, 1, x.slabs), None
    if needed > SURELY_FREE_NBYTES:
        free = x._engine.count_free_nbytes()
    if free is not None and needed > free:
        raise RefusedMemory(
            f"singular vectors of mode {mode} need about {format_nbytes(needed)} on "
            f"{x.device!r}, and {format_nbytes(free)} is free: use init='random', which needs none"
        )


class _FewColumns:
    """All nonzeros on the host, as long as they are in at most 8192 columns.

    They are the columns, rows and values of each group; None if there are more columns.
    """

    def __init__(self) -> None:
        self._nonzeros: list[tuple[np.ndarray, np.ndarray, np.ndarray]] | None = []
        self._num_columns = 0

    def add(
        self, entries: Entries, shared: SharedColumns, scale: float, layout: SlabLayout
    ) -> None:
        """Add a group, on its device."""
        first = self._num_columns
        num_singles = entries.values.size - shared.num_nonzeros
        self._num_columns += num_singles + shared.num_columns
        if self._num_columns > MAX_GRAM_SIZE:
            self._nonzeros = None
        if self._nonzeros is not None:
            is_first, rows, values = map(layout.devices.fetch, entries)
            columns = np.cumsum(is_first[:-1]) + (first - 1)
            self._nonzeros.append((columns, rows.astype(np.int64), values / scale))

    def build(self, layout: SlabLayout, num_rows: int, engine: Engine) -> SlabLayout | None:
        """Build the transposed matrix, in as many slabs and on the same devices as a layout.

        Return None if columns are not few, or no fewer than the rows with nonzeros.
        """
        if self._nonzeros is None:
            return None
        columns, rows, values = map(np.concatenate, zip(*self._nonzeros, strict=True))
        if not 0 < self._num_columns < np.unique(rows).size:
            return None
        coords, values = engine.receive(np.stack([columns, rows]), values)
        shape = (self._num_columns, num_rows)
        record_format = engine.choose_cut(shape, values.dtype).record_format
        options = (record_format, layout.num_slabs, engine.choose_cut, engine, layout.devices)
        return type(layout).build(LAYOUT_CLASSES["replicated"], coords, values, *options)

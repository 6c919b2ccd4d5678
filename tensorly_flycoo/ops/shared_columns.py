"""The columns of an unfolding that have more than one nonzero, multiplied some at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..array_modules import Array
from ..reporting import log_compilation

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.layout import Layout

#: Columns to multiply at a time, or as many as there are rows if that is more: the product of all
#: of them could be much larger than a factor.
_COLUMNS_AT_ONCE = 2**22


class Entries(NamedTuple):
    """The nonzeros of an unfolding, column by column with ascending rows."""

    is_first: Array  # bool (nnz + 1,): whether a nonzero is the first of its column; ends with True
    rows: Array  # (nnz,)
    values: Array  # float64 (nnz,)


class SharedColumns:
    """Columns with at least two nonzeros each, on the current device.

    `entries` are those of the matrix times `scale`, a power of two. Blocks that are multiplied have
    a row for each of `rows`: those with nonzeros in shared columns, ascending. `dtype` is that of
    products; it is set before the first one.
    """

    def __init__(self, entries: Entries, scale: float, num_rows: int, engine: Engine) -> None:
        self._engine = engine
        self.rows, self._coords, self._values = engine.list_shared(*entries, num_rows, scale)
        self.num_nonzeros = int(self._values.size)
        self.num_columns = int(self._coords[0, -1]) + 1 if self.num_nonzeros else 0
        self.dtype = np.dtype(np.float64)

    @property
    def num_parts(self) -> int:
        """In how many parts the columns are multiplied."""
        return -(-self.num_columns // self._columns_at_once)

    @property
    def _columns_at_once(self) -> int:
        return max(_COLUMNS_AT_ONCE, self.rows.size)

    def form_gram(self, diagonal: Array | None = None) -> Array:
        """Return the Gram matrix of the rows, float64, plus a diagonal; see `Engine.gram`."""
        if diagonal is None:
            diagonal = self._engine.xp.zeros(self.rows.size)
        return self._engine.gram(self._coords, self._values, diagonal)

    def multiply_gram(self, block: Array) -> Array:
        """Return the product of the Gram matrix and a block (size, k)."""
        total = self._engine.xp.zeros(block.shape, self.dtype)
        self.add_gram_product(total, block)
        return total

    def add_gram_product(self, total: Array, block: Array) -> None:
        """Add the product of the Gram matrix and a block (size, k) to `total`, in place."""
        for columns in self._tensors:
            total += self._multiply(columns, self._multiply(columns, block, 0), 1)

    def reduce_right_product(
        self, number: int, block: Array, function: Callable[[Array], Any]
    ) -> Any:
        """Apply a function to the product of a part, transposed, and a block: (n, k)."""
        return function(self._multiply(self._tensors[number], block, 0))

    def _multiply(self, columns: Layout, block: Array, mode: int) -> Array:
        """Multiply columns by a block with a row for each row of theirs (mode 0), or back."""
        shape = (columns.record_format.shape[mode], block.shape[1])
        out = self._engine.xp.empty(shape, self.dtype)
        columns.apply("mttkrp", self._engine, {1 - mode: block}, mode, out)
        return out

    @cached_property
    def _tensors(self) -> list[Layout]:
        """The columns, some at a time, as tensors (num_columns, size)."""
        coords, values, xp = self._coords, self._values, self._engine.xp
        size, step = self.rows.size, self._columns_at_once
        firsts, places, tensors = range(0, self.num_columns, step), [0], []
        if len(firsts) > 1:
            places = xp.searchsorted(coords[0], xp.asarray(firsts)).tolist()
        for first, place, end in zip(firsts, places, [*places[1:], values.size], strict=False):
            own, own_values = coords[:, place:end], values[place:end]
            if first > 0:
                own = own - xp.asarray([[first], [0]])
            shape = (min(step, self.num_columns - first), size)
            own_values = own_values.astype(self.dtype, copy=False)
            tensors.append(build_matrix(own, own_values, shape, self._engine))
        return tensors


def build_matrix(coords: Array, values: Array, shape: tuple[int, int], engine: Engine) -> Layout:
    """Build a matrix that is multiplied from both sides, on the current device."""
    with log_compilation():
        return engine.build_piece("replicated", coords, values, shape)

"""The base of all layouts: ways to store a tensor so that every mode can be computed.

mode
    Here, a mode of `RecordFormat.merged`: a group of the tensor's modes, unless it says otherwise.
order d
    The nonzeros sorted by their row of mode d, in places 0 to nnz - 1. Within a row they keep the
    sequence of order d - 1, so each order is unique and follows from the previous one.
tile, bucket
    `tile_size` and `bucket_size` consecutive places of an order. A bucket holds whole tiles and
    fits the cache nearest to a worker.

    A tile ignores where rows end, so a hub row or a mode of size 2 loads all workers equally. It
    stores the rows that begin in it. Its sum for the row that it inherits from the previous tile
    is a partial row (a carry-out), added afterwards in the order of the tiles, so no sum depends on
    timing.
storage d
    Where the records are in memory while mode d is computed: sorted by (bucket of order d, place in
    order d - 1). So a tile of mode d - 1 writes adjacent records together, and a tile of mode d
    finds its records inside one bucket. Scattering straight to order d would be a random
    permutation of memory.
"""

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from ..base.array_modules import Array, array_module
from .group_passes import FindRows, apply_to_groups
from .ordering import order_records
from .packing import Cut
from .primitives import (
    ModeRows,
    Operation,
    Primitives,
    Step,
    index_dtype,
    list_nonempty_rows,
)

_Layout = TypeVar("_Layout", bound="Layout")


@dataclass(frozen=True)
class RowTiling:
    """The tiles of one mode's order."""

    carry_rows: Any  # int64 (num_tiles,): the row that each tile inherits, or -1 (`NO_ROW`)
    empty_rows: Any  # those without a nonzero, whose results are zeros

    @property
    def nbytes(self) -> int:
        return self.carry_rows.nbytes + self.empty_rows.nbytes


class Layout(ABC):
    """A way to store a tensor."""

    name: ClassVar[str]  # the name that users give
    records: Array  # (nnz, num_words): one copy, in any order
    steps: Sequence[Step]  # of each mode, if nothing moves
    prefixes: "Layout | None" = None  # see `number_prefixes`
    saves_plan: ClassVar[bool] = True  # whether a file has all that `from_arrays` needs
    num_slabs: ClassVar[int] = 1  # see `SlabLayout` for more

    def __init__(self, cut: Cut, tilings: Sequence[RowTiling], norm: float) -> None:
        self.cut = cut
        self.record_format = cut.record_format
        self.tile_size = cut.tile_size
        self.merged = self.record_format.merged
        self.groups = self.record_format.groups
        self.tilings = tilings
        self.norm = norm  # Frobenius, summed in order 0: does not depend on `mode`
        self.mode = 0  # whose storage the records are in; 0 if they never move
        self.prepared: dict[Any, Any] = {}  # what the engine prepares once for its kernels

    @classmethod
    def build(cls, coords: Array, values: Array, cut: Cut, primitives: Primitives) -> Self:
        """Build the layout from checked coords (ndim, nnz) and values (nnz,)."""
        records, final_cut = order_records(coords, values, cut, primitives)
        return cls.arrange(records, final_cut, primitives)

    @classmethod
    @abstractmethod
    def arrange(cls, records: Array, cut: Cut, primitives: Primitives) -> Self:
        """Build the layout from canonical records, whose memory becomes its own."""

    # Contents

    @property
    def nnz(self) -> int:
        return self.records.shape[0]

    def get_copies(self) -> Sequence[Array]:
        """Return the copies of the records (nnz, num_words), without spare memory."""
        return [self.records]

    def iterate_values(self) -> Iterator[Array]:
        """Yield views of the values (nnz,), in any order."""
        yield self.record_format.values(self.records)

    def find_empty_rows(self, mode: int) -> Array:
        """Return the rows of a mode of the tensor that have no nonzeros, ascending."""
        record_format = self.record_format
        number, place = record_format.places[mode]
        if self.prefixes is not None and number == 0:
            return self.prefixes.find_empty_rows(mode)
        empty_rows = self.tilings[number].empty_rows
        if len(record_format.groups[number]) == 1:
            return empty_rows
        xp = array_module(empty_rows)
        size = record_format.shape[mode]
        merged_rows = list_nonempty_rows(empty_rows, self.merged.shape[number])
        rows = merged_rows >> record_format.bits_below[number][place]
        is_empty = xp.ones(size, bool)
        is_empty[rows & record_format.masks[mode]] = False
        return xp.flatnonzero(is_empty).astype(index_dtype(size))

    def count_nonempty_rows(self, mode: int) -> int:
        """Count the rows of `mode` with nonzeros."""
        return self.merged.shape[mode] - self.tilings[mode].empty_rows.size

    @classmethod
    def name_copies(cls, ndim: int) -> list[str]:
        """Return the names under which the copies are saved."""
        return ["records"]

    @classmethod
    def count_copies(cls, ndim: int) -> int:
        """Count the copies of the records, spare memory included."""
        return len(cls.name_copies(ndim))

    @classmethod
    def name_ids(cls, ndim: int) -> list[str]:
        """Return the names of arrays (nnz,), each a permutation of 0, 1, ..., that are saved."""
        return []

    def iterate_arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the names and arrays that are saved."""
        yield from zip(self.name_copies(self.merged.ndim), self.get_copies(), strict=True)
        for mode, tiling in enumerate(self.tilings):
            yield f"carry_rows_{mode}", tiling.carry_rows
            yield f"empty_rows_{mode}", tiling.empty_rows

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], cut: Cut, norm: float) -> Self:
        """Make a layout that `saves_plan` from the arrays that `iterate_arrays` yields."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, spare memory included."""
        nbytes = sum(array.nbytes for _, array in self.iterate_arrays())
        if self.prefixes is not None:
            nbytes += self.prefixes.nbytes
        return nbytes

    # Parts of the sum in `spread.memory`

    @classmethod
    def count_ids_nbytes(cls, nnz: int, cut: Cut, primitives: Primitives) -> int:
        """Count the bytes of all modes' ids, as the engine keeps them."""
        return nnz * len(cls.name_ids(cut.record_format.ndim)) * index_dtype(nnz).itemsize

    @classmethod
    @abstractmethod
    def count_build_nbytes(cls, nnz: int, cut: Cut, primitives: Primitives) -> int:
        """Bound the bytes that `arrange` allocates beyond the layout's own arrays."""

    # Use

    def apply(
        self,
        operation: Operation,
        engine: Primitives,
        inputs: Mapping[int, Array],
        mode: int,
        out: Array,
        *,
        find_rows: FindRows | None = None,
        **options: Any,
    ) -> Array | None:
        """Run an operation on the nonzeros, which writes rows of `mode`.

        `inputs` are the matrices (I_n, K_n) that it reads, by mode; both are modes of the tensor.
        Afterwards a `RemapLayout` is resident in the next mode, with the option `stays` of some
        operations in `mode`; if memory runs out, it has not moved. `find_rows` may know the MTTKRP
        of the group of `mode`.

        A tensor in slabs knows these options: `slots`, an array (I_mode,) with the row of `out` for
        each index with nonzeros, ascending from 0; `wants_sum`, with which the operation returns a
        small array, and such a tensor the sum of those of its slabs. It brings arrays to devices.
        """
        run = getattr(engine, operation.name)
        if operation.merges and self.merged is not self.record_format:
            return apply_to_groups(self, run, engine, inputs, mode, out, find_rows, **options)
        return run(self, inputs, mode, out, **options)

    def step(
        self, mode: int, primitives: Primitives, stays: bool = False
    ) -> AbstractContextManager[Step]:
        """Hold the records of `mode` in place while an operation reads them.

        If the step has a `spare`, the operation must remap the records to it; at the end the next
        mode is resident, unless the operation failed. With `stays` it has none.
        """
        return contextlib.nullcontext(self.steps[mode])

    #: Held while steps change the state.
    lock: AbstractContextManager = contextlib.nullcontext()

    def bring(self, mode: int, primitives: Primitives) -> None:
        """Make the records of a mode of the tensor resident."""
        number, _ = self.record_format.places[mode]
        with self.step(number, primitives, stays=True):
            pass

    def get_state(self) -> Any:
        """Return the attributes that steps change, by name: none if nothing moves."""
        return {}

    def is_in_state(self, state: Any) -> bool:
        """Return whether the state is one that `get_state` has returned."""
        return all(vars(self)[name] is value for name, value in state.items())

    def list_moves(self, state: Any) -> list[Callable[[], object]]:
        """Return calls that put the layout in a state; no bytecode of Python runs in them."""
        return [functools.partial(vars(self).update, state)]

    def fork(self) -> Self:
        """Return a layout of the same arrays in the same state, which then changes by itself.

        Only one of both may launch steps: a graph is recorded with the other one.
        """
        return self

    @contextlib.contextmanager
    def hold_records(self, mode: int = 0) -> Iterator[Array]:
        """Keep the records in place; yield them in any order, or the copy of `mode`."""
        yield self.records

    @contextlib.contextmanager
    def hold_first_order(self, primitives: Primitives) -> Iterator[tuple[Array, Array | None]]:
        """Keep the records in place; yield them, and their places in the order of mode 0.

        Places are None if the records are in that order, which does not depend on groups.
        """
        with self.hold_records() as records:
            yield records, self.find_places(0, primitives)

    @contextlib.contextmanager
    def hold_last_order(self, primitives: Primitives) -> Iterator[tuple[Array, Array | None]]:
        """Yield the records as `hold_first_order` does, for the order of the tensor's last mode."""
        if self.merged is self.record_format:
            last = self.merged.ndim - 1
            with self.hold_records(last) as records:
                yield records, self.find_places(last, primitives)
        else:  # no order of groups will do
            modes = range(self.record_format.ndim)  # the last one is the first key
            with self.hold_records() as records:
                yield records, primitives.sort_places(records, self.record_format, modes)

    def find_places(self, mode: int, primitives: Primitives) -> Array | None:
        """Return the places of the records of `hold_records` in the order of a mode.

        The mode is the first or the last one: other orders can be made from these two.
        """
        return None

    def share_prefixes(self, layout: _Layout) -> _Layout:
        """Give the prefixes to a layout with the same nonzeros, but for their values."""
        layout.prefixes = self.prefixes
        return layout

    @abstractmethod
    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        """Make a layout in the same order with ``function(values)`` and `scale` times the norm."""


def tile_rows(
    mode_rows: ModeRows, tile_size: int, primitives: Primitives, empty_rows: Array | None = None
) -> RowTiling:
    """Find the tiles of records in the order of rows; `empty_rows` too, unless they are known."""
    carry_rows = primitives.find_carry_rows(mode_rows, tile_size)
    if empty_rows is None:
        records, record_format, mode, _ = mode_rows
        empty_rows = primitives.find_empty_rows(records, record_format, mode)
    return RowTiling(carry_rows, empty_rows)


def collect_tilings(arrays: Mapping[str, Array], ndim: int) -> list[RowTiling]:
    """Make the tilings of all modes from their arrays."""
    return [
        RowTiling(arrays[f"carry_rows_{mode}"], arrays[f"empty_rows_{mode}"])
        for mode in range(ndim)
    ]


def iterate_orders(
    records: Array, cut: Cut, primitives: Primitives
) -> Iterator[tuple[Array | None, RowTiling]]:
    """Yield each mode's order of a merged `cut`, as places in order 0 or None, and its tiling."""
    nnz = records.shape[0]
    mode_rows = ModeRows(records, cut.record_format, 0, None)
    yield None, tile_rows(mode_rows, cut.tile_size, primitives)
    positions = primitives.xp.empty(nnz, index_dtype(nnz))
    for mode in range(1, cut.record_format.ndim):
        places = primitives.xp.empty_like(positions)
        mode_rows = mode_rows._replace(mode=mode)
        empty_rows = primitives.sort_by_row(mode_rows, places, positions)
        mode_rows = mode_rows._replace(places=places)
        yield places, tile_rows(mode_rows, cut.tile_size, primitives, empty_rows)


def count_sort_nbytes(nnz: int, cut: Cut, primitives: Primitives) -> int:
    """Bound the temporary bytes of sorting by each mode but the first, and listing empty rows."""
    first_size, *sizes = cut.record_format.shape
    listing = primitives.empty_rows_nbytes(nnz, first_size)
    return max([listing, *(primitives.sort_nbytes(nnz, size) for size in sizes)])

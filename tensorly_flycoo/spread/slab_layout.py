"""A layout made of layouts: a tensor cut along its longest mode into slabs."""

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self, TypeAlias

from ..base.array_modules import Array
from ..base.devices import Devices
from ..format.group_passes import FindRows
from ..format.groups import find_longest_mode
from ..format.layout import Layout
from ..format.ordering import pack_again
from ..format.packing import Groups, RecordFormat
from ..format.primitives import Operation, Primitives, index_dtype
from ..format.tree import count_waiting, fold_tree
from .streamed import StreamedLayout, link_copies


class Slab(NamedTuple):
    """Consecutive rows of the cut mode, as a tensor of their own whose rows begin at 0."""

    rows: slice
    layout: Layout
    home: int = 0  # its device


class SlabLayout:
    """Slabs of one tensor, each in an ordinary layout.

    It has those members of `Layout` that do not belong to a single order of the nonzeros.
    `num_slabs` is as the user gave it: slabs without rows are not kept. `record_format` is for
    records of the whole tensor; those of a slab may be shorter. The home device has all else.
    """

    #: Builds another tensor of coords and values that are in other processes, where some can be.
    build_elsewhere: Callable[..., Self] | None = None

    def __init__(
        self,
        record_format: RecordFormat,
        num_slabs: int,
        slabs: Sequence[Slab],
        primitives: Primitives,
        devices: Devices,
        norm: float | None = None,
    ) -> None:
        self.devices = devices
        self.name = slabs[0].layout.name
        self.record_format = record_format
        self.num_slabs = num_slabs
        self.cut_mode = find_longest_mode(record_format.shape)
        self.slabs = slabs
        self.edges = [0, *(slab.rows.stop for slab in slabs)]  # of their rows
        self.homes = tuple(slab.home for slab in slabs)
        self.nnz = sum(slab.layout.nnz for slab in slabs)
        # Each slab numbers its own prefixes, so that it may have more groups than others.
        self.groups: Groups = min((slab.layout.groups for slab in slabs), key=len)
        # The number of slabs whose records are on the host.
        self.num_streamed = sum(isinstance(slab.layout, StreamedLayout) for slab in slabs)
        self.norm = math.hypot(*(slab.layout.norm for slab in slabs)) if norm is None else norm
        self._primitives = primitives
        self._empty_rows: dict[int, Array] = {}
        for home in range(devices.count):
            own = [slab.layout for slab in slabs if slab.home == home]
            link_copies([layout for layout in own if isinstance(layout, StreamedLayout)])

    # Contents

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, those on the host too."""
        return sum(slab.layout.nbytes for slab in self.slabs)

    def get_copies(self) -> Sequence[Array]:
        """Return the copies of the records of all slabs, without spare memory."""
        return [copy for slab in self.slabs for copy in slab.layout.get_copies()]

    def find_empty_rows(self, mode: int) -> Array:
        """List the rows of `mode` without nonzeros, ascending."""
        if mode in self._empty_rows:
            return self._empty_rows[mode]
        xp = self._primitives.xp
        size = self.record_format.shape[mode]
        is_empty = xp.ones(size, bool)
        for slab, rows in zip(self.slabs, self._ask(Layout.find_empty_rows, mode), strict=True):
            own = is_empty[slab.rows] if mode == self.cut_mode else is_empty
            is_empty_here = xp.zeros(own.size, bool)
            is_empty_here[rows] = True
            own &= is_empty_here
        self._empty_rows[mode] = xp.flatnonzero(is_empty).astype(index_dtype(size), copy=False)
        return self._empty_rows[mode]

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
        """Run an operation on the nonzeros slab by slab: see `Layout.apply`.

        In the cut mode each slab writes rows of its own. In any other each has a result for
        all rows; these are added along the tree, in memory that is allocated before all work.
        """
        edges, own_slots = self._divide_rows(mode, options.get("slots"))
        sums: list[Array | None] = []

        def compute(number: int, target: Array) -> Array:
            slab = self.slabs[number]
            own = {n: x[slab.rows] if n == self.cut_mode else x for n, x in inputs.items()}
            own_rows = find_rows and functools.partial(find_rows, piece=number)
            own_options: dict[str, Any] = {**options, "find_rows": own_rows}
            if own_slots is not None:
                own_options["slots"] = own_slots[number]
            sums.append(slab.layout.apply(operation, engine, own, mode, target, **own_options))
            return target

        def add(rows: Array, others: Array) -> Array:
            rows += others
            free.append(others)
            return rows

        if mode == self.cut_mode:
            for number, (start, stop) in enumerate(pairwise(edges)):
                compute(number, out[start:stop])
        else:
            spares = range(count_waiting(len(self.slabs)))
            free = [engine.xp.empty(out.shape, out.dtype) for _ in spares]
            free.append(out)  # taken first: the first operand of each addition receives its result
            fold_tree((compute(n, free.pop()) for n in range(len(self.slabs))), add)
        return self._add_up(sums)

    def _divide_rows(self, mode: int, slots: Array | None) -> tuple[list[int], list[Array] | None]:
        """Return the edges of the slabs' rows in a result of the cut mode, and each slab's slots.

        With `slots` the result has no empty rows. In other modes all slabs have the same slots.
        """
        if mode != self.cut_mode or slots is None:
            return self.edges, None
        edges = self._edges_without_empty_rows
        firsts = zip(self.slabs, edges, strict=False)
        return edges, [slots[slab.rows] - slots.dtype.type(first) for slab, first in firsts]

    @functools.cached_property
    def _edges_without_empty_rows(self) -> list[int]:
        return [0, *accumulate(self._ask(Layout.count_nonempty_rows, self.cut_mode))]

    def _ask(self, function: Callable[..., Any], mode: int) -> list[Any]:
        """Call a function of each slab's layout, on its device; collect the results."""
        asked = [self.devices.run(slab.home, function, slab.layout, mode) for slab in self.slabs]
        return self.devices.collect(asked)

    def _add_up(self, sums: Sequence[Array | None]) -> Array | None:
        """Add what an operation has returned for each slab, if that is anything."""
        if sums[0] is None:
            return None
        return functools.reduce(operator.add, self.devices.collect(sums))

    @contextlib.contextmanager
    def hold_first_order(self, primitives: Primitives) -> Iterator[tuple[Array, Array | None]]:
        """Yield a copy of all records, and their places in the order of mode 0, or None."""
        record_format = self.record_format
        xp = primitives.xp
        start = 0
        merged = xp.empty((self.nnz, record_format.num_words), record_format.word_dtype)
        for rows, layout, home in self.slabs:
            with self.devices.use(home), layout.hold_first_order(primitives) as (records, places):
                if places is not None:
                    records = primitives.gather(records, places)
                own = layout.record_format
                shift = (self.cut_mode, rows.start)
                part = pack_again(records, own, record_format, primitives, shift=shift)
            part = self.devices.bring(part, 0)
            merged[start : start + part.shape[0]] = part
            start += part.shape[0]
        # Slabs follow each other in the cut mode, and each is in order: sort by the modes before
        # the cut mode. The last one is the primary key.
        modes = reversed(range(self.cut_mode))
        yield merged, primitives.sort_places(merged, record_format, modes)

    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        """Make a layout in the same order with ``function(values)`` and `scale` times the norm."""
        slabs = [self._map_slab(slab, function, scale) for slab in self.slabs]
        arguments = (self.record_format, self.num_slabs, slabs, self._primitives, self.devices)
        return type(self)(*arguments, self.norm * scale)

    def _map_slab(self, slab: Slab, function: Callable[[Array], Array], scale: float) -> Slab:
        with self.devices.use(slab.home):
            return slab._replace(layout=slab.layout.map_values(function, scale))


#: How a tensor is stored: in one piece or in slabs.
AnyLayout: TypeAlias = Layout | SlabLayout

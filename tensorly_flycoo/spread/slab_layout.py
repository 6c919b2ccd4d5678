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

    #: Builds another tensor's layout of nonzeros that are on the workers of a cluster: see
    #: `dask.cluster_layout`. None if all nonzeros are in this process.
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
        if norm is None:
            norm = math.hypot(*(slab.layout.norm for slab in slabs))
        self.norm = norm
        self._primitives = primitives
        self._empty_rows: dict[int, Array] = {}
        for home in range(devices.count):
            layouts = [slab.layout for slab in slabs if slab.home == home]
            link_copies([layout for layout in layouts if isinstance(layout, StreamedLayout)])

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
        empty_rows = self._ask(Layout.find_empty_rows, mode)
        for slab, rows in zip(self.slabs, empty_rows, strict=True):
            is_empty_so_far = is_empty
            if mode == self.cut_mode:  # a view, of the rows that the slab has
                is_empty_so_far = is_empty[slab.rows]
            is_empty_here = xp.zeros(is_empty_so_far.size, bool)
            is_empty_here[rows] = True
            is_empty_so_far &= is_empty_here
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
        edges, slab_slots = self._divide_rows(mode, options.get("slots"))
        sums: list[Array | None] = []

        def compute(number: int, target: Array) -> Array:
            """Run the operation on a slab, with its result in `target`."""
            slab = self.slabs[number]
            slab_inputs = dict(inputs)
            if self.cut_mode in inputs:
                slab_inputs[self.cut_mode] = inputs[self.cut_mode][slab.rows]
            slab_options: dict[str, Any] = {**options, "find_rows": find_rows}
            if find_rows is not None:
                slab_options["find_rows"] = functools.partial(find_rows, piece=number)
            if slab_slots is not None:
                slab_options["slots"] = slab_slots[number]
            total = slab.layout.apply(operation, engine, slab_inputs, mode, target, **slab_options)
            sums.append(total)
            return target

        if mode == self.cut_mode:
            for number, (start, stop) in enumerate(pairwise(edges)):
                compute(number, out[start:stop])
            return self._sum_results(sums)

        num_slabs = len(self.slabs)
        free = [engine.xp.empty(out.shape, out.dtype) for _ in range(count_waiting(num_slabs))]
        free.append(out)  # taken first: the first operand of each addition receives its result

        def add(left: Array, right: Array) -> Array:
            left += right
            free.append(right)
            return left

        fold_tree((compute(number, free.pop()) for number in range(num_slabs)), add)
        return self._sum_results(sums)

    def _divide_rows(self, mode: int, slots: Array | None) -> tuple[list[int], list[Array] | None]:
        """Return the edges of the slabs' rows in a result of the cut mode, and each slab's slots.

        With `slots` the result has no empty rows. In other modes all slabs have the same slots.
        """
        if mode != self.cut_mode or slots is None:
            return self.edges, None
        edges = self._edges_without_empty_rows
        slab_slots = [
            slots[slab.rows] - slots.dtype.type(start)
            for slab, start in zip(self.slabs, edges[:-1], strict=True)
        ]
        return edges, slab_slots

    @functools.cached_property
    def _edges_without_empty_rows(self) -> list[int]:
        return [0, *accumulate(self._ask(Layout.count_nonempty_rows, self.cut_mode))]

    def _ask(self, function: Callable[..., Any], mode: int) -> list[Any]:
        """Call a function of each slab's layout, on its device; collect the results."""
        results = [self.devices.run(slab.home, function, slab.layout, mode) for slab in self.slabs]
        return self.devices.collect(results)

    def _sum_results(self, sums: Sequence[Array | None]) -> Array | None:
        """Sum the slabs' results; None if there are none."""
        if sums[0] is None:
            return None
        return functools.reduce(operator.add, self.devices.collect(sums))

    # The state of all slabs, as that of a `Layout`

    @property
    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            for slab in self.slabs:
                held.enter_context(self.devices.use(slab.home))  # where the lock orders streams
                held.enter_context(slab.layout.lock)
            held.enter_context(self.devices.use(0))
            yield

    def bring(self, mode: int, primitives: Primitives) -> None:
        """Make the records of a mode resident in all slabs."""
        for slab in self.slabs:
            with self.devices.use(slab.home):
                slab.layout.bring(mode, primitives)

    def get_state(self) -> Any:
        return [slab.layout.get_state() for slab in self.slabs]

    def is_in_state(self, state: Any) -> bool:
        pairs = zip(self.slabs, state, strict=True)
        return all(slab.layout.is_in_state(of_slab) for slab, of_slab in pairs)

    def list_moves(self, state: Any) -> list[Callable[[], object]]:
        pairs = zip(self.slabs, state, strict=True)
        return [move for slab, of_slab in pairs for move in slab.layout.list_moves(of_slab)]

    def fork(self) -> Self:
        slabs = [slab._replace(layout=slab.layout.fork()) for slab in self.slabs]
        arguments = (self.record_format, self.num_slabs, slabs, self._primitives, self.devices)
        return type(self)(*arguments, norm=self.norm)

    @contextlib.contextmanager
    def hold_first_order(self, primitives: Primitives) -> Iterator[tuple[Array, Array | None]]:
        """Yield a copy of all records, and their places in the order of mode 0, or None."""
        record_format = self.record_format
        merged = primitives.xp.empty((self.nnz, record_format.num_words), record_format.word_dtype)
        start = 0
        for rows, layout, home in self.slabs:
            shift = (self.cut_mode, rows.start)
            with self.devices.use(home), layout.hold_first_order(primitives) as (records, places):
                if places is not None:
                    records = primitives.gather(records, places)
                slab_format = layout.record_format
                packed = pack_again(records, slab_format, record_format, primitives, shift=shift)
            stop = start + layout.nnz
            merged[start:stop] = self.devices.bring(packed, 0)
            start = stop
        # Slabs follow each other in the cut mode, and each is in order: sort by the modes before
        # the cut mode. The last one is the primary key.
        modes = reversed(range(self.cut_mode))
        yield merged, primitives.sort_places(merged, record_format, modes)

    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        """Make a layout in the same order with ``function(values)`` and `scale` times the norm."""
        slabs = [self._map_slab(slab, function, scale) for slab in self.slabs]
        return type(self)(
            self.record_format,
            self.num_slabs,
            slabs,
            self._primitives,
            self.devices,
            self.norm * scale,
        )

    def _map_slab(self, slab: Slab, function: Callable[[Array], Array], scale: float) -> Slab:
        with self.devices.use(slab.home):
            return slab._replace(layout=slab.layout.map_values(function, scale))


#: How a tensor is stored: in one piece or in slabs.
AnyLayout: TypeAlias = Layout | SlabLayout

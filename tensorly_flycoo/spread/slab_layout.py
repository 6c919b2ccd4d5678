"""A layout made of layouts: a tensor cut along its longest mode into slabs."""

import contextlib
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self, TypeAlias

from ..base.array_modules import Array
from ..base.checks import check_finite, check_inside
from ..base.devices import Devices
from ..format.groups import find_longest_mode
from ..format.layout import Layout
from ..format.ordering import count_canonical_nbytes
from ..format.packing import RecordFormat
from ..format.primitives import Primitives, index_dtype
from ..format.tree import count_waiting, fold_tree
from .partition import find_slab_shape
from .slab_building import MemoryBuilder
from .streamed import KeepAside, StreamedLayout, link_copies


class Slab(NamedTuple):
    """Consecutive rows of the cut mode, as a tensor of their own whose rows begin at 0."""

    rows: slice
    layout: Layout
    home: int = 0  # its device


class SlabLayout:
    """Slabs of one tensor, each in an ordinary layout.

    It has those members of `Layout` that do not belong to a single order of the nonzeros.
    `num_slabs` is as the user gave it: slabs without rows are not kept. `record_format` is for
    records of the whole tensor; those of a slab may be shorter. `devices` hold the slabs; what
    belongs to no slab is on the first one.
    """

    prefixes = None  # slabs have no numbers in common

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
        self.merged = record_format.merged
        # Slabs cut the longest mode, and so its group, of which it is the first mode.
        self.cut_mode = find_longest_mode(record_format.shape)
        self.cut_group, place = record_format.find_place(self.cut_mode)
        self._bits_below = record_format.bits_below[self.cut_group][place]
        self.slabs = slabs
        self.norm = math.hypot(*(slab.layout.norm for slab in slabs)) if norm is None else norm
        self._primitives = primitives
        self._empty_rows: dict[int, Array] = {}
        self.shardings: dict[int, Any] = {}  # `find_sharding` fills it
        for home in range(devices.count):
            own = [slab.layout for slab in slabs if slab.home == home]
            link_copies([layout for layout in own if isinstance(layout, StreamedLayout)])

    @classmethod
    def build(
        cls,
        layout_class: type[Layout],
        coords: Array,
        values: Array,
        record_format: RecordFormat,
        num_slabs: int,
        primitives: Primitives,
        devices: Devices,
        keep_aside: KeepAside | None = None,
    ) -> Self:
        """Build all slabs from checked coords (ndim, nnz) and values (nnz,).

        The nonzeros of one slab at a time are on its device, beside the slabs that are built. Edges
        are those of the canonical nonzeros, so what is sorted first may be moved to a neighbour.
        """
        check_inside(coords, record_format.shape)
        check_finite(values)
        options = (layout_class, num_slabs, primitives, devices)
        builder = MemoryBuilder(coords, values, record_format, *options)
        slabs: list[Slab] = []
        for rows, home in builder.sort():
            layout = builder.build(rows, home)
            if keep_aside is not None:
                with devices.use(home):
                    layout = keep_aside(layout, home)
            slabs.append(Slab(slice(rows.start, rows.stop), layout, home))
        return cls(record_format, num_slabs, slabs, primitives, devices)

    @classmethod
    def estimate(
        cls,
        layout_class: type[Layout],
        nnz: int,
        record_format: RecordFormat,
        num_slabs: int,
        primitives: Primitives,
        num_devices: int = 1,
    ) -> tuple[int, int]:
        """Predict the memory of equal slabs, as `Layout.estimate` does; the peak of one device."""
        shape, longest = record_format.shape, max(record_format.shape)
        num_held = max(1, min(num_slabs, nnz, longest))
        shares = Counter(zip(_share(nnz, num_held), _share(longest, num_held), strict=True))
        kept = peak_nbytes = 0
        for (slab_nnz, num_rows), count in shares.items():
            slab_shape = find_slab_shape(shape, num_rows)
            cut = primitives.choose_cut(slab_shape, record_format.dtype, record_format.groups)
            nbytes, slab_peak_nbytes = layout_class.estimate(slab_nnz, cut, primitives)
            kept += count * nbytes
            peak_nbytes = max(peak_nbytes, slab_peak_nbytes)
        record_nbytes, per_slab = record_format.record_nbytes, max(_share(nnz, num_held))
        given = 8 * record_format.ndim + record_format.dtype.itemsize
        on_device = primitives.staging_size is None  # the nonzeros, and the sorted parts
        edges = 48 * longest + (8 * nnz if on_device else 0)
        sorting = count_canonical_nbytes(per_slab, record_format, primitives)
        sorting += 3 * nnz + 2 * per_slab * given if on_device else 0
        # All slabs' lists of empty rows may be longer; a slab's records and their nonzeros.
        sizes = record_format.merged.shape
        lists = sum(index_dtype(size).itemsize * min(per_slab, size) for size in sizes)
        own = 1 if on_device else -(-num_held // num_devices) / num_held  # one device's share
        building = math.ceil(own * (kept + num_held * lists)) + peak_nbytes
        building += per_slab * (2 * record_nbytes + given + 24)
        held = nnz * (given + record_nbytes) if on_device else 0
        return kept, held + max(edges, sorting, building)

    # Contents

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return sum(slab.layout.nnz for slab in self.slabs)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, those on the host too."""
        return sum(slab.layout.nbytes for slab in self.slabs)

    @property
    def num_streamed(self) -> int:
        """The number of slabs whose records are on the host."""
        return sum(isinstance(slab.layout, StreamedLayout) for slab in self.slabs)

    def get_copies(self) -> Sequence[Array]:
        """Return the copies of the records of all slabs, without spare memory."""
        return [copy for slab in self.slabs for copy in slab.layout.get_copies()]

    def iterate_values(self) -> Iterator[Array]:
        """Yield views of the values of all slabs, in any order."""
        for slab in self.slabs:
            yield from slab.layout.iterate_values()

    def find_empty_rows(self, mode: int) -> Array:
        """List the rows of `mode` without nonzeros, ascending."""
        if mode in self._empty_rows:
            return self._empty_rows[mode]
        xp, size = self._primitives.xp, self.record_format.shape[mode]
        empty_rows = [self._bring(slab.layout.find_empty_rows(mode)) for slab in self.slabs]
        if mode == self.cut_mode:
            starts = [slab.rows.start for slab in self.slabs]
            parts = [rows + start for rows, start in zip(empty_rows, starts, strict=True)]
            found = xp.concatenate(parts)
        else:
            is_empty = xp.ones(size, bool)
            for rows in empty_rows:
                is_empty_here = xp.zeros(size, bool)
                is_empty_here[rows] = True
                is_empty &= is_empty_here
            found = xp.flatnonzero(is_empty)
        self._empty_rows[mode] = found.astype(index_dtype(size), copy=False)
        return self._empty_rows[mode]

    # Use

    def apply(
        self,
        operation: str,
        engine: Primitives,
        inputs: Mapping[int, Array],
        mode: int,
        out: Array,
        **options: Any,
    ) -> Array | None:
        """Run an operation on the nonzeros slab by slab: see `Layout.apply`.

        In the cut group each slab writes rows of its own. In any other each has a result for
        all rows; these are added along the tree, in memory that is allocated before all work.
        """
        edges, own_slots = self._divide_rows(mode, options.get("slots"))
        sums: list[Array | None] = []

        def compute(number: int, target: Array) -> Array:
            slab, cut_group = self.slabs[number], self.cut_group
            own = {n: x[self.find_rows(slab)] if n == cut_group else x for n, x in inputs.items()}
            slots = {} if own_slots is None else {"slots": own_slots[number]}
            last = (own, mode, target)
            sums.append(slab.layout.apply(operation, engine, *last, **options | slots))
            return target

        def add(rows: Array, others: Array) -> Array:
            rows += others
            free.append(others)
            return rows

        if mode == self.cut_group:
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
        if mode != self.cut_group or slots is None:
            return [0, *(self.find_rows(slab).stop for slab in self.slabs)], None
        edges = self._edges_without_empty_rows
        firsts = zip(self.slabs, edges, strict=False)
        return edges, [slots[slab.rows] - slots.dtype.type(first) for slab, first in firsts]

    def find_rows(self, slab: Slab) -> slice:
        """Return the rows of a slab in a matrix with a row for each index of its group."""
        return slice(slab.rows.start << self._bits_below, slab.rows.stop << self._bits_below)

    @functools.cached_property
    def _edges_without_empty_rows(self) -> list[int]:
        counts = (slab.layout.count_nonempty_rows(self.cut_group) for slab in self.slabs)
        return [0, *accumulate(counts)]

    def _add_up(self, sums: Sequence[Array | None]) -> Array | None:
        """Add what an operation has returned for each slab, if that is anything."""
        return (
            None if sums[0] is None else functools.reduce(operator.add, self.devices.collect(sums))
        )

    @contextlib.contextmanager
    def hold_records(self) -> Iterator[Array]:
        """Yield a copy of all records, in any order."""
        yield self._merge_records(0)

    @contextlib.contextmanager
    def hold_order(self, mode: int, primitives: Primitives) -> Iterator[tuple[Array, Array | None]]:
        """Yield a copy of all records, and their places in the order of `mode`.

        Places are None if the records are in that order. `mode` is 0 or the last mode.
        """
        records, ndim = self._merge_records(mode), self.record_format.ndim
        # Slabs follow each other in the cut mode, and each is in the order of `mode`: sort by the
        # modes that come before the cut mode in that order. The last one is the primary key.
        modes = range(self.cut_mode + 1, ndim) if mode else reversed(range(self.cut_mode))
        yield records, primitives.sort_places(records, self.record_format, modes)

    def _bring(self, array: Array) -> Array:
        """Return an array on the first device, where what belongs to no slab is."""
        return self.devices.bring(array, 0)

    def _merge_records(self, mode: int) -> Array:
        """Copy the records of one slab after the other, each in the order of `mode`."""
        primitives, record_format = self._primitives, self.record_format
        xp, start = primitives.xp, 0
        merged = xp.empty((self.nnz, record_format.num_words), record_format.word_dtype)
        for rows, layout, home in self.slabs:
            with self.devices.use(home), layout.hold_order(mode, primitives) as (records, places):
                if places is not None:
                    records = primitives.gather(records, places)
                coords = layout.record_format.coords(records, xp)
                coords[self.cut_mode] += rows.start
                values = layout.record_format.values(records)
                part = record_format.pack(coords, values, xp, primitives.block_size)
            part = self._bring(part)
            merged[start : start + part.shape[0]] = part
            start += part.shape[0]
        return merged

    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        """Make a layout in the same order with ``function(values)`` and `scale` times the norm."""
        slabs = [self._map_slab(slab, function, scale) for slab in self.slabs]
        arguments = (self.record_format, self.num_slabs, slabs, self._primitives, self.devices)
        return type(self)(*arguments, self.norm * scale)

    def _map_slab(self, slab: Slab, function: Callable[[Array], Array], scale: float) -> Slab:
        with self.devices.use(slab.home):
            return slab._replace(layout=slab.layout.map_values(function, scale))


def _share(count: int, num_slabs: int) -> list[int]:
    """Divide a number into nearly equal ones."""
    return [
        (slab + 1) * count // num_slabs - slab * count // num_slabs for slab in range(num_slabs)
    ]


#: How a tensor is stored: in one piece or in slabs.
AnyLayout: TypeAlias = Layout | SlabLayout

"""A layout made of layouts: a tensor cut along its longest mode into slabs."""

import contextlib
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from ..array_modules import Array, array_module
from ..checks import check_finite, check_inside, check_sums
from ..devices import Devices, assign_homes
from .layout import Cut, Layout
from .ordering import count_canonical_nbytes, make_canonical_records, take_marked
from .packing import RecordFormat
from .partition import count_rows, find_edges, find_longest_mode, list_rows
from .primitives import Primitives, index_dtype
from .streamed import KeepAside, StreamedLayout, link_copies
from .tree import count_waiting, fold_tree

#: Chooses the cut of a layout from its shape and dtype.
ChooseCut: TypeAlias = Callable[[Sequence[int], np.dtype], Cut]


class Slab(NamedTuple):
    """Consecutive rows of the cut mode, as a tensor of their own whose rows begin at 0."""

    rows: slice
    layout: Layout
    home: int = 0  # its device


def build_slab(
    layout_class: type[Layout],
    records: Array,
    rows: range,
    record_format: RecordFormat,
    choose_cut: ChooseCut,
    primitives: Primitives,
) -> Layout:
    """Build a slab's layout, on the current device.

    `records`, of any device and in the whole tensor's format, are those in the slab; `rows` are the
    slab's rows of the longest mode.
    """
    shape, mode = record_format.shape, find_longest_mode(record_format.shape)
    coords = record_format.coords(records, array_module(records))
    coords[mode] -= rows.start
    values = record_format.values(records).copy()
    cut = choose_cut((*shape[:mode], len(rows), *shape[mode + 1 :]), values.dtype)
    return layout_class.build(coords, values, cut, primitives)


class SlabLayout:
    """Slabs of one tensor, each in an ordinary layout.

    It has those members of `Layout` that do not belong to a single order of the nonzeros.
    `num_slabs` is as the user gave it: slabs without rows are not kept. `record_format` is for
    records of the whole tensor; those of a slab may be shorter. `devices` hold the slabs; what
    belongs to no slab is on the first one.
    """

    def __init__(
        self,
        record_format: RecordFormat,
        num_slabs: int,
        cut_mode: int,
        slabs: Sequence[Slab],
        norm: float,
        primitives: Primitives,
        devices: Devices,
    ) -> None:
        self.devices = devices
        self.name = slabs[0].layout.name
        self.record_format = record_format
        self.num_slabs = num_slabs
        self.cut_mode = cut_mode
        self.slabs = slabs
        self.norm = norm
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
        choose_cut: ChooseCut,
        primitives: Primitives,
        devices: Devices,
        keep_aside: KeepAside | None = None,
    ) -> Self:
        """Build all slabs from checked coords (ndim, nnz) and values (nnz,).

        The nonzeros of one slab at a time are on its device, beside the slabs that are built. Edges
        are those of the canonical nonzeros, so what is sorted first may be moved to a neighbour.
        """
        mode, shape = find_longest_mode(record_format.shape), record_format.shape
        check_inside(coords, shape)
        check_finite(values)
        parts, edges = _sort_parts(coords, values, record_format, num_slabs, primitives, devices)
        exact = list_rows(edges)
        slabs: list[Slab] = []
        for rows, home in zip(exact, assign_homes(len(exact), devices.count), strict=True):
            records = [part.take(rows, home, record_format, devices) for part in parts]
            with devices.use(home):
                own = primitives.xp.concatenate([part for part in records if part is not None])
                arguments = (rows, record_format, choose_cut, primitives)
                layout = build_slab(layout_class, own, *arguments)
                if keep_aside is not None:
                    layout = keep_aside(layout, home)
            slabs.append(Slab(slice(rows.start, rows.stop), layout, home))
        norm = math.hypot(*(slab.layout.norm for slab in slabs))
        return cls(record_format, num_slabs, mode, slabs, norm, primitives, devices)

    @classmethod
    def estimate(
        cls,
        layout_class: type[Layout],
        nnz: int,
        record_format: RecordFormat,
        num_slabs: int,
        choose_cut: ChooseCut,
        primitives: Primitives,
        num_devices: int = 1,
    ) -> tuple[int, int]:
        """Predict the memory of equal slabs, as `Layout.estimate` does; the peak of one device."""
        shape, mode = record_format.shape, find_longest_mode(record_format.shape)
        num_held = max(1, min(num_slabs, nnz, shape[mode]))
        sizes = Counter(zip(_share(nnz, num_held), _share(shape[mode], num_held), strict=True))
        kept = peak_nbytes = 0
        for (slab_nnz, num_rows), count in sizes.items():
            cut = choose_cut((*shape[:mode], num_rows, *shape[mode + 1 :]), record_format.dtype)
            nbytes, slab_peak_nbytes = layout_class.estimate(slab_nnz, cut, primitives)
            kept += count * nbytes
            peak_nbytes = max(peak_nbytes, slab_peak_nbytes)
        record_nbytes, per_slab = record_format.record_nbytes, max(_share(nnz, num_held))
        given = 8 * record_format.ndim + record_format.dtype.itemsize
        on_device = primitives.staging_size is None  # the nonzeros, and the sorted parts
        edges = 48 * shape[mode] + (8 * nnz if on_device else 0)
        sorting = count_canonical_nbytes(per_slab, record_format, primitives)
        sorting += 3 * nnz + 2 * per_slab * given if on_device else 0
        # All slabs' lists of empty rows may be longer; a slab's records and their nonzeros.
        lists = sum(index_dtype(size).itemsize * min(per_slab, size) for size in shape)
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
        if mode not in self._empty_rows:
            self._empty_rows[mode] = self._merge_empty_rows(mode)
        return self._empty_rows[mode]

    def _merge_empty_rows(self, mode: int) -> Array:
        xp, size = self._primitives.xp, self.record_format.shape[mode]
        empty_rows = [self._bring(slab.layout.find_empty_rows(mode)) for slab in self.slabs]
        if mode == self.cut_mode:
            starts = [slab.rows.start for slab in self.slabs]
            parts = [rows + start for rows, start in zip(empty_rows, starts, strict=True)]
            return xp.concatenate(parts).astype(index_dtype(size), copy=False)
        is_empty = xp.ones(size, bool)
        for rows in empty_rows:
            is_empty_here = xp.zeros(size, bool)
            is_empty_here[rows] = True
            is_empty &= is_empty_here
        return xp.flatnonzero(is_empty).astype(index_dtype(size))

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

        In the cut mode each slab writes rows of its own. In any other mode each has a result for
        all rows; these are added along the tree, in memory that is allocated before all work.
        """
        edges, own_slots = self._divide_rows(mode, options.get("slots"))
        sums: list[Array | None] = []

        def compute(number: int, target: Array) -> Array:
            slab, cut_mode = self.slabs[number], self.cut_mode
            own = {n: x[slab.rows] if n == cut_mode else x for n, x in inputs.items()}
            slots = {} if own_slots is None else {"slots": own_slots[number]}
            last = (own, mode, target)
            sums.append(slab.layout.apply(operation, engine, *last, **options | slots))
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
            return [0, *(slab.rows.stop for slab in self.slabs)], None
        edges = self._edges_without_empty_rows
        firsts = zip(self.slabs, edges, strict=False)
        return edges, [slots[slab.rows] - slots.dtype.type(first) for slab, first in firsts]

    @functools.cached_property
    def _edges_without_empty_rows(self) -> list[int]:
        counts = (slab.layout.count_nonempty_rows(self.cut_mode) for slab in self.slabs)
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
        xp, record_format = self._primitives.xp, self.record_format
        records = xp.empty((self.nnz, record_format.num_words), record_format.word_dtype)
        start = 0
        for slab in self.slabs:
            with self.devices.use(slab.home):
                part = self._read_slab(slab, mode)
            part = self._bring(part)
            records[start : start + part.shape[0]] = part
            start += part.shape[0]
        return records

    def _read_slab(self, slab: Slab, mode: int) -> Array:
        """Pack a slab's nonzeros, in the order of `mode`, as those of the whole tensor."""
        primitives, slab_format = self._primitives, slab.layout.record_format
        with slab.layout.hold_order(mode, primitives) as (records, places):
            if places is not None:
                records = primitives.gather(records, places)
            coords = slab_format.coords(records, primitives.xp)
            coords[self.cut_mode] += slab.rows.start
            values = slab_format.values(records)
            return self.record_format.pack(coords, values, primitives.xp, primitives.block_size)

    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        """Make a layout in the same order with ``function(values)`` and `scale` times the norm."""
        slabs = [self._map_slab(slab, function, scale) for slab in self.slabs]
        arguments = (self.record_format, self.num_slabs, self.cut_mode, slabs)
        return type(self)(*arguments, self.norm * scale, self._primitives, self.devices)

    def _map_slab(self, slab: Slab, function: Callable[[Array], Array], scale: float) -> Slab:
        with self.devices.use(slab.home):
            return slab._replace(layout=slab.layout.map_values(function, scale))


class _Part(NamedTuple):
    """Sorted records of some rows of the cut mode, before the edges of slabs are known."""

    rows: range
    home: int
    records: Array

    def take(
        self, rows: range, home: int, record_format: RecordFormat, devices: Devices
    ) -> Array | None:
        """Copy the records with one of `rows` to a device; None if there can be none."""
        if self.rows.stop <= rows.start or rows.stop <= self.rows.start:
            return None
        mode = find_longest_mode(record_format.shape)
        with devices.use(self.home):
            numbers = record_format.rows(self.records, mode, array_module(self.records))
            taken = take_marked(self.records, (numbers >= rows.start) & (numbers < rows.stop))
        with devices.use(home):
            return devices.bring(taken, home)


def _sort_parts(
    coords: Array,
    values: Array,
    record_format: RecordFormat,
    num_parts: int,
    primitives: Primitives,
    devices: Devices,
) -> tuple[list[_Part], tuple[int, ...]]:
    """Make canonical records of parts with equally many of the given nonzeros.

    Return also the edges of slabs with equally many of the records.
    """
    mode = find_longest_mode(record_format.shape)
    size = record_format.shape[mode]
    given = list_rows(find_edges(count_rows(coords[mode], size), num_parts))
    parts, counts, is_there = [], [], array_module(coords) is primitives.xp
    for rows, home in zip(given, assign_homes(len(given), devices.count), strict=True):
        is_own = (coords[mode] >= rows.start) & (coords[mode] < rows.stop)
        own = [take_marked(numbers, is_own) for numbers in (*coords, values)]
        with devices.use(home):
            if is_there:  # else they are copied block by block
                own = [devices.bring(numbers, home) for numbers in own]
            own_coords = array_module(coords).stack(own[:-1])
            records = make_canonical_records(own_coords, own[-1], record_format, primitives)
            check_sums(record_format.values(records))
            numbers = record_format.rows(records, mode, primitives.xp)
            numbers -= numbers.dtype.type(rows.start)
            counts += devices.fetch([count_rows(numbers, len(rows))])
            # On the host if the nonzeros are, since the device may have no room for all.
            kept = records if is_there else devices.fetch([records])[0]
        parts.append(_Part(rows, home, kept))
    return parts, find_edges(np.concatenate(counts), num_parts)


def _share(count: int, num_slabs: int) -> list[int]:
    """Divide a number into nearly equal ones."""
    return [
        (slab + 1) * count // num_slabs - slab * count // num_slabs for slab in range(num_slabs)
    ]


#: How a tensor is stored: in one piece or in slabs.
AnyLayout: TypeAlias = Layout | SlabLayout

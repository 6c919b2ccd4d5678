"""How to keep a tensor: two copies that are remapped, a sorted copy per mode, or one and an index.

order d
    The places 0 to nnz - 1 of the nonzeros sorted by their row of mode d. Within a row they keep
    the order that they had in order d - 1, so orders follow from each other and are unique.
tile, bucket
    `tile_size` and `bucket_size` consecutive places of an order. A bucket holds whole tiles and is
    small enough for the cache nearest to a worker.
storage d
    Where the records lie in memory when mode d is computed: by (bucket of order d, place in order
    d - 1). A tile of mode d - 1 then writes neighbours to neighbours, and a tile of mode d finds
    its records inside one bucket. Scattering straight to order d would be a random permutation of
    memory.
"""

import contextlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .ordering import (
    compute_norm,
    count_canonical_nbytes,
    count_sort_nbytes,
    make_canonical_records,
)
from .primitives import index_dtype
from .tiling import count_tiling_nbytes, tile_rows

Layout: TypeAlias = "RemapLayout | ReplicatedLayout | IndexedLayout"

#: The size of a bucket that holds all nonzeros there could be, where records are not in buckets.
ONE_BUCKET = 2**62


def build_layout(name, coords, values, record_format, tile_size, bucket_size, primitives):
    """Build the layout of a name from checked coords (ndim, nnz) and values (nnz,)."""
    arguments = (coords, values, record_format, tile_size)
    if name == "remap":
        return RemapLayout.build(*arguments, bucket_size, primitives)
    cls = {"replicated": ReplicatedLayout, "indexed": IndexedLayout}[name]
    return cls.build(*arguments, primitives)


def estimate_layout(name, nnz, record_format, tile_size, bucket_size, primitives):
    """Say what `build_layout` will make of `nnz` nonzeros, all of them different.

    Returns
    -------
    nbytes : int
        Of the layout, where each mode has as few empty rows as `nnz` allows.
    peak_nbytes : int
        At once where it is built, coords (int64) and values of the host among them, as far as they
        are there; an upper bound, whatever rows are empty and in whatever order the nonzeros are.
    """
    cls = {"remap": RemapLayout, "replicated": ReplicatedLayout, "indexed": IndexedLayout}[name]
    kept, passing = cls.count_nbytes(nnz, record_format, bucket_size, primitives)
    least, most = count_tiling_nbytes(nnz, record_format, tile_size)
    ordering = count_canonical_nbytes(nnz, record_format, primitives)
    working = max(ordering, kept + most + passing)
    given = 8 * record_format.ndim + record_format.dtype.itemsize
    if primitives.staging_size is None:
        return kept + least, nnz * given + working
    staging = nnz * record_format.record_nbytes + min(nnz, primitives.staging_size + 1) * given
    return kept + least, max(staging, working)


@dataclass(frozen=True)
class RemapPlan:
    """Say for one mode where a place's record is, and where it goes for the next mode.

    Attributes
    ----------
    pull_ids : unsigned integer array (nnz,)
        For each place of order d its position in storage d, counted from the start of its bucket.
    remap_ids : unsigned integer array (nnz,)
        For each place of order d its position in storage d + 1 (storage 0 after the last mode).
    write_order : uint16 array (nnz,) or None
        If there is one, `remap_ids` are in this order of each tile's places; see
        `Primitives.order_writes`.
    """

    pull_ids: Any
    remap_ids: Any
    write_order: Any = None

    @property
    def nbytes(self):
        """Bytes of the arrays."""
        arrays = (self.pull_ids, self.remap_ids, self.write_order)
        return sum(array.nbytes for array in arrays if array is not None)


class RemapLayout:
    """Keep two copies, T_in and T_out, and remap from one to the other while computing.

    Attributes
    ----------
    mode : int
        The mode in whose storage `records` lie now.
    records, spare : array (nnz, num_words)
        T_in and T_out.
    tilings : list of RowTiling
    plans : list of RemapPlan
    norm : float
        Of the values, added up in order 0: the same whatever mode is resident.
    lock : context manager
        Made by `make_lock`. Held from the first launch that changes `spare` until `swap`, and while
        records are copied: where an engine computes asynchronously, the launches of its holders
        also run one after the other.

    References
    ----------
    The paper's section 3.1, "Dynamic Tensor Remapping", and its Algorithms 3 and 5, in two levels.
    """

    name = "remap"

    def __init__(
        self,
        record_format,
        tile_size,
        bucket_size,
        copies,
        tilings,
        plans,
        norm,
        make_lock,
        mode=0,
    ):
        self.record_format = record_format
        self.norm = norm
        self.tile_size = tile_size
        self.bucket_size = bucket_size
        self.records, self.spare = copies
        self.tilings = tilings
        self.plans = plans
        self.mode = mode
        self.make_lock = make_lock
        self.lock = make_lock()

    @classmethod
    def build(cls, coords, values, record_format, tile_size, bucket_size, primitives):
        """Pack the nonzeros and plan all modes."""
        if bucket_size % tile_size:
            raise ValueError(f"bucket_size is {bucket_size}, expected a multiple of {tile_size}")
        records = make_canonical_records(coords, values, record_format, primitives)
        norm = compute_norm(record_format.values(records), primitives.xp, primitives.block_size)
        xp, nnz, ndim = primitives.xp, records.shape[0], record_format.ndim
        remap_ids = xp.empty((ndim, nnz), index_dtype(nnz))
        pull_ids = xp.empty((ndim, nnz), index_dtype(bucket_size, smallest="uint16"))
        # The places in order 0 of each order's records come to lie in two arrays by turns, which
        # are free as yet: in the end in the last mode's ids, which are made of them.
        spare = xp.empty_like(records)
        targets = (remap_ids[-1], spare.reshape(-1).view(remap_ids.dtype)[:nnz])
        places, tilings = None, [tile_rows(records, None, record_format, 0, tile_size, primitives)]
        for mode in range(1, ndim):
            target = targets[(ndim - 1 - mode) % 2]
            rows = primitives.plan_remap(
                records, record_format, mode, places, bucket_size,
                target, remap_ids[mode - 1], pull_ids[mode],
            )  # fmt: skip
            places = target
            tilings.append(
                tile_rows(records, places, record_format, mode, tile_size, primitives, rows)
            )
        if places is None:
            remap_ids[-1] = xp.arange(nnz, dtype=remap_ids.dtype)
        primitives.split_by_bucket(remap_ids[-1], bucket_size, remap_ids[-1], pull_ids[0])
        primitives.scatter_in_buckets(records, pull_ids[0], bucket_size, spare)
        copies = (spare, records)
        write_orders = [primitives.order_writes(ids, tile_size) for ids in remap_ids]
        plans = [RemapPlan(*ids) for ids in zip(pull_ids, remap_ids, write_orders, strict=True)]
        make_lock = primitives.make_lock
        return cls(record_format, tile_size, bucket_size, copies, tilings, plans, norm, make_lock)

    @staticmethod
    def count_nbytes(nnz, record_format, bucket_size, primitives):
        """Count the bytes of copies and plans, and those that `build` takes for a while."""
        places = index_dtype(nnz).itemsize
        ids = places + index_dtype(bucket_size, smallest="uint16").itemsize
        ids += primitives.write_order_itemsize
        kept = nnz * (2 * record_format.record_nbytes + record_format.ndim * ids)
        sizes = record_format.shape
        return kept, max(primitives.plan_nbytes(nnz, size, bucket_size) for size in sizes)

    def swap(self):
        """Make T_out, now complete, the tensor: the next mode is resident."""
        next_mode = (self.mode + 1) % self.record_format.ndim
        # Nothing is called from here on: no KeyboardInterrupt, and no fork of another thread, comes
        # in between.
        self.records, self.spare, self.mode = self.spare, self.records, next_mode

    @property
    def nbytes(self):
        """Bytes of both copies and all plans."""
        return 2 * self.records.nbytes + sum(p.nbytes for p in [*self.tilings, *self.plans])

    @contextlib.contextmanager
    def hold_order(self, mode, primitives):
        """Hold the records in place; give them, and the places of the order of `mode` among them.

        Only mode 0 and the last one, whose orders others can be made of.
        """
        with self.lock:
            yield self.records, self._find_places(mode, primitives)

    def _find_places(self, mode, primitives):
        plan = self.plans[mode]
        if mode == self.mode:
            return primitives.position_in_buckets(plan.pull_ids, self.bucket_size)
        follows = (mode + 1) % self.record_format.ndim == self.mode
        if follows and plan.write_order is None:
            return plan.remap_ids
        # Order 0 is by modes 0, 1, ... and the last one by the last mode, ..., 1, 0.
        modes = range(self.record_format.ndim)
        modes = modes if mode else reversed(modes)
        return primitives.sort_places(self.records, self.record_format, modes)

    def map_values(self, function, scale):
        """Make a layout with the same plans and ``function(values)``, of `scale` times the norm."""
        with self.lock:
            records, mode = map_record_values(self.records, self.record_format, function), self.mode
        return RemapLayout(
            self.record_format,
            self.tile_size,
            self.bucket_size,
            (records, np.empty_like(records)),
            self.tilings,
            self.plans,
            self.norm * scale,
            self.make_lock,
            mode,
        )


class ReplicatedLayout:
    """Keep one copy per mode, each in that mode's order; nothing moves."""

    name = "replicated"

    def __init__(self, record_format, tile_size, copies, tilings, norm):
        self.record_format = record_format
        self.norm = norm
        self.tile_size = tile_size
        self.copies = copies
        self.tilings = tilings

    @classmethod
    def build(cls, coords, values, record_format, tile_size, primitives):
        """Pack the nonzeros and sort a copy for each mode."""
        records = make_canonical_records(coords, values, record_format, primitives)
        norm = compute_norm(record_format.values(records), primitives.xp, primitives.block_size)
        copies, tilings = [], []
        for places, tiling in iterate_orders(records, record_format, tile_size, primitives):
            copies.append(records if places is None else primitives.gather(records, places))
            tilings.append(tiling)
        return cls(record_format, tile_size, copies, tilings, norm)

    @staticmethod
    def count_nbytes(nnz, record_format, bucket_size, primitives):
        """Count the bytes of all copies, and those that `build` takes for a while."""
        kept = nnz * record_format.ndim * record_format.record_nbytes
        places = 3 * nnz * index_dtype(nnz).itemsize  # of two orders, and of how they go together
        # The last copy is not there yet while places are sorted.
        sorting = count_sort_nbytes(nnz, record_format, primitives)
        return kept, places + max(0, sorting - nnz * record_format.record_nbytes)

    @property
    def records(self):
        """The records in mode 0's order."""
        return self.copies[0]

    @property
    def nbytes(self):
        """Bytes of all copies and tilings."""
        return sum(copy.nbytes for copy in self.copies) + sum(t.nbytes for t in self.tilings)

    @contextlib.contextmanager
    def hold_order(self, mode, primitives):
        """Give the records of the order of `mode`, and None."""
        yield self.copies[mode], None

    def map_values(self, function, scale):
        """Make a layout with the same tilings, ``function(values)``, `scale` times the norm."""
        copies = [map_record_values(c, self.record_format, function) for c in self.copies]
        norm = self.norm * scale
        return ReplicatedLayout(self.record_format, self.tile_size, copies, self.tilings, norm)


class IndexedLayout:
    """Keep one copy, in mode 0's order, and for each other mode an index to pull records through.

    Attributes
    ----------
    records : array (nnz, num_words)
    pull_ids : list of unsigned integer array (nnz,)
        For each mode where in `records` the record of each place of its order is; None for mode 0.
    """

    name = "indexed"

    def __init__(self, record_format, tile_size, records, pull_ids, tilings, norm):
        self.record_format = record_format
        self.norm = norm
        self.tile_size = tile_size
        self.records = records
        self.pull_ids = pull_ids
        self.tilings = tilings

    @classmethod
    def build(cls, coords, values, record_format, tile_size, primitives):
        """Pack the nonzeros and find the order of each mode."""
        records = make_canonical_records(coords, values, record_format, primitives)
        norm = compute_norm(record_format.values(records), primitives.xp, primitives.block_size)
        orders = iterate_orders(records, record_format, tile_size, primitives)
        pull_ids, tilings = map(list, zip(*orders, strict=True))
        return cls(record_format, tile_size, records, pull_ids, tilings, norm)

    @staticmethod
    def count_nbytes(nnz, record_format, bucket_size, primitives):
        """Count the bytes of copy and indices, and those that `build` takes for a while."""
        records, places = nnz * record_format.record_nbytes, nnz * index_dtype(nnz).itemsize
        kept = records + (record_format.ndim - 1) * places
        return kept, places + count_sort_nbytes(nnz, record_format, primitives)

    @property
    def nbytes(self):
        """Bytes of the copy, the indices and all tilings."""
        indices = sum(ids.nbytes for ids in self.pull_ids[1:])
        return self.records.nbytes + indices + sum(t.nbytes for t in self.tilings)

    @contextlib.contextmanager
    def hold_order(self, mode, primitives):
        """Give the records, and the places of the order of `mode` among them."""
        yield self.records, self.pull_ids[mode]

    def map_values(self, function, scale):
        """Make a layout with the same indices, ``function(values)``, `scale` times the norm."""
        records = map_record_values(self.records, self.record_format, function)
        return IndexedLayout(
            self.record_format,
            self.tile_size,
            records,
            self.pull_ids,
            self.tilings,
            self.norm * scale,
        )


def iterate_orders(records, record_format, tile_size, primitives):
    """Yield the places in order 0 of each mode's order, None for mode 0's own, and its tiling."""
    arguments = (tile_size, primitives)
    yield None, tile_rows(records, None, record_format, 0, *arguments)
    nnz, places = records.shape[0], None
    positions = primitives.xp.empty(nnz, index_dtype(nnz))
    for mode in range(1, record_format.ndim):
        target = primitives.xp.empty_like(positions)
        rows = primitives.sort_by_row(records, record_format, mode, places, target, positions)
        places = target
        yield places, tile_rows(records, places, record_format, mode, *arguments, rows)


def map_record_values(records, record_format, function):
    """Copy `records` with ``function(values)`` in the place of their values."""
    mapped = records.copy()
    record_format.values(mapped)[...] = function(record_format.values(records))
    return mapped


@contextlib.contextmanager
def hold_records(layout):
    """Hold the records of a layout in place; give them in whatever order they lie."""
    with layout.lock if layout.name == "remap" else contextlib.nullcontext():
        yield layout.records


@contextlib.contextmanager
def hold_mode(layout, mode, remap):
    """Hold the records of a layout in place where those of `mode` can be pulled from them.

    A `RemapLayout` is first taken there by ``remap(layout)``, one mode at a time.

    Yields
    ------
    records : array (nnz, num_words)
    pull_ids : unsigned integer array (nnz,) or None
        Where the record of each place of the order of `mode` is, counted from the start of the
        place's bucket; None where it is at that place.
    bucket_size : int
    """
    if layout.name == "replicated":
        yield layout.copies[mode], None, ONE_BUCKET
    elif layout.name == "indexed":
        yield layout.records, layout.pull_ids[mode], ONE_BUCKET
    else:
        with layout.lock:
            while layout.mode != mode:
                remap(layout)
            yield layout.records, layout.plans[mode].pull_ids, layout.bucket_size

"""The operations on whole arrays of nonzeros of which building a tensor consists."""

import os
import threading
import weakref

import numpy as np

from ..checks import check_finite, check_inside

#: How many things each type can number from 0, narrow types first.
INDEX_LIMITS = {
    np.dtype(np.uint16): 2**16,
    np.dtype(np.uint32): 2**32,
    np.dtype(np.uint64): 2**64,
    np.dtype(np.int32): 2**31,
    np.dtype(np.int64): 2**63,
}


class Primitives:
    """Pack, sort, move and search with the functions of an array module.

    An engine subclasses this with faster versions of the same meaning; results are equal to the
    bit, since a stable sort has only one answer. Results go to arrays that the caller gives, so
    that building needs few of them.

    Parameters
    ----------
    xp : module
        numpy or cupy.
    block_size : int
        Nonzeros that one operation should be given at a time where not all are needed: as many as
        a cache holds, or as make an operation worth its launch.
    """

    #: Nonzeros that `pack` brings to the device at a time; None where that is the host.
    staging_size: int | None = None

    #: Bytes of an item of what `order_writes` returns.
    write_order_itemsize = 0

    def __init__(self, xp=np, block_size=2**15):
        self.xp = xp
        self.block_size = block_size

    def pack(self, coords, values, record_format):
        """Make records from coords (ndim, nnz) and values (nnz,), in the same order.

        Returns
        -------
        records : array (nnz, num_words)
        is_rising : bool
            Whether each nonzero's coordinates come after those of the one before it.
        has_zeros : bool
            Whether some of the values are zeros.

        Raises
        ------
        ValueError
            If a coordinate lies outside the shape, or a value is not finite.
        """
        check_inside(coords, record_format.shape)
        check_finite(values)
        is_less, _ = compare_neighbours(coords, self.xp)
        records = record_format.pack(coords, values, self.xp, self.block_size)
        return records, bool(is_less.all()), not bool(values.all())

    def sort_by_row(self, records, record_format, mode, places, target, positions):
        """Sort the places of records stably by the row of `mode` that is there.

        Parameters
        ----------
        records : array (nnz, num_words)
        places : unsigned integer array (nnz,), or None
            An order of the records; None is the order they lie in.
        target : unsigned integer array (nnz,)
            Receives the sorted places.
        positions : unsigned integer array (nnz,)
            Receives where each of `places` went: ``target[positions] == places``.

        Returns
        -------
        empty_rows : unsigned integer array, or None
            What `find_empty_rows` would find, where it came by the way.
        """
        rows = _narrow(record_format.rows(records, mode, self.xp), record_format.shape[mode])
        order = self.xp.argsort(rows if places is None else rows[places], kind="stable")
        target[...] = order if places is None else places[order]
        self._invert(order, positions)
        return None

    def sort_places(self, records, record_format, modes, places=None):
        """Sort places of records by their rows of some `modes`, the last of which counts most.

        Stable: ties stay in the order of `places`, or of the records where that is None. So does
        all where there are no modes.
        """
        nnz = records.shape[0]
        positions = self.xp.empty(nnz, index_dtype(nnz))
        for mode in modes:
            target = self.xp.empty_like(positions)
            self.sort_by_row(records, record_format, mode, places, target, positions)
            places = target
        return places

    def find_duplicates(self, records, record_format):
        """Say for each record but the first whether the one before has the same coordinates."""
        masks = [0] * record_format.num_words
        for word, shift, mask in zip(
            record_format.words, record_format.shifts, record_format.masks, strict=True
        ):
            for place, bits in enumerate(record_format.split_words(mask << shift)):
                masks[word + place] |= bits
        is_equal = self.xp.ones(max(records.shape[0] - 1, 0), bool)
        for word, mask in enumerate(masks):
            if mask:
                column = records[:, word]
                difference = column[1:] ^ column[:-1]
                difference &= record_format.word_dtype.type(mask)
                is_equal &= difference == 0
        return is_equal

    def plan_remap(
        self, records, record_format, mode, places, bucket_size, target, remap_ids, pull_ids
    ):
        """Sort places as `sort_by_row` does, and plan how remapping takes the records there.

        Parameters
        ----------
        records, record_format, mode, places, target
            Those of `sort_by_row`.
        bucket_size : int
        remap_ids, pull_ids : unsigned integer array (nnz,)
            Receive what `split_by_bucket` makes of the positions.

        Returns
        -------
        empty_rows : unsigned integer array, or None
            As from `sort_by_row`.
        """
        empty_rows = self.sort_by_row(records, record_format, mode, places, target, remap_ids)
        self.split_by_bucket(remap_ids, bucket_size, remap_ids, pull_ids)
        return empty_rows

    def split_by_bucket(self, positions, bucket_size, stored, offsets):
        """Order items by the bucket of their position, and by their number within a bucket.

        Parameters
        ----------
        positions : unsigned integer array (nnz,)
            A permutation.
        bucket_size : int
        stored : unsigned integer array (nnz,)
            Receives where each item is stored; it may be `positions`.
        offsets : unsigned integer array (nnz,)
            Receives, for each position, where in its bucket the item of that position is stored.
        """
        buckets = positions // positions.dtype.type(bucket_size)
        buckets = _narrow(buckets, -(-positions.size // bucket_size))
        stored_now = self.xp.empty_like(stored)
        self._invert(self.xp.argsort(buckets, kind="stable"), stored_now)
        offsets[positions] = stored_now % stored.dtype.type(bucket_size)
        stored[...] = stored_now

    def sum_groups(self, values, starts):
        """Sum values from each of the `starts` to the next one."""
        return self.xp.add.reduceat(values, starts)

    def order_writes(self, remap_ids, tile_size):
        """Reorder the ids of each tile so that neighbours in memory are written together.

        Returns
        -------
        write_order : uint16 array (nnz,) or None
            Which place of its tile each of the reordered ids is of. None where an engine writes
            one record after the other, as here, and the ids stay as they are.
        """
        return None

    def gather(self, records, places):
        """Copy the records, in the order of `places`."""
        return records[places]

    def scatter_in_buckets(self, records, offsets, bucket_size, target):
        """Copy each record to its offset in the bucket that it is in already."""
        target[self.position_in_buckets(offsets, bucket_size)] = records

    def position_in_buckets(self, offsets, bucket_size):
        """Turn offsets (nnz,) from the starts of buckets into positions."""
        nnz = offsets.shape[0]
        positions = self.xp.arange(nnz, dtype=index_dtype(nnz))
        positions -= positions % positions.dtype.type(bucket_size)
        positions += offsets
        return positions

    def find_empty_rows(self, records, record_format, mode):
        """List the rows of `mode` that hold no nonzero, in rising order."""
        is_empty = self.xp.ones(record_format.shape[mode], bool)
        is_empty[record_format.rows(records, mode, self.xp)] = False
        return self.xp.flatnonzero(is_empty).astype(index_dtype(is_empty.size))

    def sort_nbytes(self, nnz, size):
        """Count the bytes that `sort_by_row` or `find_empty_rows` takes for a while at most."""
        # Rows, in two orders, and how to sort them; a flag a row and their int64 numbers.
        return max(16 * nnz, 4 * nnz + 9 * size)

    def sort_places_nbytes(self, nnz, shape):
        """Count the bytes that `sort_places` takes for a while at most, beside two orders."""
        return max(self.sort_nbytes(nnz, size) for size in shape)

    def split_nbytes(self, nnz, bucket_size):
        """Count the bytes that what is done with positions takes for a while at most.

        That is `split_by_bucket`, `order_writes` and `scatter_in_buckets`.
        """
        return nnz * (8 + 3 * index_dtype(nnz).itemsize)

    def plan_nbytes(self, nnz, size, bucket_size):
        """Count the bytes that `plan_remap` and what is done with positions take at most."""
        return max(self.sort_nbytes(nnz, size), self.split_nbytes(nnz, bucket_size))

    def sum_nbytes(self, nnz, itemsize):
        """Count the bytes that where groups start and `sum_groups` take at most."""
        return nnz * (8 + 2 * itemsize)

    def make_lock(self):
        """Make a lock under which to move records, and to read records that move.

        Python's own, which no KeyboardInterrupt leaves between two of its states.
        """
        lock = threading.Lock()
        _locks.add(lock)
        return lock

    def split_columns(self, records, record_format, mode, places):
        """Split records, in the order of `places` (None: as they lie), into three arrays.

        Records whose coordinates but that of `mode` are equal must follow each other.

        Returns
        -------
        is_new : bool array (nnz + 1,)
            Whether a record differs from the one before it in a mode other than `mode`; true also
            where the next one would begin.
        rows : integer array (nnz,)
            The coordinates of `mode`.
        values : float64 array (nnz,)
        """
        records = records if places is None else self.gather(records, places)
        is_new = self.xp.zeros(records.shape[0] + 1, bool)
        is_new[0] = is_new[-1] = True
        for n in range(record_format.ndim):
            if n != mode:
                rows = record_format.rows(records, n, self.xp)
                is_new[1:-1] |= rows[1:] != rows[:-1]
        rows = record_format.rows(records, mode, self.xp)
        return is_new, rows, record_format.values(records).astype(np.float64)

    def _invert(self, order, positions):
        positions[order] = self.xp.arange(order.size, dtype=positions.dtype)


def _narrow(keys, count):
    """Give keys below `count` a smaller type: a radix sort of 16 bits takes half the passes."""
    dtype = index_dtype(count, smallest="uint16")
    return keys.astype(dtype) if dtype.itemsize < keys.itemsize else keys


def compare_neighbours(coords, xp=np):
    """Compare each nonzero's coordinates with the next one's.

    Returns
    -------
    is_less, is_equal : bool array (nnz - 1,)
        Whether a nonzero comes before the next one, and whether the two are duplicates.
    """
    num_pairs = max(coords.shape[1] - 1, 0)
    is_less = xp.zeros(num_pairs, bool)
    is_equal = xp.ones(num_pairs, bool)
    for rows in coords:
        is_less |= is_equal & (rows[:-1] < rows[1:])
        is_equal &= rows[:-1] == rows[1:]
    return is_less, is_equal


def index_dtype(count, smallest="uint32"):
    """Choose the type that numbers `count` things from 0, from `smallest` up and signed as that.

    Examples
    --------
    >>> index_dtype(65536), index_dtype(65536, smallest="uint16"), index_dtype(2**32 + 1)
    (dtype('uint32'), dtype('uint16'), dtype('uint64'))
    >>> index_dtype(2**31, smallest="int32"), index_dtype(2**31 + 1, smallest="int32")
    (dtype('int32'), dtype('int64'))
    """
    smallest = np.dtype(smallest)
    return next(
        dtype
        for dtype, limit in INDEX_LIMITS.items()
        if dtype.kind == smallest.kind and dtype.itemsize >= smallest.itemsize and count <= limit
    )


#: Those that `make_lock` has made.
_locks: weakref.WeakSet = weakref.WeakSet()


def _free_locks():
    """Free the locks in a child process: a thread that held one is not there.

    What they guard is whole then: a fork finds the records either before a swap or after it.
    """
    for lock in _locks:
        if lock.locked():
            lock.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_free_locks)

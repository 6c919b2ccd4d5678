"""What engines must do for a layout to be built, in a few lines of NumPy: their specification."""

import numpy as np

from tensorly_flycoo.base.checks import check_finite, check_inside
from tensorly_flycoo.format.primitives import Entries, Primitives, index_dtype


def pack(record_format, coords, values):
    """Make records (nnz, num_words) from coords (ndim, nnz) and values (nnz,)."""
    records = np.zeros((values.shape[0], record_format.num_words), record_format.word_dtype)
    word_bits = 8 * record_format.word_dtype.itemsize
    for rows, (word, shift, mask) in zip(coords, record_format.fields, strict=True):
        field = rows.astype(np.uint64)
        records[:, word] |= (field << np.uint64(shift)).astype(record_format.word_dtype)
        if shift + mask.bit_length() > word_bits:
            high = field >> np.uint64(word_bits - shift)
            records[:, word + 1] |= high.astype(record_format.word_dtype)
    record_format.values(records)[...] = values
    return records


class NumpyPrimitives(Primitives):
    """The primitives that both engines have of their own; results are equal to the bit."""

    write_order_dtype = None  # of the write order

    def choose_sizes(self, record_format):
        raise NotImplementedError("only engines choose")

    def pack(self, coords, values, record_format):
        check_inside(coords, record_format.shape)
        check_finite(values)
        num_pairs = max(coords.shape[1] - 1, 0)
        is_less, is_equal = np.zeros(num_pairs, bool), np.ones(num_pairs, bool)
        for rows in coords:
            is_less |= is_equal & (rows[:-1] < rows[1:])
            is_equal &= rows[:-1] == rows[1:]
        return pack(record_format, coords, values), bool(is_less.all()), bool((values == 0).any())

    def find_empty_rows(self, records, record_format, mode):
        is_empty = np.ones(record_format.shape[mode], bool)
        is_empty[record_format.rows(records, mode)] = False
        return np.flatnonzero(is_empty).astype(index_dtype(is_empty.size))

    def empty_rows_nbytes(self, nnz, size):
        return 4 * nnz + 9 * size  # rows; a flag for each row of the mode and the int64 empty rows

    def split_by_bucket(self, positions, bucket_size, stored, offsets):
        stored_now = np.empty_like(stored)
        order = np.argsort(positions // positions.dtype.type(bucket_size), kind="stable")
        stored_now[order] = np.arange(order.size, dtype=stored.dtype)
        offsets[positions] = stored_now % stored.dtype.type(bucket_size)
        stored[...] = stored_now

    def split_nbytes(self, nnz, bucket_size):
        return nnz * (8 + 3 * index_dtype(nnz).itemsize)

    def count_plan_nbytes(self, nnz, cut):
        order = 0 if self.write_order_dtype is None else self.write_order_dtype.itemsize
        return super().count_plan_nbytes(nnz, cut) + nnz * order

    def remap(self, step, cut):
        positions = self.position_in_buckets(step.pull_ids, step.bucket_size)
        step.spare[step.remap_ids] = step.records[positions]

    def split_columns(self, given):
        records, record_format, mode, places = given
        records = records if places is None else self.gather(records, places)
        is_new = np.zeros(records.shape[0] + 1, bool)
        is_new[0] = is_new[-1] = True
        for n in range(record_format.ndim):
            if n != mode:
                rows = record_format.rows(records, n)
                is_new[1:-1] |= rows[1:] != rows[:-1]
        rows = record_format.rows(records, mode)
        return Entries(is_new, rows, record_format.values(records).astype(np.float64))

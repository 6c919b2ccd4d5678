"""Bring nonzeros into one defined order: each coordinate once, no zeros among the values."""

import math

import numpy as np


def make_canonical_records(coords, values, record_format, primitives):
    """Pack nonzeros sorted by coordinates (mode 0 first), duplicates summed, zeros dropped.

    Duplicates are added in an order of their own, the same in every run. Nonzeros that are in
    order already, as those of a `sparse.COO` are, cost one comparison with their neighbours.

    Parameters
    ----------
    coords : integer array (ndim, nnz)
    values : array (nnz,)
    record_format : RecordFormat
    primitives : Primitives

    Returns
    -------
    records : array (nnz', num_words)
    """
    xp = primitives.xp
    is_less, is_equal = compare_neighbours(coords, xp)
    records = record_format.pack(coords, values, xp)
    if not bool(is_less.all()):
        modes = reversed(range(record_format.ndim))
        records = sort_records(records, record_format, modes, primitives)
        _, is_equal = compare_neighbours(record_format.coords(records, xp), xp)
        if bool(is_equal.any()):
            records = sum_duplicates(records, record_format, is_equal, xp)
    is_nonzero = record_format.values(records) != 0
    return records if bool(is_nonzero.all()) else records[is_nonzero]


def sort_records(records, record_format, modes, primitives):
    """Sort records by their rows of some `modes`, the last of which counts most; stable."""
    for mode in modes:
        rows = record_format.rows(records, mode, primitives.xp)
        positions = primitives.sort_positions(rows, record_format.shape[mode])
        records = primitives.scatter(records, positions)
    return records


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


def compute_norm(values, xp=np, block=2**16):
    """Compute the Frobenius norm in float64, in blocks, to need little memory and lose few bits.

    Values are scaled by a power of two, which is exact, so that no square over- or underflows.
    """
    largest = max(float(values.max()), -float(values.min())) if values.shape[0] else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    blocks = (values[i : i + block] for i in range(0, values.shape[0], block))
    doubles = (block.astype(np.float64) / scale for block in blocks)
    return scale * math.sqrt(math.fsum(float(xp.dot(block, block)) for block in doubles))


def sum_duplicates(records, record_format, is_equal, xp=np):
    """Merge sorted records whose coordinates are those of the record before."""
    starts = xp.flatnonzero(xp.concatenate([xp.ones(1, bool), ~is_equal]))
    merged = records[starts]
    sums = xp.add.reduceat(record_format.values(records), starts)
    record_format.values(merged)[...] = sums
    return merged

"""The arrays of a layout by name, and layouts of such arrays, after a look at what they hold."""

import numpy as np

from ..format.layouts import IndexedLayout, RemapLayout, RemapPlan, ReplicatedLayout
from ..format.primitives import index_dtype
from ..format.tiling import NO_ROW, RowTiling

#: Nonzeros that are looked at at a time.
_CHECK_BLOCK = 2**15


def iterate_arrays(layout):
    """Yield the name and the array of each that a layout keeps, but not what is only spare."""
    if layout.name == "replicated":
        yield from ((f"records_{mode}", copy) for mode, copy in enumerate(layout.copies))
    else:
        yield "records", layout.records
    for mode, tiling in enumerate(layout.tilings):
        yield f"carry_rows_{mode}", tiling.carry_rows
        yield f"empty_rows_{mode}", tiling.empty_rows
        if layout.name == "remap":
            plan = layout.plans[mode]
            yield f"pull_ids_{mode}", plan.pull_ids
            yield f"remap_ids_{mode}", plan.remap_ids
            if plan.write_order is not None:
                yield f"write_order_{mode}", plan.write_order
        elif layout.name == "indexed" and mode > 0:
            yield f"pull_ids_{mode}", layout.pull_ids[mode]


def make_layout(header, arrays, record_format, primitives):
    """Make a layout of arrays by name that `check_arrays` has looked at."""
    modes = range(record_format.ndim)
    tilings = [RowTiling(arrays[f"carry_rows_{n}"], arrays[f"empty_rows_{n}"]) for n in modes]
    if header["layout"] == "replicated":
        copies = [arrays[f"records_{n}"] for n in modes]
        cut = (record_format, header["tile_size"])
        return ReplicatedLayout(*cut, copies, tilings, header["norm"])
    records = arrays["records"]
    if header["layout"] == "indexed":
        pull_ids = [None, *(arrays[f"pull_ids_{n}"] for n in modes[1:])]
        cut = (record_format, header["tile_size"])
        return IndexedLayout(*cut, records, pull_ids, tilings, header["norm"])
    plans = [
        RemapPlan(arrays[f"pull_ids_{n}"], arrays[f"remap_ids_{n}"], arrays.get(f"write_order_{n}"))
        for n in modes
    ]
    copies = (records, primitives.xp.empty_like(records))
    cut = (record_format, header["tile_size"], header["bucket_size"])
    lock = primitives.make_lock
    return RemapLayout(*cut, copies, tilings, plans, header["norm"], lock, header["mode"])


def check_arrays(header, arrays, record_format):
    """Refuse arrays with which an engine would read or write outside of some array.

    Whether they say the truth, which takes as long as building them, is for checksums to say.
    """
    arrays, is_replicated = dict(arrays), header["layout"] == "replicated"
    orders_writes = "write_order_0" in arrays
    names = [f"records_{n}" for n in range(record_format.ndim)] if is_replicated else ["records"]
    _require(names[0] in arrays and arrays[names[0]].ndim == 2, names[0])
    nnz = arrays[names[0]].shape[0]
    for name in names:
        shape = (nnz, record_format.num_words)
        records = _take(arrays, name, record_format.word_dtype, shape)
        _check_records(records, record_format, name)
    for mode, size in enumerate(record_format.shape):
        num_tiles = -(-nnz // header["tile_size"])
        carry_rows = _take(arrays, f"carry_rows_{mode}", np.dtype(np.int64), (num_tiles,))
        _require(carry_rows.min(initial=0) >= NO_ROW, f"carry_rows_{mode}")
        _check_limit(carry_rows, size, f"carry_rows_{mode}")
        empty_rows = _take(arrays, f"empty_rows_{mode}", index_dtype(size))
        _require(size - nnz <= empty_rows.size <= size, f"empty_rows_{mode}")
        _check_limit(empty_rows, size, f"empty_rows_{mode}")
        for name, dtype, block in _list_ids(header, nnz, mode, orders_writes):
            _check_blocks(_take(arrays, name, dtype, (nnz,)), block, name)
    _require(not arrays, ", ".join(arrays))


def _list_ids(header, nnz, mode, orders_writes):
    """List the ids of a mode: name, type, and how many they number from 0 at a time."""
    tile_size, bucket_size = header["tile_size"], header["bucket_size"]
    if header["layout"] == "remap":
        dtype = index_dtype(bucket_size, smallest="uint16")
        yield f"pull_ids_{mode}", dtype, bucket_size
        yield f"remap_ids_{mode}", index_dtype(nnz), max(1, nnz)
        if orders_writes:
            yield f"write_order_{mode}", np.dtype(np.uint16), tile_size
    elif header["layout"] == "indexed" and mode > 0:
        yield f"pull_ids_{mode}", index_dtype(nnz), max(1, nnz)


def _take(arrays, name, dtype, shape=None):
    """Remove and return the array of a name, if it has that type and shape (None: one axis)."""
    _require(name in arrays, name)
    array = arrays.pop(name)
    _require(array.dtype == dtype and array.shape == (shape or (array.size,)), name)
    return array


def _check_records(records, record_format, name):
    for start in range(0, records.shape[0], _CHECK_BLOCK):
        block = records[start : start + _CHECK_BLOCK]
        _require(np.isfinite(record_format.values(block)).all(), name)
        for mode, size in enumerate(record_format.shape):
            if record_format.masks[mode] >= size:
                _check_limit(record_format.rows(block, mode), size, name)


def _check_blocks(ids, block_size, name):
    """Refuse ids that do not number the places of their block from 0; the last may be shorter."""
    end = ids.size // block_size * block_size
    _check_limit(ids[:end], block_size, name)
    _check_limit(ids[end:], ids.size - end, name)


def _check_limit(array, limit, name):
    _require(array.size == 0 or int(array.max()) < limit, name)


def _require(is_right, name):
    if not is_right:
        raise ValueError(f"{name} is not what belongs to the header")

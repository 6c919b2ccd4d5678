"""A layout as named arrays, and back: the arrays of a file are checked before they are used."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ..array_modules import Array
from ..format.layouts import IndexedLayout, RemapLayout, RemapPlan, ReplicatedLayout
from ..format.packing import RecordFormat
from ..format.primitives import Primitives, index_dtype
from ..format.tiling import NO_ROW, RowTiling

Layout: TypeAlias = RemapLayout | ReplicatedLayout | IndexedLayout

#: The JSON header of a saved tensor; its keys are listed in `save`.
Header: TypeAlias = dict[str, Any]

#: Nonzeros checked at a time.
_CHECK_BLOCK = 2**15


def iterate_arrays(layout: Layout) -> Iterator[tuple[str, Array]]:
    """Yield the name and array of everything a layout keeps, except spare memory."""
    if isinstance(layout, ReplicatedLayout):
        yield from ((f"records_{mode}", copy) for mode, copy in enumerate(layout.copies))
    else:
        yield "records", layout.records
    for mode, tiling in enumerate(layout.tilings):
        yield f"carry_rows_{mode}", tiling.carry_rows
        yield f"empty_rows_{mode}", tiling.empty_rows
        if isinstance(layout, RemapLayout):
            plan = layout.plans[mode]
            yield f"pull_ids_{mode}", plan.pull_ids
            yield f"remap_ids_{mode}", plan.remap_ids
            if plan.write_order is not None:
                yield f"write_order_{mode}", plan.write_order
        elif isinstance(layout, IndexedLayout) and mode > 0:
            yield f"pull_ids_{mode}", layout.pull_ids[mode]


def make_layout(
    header: Header, arrays: dict[str, Array], record_format: RecordFormat, primitives: Primitives
) -> Layout:
    """Make a layout from named arrays that `check_arrays` has accepted."""
    modes = range(record_format.ndim)
    tilings = [RowTiling(arrays[f"carry_rows_{n}"], arrays[f"empty_rows_{n}"]) for n in modes]
    tile_size, norm = header["tile_size"], header["norm"]
    if header["layout"] == "replicated":
        copies = [arrays[f"records_{n}"] for n in modes]
        return ReplicatedLayout(record_format, tile_size, copies, tilings, norm)
    records = arrays["records"]
    if header["layout"] == "indexed":
        pull_ids = [None, *(arrays[f"pull_ids_{n}"] for n in modes[1:])]
        return IndexedLayout(record_format, tile_size, records, pull_ids, tilings, norm)
    plans = [
        RemapPlan(arrays[f"pull_ids_{n}"], arrays[f"remap_ids_{n}"], arrays.get(f"write_order_{n}"))
        for n in modes
    ]
    cut = (record_format, tile_size, header["bucket_size"])
    records_and_spare = (records, primitives.xp.empty_like(records))
    lock = primitives.make_lock
    return RemapLayout(*cut, records_and_spare, tilings, plans, norm, lock, header["mode"])


def check_arrays(
    header: Header, arrays: dict[str, np.ndarray], record_format: RecordFormat
) -> None:
    """Refuse arrays that would make an engine read or write out of bounds.

    That they are the right plan is left to checksums: verifying it costs as much as building it.
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


def _list_ids(
    header: Header, nnz: int, mode: int, orders_writes: bool
) -> Iterator[tuple[str, np.dtype, int]]:
    """List the id arrays of a mode: name, dtype and block size.

    Ids number the places of each block from 0.
    """
    tile_size, bucket_size = header["tile_size"], header["bucket_size"]
    if header["layout"] == "remap":
        dtype = index_dtype(bucket_size, smallest="uint16")
        yield f"pull_ids_{mode}", dtype, bucket_size
        yield f"remap_ids_{mode}", index_dtype(nnz), max(1, nnz)
        if orders_writes:
            yield f"write_order_{mode}", np.dtype(np.uint16), tile_size
    elif header["layout"] == "indexed" and mode > 0:
        yield f"pull_ids_{mode}", index_dtype(nnz), max(1, nnz)


def _take(
    arrays: dict[str, np.ndarray],
    name: str,
    dtype: DTypeLike,
    shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Remove and return an array of the given dtype and shape (None: one axis)."""
    _require(name in arrays, name)
    array = arrays.pop(name)
    _require(array.dtype == dtype and array.shape == (shape or (array.size,)), name)
    return array


def _check_records(records: np.ndarray, record_format: RecordFormat, name: str) -> None:
    for start in range(0, records.shape[0], _CHECK_BLOCK):
        block = records[start : start + _CHECK_BLOCK]
        _require(np.isfinite(record_format.values(block)).all(), name)
        for mode, size in enumerate(record_format.shape):
            if record_format.masks[mode] >= size:
                _check_limit(record_format.rows(block, mode), size, name)


def _check_blocks(ids: np.ndarray, block_size: int, name: str) -> None:
    """Refuse ids outside their block; the last block may be shorter."""
    end = ids.size // block_size * block_size
    _check_limit(ids[:end], block_size, name)
    _check_limit(ids[end:], ids.size - end, name)


def _check_limit(array: np.ndarray, limit: int, name: str) -> None:
    _require(array.size == 0 or int(array.max()) < limit, name)


def _require(is_right: bool | np.bool_, name: str) -> None:
    if not is_right:
        raise ValueError(f"{name} does not match the header")

"""Check the arrays of a saved layout before they are used."""

import numpy as np
from numpy.typing import DTypeLike

from ..format.layout import Cut
from ..format.layouts import LAYOUT_CLASSES
from ..format.packing import RecordFormat
from ..format.primitives import NO_ROW, index_dtype

#: Nonzeros checked at a time.
_CHECK_BLOCK = 2**15


def check_arrays(layout: str, arrays: dict[str, np.ndarray], cut: Cut) -> None:
    """Refuse arrays that would make an engine read or write out of bounds.

    Whether they are the right plan is left to the file's checksums: to verify it would cost as much
    as to build it.
    """
    check_shapes(layout, arrays, cut)
    record_format, cls = cut.record_format, LAYOUT_CLASSES[layout]
    names = cls.name_copies(record_format.ndim)
    nnz = arrays[names[0]].shape[0]
    for name in names:
        _check_records(arrays[name], record_format, name)
    for mode, size in enumerate(record_format.shape):
        carry_rows = arrays[f"carry_rows_{mode}"]
        _require(carry_rows.min(initial=0) >= NO_ROW, f"carry_rows_{mode}")
        _check_limit(carry_rows, size, f"carry_rows_{mode}")
        _check_limit(arrays[f"empty_rows_{mode}"], size, f"empty_rows_{mode}")
        for ids in cls.list_ids(mode, nnz, cut, _find_write_order_dtype(arrays)):
            _check_blocks(arrays[ids.name], ids.block_size, ids.name)
            if ids.max_runs is not None:
                _check_runs(arrays[ids.name], cut.tile_size, ids.max_runs, ids.name)


def check_shapes(layout: str, arrays: dict[str, np.ndarray], cut: Cut) -> None:
    """Refuse arrays of other names, shapes or dtypes than the layout has; read no element."""
    arrays, record_format, cls = dict(arrays), cut.record_format, LAYOUT_CLASSES[layout]
    write_order_dtype = _find_write_order_dtype(arrays)
    names = cls.name_copies(record_format.ndim)
    _require(names[0] in arrays and arrays[names[0]].ndim == 2, names[0])
    nnz = arrays[names[0]].shape[0]
    for name in names:
        _take(arrays, name, record_format.word_dtype, (nnz, record_format.num_words))
    for mode, size in enumerate(record_format.shape):
        num_tiles = -(-nnz // cut.tile_size)
        _take(arrays, f"carry_rows_{mode}", np.dtype(np.int64), (num_tiles,))
        empty_rows = _take(arrays, f"empty_rows_{mode}", index_dtype(size))
        _require(size - nnz <= empty_rows.size <= size, f"empty_rows_{mode}")
        for ids in cls.list_ids(mode, nnz, cut, write_order_dtype):
            _take(arrays, ids.name, ids.dtype, (nnz,))
    _require(not arrays, ", ".join(arrays))


def _find_write_order_dtype(arrays: dict[str, np.ndarray]) -> np.dtype | None:
    return np.dtype(np.uint16) if "write_order_0" in arrays else None


def _take(
    arrays: dict[str, np.ndarray],
    name: str,
    dtype: DTypeLike,
    shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Remove and return an array of the given dtype and shape (None: one axis), in C order."""
    _require(name in arrays, name)
    array = arrays.pop(name)
    is_right = array.dtype == dtype and array.shape == (shape or (array.size,))
    _require(is_right and array.flags.c_contiguous, name)
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


def _check_runs(ids: np.ndarray, tile_size: int, max_runs: int, name: str) -> None:
    """Refuse tiles with more runs of consecutive ids than an engine has room for."""
    step = -(-_CHECK_BLOCK // tile_size) * tile_size
    for start in range(0, ids.size, step):
        block = ids[start : start + step]
        is_start = np.ones(block.size, bool)
        is_start[1:] = block[1:] != block[:-1] + 1
        is_start[::tile_size] = True
        num_runs = np.add.reduceat(is_start, np.arange(0, block.size, tile_size), dtype=np.int64)
        _check_limit(num_runs, max_runs + 1, name)


def _check_limit(array: np.ndarray, limit: int, name: str) -> None:
    _require(array.size == 0 or int(array.max()) < limit, name)


def _require(is_right: bool | np.bool_, name: str) -> None:
    if not is_right:
        raise ValueError(f"{name} does not match the header")

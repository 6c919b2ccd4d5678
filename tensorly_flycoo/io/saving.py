"""Save a tensor together with its plan, and load it ready to compute."""

import errno
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array, move
from ..base.checks import LAYOUTS, check_choice, check_shape
from ..base.value_dtypes import VALUE_DTYPES
from ..base.watching import watched
from ..engines import Engine, select_engine
from ..format.groups import check_groups, check_products
from ..format.layout import Layout
from ..format.layouts import LAYOUT_CLASSES
from ..format.packed_records import (
    BLOCK_NNZ,
    MOST_CODES,
    PackedRecords,
    choose_bits,
    count_words,
    has_long_rows,
)
from ..format.packing import Cut, RecordFormat, RecordOrder
from ..format.primitives import NO_ROW, index_dtype
from ..format.replicated import ReplicatedLayout, number_prefixes
from ..spread.slab_layout import SlabLayout
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.labelled import LabelledTensor, Labels
from ..tensor.tensor import FlycooTensor
from ..tensor.unknown import Unknown
from . import array_file
from .array_file import TENSOR, ArrayReader, Header, open_arrays, save_arrays
from .places import FilePath

#: Packs records in an order, or returns None: see `Engine.pack_records`.
PackRecords: TypeAlias = Callable[[Array, RecordOrder], PackedRecords | None]

#: Nonzeros checked at a time.
_CHECK_BLOCK = 2**15

#: The types of a record's words.
_WORD_DTYPES = {"uint32": np.uint32, "uint64": np.uint64}

#: How the names of arrays begin that are not of a layout, but of the tensor's labels and cells.
_BESIDE_LAYOUT = ("header", "labels_", "text_", "unknown")


@watched
def save(path: FilePath, x: LabelledData) -> None:
    """Save a tensor and its plan, so that `load` need not build the plan again.

    Parameters
    ----------
    path : str or os.PathLike
        Any name; the format is that of ``.npz``. An existing file is replaced once the new one is
        complete, and kept if writing fails.
    x : FlycooTensor, LabelledTensor or sparse.COO

    Raises
    ------
    OSError
        If the file cannot be written.
    TypeError
        If `x` is not a sparse tensor, or a label is neither text, a number nor a date of NumPy.
    ValueError
        If `x` is in slabs, which `save_slabs` saves.

    Notes
    -----
    The file is an uncompressed .npz without pickles; `numpy.load` opens it too, and
    ``docs/architecture.md`` says what is in it. It takes ``x.nbytes`` bytes; with "remap" only the
    nonzeros are saved, and `load` builds the plan anew: a GPU does that faster than it is read.

    Examples
    --------
    >>> import os, tempfile
    >>> from tensorly_flycoo import FlycooTensor, load, save
    >>> path = os.path.join(tempfile.mkdtemp(), "x.npz")
    >>> save(path, FlycooTensor([[0, 2], [1, 0]], [0.5, 3.0], (3, 2), layout="indexed"))
    >>> load(path)
    <FlycooTensor: shape=(3, 2), dtype=float64, nnz=2, layout='indexed', device='cpu'>
    """
    tensor = as_flycoo(x, check_coords=True)
    layout = tensor._layout
    if isinstance(layout, SlabLayout):
        instead = "call save_slabs(path, x), which keeps its labels too"
        raise ValueError(f"x has {tensor.slabs} slabs, expected a tensor in one piece: {instead}")
    labelled = x if isinstance(x, LabelledTensor) else None
    write_layout(path, layout, labelled)


def write_layout(
    path: FilePath,
    layout: Layout,
    labelled: LabelledTensor | None = None,
    alignment: int = 1,
    pack: PackRecords | None = None,
) -> None:
    """Write a layout, with the labels and unknown cells of its tensor, to a file; see `save`.

    A function `pack` packs the copies of the layout "replicated": see `Engine.pack_records`.
    """
    with layout.hold_records():  # no other thread may remap them while they are written
        record_format = layout.record_format
        header: Header = {
            "shape": record_format.shape,
            "groups": record_format.groups,
            "num_prefixes": record_format.num_prefixes,
            "dtype": record_format.dtype.name,
            "layout": layout.name,
            "word_dtype": record_format.word_dtype.name,
            "tile_size": layout.tile_size,
            "norm": layout.norm,
        }
        arrays = layout.iterate_arrays()
        if pack is not None and isinstance(layout, ReplicatedLayout) and layout.nnz > 0:
            header["packed"] = describe_packed(layout)
            arrays = pack_copies(layout, pack)
        if labelled is not None:
            label_header, label_arrays = describe_labels(
                labelled.labels, labelled.unknown, labelled.value_column
            )
            header |= label_header
            arrays = itertools.chain(label_arrays, arrays)
        save_arrays(path, TENSOR, header, arrays, alignment)


def describe_packed(layout: ReplicatedLayout) -> Header:
    """Say what the words of packed records do not tell."""
    has_rows = [has_long_rows(order, layout.nnz) for order in layout.list_orders()]
    return {"nnz": layout.nnz, "block_nnz": BLOCK_NNZ, "has_rows": has_rows}


def pack_copies(layout: ReplicatedLayout, pack: PackRecords) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a layout, with packed records in place of those that can be packed."""
    arrays = dict(layout.iterate_arrays())
    names = layout.name_copies(layout.merged.ndim)
    for mode, (name, order) in enumerate(zip(names, layout.list_orders(), strict=True)):
        packed = pack(arrays[name], order)
        if packed is not None:
            del arrays[name]
            yield f"packed_{mode}", packed.words
            if packed.values is not None:
                yield f"packed_values_{mode}", packed.values
    yield from arrays.items()


def describe_labels(
    labels: Labels, unknown: Unknown, value_column: str | None
) -> tuple[Header, Iterable[tuple[str, Array]]]:
    """Return the labels and unknown cells of a tensor for its file: header entries, and arrays."""
    header = array_file.name_modes(labels)
    header |= array_file.describe_unknown(unknown)
    header["value_column"] = array_file.keep_name(value_column)
    label_arrays = array_file.list_labels(labels)
    unknown_arrays = array_file.list_unknown(unknown)
    return header, itertools.chain(label_arrays, unknown_arrays)


def label(x: FlycooTensor, reader: ArrayReader) -> LabelledTensor:
    """Return a tensor with the labels and unknown cells that a file has."""
    labels = array_file.read_labels(reader)
    unknown = array_file.read_unknown(reader)
    value_column = array_file.keep_name(reader.header.get("value_column"))
    return LabelledTensor(x, labels, unknown, value_column)


@watched
def load(path: FilePath, *, device: str | None = None) -> FlycooTensor | LabelledTensor:
    """Load a tensor that `save` wrote, on any device.

    The plan is built anew for the layout "remap", and where another kind of device or another
    release, which saved it, would have built it otherwise. Results are the same either way.

    Parameters
    ----------
    path : str or os.PathLike
    device : {"auto", "cpu", "cuda"}, optional
        As for `FlycooTensor`.

    Returns
    -------
    FlycooTensor or LabelledTensor
        What was saved, in the same layout.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the file is not a saved tensor, is damaged or truncated, or has a newer format than this
        release reads; or if `device` is unknown.
    ImportError, RuntimeError, MemoryError
        As of `FlycooTensor`.

    Notes
    -----
    Damage is detected by the CRC-32 checksum of each array. A malicious file may hold any tensor or
    a wrong plan, but cannot run code, read or write out of bounds, or allocate more than its own
    size (and, if combinations are numbered, 13 bytes per row of the first group's modes; and what
    packed records of a slab hold): all sizes and indices are checked, in one pass over the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from tensorly_flycoo import FlycooTensor, load, save
    >>> path = os.path.join(tempfile.mkdtemp(), "x.npz")
    >>> save(path, FlycooTensor([[0, 2], [1, 0]], [0.5, 3.0], (3, 2)))
    >>> load(path).nonzeros()
    (array([[0, 2],
           [1, 0]]), array([0.5, 3. ]))
    """
    engine = select_engine(device)
    if os.path.isdir(path):
        reason = f"{os.strerror(errno.EISDIR)}, which open_slabs opens if it is one of slabs"
        raise IsADirectoryError(errno.EISDIR, reason, os.fspath(path))
    with open_arrays(path, TENSOR) as reader:
        record_format = read_format(reader)
        cut = find_cut(reader, record_format, engine)
        if cut is not None:
            layout = read_layout(reader, cut, engine)
            x = FlycooTensor._of(engine, layout)
        else:  # the file has no plan, or one for another kind of device: build it anew
            coords, values = read_records(reader, record_format)
            x = FlycooTensor(
                coords,
                values,
                record_format.shape,
                groups=record_format.groups,
                layout=reader.header["layout"],
                device=engine.name,
            )
        if "names" not in reader.header:
            return x
        return label(x, reader)


def read_layout(reader: ArrayReader, cut: Cut, engine: Engine) -> Layout:
    """Read and check a layout that fits the engine."""
    arrays = {}
    for name in reader.names():
        if not name.startswith(_BESIDE_LAYOUT):
            arrays[name] = reader.read(name)
    arrays = find_packed(reader.header, arrays, cut.record_format)
    for name, array in arrays.items():
        if isinstance(array, PackedRecords):
            arrays[name] = array.unpack()
    check_arrays(reader.header["layout"], arrays, cut)
    moved = {name: move(array, engine.xp) for name, array in arrays.items()}
    return make_layout(reader.header, moved, cut, engine)


def make_layout(header: Header, arrays: dict[str, Any], cut: Cut, engine: Engine) -> Layout:
    """Make a layout from its saved header and checked arrays."""
    cls = LAYOUT_CLASSES[header["layout"]]
    layout = cls.from_arrays(arrays, cut, header["norm"])
    number_prefixes(layout, engine)
    return layout


def find_cut(reader: ArrayReader, record_format: RecordFormat, engine: Engine) -> Cut | None:
    """Return the cut of a saved plan if its records and tiles are as the engine's would be."""
    header = reader.header
    if not LAYOUT_CLASSES[header["layout"]].saves_plan:
        return None
    cut = engine.choose_cut(
        record_format.shape,
        record_format.dtype,
        record_format.groups,
        record_format.num_prefixes,
    )
    has_same_records = cut.record_format == record_format
    has_same_tiles = cut.tile_size == header["tile_size"]
    if has_same_records and has_same_tiles:
        return cut
    return None


def read_records(reader: ArrayReader, record_format: RecordFormat) -> tuple[np.ndarray, np.ndarray]:
    """Return the coords and values of saved nonzeros, which are not checked."""
    merged = record_format.merged
    records = _read_first_copy(reader, record_format)  # all copies hold the same nonzeros
    # Building takes memory and time in proportion to the mode sizes, and a header can claim huge
    # ones. A genuine file of such a tensor lists as many empty rows: check that first.
    nnz = records.shape[0]
    for mode, size in enumerate(merged.shape):
        empty_rows = reader.read(f"empty_rows_{mode}")
        _require(empty_rows.size >= size - nnz, f"empty_rows_{mode}")
    return record_format.coords(records), record_format.values(records)


def _read_first_copy(reader: ArrayReader, record_format: RecordFormat) -> np.ndarray:
    """Read the records of the first copy, and unpack them if they are packed."""
    names = {"packed_0", "packed_values_0", "empty_rows_0"} & reader.names()
    if "packed_0" in names:
        arrays = {name: reader.read(name) for name in names}
        packed: Any = find_packed(reader.header, arrays, record_format)["records_0"]
        return packed.unpack()
    cls = LAYOUT_CLASSES[reader.header["layout"]]
    first_copy = cls.name_copies(record_format.merged.ndim)[0]
    records_shape = (None, record_format.num_words)
    return reader.read(first_copy, records_shape, (record_format.word_dtype,))


def find_packed(
    header: Header, arrays: Mapping[str, np.ndarray], record_format: RecordFormat
) -> dict[str, Any]:
    """Return the arrays of a file with `PackedRecords` in place of what these are made of."""
    found: dict[str, Any] = dict(arrays)
    if "packed" not in header:
        return found
    merged = record_format.merged
    facts = header["packed"]
    nnz, block_nnz, has_rows = (facts[name] for name in ("nnz", "block_nnz", "has_rows"))
    are_right = type(nnz) is int and nnz > 0 and block_nnz == BLOCK_NNZ
    if not are_right or len(has_rows) != merged.ndim or not {*map(type, has_rows)} <= {bool}:
        raise ValueError(f"packed is {facts!r}")
    for mode, size in enumerate(merged.shape):
        name = f"packed_{mode}"
        words = found.pop(name, None)
        values = found.pop(f"packed_values_{mode}", None)
        if words is None:  # little were gained
            continue
        empty_rows = found[f"empty_rows_{mode}"]
        _require(empty_rows.size >= size - nnz, f"empty_rows_{mode}")  # before rows are listed
        order = RecordOrder(record_format, mode, empty_rows)
        if values is not None:
            _check_values(values, record_format, f"packed_values_{mode}")
        bits = choose_bits(order, has_rows[mode], values)
        _require(words.dtype == np.uint32, name)
        _require(words.shape == (count_words(nnz, bits),), name)
        found[f"records_{mode}"] = PackedRecords.of(words, order, nnz, has_rows[mode], values)
    return found


def _check_values(values: np.ndarray, record_format: RecordFormat, name: str) -> None:
    """Refuse a table of values that packed records could not have."""
    _require(values.dtype == np.uint32, name)
    _require(values.ndim == 1, name)
    num_values, rest = divmod(values.nbytes, record_format.dtype.itemsize)
    _require(rest == 0, name)
    _require(0 < num_values <= MOST_CODES, name)


def read_format(reader: ArrayReader) -> RecordFormat:
    """Check the header of a tensor; return the format of its records."""
    header = reader.header
    shape = check_shape(header["shape"])
    groups = check_groups(header["groups"], shape)
    num_prefixes = header["num_prefixes"]
    most_prefixes = 0
    if len(groups[0]) > 1:
        most_prefixes = 2**32  # combinations of the first group's indices are numbered in 32 bits
    if type(num_prefixes) is not int or not 0 <= num_prefixes <= most_prefixes:
        raise ValueError(f"num_prefixes is {num_prefixes!r}, the first group {groups[0]}")
    # If those combinations that occur are numbered, the first group may have any number of others.
    unnumbered = groups
    if num_prefixes > 0:
        unnumbered = groups[1:]
    check_products(unnumbered, shape)
    dtype = VALUE_DTYPES[header["dtype"]].dtype
    word_dtype = _WORD_DTYPES[header["word_dtype"]]
    record_format = RecordFormat.of(shape, dtype, word_dtype, groups, num_prefixes)
    check_choice(header["layout"], "layout", LAYOUTS)
    tile_size = header["tile_size"]
    if type(tile_size) is not int or not 0 < tile_size <= 2**32:
        raise ValueError(f"tile_size is {tile_size!r}")
    norm = header["norm"]
    if type(norm) is not float or not 0 <= norm < math.inf:
        raise ValueError(f"norm is {norm!r}")
    return record_format


def check_arrays(layout: str, arrays: dict[str, Any], cut: Cut) -> None:
    """Refuse ids by which an engine would write out of bounds; checksums vouch for all else."""
    check_shapes(layout, arrays, cut)
    record_format = cut.record_format
    merged = record_format.merged
    cls = LAYOUT_CLASSES[layout]
    copies = cls.name_copies(merged.ndim)
    nnz = arrays[copies[0]].shape[0]
    for name in copies:
        records = arrays[name]
        if isinstance(records, PackedRecords):
            records = records.unpack()
        _check_records(records, record_format, name)
    # The plan: rows that go on from tile to tile, rows without nonzeros, and places of records.
    for mode, size in enumerate(merged.shape):
        carry_name = f"carry_rows_{mode}"
        carry_rows = arrays[carry_name]
        _require(carry_rows.min(initial=0) >= NO_ROW, carry_name)
        _check_limit(carry_rows, size, carry_name)
        empty_name = f"empty_rows_{mode}"
        _check_limit(arrays[empty_name], size, empty_name)
    for name in cls.name_ids(merged.ndim):
        _check_limit(arrays[name], nnz, name)


def _check_records(records: np.ndarray, record_format: RecordFormat, name: str) -> None:
    """Refuse records with values that are not finite, or indices outside of the shape."""
    flat = record_format.flat
    for start in range(0, records.shape[0], _CHECK_BLOCK):
        block = records[start : start + _CHECK_BLOCK]
        values = record_format.values(block)
        _require(np.isfinite(values).all(), name)
        for mode, size in enumerate(flat.shape):
            if flat.masks[mode] >= size:  # else its bits cannot hold a larger index
                indices = flat.rows(block, mode)
                _check_limit(indices, size, name)


def check_shapes(layout: str, arrays: dict[str, Any], cut: Cut) -> None:
    """Refuse arrays of other names, shapes or dtypes than the layout has; read no element."""
    unchecked = dict(arrays)  # `_take` removes each array that it checks
    record_format = cut.record_format
    merged = record_format.merged
    cls = LAYOUT_CLASSES[layout]
    copies = cls.name_copies(merged.ndim)
    first_copy = copies[0]
    _require(first_copy in arrays, first_copy)
    records = arrays[first_copy]
    _require(len(records.shape) == 2, first_copy)
    nnz = records.shape[0]
    num_tiles = -(-nnz // cut.tile_size)
    # Numbered combinations of indices are those of nonzeros.
    _require(record_format.num_prefixes <= nnz, first_copy)
    for name in copies:
        _take(unchecked, name, record_format.word_dtype, (nnz, record_format.num_words))
    for mode, size in enumerate(merged.shape):
        _take(unchecked, f"carry_rows_{mode}", np.dtype(np.int64), (num_tiles,))
        empty_name = f"empty_rows_{mode}"
        empty_rows = _take(unchecked, empty_name, index_dtype(size))
        # A nonzero fills one row at most.
        _require(size - nnz <= empty_rows.size <= size, empty_name)
    for name in cls.name_ids(merged.ndim):
        _take(unchecked, name, index_dtype(nnz), (nnz,))
    _require(not unchecked, ", ".join(unchecked))  # arrays that no layout has


def _take(
    arrays: dict[str, Any], name: str, dtype: DTypeLike, shape: tuple[int, ...] | None = None
) -> Any:
    """Remove and return an array of the given dtype and shape (None: one axis), in C order."""
    _require(name in arrays, name)
    array = arrays.pop(name)
    expected_shape = shape or (array.size,)
    _require(array.dtype == dtype, name)
    _require(array.shape == expected_shape, name)
    _require(isinstance(array, PackedRecords) or array.flags.c_contiguous, name)
    return array


def _check_limit(array: np.ndarray, limit: int, name: str) -> None:
    """Refuse an array with an element that is not below the limit."""
    _require(array.size == 0 or int(array.max()) < limit, name)


def _require(is_right: bool | np.bool_, name: str) -> None:
    """Refuse an array that is not as the header says."""
    if not is_right:
        raise ValueError(f"{name} does not match the header")

"""Save tensors with the plans that were built for them, and load them ready to compute."""

import itertools
import json
import math

import numpy as np

from ..array_modules import move
from ..checks import check_layout, check_shape
from ..engines import select_engine
from ..format.layouts import hold_records
from ..format.packing import RecordFormat
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .files import replace_file
from .npz import damage_error, open_arrays, write_arrays
from .plans import check_arrays, iterate_arrays, make_layout

_FORMAT = "tensorly-flycoo"

#: Goes up when a release could not read, or would read wrongly, what the one before has saved.
_VERSION = 1


def save(path, x):
    """Save a tensor and the plan that was built for it, so that `load` need not build it again.

    Parameters
    ----------
    path : str or path
        A file that is there is replaced when the new one is complete, and stays as it was if that
        fails. The name may be any; .npz says what it is.
    x : FlycooTensor or sparse.COO

    Raises
    ------
    OSError
        If the file cannot be written.
    TypeError
        If `x` is something else.

    Notes
    -----
    The file is an uncompressed .npz, which `numpy.load` opens too; nothing in it is pickled. Its
    array "header" is a text, in JSON, with these keys:

    - format ("tensorly-flycoo"), version (1);
    - shape, dtype, layout: those of the tensor;
    - word_dtype, tile_size, bucket_size: how nonzeros are packed and cut;
    - mode: the one in whose order the records lie ("remap"); norm: the Frobenius norm.

    "records" (or "records_0" and so on, one for each mode) are the nonzeros, packed;
    "carry_rows_0", "empty_rows_0", "pull_ids_0", "remap_ids_0", "write_order_0" and so on are the
    plan, where the layout has these. So a file takes ``x.nbytes``, less one copy of the nonzeros
    with "remap".

    Examples
    --------
    >>> import os, tempfile
    >>> from tensorly_flycoo import FlycooTensor, load, save
    >>> path = os.path.join(tempfile.mkdtemp(), "x.npz")
    >>> save(path, FlycooTensor([[0, 2], [1, 0]], [0.5, 3.0], (3, 2), layout="indexed"))
    >>> load(path)
    <FlycooTensor: shape=(3, 2), dtype=float64, nnz=2, layout='indexed', device='cpu'>
    """
    x = as_flycoo(x)
    layout = x._layout
    with replace_file(path) as file, hold_records(layout):
        arrays = ((name, move(array, np)) for name, array in iterate_arrays(layout))
        header = np.array(json.dumps(_make_header(layout)))
        write_arrays(file, itertools.chain([("header", header)], arrays))


def _make_header(layout):
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "shape": layout.record_format.shape,
        "dtype": layout.record_format.dtype.name,
        "layout": layout.name,
        "word_dtype": layout.record_format.word_dtype.name,
        "tile_size": layout.tile_size,
        "bucket_size": getattr(layout, "bucket_size", None),
        "mode": getattr(layout, "mode", 0),
        "norm": layout.norm,
    }


def load(path, *, device=None):
    """Load a tensor that `save` has saved, on whatever device that was.

    Its plan is used where it is what would be built here; else it is built anew, as when a file
    comes from another kind of device or from a release that cuts tensors otherwise. What is
    computed with the tensor is the same either way.

    Parameters
    ----------
    path : str or path
    device : {"auto", "cpu", "cuda"}, optional
        As of `FlycooTensor`.

    Returns
    -------
    FlycooTensor
        With the layout that it had.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is no such file, is damaged or truncated, or was saved by a newer release that this
        one does not understand; or if `device` is unknown.
    ImportError, RuntimeError
        If `device` is "cuda" and it cannot be used.
    MemoryError
        If there is too little memory.

    Notes
    -----
    Damage is found by the checksums (CRC-32) that a .npz has of each array. Against files that were
    made on purpose, sizes are compared with that of the file before memory is taken, and indices
    with the sizes of the arrays that they point into; so such a file may hold any tensor or a wrong
    plan, but nothing is run, read or written that should not be. Costs one pass over the file.

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
    with open_arrays(path) as reader:
        header, record_format = _read_header(path, reader.read("header"))
        names = reader.names() - {"header"}
        if not _fits(header, record_format, names, engine):
            return _rebuild(path, header, record_format, reader, engine)
        arrays = {name: reader.read(name) for name in names}
    try:
        check_arrays(header, arrays, record_format)
    except ValueError as error:
        raise damage_error(path, error) from None
    arrays = {name: move(array, engine.xp) for name, array in arrays.items()}
    x = object.__new__(FlycooTensor)
    x._set(engine, make_layout(header, arrays, record_format, engine.primitives))
    return x


def _fits(header, record_format, names, engine):
    """Say whether a plan is cut as the engine would cut it."""
    best_format, tile_size, bucket_size = engine.choose_format(
        record_format.shape, record_format.dtype
    )
    if (best_format, tile_size) != (record_format, header["tile_size"]):
        return False
    if header["layout"] != "remap":
        return True
    orders_writes = engine.primitives.write_order_itemsize > 0
    return bucket_size == header["bucket_size"] and orders_writes == ("write_order_0" in names)


def _rebuild(path, header, record_format, reader, engine):
    """Build a tensor of the nonzeros alone, which its constructor looks at.

    Its memory and time grow with the sizes and the number of modes. So does a file, which lists the
    empty rows of each mode.
    """
    records = reader.read("records_0" if header["layout"] == "replicated" else "records")
    expected = (record_format.word_dtype, (*records.shape[:1], record_format.num_words))
    if (records.dtype, records.shape) != expected:
        raise damage_error(path, "records are not what belongs to the header")
    for mode, size in enumerate(record_format.shape):
        if reader.read(f"empty_rows_{mode}").size < size - records.shape[0]:
            raise damage_error(path, f"empty_rows_{mode} is not what belongs to the header")
    coords, values = record_format.coords(records), record_format.values(records)
    options = {"layout": header["layout"], "device": engine.NAME}
    try:
        return FlycooTensor(coords, values, record_format.shape, **options)
    except ValueError as error:
        raise damage_error(path, f"records: {error}") from None


def _read_header(path, array):
    """Return what a header says, and the format of the records."""
    try:
        header = json.loads(str(array))
        is_ours, version = header["format"] == _FORMAT, header["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        is_ours = False
    if not is_ours:
        raise damage_error(path, "its header is not that of tensorly-flycoo")
    if version != _VERSION:
        raise ValueError(
            f"{path} was saved in version {version!r} of the format, expected {_VERSION}: "
            "a newer release of tensorly-flycoo can load it"
        )
    try:
        record_format = RecordFormat.of(
            check_shape(header["shape"]),
            {"float32": np.float32, "float64": np.float64}[header["dtype"]],
            {"uint32": np.uint32, "uint64": np.uint64}[header["word_dtype"]],
        )
        _check_header(header, record_format.ndim)
    except (ValueError, TypeError, KeyError) as error:
        raise damage_error(path, f"header: {error}") from None
    return header, record_format


def _check_header(header, ndim):
    check_layout(header["layout"])
    sizes = [header["tile_size"], header["bucket_size"]]
    sizes = sizes if header["layout"] == "remap" else sizes[:1]
    if not all(type(size) is int and 0 < size <= 2**32 for size in sizes):
        raise ValueError(f"tile_size and bucket_size are {sizes}")
    if type(header["mode"]) is not int or not 0 <= header["mode"] < ndim:
        raise ValueError(f"mode is {header['mode']!r}")
    if type(header["norm"]) is not float or not 0 <= header["norm"] < math.inf:
        raise ValueError(f"norm is {header['norm']!r}")

"""The file of tensors, models and checkpoints: arrays and a JSON header in a .npz.

It is neither compressed nor pickled. The reader does not trust it: arrays never take more memory
than the file has bytes, checksums notice changed bytes, and messages have no control characters.
"""

import contextlib
import io
import itertools
import json
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..base.array_modules import Array, move
from ..base.checks import check_inside, check_shape
from ..spread.row_shards import RowShards
from ..tensor.labelled import Labels
from ..tensor.unknown import Unknown, make_mask
from .files import replace_file
from .places import FilePath

if TYPE_CHECKING:
    import zipfile

#: The facts in a file besides its arrays.
Header: TypeAlias = dict[str, Any]


class Kind(NamedTuple):
    """A kind of file; its name and its reader are for messages.

    The version goes up when a release cannot read, or would misread, files of the previous one.
    """

    format: str  # in the header, as the version is
    version: int
    name: str
    reader: str


TENSOR = Kind("tensorly-flycoo", 2, "a saved tensor", "tensorly_flycoo.load(path)")
SLABS = Kind("tensorly-flycoo slabs", 2, "the index of a slab folder", "tensorly_flycoo.open_slabs")
LABELS = Kind("tensorly-flycoo labels", 1, "labels of a slab folder", "tensorly_flycoo.open_slabs")
CP, TUCKER, PARAFAC2, COUPLED = (
    Kind(f"tensorly-flycoo {of} model", 1, f"a saved Labelled{of}", f"Labelled{of}.load(path)")
    for of in ("CP", "Tucker", "Parafac2", "CoupledCP")
)
CHECKPOINT = Kind(
    "tensorly-flycoo checkpoint", 3, "a checkpoint", "Progress(n, checkpoint=path).resume()"
)
_KINDS = {
    kind.format: kind for kind in (TENSOR, SLABS, LABELS, CP, TUCKER, PARAFAC2, COUPLED, CHECKPOINT)
}

#: Kinds of labels that are stored as they are: bools, integers, floats, time spans and dates.
_PLAIN_KINDS = "biufmM"

#: In a zip file, a local header precedes each member: so many bytes, the last 4 of which are the
#: lengths of what follows, the member's name and its extra fields.
_LOCAL_NBYTES = 30
_LENGTHS_OFFSET = 26

#: The extra field with 64-bit sizes, which `zipfile` adds.
_ZIP64_NBYTES = 20

#: The extra field that pads a member: 2 bytes of this id, 2 of its length, zeros.
_PADDING_ID = 0xD935
_PADDING_NBYTES = 4


def save_arrays(
    path: FilePath,
    kind: Kind,
    header: Mapping[str, Any],
    arrays: Iterable[tuple[str, Array]],
    alignment: int = 1,
) -> None:
    """Write a file in one atomic step; only one array at a time needs to be on the host.

    Arrays keep their memory order (C or Fortran), which may matter for the last bits of results.
    The elements of each begin at a multiple of `alignment` bytes, at most 4096.
    """
    import zipfile

    facts = {"format": kind.format, "version": kind.version, **header}
    text = np.array(json.dumps(facts))
    with replace_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, stored in itertools.chain([("header", text)], arrays):
            if isinstance(stored, RowShards):
                array = np.asarray(stored.to_numpy())
            else:
                array = np.asarray(move(stored, np))
            info = zipfile.ZipInfo(f"{name}.npy")
            if alignment > 1:
                info.extra = _make_padding(file.tell(), len(info.filename), array, alignment)
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def number(name: str, arrays: Sequence[Array]) -> list[tuple[str, Array]]:
    """Name the arrays of a list "factor_0", "factor_1", ...

    Examples
    --------
    >>> number("factor", ["A", "B"])
    [('factor_0', 'A'), ('factor_1', 'B')]
    """
    return [(f"{name}_{n}", array) for n, array in enumerate(arrays)]


def _make_padding(start: int, name_nbytes: int, array: np.ndarray, alignment: int) -> bytes:
    """Return an extra field that aligns the elements of a member that begins at `start`."""
    npy_header = io.BytesIO()
    npy_facts = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(npy_header, npy_facts)
    start_of_npy = start + _LOCAL_NBYTES + name_nbytes + _ZIP64_NBYTES + _PADDING_NBYTES
    padding = -(start_of_npy + npy_header.tell()) % alignment
    return struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)


@contextlib.contextmanager
def refuse_damage(
    path: FilePath,
    kind: Kind,
    errors: tuple[type[Exception], ...] = (ValueError, TypeError, LookupError),
) -> Iterator[None]:
    """Turn the errors of a block that reads a file into one that names the file."""
    try:
        yield
    except errors as error:
        text = str(error)
        if not text.isprintable():  # it may quote the file
            text = repr(text)
        raise ValueError(f"{path} is damaged, or not {kind.name}: {text}") from None


def check_header(path: FilePath, kind: Kind, header: Any) -> None:
    """Refuse the header of another kind of file, or of another version."""
    actual_kind = None
    if isinstance(header, dict) and isinstance(header.get("format"), str):
        actual_kind = _KINDS.get(header["format"])
    if actual_kind is None:
        raise ValueError(f"{path} is damaged, or not {kind.name}: its format is not known")
    if actual_kind is not kind:
        raise ValueError(
            f"{path} is {actual_kind.name}, expected {kind.name}: call {actual_kind.reader}"
        )
    version = header.get("version")
    if version != kind.version:
        raise ValueError(
            f"{path} has format version {version!r}, expected {kind.version}: load it with the "
            "release of tensorly-flycoo that wrote it, or a later one"
        )


@contextlib.contextmanager
def open_arrays(path: FilePath, kind: Kind) -> Iterator["ArrayReader"]:
    """Open a file and check its header; errors of the block say that the file is damaged."""
    import zipfile

    with open(path, "rb") as file:
        with refuse_damage(path, kind, (Exception,)):  # zipfile raises errors of many kinds
            archive = zipfile.ZipFile(file)
            _refuse_other_libraries({*archive.namelist()})
            reader = ArrayReader(file, archive)
        check_header(path, kind, reader.header)
        with refuse_damage(path, kind):
            yield reader


def _refuse_other_libraries(names: set[str]) -> None:
    """Refuse the files of sparse and SciPy, by the names of their arrays."""
    if {"data.npy", "shape.npy"} <= names:
        call = "from_scipy(scipy.sparse"
        if "fill_value.npy" in names:
            call = "from_coo(sparse"
        raise ValueError(f"call FlycooTensor.{call}.load_npz(path))")


class _Member(NamedTuple):
    """The file of an array, open behind its header, and the facts of the header."""

    file: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype
    order: Literal["C", "F"]


def _has_shape(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Return whether a shape is as expected, where None stands for any size.

    >>> _has_shape((3, 2), (None, 2)), _has_shape((3, 2), (None,))
    (True, False)
    """
    if len(shape) != len(expected):
        return False
    pairs = zip(shape, expected, strict=True)
    return all(wanted in (None, size) for size, wanted in pairs)


class ArrayReader:
    """An open file; reading an array that is damaged or missing raises a ValueError naming it."""

    def __init__(self, file: IO[bytes], archive: "zipfile.ZipFile") -> None:
        self._file = file
        self._archive = archive
        self._mapping: mmap.mmap | None = None  # of the whole file, once an array is mapped
        # Members may overlap, each within the file: together they could take any memory.
        sizes = [member.file_size for member in archive.infolist()]
        if sum(sizes) > os.fstat(file.fileno()).st_size:
            raise ValueError("its arrays are larger than the file")
        if not all(name.isprintable() for name in archive.namelist()):
            raise ValueError("the name of an array is not printable")
        self.header: Header = json.loads(str(self.read("header")))

    def names(self) -> set[str]:
        """Return the names of the arrays."""
        return {name.removesuffix(".npy") for name in self._archive.namelist()}

    def list_members(self) -> list[tuple[str, int, int, int]]:
        """List the name, size, checksum and offset of each array's file."""
        return [(m.filename, m.file_size, m.CRC, m.header_offset) for m in self._archive.infolist()]

    def read(
        self,
        name: str,
        shape: tuple[int | None, ...] | None = None,
        dtypes: Sequence[np.dtype] = (),
    ) -> np.ndarray:
        """Return an array; verify its checksum and, if given, shape (None: any size) and dtype."""
        with self._open(name) as member, self._archive.open(f"{name}.npy") as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            expected_shape: tuple[int | None, ...] = member.shape
            if shape is not None:
                expected_shape = shape
            expected_dtypes = dtypes or (member.dtype,)
            is_right = member.dtype in expected_dtypes
            if not is_right or not _has_shape(member.shape, expected_shape):
                shape_text = str(expected_shape).replace("None", "any")
                dtype_text = " or ".join(map(str, expected_dtypes))
                raise ValueError(
                    f"it has shape {member.shape} and dtype {member.dtype}, expected "
                    f"{shape_text} and {dtype_text}"
                )
            return array

    def read_list(self, name: str, dtype: np.dtype) -> list[np.ndarray]:
        """Return the matrices that `number` has named."""
        stored = self.names()
        matrices: list[np.ndarray] = []
        while f"{name}_{len(matrices)}" in stored:
            matrices.append(self.read(f"{name}_{len(matrices)}", (None, None), (dtype,)))
        return matrices

    def map(self, name: str) -> np.ndarray:
        """Map an array, unverified and read-only; it stays valid after the file is closed."""
        with self._open(name) as member:
            if self._mapping is None:
                self._mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            start = self._archive.getinfo(f"{name}.npy").header_offset
            lengths = self._mapping[start + _LENGTHS_OFFSET : start + _LOCAL_NBYTES]
            name_nbytes, extra_nbytes = struct.unpack("<HH", lengths)
            start += _LOCAL_NBYTES + name_nbytes + extra_nbytes
            start += member.file.tell()  # the header of the .npy
            if start % member.dtype.itemsize:
                raise ValueError("it is not aligned")
            return np.ndarray(member.shape, member.dtype, self._mapping, start, order=member.order)

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[_Member]:
        """Open an array's file behind its checked header; errors of the block name the array."""
        try:
            info = self._archive.getinfo(f"{name}.npy")
            if info.compress_type != 0 or info.compress_size != info.file_size:
                raise ValueError("it is compressed")
            with self._archive.open(info) as file:
                if np.lib.format.read_magic(file) != (1, 0):
                    raise ValueError("its header does not have version 1.0")
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
                if dtype.hasobject or min(shape, default=0) < 0:
                    raise ValueError(f"an array of {dtype} with shape {shape} is not expected")
                count = int(np.prod(shape, dtype=object))  # of Python's integers: no overflow
                if file.tell() + count * dtype.itemsize != info.file_size:
                    raise ValueError(f"its size does not match shape {shape}")
                yield _Member(file, shape, dtype, "F" if is_fortran else "C")
        except MemoryError:  # is no damage
            raise
        except Exception as error:
            raise ValueError(f"{name}: {error}") from None


# Labels of modes: plain arrays, and text as UTF-8


def name_modes(labels: Labels) -> Header:
    """Describe labels for a header; refuse names that are not text."""
    for name in labels:
        if not isinstance(name, str):
            raise TypeError(
                f"the name of a mode is {name!r}, expected text: make it anew with labels of "
                "dict(zip(names, x.labels.values()))"
            )
    return {"names": list(labels), "ordered": list(labels.ordered)}


def list_labels(labels: Labels) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays that hold labels in a file; refuse those that are no text or numbers."""
    for mode, (name, mode_labels) in enumerate(labels.items()):
        if mode_labels.dtype.kind in _PLAIN_KINDS:
            yield f"labels_{mode}", mode_labels
        else:
            encoded = _encode_text(name, mode_labels)
            yield f"text_{mode}", np.frombuffer(b"".join(encoded), np.uint8)
            lengths = [len(text) for text in encoded]
            yield f"text_ends_{mode}", np.cumsum(lengths, dtype=np.int64)


def _encode_text(name: str, labels: np.ndarray) -> list[bytes]:
    """Encode labels that are text as UTF-8; refuse other objects."""
    for label in labels.tolist():
        if not isinstance(label, str):
            raise TypeError(
                f"labels[{name!r}] holds a {type(label).__name__}, expected text, numbers or dates "
                "of NumPy, which a file can hold: convert them by .astype(str) or "
                ".astype('datetime64[D]')"
            )
    return [label.encode("utf-8", "surrogatepass") for label in labels.tolist()]


def read_labels(reader: ArrayReader) -> Labels:
    """Read the labels of the modes that the header names, text as str objects; check no size."""
    names = reader.header["names"]
    ordered = reader.header["ordered"]
    are_lists = isinstance(names, list) and isinstance(ordered, list) and {*ordered} <= {*names}
    if not (are_lists and names and all(isinstance(name, str) for name in names)):
        raise ValueError("its header does not name the modes")
    stored = reader.names()
    labels = {}
    for mode, name in enumerate(names):
        if f"labels_{mode}" in stored:
            labels[name] = reader.read(f"labels_{mode}", (None,))
            if labels[name].dtype.kind not in _PLAIN_KINDS:
                raise ValueError(f"labels_{mode} has dtype {labels[name].dtype}")
        else:
            labels[name] = _read_text(reader, mode)
    return Labels(labels, ordered)


def _read_text(reader: ArrayReader, mode: int) -> np.ndarray:
    """Read labels that are text: all of them in a row, and where each ends."""
    encoded = reader.read(f"text_{mode}", (None,), (np.dtype(np.uint8),))
    ends = reader.read(f"text_ends_{mode}", (None,), (np.dtype(np.int64),))
    bounds = np.append(0, ends)
    if (np.diff(bounds) < 0).any() or bounds[-1] != encoded.size:
        raise ValueError(f"text_ends_{mode} does not match text_{mode}")
    text = encoded.tobytes()
    labels = np.empty(ends.size, object)
    for place, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
        labels[place] = text[start:end].decode("utf-8", "surrogatepass")
    return labels


# Unknown cells: "all" in the header, or the shape of a mask there, and the coordinates of its zeros


def keep_name(column: Any) -> Any:
    """Return a column's name if a header can hold it, else None."""
    if isinstance(column, str | int):
        return column
    return None


def describe_unknown(unknown: Unknown) -> Header:
    """Return the header's entry for unknown cells; no entry if there are none."""
    if unknown is None:
        return {}
    if isinstance(unknown, str):
        return {"unknown": unknown}
    return {"unknown": [int(size) for size in unknown.shape]}


def list_unknown(unknown: Unknown) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the array that holds the cells of a mask in a file."""
    if unknown is not None and not isinstance(unknown, str):
        yield "unknown", unknown.coords.astype(np.int64, copy=False)


def read_unknown(reader: ArrayReader) -> Unknown:
    """Read which cells are unknown; None without an entry in the header.

    Whether the mask suits the tensor's shape is for the caller to check.
    """
    sizes = reader.header.get("unknown")
    if sizes is None or sizes == "all":
        return sizes
    shape = check_shape(sizes)
    cells = reader.read("unknown", (len(shape), None), (np.dtype(np.int64),))
    check_inside(cells, shape)
    return make_mask(cells, shape)

"""Read and write arrays in .npz files that are neither compressed nor pickled.

The reader does not trust the file: arrays never take more memory than the file has bytes.
"""

import contextlib
import functools
import io
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from .files import FilePath

if TYPE_CHECKING:
    import zipfile

#: Bytes read at a time: few enough to still be in the cache when their checksum is computed.
_READ_NBYTES = 2**18

#: Of a zip file: the bytes of a local header before the member's name, where in it the lengths of
#: the name and of the extra fields are, and the size of the extra field with 64-bit sizes.
_LOCAL_NBYTES, _LENGTHS_OFFSET, _ZIP64_NBYTES = 30, 26, 20

#: The extra field that pads a member: 2 bytes of this id, 2 of its length, zeros.
_PADDING_ID, _PADDING_NBYTES = 0xD935, 4


def write_arrays(
    file: IO[bytes], arrays: Iterable[tuple[str, np.ndarray]], alignment: int = 1
) -> None:
    """Write named arrays to a binary file; only one array needs to exist at a time.

    The elements of each begin at a multiple of `alignment` bytes, at most 4096.
    """
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays:
            array, info = np.asarray(array, order="C"), zipfile.ZipInfo(f"{name}.npy")
            if alignment > 1:
                info.extra = _make_padding(file.tell(), len(info.filename), array, alignment)
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _make_padding(start: int, name_nbytes: int, array: np.ndarray, alignment: int) -> bytes:
    """Return an extra field that aligns the elements of a member that begins at `start`."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    start += _LOCAL_NBYTES + name_nbytes + _ZIP64_NBYTES + _PADDING_NBYTES + header.tell()
    padding = -start % alignment
    return struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)


def damage_error(path: FilePath, reason: object) -> ValueError:
    """Build the error for a file that `save` cannot have written."""
    return ValueError(f"{path} is damaged, or not a saved tensor: {reason}")


@contextlib.contextmanager
def open_arrays(
    path: FilePath,
    make_error: Callable[[FilePath, object], Exception] = damage_error,
    takes_fortran: bool = False,
) -> Iterator["ArrayReader"]:
    """Open a .npz file and yield an `ArrayReader`.

    ``make_error(path, reason)`` builds the error for a damaged file.
    """
    import zipfile

    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            sizes = [member.file_size for member in archive.infolist()]
            if sum(sizes) > os.fstat(file.fileno()).st_size:
                raise ValueError("its arrays are larger than the file")
            if not all(name.isprintable() for name in archive.namelist()):
                raise ValueError("the name of an array is not printable")
        except Exception as error:
            raise make_error(path, _show(error)) from None
        yield ArrayReader(path, file, archive, make_error, takes_fortran)


def _show(error: Exception) -> str:
    """Return the text of an error without control characters, as it may quote the file."""
    text = str(error)
    return text if text.isprintable() else repr(text)


class ArrayReader:
    """The arrays of an open .npz file, read on demand after checking their size.

    Reading an array raises an error if it is missing, damaged, compressed or truncated;
    ``make_error(reason)`` builds others.
    """

    def __init__(
        self,
        path: FilePath,
        file: IO[bytes],
        archive: "zipfile.ZipFile",
        make_error: Callable[[FilePath, object], Exception],
        takes_fortran: bool,
    ) -> None:
        self._path = path
        self._file = file
        self._archive = archive
        self.make_error = functools.partial(make_error, path)
        self._takes_fortran = takes_fortran
        self._mapping: mmap.mmap | None = None

    def names(self) -> set[str]:
        """Return the names of the arrays."""
        return {name.removesuffix(".npy") for name in self._archive.namelist()}

    def read(self, name: str) -> np.ndarray:
        """Return one array after verifying its checksum."""
        try:
            return self._read(f"{name}.npy")
        except Exception as error:
            raise self.make_error(f"{name}: {_show(error)}") from None

    def map(self, name: str) -> np.ndarray:
        """Return one array, read-only and mapped into memory; its checksum is not verified.

        It stays valid after the file is closed.
        """
        try:
            return self._map(f"{name}.npy")
        except Exception as error:
            raise self.make_error(f"{name}: {_show(error)}") from None

    def list_members(self) -> list[tuple[str, int, int, int]]:
        """List the name, size, checksum and offset of each array's file."""
        members = self._archive.infolist()
        return [(m.filename, m.file_size, m.CRC, m.header_offset) for m in members]

    def read_header(
        self, file_format: str, version: int, owner: str, keys: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return the array "header", a JSON object, after checking its format and version.

        It must have `keys` too. `owner` completes the error "its header is not one of ...".
        """
        text = str(self.read("header"))
        try:
            header = json.loads(text)
            is_ours, found = header["format"] == file_format, header["version"]
            is_ours = is_ours and header.keys() >= set(keys)
        except (ValueError, TypeError, KeyError, RecursionError):
            is_ours = False
        if not is_ours:
            raise self.make_error(f"its header is not one of {owner}")
        if found != version:
            raise ValueError(
                f"{self._path} has format version {found!r}, expected {version}: load it with a "
                "newer release of tensorly-flycoo"
            )
        return header

    def _read(self, member_name: str) -> np.ndarray:
        with self._open(member_name) as file:
            shape, is_fortran, dtype, _ = self._read_shape(member_name, file)
            array = np.empty(shape, dtype, order="F" if is_fortran else "C")
            data = array.reshape(-1, order="A").view(np.uint8).data
            read_into = file.readinto  # type: ignore[attr-defined]  # it is a ZipExtFile
            while data and (num_read := read_into(data[:_READ_NBYTES])):
                data = data[num_read:]
            if data or file.read(1):
                raise ValueError("it is truncated")
            return array

    def _map(self, member_name: str) -> np.ndarray:
        with self._open(member_name) as file:
            shape, is_fortran, dtype, header_nbytes = self._read_shape(member_name, file)
        if self._mapping is None:
            self._mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        start = self._archive.getinfo(member_name).header_offset
        lengths = self._mapping[start + _LENGTHS_OFFSET : start + _LOCAL_NBYTES]
        start += _LOCAL_NBYTES + sum(struct.unpack("<HH", lengths)) + header_nbytes
        if start % dtype.itemsize:
            raise ValueError("it is not aligned")
        order: Literal["C", "F"] = "F" if is_fortran else "C"
        return np.ndarray(shape, dtype, self._mapping, start, order=order)

    def _open(self, member_name: str) -> IO[bytes]:
        member = self._archive.getinfo(member_name)
        if member.compress_type != 0 or member.compress_size != member.file_size:
            raise ValueError("it is compressed")
        return self._archive.open(member)

    def _read_shape(
        self, member_name: str, file: IO[bytes]
    ) -> tuple[tuple[int, ...], bool, np.dtype, int]:
        """Read an array's header; return its shape, whether it has Fortran's order, its dtype and
        the header's bytes."""
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("its header does not have version 1.0")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        count = int(np.prod(shape, dtype=object))
        is_refused = is_fortran and not self._takes_fortran
        if dtype.hasobject or is_refused or min(shape, default=0) < 0:
            raise ValueError(f"an array of {dtype} with shape {shape} is not expected")
        if file.tell() + count * dtype.itemsize != self._archive.getinfo(member_name).file_size:
            raise ValueError(f"its size does not match shape {shape}")
        return shape, is_fortran, dtype, file.tell()

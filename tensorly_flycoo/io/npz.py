"""Arrays in a .npz file that NumPy reads too, never compressed and never pickled.

Nothing that a file says is believed before it is looked at: no more memory is taken for arrays than
the file has bytes.
"""

import contextlib
import os

import numpy as np

#: Bytes that are read at a time: a cache holds them until their checksum is computed.
_READ_NBYTES = 2**18


def write_arrays(file, arrays):
    """Write pairs of names and arrays (one at a time is asked for) to a binary file."""
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)


def damage_error(path, reason):
    """Build the error of a file that cannot be what `save` wrote."""
    return ValueError(f"{path} is damaged, or not a tensor that was saved: {reason}")


@contextlib.contextmanager
def open_arrays(path, make_error=damage_error, takes_fortran=False):
    """Open a .npz file, and yield the `ArrayReader` of it.

    ``make_error(path, reason)`` is raised where it is not what it should be.
    """
    import zipfile

    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            sizes = [member.file_size for member in archive.infolist()]
            if sum(sizes) > os.fstat(file.fileno()).st_size:
                raise ValueError("its arrays are larger than the file")
            if not all(name.isprintable() for name in archive.namelist()):
                raise ValueError("the name of an array cannot be printed")
        except Exception as error:
            raise make_error(path, _show(error)) from None
        yield ArrayReader(path, archive, make_error, takes_fortran)


def _show(error):
    """Return the text of an error, which may quote the file, without control characters."""
    text = str(error)
    return text if text.isprintable() else repr(text)


class ArrayReader:
    """Read the arrays of a .npz file, each when it is asked for, after a look at its size.

    Raises an error where an array is not there, is damaged or compressed, or ends too early.
    """

    def __init__(self, path, archive, make_error, takes_fortran):
        self._path = path
        self._archive = archive
        self._make_error = make_error
        self._takes_fortran = takes_fortran

    def names(self):
        """Return the names of the arrays."""
        return {name.removesuffix(".npy") for name in self._archive.namelist()}

    def read(self, name):
        """Return one array; its checksum is compared."""
        try:
            return self._read(f"{name}.npy")
        except Exception as error:
            raise self._make_error(self._path, f"{name}: {_show(error)}") from None

    def _read(self, member_name):
        member = self._archive.getinfo(member_name)
        if member.compress_type != 0 or member.compress_size != member.file_size:
            raise ValueError("it is compressed")
        with self._archive.open(member) as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("its header is not of version 1.0")
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
            count = int(np.prod(shape, dtype=object))
            is_refused = is_fortran and not self._takes_fortran
            if dtype.hasobject or is_refused or min(shape, default=0) < 0:
                raise ValueError(f"an array of {dtype} and shape {shape} is not expected")
            if file.tell() + count * dtype.itemsize != member.file_size:
                raise ValueError(f"shape {shape} and size do not fit")
            array = np.empty(shape, dtype, order="F" if is_fortran else "C")
            data = memoryview(array.reshape(-1, order="A").view(np.uint8))
            while data and (num_read := file.readinto(data[:_READ_NBYTES])):
                data = data[num_read:]
            if data or file.read(1):
                raise ValueError("it ends too early")
            return array

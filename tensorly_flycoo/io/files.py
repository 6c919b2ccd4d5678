"""Open files for reading, compressed or not, and replace files in one step."""

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import TypeAlias

FilePath: TypeAlias = str | os.PathLike[str]

_COMPRESSED = (".gz", ".zst")

#: What a compressed file may expand to: so many times its size, or one block of a reader if that
#: is more. Indices that count up and values of one, the most regular nonzeros, came to 81 times
#: (zstd at level 19); a file that was made to fill the memory of its reader comes to a thousand
#: times with gzip, and more with zstd.
MAX_EXPANSION, SURELY_READ_NBYTES = 256, 2**24

_ZSTD_HINT = 'reading and writing .zst needs pip install "tensorly-flycoo[zstd]"'


@contextlib.contextmanager
def open_text(path):
    """Open a file for reading bytes, decompressed where its name ends in .gz or .zst.

    Yields
    ------
    file : binary file
    tell : callable
        Says how many bytes of the file on disk have been read so far.

    Raises
    ------
    ValueError
        If what is compressed is damaged, ends too early, or expands to more than `MAX_EXPANSION`
        times the size of the file.
    ImportError
        If there is no module for .zst.
    """
    path = Path(path)
    with open(path, "rb") as raw:
        if path.suffix not in _COMPRESSED:
            yield raw, raw.tell
            return
        module = _import_compression(path.suffix)
        try:
            with module.open(raw, "rb") as file:
                yield _CappedFile(path, file, os.fstat(raw.fileno()).st_size), raw.tell
        except EOFError as error:
            raise ValueError(f"{path} is truncated: {error}") from None
        except _list_errors(module) as error:
            raise ValueError(f"{path} is damaged, or not {path.suffix}: {error}") from None


class _CappedFile:
    """Read from a compressed file, up to `MAX_EXPANSION` times its size."""

    def __init__(self, path, file, nbytes):
        self._path, self._file = path, file
        self._left = max(SURELY_READ_NBYTES, MAX_EXPANSION * nbytes)

    def read(self, nbytes):
        data = self._file.read(min(nbytes, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(
                f"{self._path} expands to more than {MAX_EXPANSION} times its size, as no tensor "
                "does; decompress it yourself, if it is one"
            )
        return data


@contextlib.contextmanager
def replace_file(path):
    """Open a new file for writing bytes, which takes the place of `path` when it is complete.

    Until then, and where writing fails, `path` is what it was.
    """
    path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def replace_text(path):
    """Do what `replace_file` does, and compress where the name ends in .gz or .zst."""
    suffix = Path(path).suffix
    with replace_file(path) as raw:
        if suffix not in _COMPRESSED:
            yield raw
            return
        with _import_compression(suffix).open(raw, "wb") as file:
            yield file


def _import_compression(suffix):
    if suffix == ".gz":
        return importlib.import_module("gzip")
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{_ZSTD_HINT} ({error})") from None


def _list_errors(module):
    """List what reading damaged data raises, besides an EOFError."""
    if hasattr(module, "ZstdError"):
        return (module.ZstdError,)
    return (module.BadGzipFile, importlib.import_module("zlib").error)

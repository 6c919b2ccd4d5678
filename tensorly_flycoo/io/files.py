"""Open files for reading, compressed or not, and replace files atomically."""

import contextlib
import errno
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeAlias

from ..base.checks import require
from .places import FilePath, open_file

#: Returns up to so many bytes of a file, b"" at its end.
Read: TypeAlias = Callable[[int], bytes]

#: A compressed file may expand to this multiple of its size, or to one block of a reader if that is
#: more. The most regular nonzeros, consecutive indices with values of 1, expanded 81-fold (zstd,
#: level 19); a decompression bomb expands a thousandfold with gzip, and more with zstd.
MAX_EXPANSION = 256
SURELY_READ_NBYTES = 2**24

#: More than a full disk keeps in reserve for a file without blocks.
_TRIED_NBYTES = 2**16


@contextlib.contextmanager
def name_errors(place: str) -> Iterator[None]:
    """Have the errors of a block that reads data name the place."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{place}: {error}") from None


@contextlib.contextmanager
def open_text(path: FilePath) -> Iterator[tuple[Read, int]]:
    """Yield a function that reads a file, decompressed; and the size of the file as it is."""
    suffix = Path(path).suffix
    with open_file(path) as raw:
        nbytes = raw.seek(0, os.SEEK_END)
        raw.seek(0)
        if suffix not in (".gz", ".zst"):
            yield raw.read, nbytes
            return
        zstd = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        need = 'reading .zst needs pip install "tensorly-flycoo[zstd]"'
        is_gzip = suffix == ".gz"
        module = require("gzip" if is_gzip else zstd, need)
        errors = (module.BadGzipFile, zlib.error) if is_gzip else (module.ZstdError,)
        try:
            with module.open(raw, "rb") as file:
                yield _cap(path, file.read, nbytes), nbytes
        except EOFError as error:
            raise ValueError(f"{path} is truncated: {error}") from None
        except errors as error:
            raise ValueError(f"{path} is damaged, or not {suffix}: {error}") from None


def _cap(path: FilePath, read: Read, nbytes: int) -> Read:
    """Refuse to decompress too many times the `nbytes` that a file has."""
    left = max(SURELY_READ_NBYTES, MAX_EXPANSION * nbytes)

    def read_capped(count: int) -> bytes:
        nonlocal left
        data = read(min(count, left + 1))
        left -= len(data)
        if left < 0:
            raise ValueError(
                f"{path} expands to more than {MAX_EXPANSION} times its size, more than any tensor "
                "should; if it is one, decompress it yourself"
            )
        return data

    return read_capped


@contextlib.contextmanager
def replace_file(path: FilePath) -> Iterator[IO[bytes]]:
    """Open a new file for writing bytes; it replaces `path` when the block ends without an error.

    Until then, and if writing fails, `path` stays unchanged. Errors name `path`, not the new file.
    """
    path = Path(os.path.realpath(path))
    with _take_place(path) as part:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


@contextlib.contextmanager
def _take_place(path: Path) -> Iterator[Path]:
    """Yield a path to write in place of `path`, which errors name instead, also of a full disk."""
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        yield part
    except OSError as error:
        name = error.filename
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if is_full if name is None else str(name).startswith(os.fspath(part)):
            error.filename = os.fspath(path)
            error.filename2 = None
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)


@contextlib.contextmanager
def make_folder(path: FilePath) -> Iterator[Path]:
    """Make a folder, seen at `path` after the block; `path` must not exist, or be empty."""
    path = Path(os.path.realpath(path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
    with _take_place(path) as part:
        part.mkdir()
        yield part
        _sync_names(part)
        try:
            os.replace(part, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another run was faster
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            raise
        _sync_names(path.parent)


def _sync_names(folder: Path) -> None:
    """Write the names in a folder to the disk, where the system can open a folder."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def try_writing(path: FilePath) -> None:
    """Write a small file beside `path` and remove it, as `replace_file` would; `path` stays."""
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    with _take_place(Path(os.path.realpath(path))) as part, open(part, "xb") as file:
        file.write(bytes(_TRIED_NBYTES))
        file.flush()
        os.fsync(file.fileno())

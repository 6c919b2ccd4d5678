"""Open files for reading, compressed or not, and replace files atomically."""

import contextlib
import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from ..base.checks import require
from .places import FilePath, open_file

#: Returns up to so many bytes of a file, b"" at its end.
Read: TypeAlias = Callable[[int], bytes]


class TextFile(NamedTuple):
    """A file that is open for reading."""

    read: Read  # what it holds, decompressed
    tell: Callable[[], int]  # how many of its bytes, compressed or not, have been read
    nbytes: int  # its size, compressed or not


#: A compressed file may expand to this multiple of its size. The most regular nonzeros, consecutive
#: indices with values of 1, expanded 81-fold (zstd, level 19); a decompression bomb expands a
#: thousandfold with gzip, and more with zstd.
MAX_EXPANSION = 256

#: To so many bytes, one block of a reader, any file may expand.
SURELY_READ_NBYTES = 2**24

#: Bytes that `try_writing` writes: a full disk still has room for a few, which need no block.
_TRIED_NBYTES = 2**16

#: As of the command `gzip`: files are hardly larger than at level 9, and take half the time.
_GZIP_LEVEL = 6

_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"

#: The errors of a full disk, a full quota, and a file that the disk cannot hold.
_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def name_errors(place: str) -> Iterator[None]:
    """Have the errors of a block that reads data name the place."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{place}: {error}") from None


@contextlib.contextmanager
def open_text(path: FilePath) -> Iterator[TextFile]:
    """Open a file for reading; it is decompressed if its name ends in .gz or .zst."""
    codec = _import_codec(path)
    with open_file(path) as raw:
        nbytes = raw.seek(0, os.SEEK_END)
        raw.seek(0)
        if codec is None:
            yield TextFile(raw.read, raw.tell, nbytes)
            return
        suffix = Path(path).suffix
        errors = (codec.BadGzipFile, zlib.error) if suffix == ".gz" else (codec.ZstdError,)
        try:
            with codec.open(raw, "rb") as file:
                yield TextFile(_cap(path, file.read, nbytes), raw.tell, nbytes)
        except EOFError as error:
            raise ValueError(f"{path} is truncated: {error}") from None
        except errors as error:
            raise ValueError(f"{path} is damaged, or not {suffix}: {error}") from None


@contextlib.contextmanager
def replace_text(path: FilePath) -> Iterator[IO[bytes]]:
    """Replace a file as `replace_file` does, compressed if its name ends in .gz or .zst."""
    codec = _import_codec(path)
    with replace_file(path) as raw:
        if codec is None:
            yield raw
            return
        if Path(path).suffix == ".gz":
            # Without the temporary name and the time, so that equal tensors have equal files.
            file = codec.GzipFile(
                filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=raw, mtime=0
            )
        else:
            file = codec.open(raw, "wb")
        with file:
            yield file


def _import_codec(path: FilePath) -> Any:
    """Import the module that compresses files with the suffix of `path`; None if none does."""
    suffix = Path(path).suffix
    if suffix == ".gz":
        return require("gzip", "")
    if suffix == ".zst":
        return require(_ZSTD, 'files that end in .zst need pip install "tensorly-flycoo[zstd]"')
    return None


def _cap(path: FilePath, read: Read, nbytes: int) -> Read:
    """Refuse to decompress too many times the `nbytes` that a file has."""
    num_left = max(SURELY_READ_NBYTES, MAX_EXPANSION * nbytes)

    def read_capped(count: int) -> bytes:
        nonlocal num_left
        data = read(min(count, num_left + 1))  # one more, to see whether there is more
        num_left -= len(data)
        if num_left < 0:
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
    _remove_abandoned(path)
    writer = f"{_name_machine()}-{os.getpid()}-{os.urandom(4).hex()}"
    part = path.with_name(f".{path.name}.{writer}.part")
    try:
        yield part
    except OSError as error:
        # The error of a write names no file: it is ours if the disk is full.
        if error.filename is None:
            is_ours = error.errno in _FULL_ERRORS
        else:
            is_ours = str(error.filename).startswith(os.fspath(part))
        if is_ours:
            error.filename = os.fspath(path)
            del error.filename2  # None would be shown: "x.npz -> None"
        raise
    finally:
        _remove(part)


def _remove(part: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Remove what killed processes of this machine have written in place of `path`."""
    pattern = rf"\.{re.escape(path.name)}\.{_name_machine()}-(\d+)-[0-9a-f]+\.part"
    with contextlib.suppress(OSError):  # whatever cannot be listed or removed stays
        for part in path.parent.iterdir():
            match = re.fullmatch(pattern, part.name)
            if match is not None and not _is_running(int(match[1])):
                _remove(part)


@functools.cache
def _name_machine() -> str:
    """Return a short name of this machine, or container, which numbers its own processes."""
    namespace = 0
    with contextlib.suppress(OSError):  # containers may share the machine's name
        namespace = os.stat("/proc/self/ns/pid").st_ino
    text = f"{platform.node()} {namespace}"
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _is_running(process: int) -> bool:
    """Return whether a process of this machine is running, or may be."""
    if os.name != "posix":  # elsewhere `os.kill` would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


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
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def try_writing(path: FilePath) -> None:
    """Write a small file beside `path` and remove it, as `replace_file` would; `path` stays."""
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    with _take_place(Path(os.path.realpath(path))) as part, open(part, "xb") as file:
        file.write(bytes(_TRIED_NBYTES))
        file.flush()
        os.fsync(file.fileno())

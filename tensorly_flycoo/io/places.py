"""Find and open the files that a path, a URL, a folder or a pattern names: here, or by fsspec."""

import os
import re
from collections.abc import Iterable
from typing import IO, Any, TypeAlias

from ..base.checks import require

FilePath: TypeAlias = str | os.PathLike[str]

#: Finds the characters of a pattern.
_find_magic = re.compile("[*?[]").search

#: Finds a file or folder that is not part of the data, for Arrow and Spark too.
_find_hidden = re.compile("(^|/)[_.]").search


def list_files(paths: FilePath | Iterable[FilePath]) -> list[str]:
    """List the files that are named; those of a folder or a pattern in order of their names.

    As for Arrow and Spark, what begins with "_" or "." in a folder is not part of the data.
    """
    if isinstance(paths, str | os.PathLike):
        files = _expand(paths)
    else:
        files = [file for path in paths for file in _expand(path)]
    if not files:
        raise FileNotFoundError(f"{paths} has no files")
    return files


def _expand(path: FilePath) -> list[str]:
    """List the files of one path, which may be a folder, a pattern or a URL."""
    name = os.path.expanduser(os.fspath(path))
    is_plain = not (_is_url(name) or _find_magic(name) or os.path.isdir(name))
    if is_plain or os.path.isfile(name):
        return [os.path.abspath(name)]
    system, place = _find_system(name)
    # A folder may have the name "a[1]".
    is_pattern = _find_magic(place) and not system.exists(place)
    matches = [place]
    if is_pattern:
        matches = sorted(system.glob(place))
    files: list[str] = []
    for match in matches:
        if system.isdir(match):
            files += _list_visible(system, match)
        else:
            files.append(match)
    if "file" in system.protocol:
        return files
    return [system.unstrip_protocol(file) for file in files]


def _list_visible(system: Any, folder: str) -> list[str]:
    """List the files of a folder of fsspec, without the hidden ones, folder by folder."""
    files = [file for file in system.find(folder) if not _find_hidden(file.removeprefix(folder))]
    return sorted(files, key=lambda file: file.split("/"))


def open_file(path: FilePath) -> IO[bytes]:
    """Open a file for reading bytes."""
    if not _is_url(path):
        return open(path, "rb")
    system, place = _find_system(str(path))
    return system.open(place, "rb")


def count_nbytes(path: FilePath) -> int:
    """Return the size of a file."""
    if not _is_url(path):
        return os.path.getsize(path)
    system, place = _find_system(str(path))
    return system.size(place) or 0  # None if a server does not say it


def open_parquet(path: str) -> Any:
    """Open a .parquet file as a dataset of Arrow; names of its folders, "day=1", are columns."""
    arrow = require("pyarrow.dataset", 'needs pyarrow: pip install "tensorly-flycoo[tables]"')
    system = None  # that of this machine
    place = path
    if _is_url(path):
        system, place = _find_system(path)
    return arrow.dataset(place, filesystem=system, format="parquet", partitioning="hive")


def _is_url(path: FilePath) -> bool:
    return "://" in os.fspath(path)


def _find_system(path: str) -> tuple[Any, str]:
    """Return the file system of fsspec that a path or URL is on, and its path there."""
    need = "folders, patterns and URLs of files need fsspec: pip install fsspec"
    return require("fsspec.core", need).url_to_fs(path)

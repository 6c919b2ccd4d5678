"""Find and open the files that a path, a URL, a folder or a pattern names: here, or by fsspec."""

import os
import re
from collections.abc import Iterable
from typing import IO, Any, TypeAlias

from ..base.checks import require

FilePath: TypeAlias = str | os.PathLike[str]

_find_magic = re.compile("[*?[]").search  # of patterns
_find_hidden = re.compile("(^|/)[_.]").search


def list_files(paths: FilePath | Iterable[FilePath]) -> list[str]:
    """List the files that are named; those of a folder or a pattern in order of their names.

    As for Arrow and Spark, what begins with "_" or "." in a folder is not part of the data.
    """
    found: list[str] = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        one = os.path.expanduser(os.fspath(path))
        is_plain = not (_is_url(one) or _find_magic(one) or os.path.isdir(one))
        if is_plain or os.path.isfile(one):
            found.append(os.path.abspath(one))
            continue
        system, place = _find_system(one)
        is_pattern = _find_magic(place) and not system.exists(place)
        for named in sorted(system.glob(place)) if is_pattern else [place]:
            inner = system.find(named) if system.isdir(named) else [named]
            inner = [name for name in inner if not _find_hidden(name.removeprefix(named))]
            inner.sort(key=lambda name: name.split("/"))
            is_local = "file" in system.protocol
            found += inner if is_local else map(system.unstrip_protocol, inner)
    if not found:
        raise FileNotFoundError(f"{paths} has no files")
    return found


def open_file(path: FilePath) -> IO[bytes]:
    """Open a file for reading bytes."""
    if not _is_url(path):
        return open(path, "rb")
    system, place = _find_system(str(path))
    return system.open(place, "rb")


def open_parquet(path: str) -> Any:
    """Open a .parquet file as a dataset of Arrow; names of its folders, "day=1", are columns."""
    dataset = require("pyarrow.dataset", 'needs pyarrow: pip install "tensorly-flycoo[tables]"')
    system, place = _find_system(path) if _is_url(path) else (None, path)
    return dataset.dataset(place, filesystem=system, format="parquet", partitioning="hive")


def _is_url(path: FilePath) -> bool:
    return "://" in os.fspath(path)


def _find_system(path: str) -> tuple[Any, str]:
    need = "folders, patterns and URLs of files need fsspec: pip install fsspec"
    return require("fsspec.core", need).url_to_fs(path)

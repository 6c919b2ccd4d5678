"""The index of a folder of slabs: what each file must be."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..checks import check_layout, check_shape
from ..format.partition import find_longest_mode
from .array_file import SLABS, check_header, refuse_damage

NAME = "slabs.json"

#: Layouts whose arrays do not change.
FILE_LAYOUTS = ("replicated", "indexed")


def check_file_layout(layout: str) -> str:
    """Return `layout`; refuse one that files cannot have."""
    if check_layout(layout) not in FILE_LAYOUTS:
        raise ValueError(
            f"layout is {layout!r}, expected one of {FILE_LAYOUTS}: files do not change"
        )
    return layout


class Entry(NamedTuple):
    """What the index says of a slab.

    Attributes
    ----------
    start, stop : int
        Its rows of the cut mode.
    nbytes : int
        Of its file.
    digest : str
        `digest` of the file's list of arrays, which has their sizes and checksums.
    """

    start: int
    stop: int
    nbytes: int
    digest: str


@dataclass(frozen=True)
class Index:
    """What is in a folder.

    Attributes
    ----------
    shape : tuple of int
    dtype, layout : str
    num_slabs : int
        As the user gave it: slabs without rows have no file.
    entries : sequence of Entry
        At least one.
    """

    shape: Sequence[int]
    dtype: str
    layout: str
    num_slabs: int
    entries: Sequence[Entry]

    @property
    def cut_mode(self) -> int:
        return find_longest_mode(self.shape)

    def find_shape(self, entry: Entry) -> tuple[int, ...]:
        """Return the shape of a slab."""
        mode = self.cut_mode
        return (*self.shape[:mode], entry.stop - entry.start, *self.shape[mode + 1 :])

    def write(self, folder: Path) -> None:
        """Write the index as JSON, with a format, a version and a digest."""
        facts = {"format": SLABS.format, "version": SLABS.version, **asdict(self)}
        facts["digest"] = digest(facts)
        with open(folder / NAME, "x") as file:
            json.dump(facts, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, folder: Path) -> "Index":
        """Read and check the index.

        Raises
        ------
        OSError
            If there is none, as in a folder that was not completed.
        ValueError
            If it is damaged, or its format is newer than this release reads.
        """
        path = folder / NAME
        with refuse_damage(path, SLABS, (ValueError, RecursionError)):
            facts = json.loads(path.read_bytes())
        check_header(path, SLABS, facts)
        with refuse_damage(path, SLABS):
            if facts.pop("digest", None) != digest(facts):
                raise ValueError("its digest is wrong")
            del facts["format"], facts["version"]
            entries = [Entry(*entry) for entry in facts.pop("entries")]
            index = cls(check_shape(facts.pop("shape")), entries=entries, **facts)
            index._check()
        return index

    def _check(self) -> None:
        check_file_layout(self.layout)
        edges = [0, *(entry.stop for entry in self.entries)]
        is_joined = edges[:-1] == [entry.start for entry in self.entries]
        is_joined = is_joined and edges == sorted(set(edges)) and len(edges) > 1
        if not is_joined or edges[-1] != self.shape[self.cut_mode]:
            raise ValueError("the rows of slabs do not follow each other")
        if not all(type(number) is int for entry in self.entries for number in entry[:3]):
            raise ValueError("rows and sizes are not integers")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype is {self.dtype!r}")
        if type(self.num_slabs) is not int or not len(self.entries) <= self.num_slabs:
            raise ValueError(f"num_slabs is {self.num_slabs!r}, and there are {len(self.entries)}")


def digest(facts: Any) -> str:
    """Return 32 hexadecimal digits that depend on what JSON writes of some facts.

    Examples
    --------
    >>> digest([("a", 1)]) == digest([["a", 1]]), len(digest([]))
    (True, 32)
    """
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()

"""Number the integers of Arrow columns by tables of all integers in between, in threads.

A table has a place for each integer from the smallest to the largest, so that a row is numbered by
one look-up, without hashing and sorting. That pays while the integers are not far apart.
"""

from typing import Any

import numpy as np

from ..base.host_threads import map_in_threads

#: A column is numbered by a table if that has at most so many places for each row. A place takes 5
#: bytes, and hashing the rows takes seven times as long.
MOST_PLACES = 2

#: A table for columns in parts, which takes 4 bytes a place, may have so many places, or
_SMALL_TABLE = 2**25
#: so many for each label. Without a table, labels that are sorted take 12 bytes.
_PLACES_A_LABEL = 3

#: Integers that a thread numbers at a time; with what is made of them they fit a core's cache.
_BLOCK_ROWS = 2**17

_INT64 = np.iinfo(np.int64)


class Integers:
    """The integers of an Arrow column without missing entries, in blocks."""

    def __init__(self, column: Any) -> None:
        """Cut a column, of at least one row, into views of its chunks, unless these are short."""
        chunks = getattr(column, "chunks", [column])
        are_short = len(chunks) > 1 + len(column) // _BLOCK_ROWS
        if are_short:
            chunks = [column.combine_chunks()]
        self.column = column
        self.size = len(column)
        self.blocks = [
            chunk[start : start + _BLOCK_ROWS].to_numpy()
            for chunk in chunks
            for start in range(0, len(chunk), _BLOCK_ROWS)
        ]
        limits = map_in_threads(lambda block: (int(block.min()), int(block.max())), self.blocks)
        self.smallest = min(least for least, _ in limits)
        self.largest = max(most for _, most in limits)

    @property
    def are_near(self) -> bool:
        """Whether a table of all in between is short for so many rows, and all are int64."""
        most_places = MOST_PLACES * self.size
        return self.largest - self.smallest < most_places and _are_int64(self)

    def dictionary_encode(self) -> Any:
        """Return the Arrow column with a dictionary of the distinct integers."""
        return self.column.dictionary_encode()

    def split(self, codes: np.ndarray) -> list[np.ndarray]:
        """Return the views of an array of codes, one for each row, that belong to the blocks."""
        stops = np.cumsum([block.size for block in self.blocks])
        return np.split(codes, stops[:-1])


def number_integers(integers: Integers) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the number of each row's integer (n,), int32, and the sorted distinct integers, int64.

    Return None if they are not near each other.
    """
    if not integers.are_near:
        return None
    smallest = integers.smallest
    occurs = np.zeros(integers.largest - smallest + 1, bool)

    def mark(block: np.ndarray) -> None:
        occurs[_find_places(block, smallest)] = True

    map_in_threads(mark, integers.blocks)
    number_of_place = np.cumsum(occurs, dtype=np.int32)
    number_of_place -= 1
    codes = np.empty(integers.size, np.int32)

    def look_up(block: np.ndarray, target: np.ndarray) -> None:
        target[...] = number_of_place[_find_places(block, smallest)]

    map_in_threads(look_up, integers.blocks, integers.split(codes))
    return codes, np.flatnonzero(occurs) + smallest


class IntegerTable:
    """The numbers of the integers of a column in parts.

    `smallest` is the integer of the first place, and `size` counts the integers that have come.
    """

    def __init__(
        self, smallest: int, largest: int, labels: np.ndarray, numbers: np.ndarray
    ) -> None:
        """Make a table from `smallest` to `largest`; `labels` among these have numbers already."""
        self.smallest = smallest
        self.size = labels.size
        # Numbers are counted from 1, and 0 says that an integer has not come yet: the system gives
        # memory to zeros only where others are written.
        self._counts = np.zeros(largest - smallest + 1, np.int32)
        self._counts[labels - smallest] = numbers + np.int32(1)

    def number(self, integers: Integers) -> np.ndarray:
        """Return the number of each row's integer: int32 (n,); those that are new get the next.

        All must have a place.
        """
        codes = np.empty(integers.size, np.int32)

        def look_up(block: np.ndarray, target: np.ndarray) -> np.ndarray:
            """Write the numbers of a block; return the places that have none."""
            places = _find_places(block, self.smallest)
            np.subtract(self._counts[places], 1, out=target)
            return places[target < 0]

        new_places = map_in_threads(look_up, integers.blocks, integers.split(codes))
        places = np.concatenate(new_places)
        if places.size:
            rows = np.flatnonzero(codes < 0)
            self._add(places)
            codes[rows] = self._counts[places] - 1
        return codes

    def _add(self, places: np.ndarray) -> None:
        """Number places that have no number yet, each of which may be there several times."""
        # Each place keeps the last of its rows: so one row of each is found without sorting.
        rows = np.arange(places.size, dtype=np.int32)
        self._counts[places] = rows
        is_last = self._counts[places] == rows
        distinct = places[is_last]
        first = self.size + 1
        self.size += distinct.size
        self._counts[distinct] = np.arange(first, self.size + 1, dtype=np.int32)

    def list_labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the integers that have come, sorted, int64, and their numbers, int32."""
        places = np.flatnonzero(self._counts)
        return places + self.smallest, self._counts[places] - np.int32(1)

    def has_places(self, integers: Integers) -> bool:
        """Return whether the table has a place for each of some integers."""
        end = self.smallest + self._counts.size
        return self.smallest <= integers.smallest and integers.largest < end


def make_table(integers: Integers, labels: np.ndarray, numbers: np.ndarray) -> IntegerTable | None:
    """Make a table of a column in parts: for the next part's integers and all before them.

    `labels` are those before them, int64 and sorted, and have `numbers`. If there are any, the
    table has up to half as many places more where it grows: if integers rise from part to part, it
    is seldom made anew.

    Return None if the table would be too long, or the integers are not int64.
    """
    smallest = integers.smallest
    largest = integers.largest
    most_places = max(_SMALL_TABLE, _PLACES_A_LABEL * labels.size)
    reserve = 0
    if labels.size:
        smallest = min(smallest, int(labels[0]))
        largest = max(largest, int(labels[-1]))
        size = largest - smallest + 1
        reserve = max(0, min(size, most_places - size) // 2)
    if largest - smallest >= most_places or not _are_int64(integers):
        return None
    if smallest == integers.smallest:
        smallest = max(smallest - reserve, _INT64.min)
    if largest == integers.largest:
        largest = min(largest + reserve, _INT64.max)
    return IntegerTable(smallest, largest, labels, numbers)


def _are_int64(integers: Integers) -> bool:
    return integers.largest <= _INT64.max


def _find_places(block: np.ndarray, smallest: int) -> np.ndarray:
    """Return the places of integers in a table that begins with the smallest."""
    return block.astype(np.int64, copy=False) - smallest

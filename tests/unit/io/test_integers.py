"""Integers of columns, whole and in parts, numbered by tables."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from tensorly_flycoo.io import integers
from tensorly_flycoo.io.entries import Vocabulary, is_hashed, number_entries
from tensorly_flycoo.io.table_rows import read_rows

#: Columns of integers, near each other and far apart.
INTEGERS = {
    "all of int8": pa.array(np.random.default_rng(0).permutation(np.arange(-128, 128)), "int8"),
    "repeated": pa.array(np.random.default_rng(0).integers(5, 40, 1000), "uint16"),
    "the smallest": pa.array([-(2**63), 2 - 2**63, -(2**63)]),
    "the largest of int64": pa.array([2**63 - 1, 2**63 - 3], "uint64"),
    "too large for int64": pa.array([2**63, 2**63 - 1, 2**63], "uint64"),
    "both ends": pa.array([2**63 - 1, -(2**63)]),
    "far apart": pa.array([10**12, 0, 10**12, 7]),
    "in chunks": pa.chunked_array([[3, 1], [], [2, 3]], "int32"),
    "in chunks of several blocks": pa.chunked_array([np.arange(90, 0, -1), np.arange(80, 95)]),
    "in many short chunks": pa.chunked_array([[k % 7] for k in range(40)], "int16"),
    "one": pa.array([-4]),
    "some missing": pa.array([3, None, 2, None]),
}


@pytest.mark.parametrize("most_places", [integers.MOST_PLACES, 0], ids=["table", "hashes"])
@pytest.mark.parametrize("column", INTEGERS.values(), ids=INTEGERS)
def test_integers_by_a_table_and_by_hashes(column, most_places, monkeypatch):
    monkeypatch.setattr(integers, "MOST_PLACES", most_places)
    monkeypatch.setattr(integers, "_BLOCK_ROWS", 20)  # of which threads number several
    rows = column.to_pylist()
    expected = sorted({row for row in rows if row is not None})
    codes, labels = number_entries(column, "k")
    assert codes.dtype == np.int32
    assert [None if code < 0 else expected[code] for code in codes] == rows
    assert labels.entries.tolist() == expected
    assert labels.entries.dtype == (np.uint64 if expected[-1] >= 2**63 else np.int64)
    assert labels[1:] == (None, None)


#: Columns of integers in parts.
INTEGER_PARTS = {
    "repeated": [[5, 3, 5], [3, 4, 4], [5]],
    "in order": [range(100 * k, 100 * k + 90) for k in range(9)],
    "backwards": [range(100 * k, 100 * k + 90) for k in range(9, 0, -1)],
    "near, then far apart": [[1, 2, 3], [4, 10**15], [2, -(10**15), 3]],
    "far apart, then near": [[0, 900], [450, 450], range(900)],
    "at both ends": [[2**63 - 1, 2**63 - 3], [-(2**63)], [2**63 - 2, 5]],
    "too large for int64": [[7, 8], [2**63 + 5, 7, 2**63 + 5], [9, 8]],
    "some missing": [[4, 3], [None, 4, 6], [None], [6, 2]],
    "empty": [[], [3, 1], [], [2, 3]],
    "drawn": [np.random.default_rng(k).integers(-(4**k), 4**k, 500) for k in range(9)],
}


@pytest.mark.parametrize("small_table", [0, 500, integers._SMALL_TABLE])
@pytest.mark.parametrize("parts", INTEGER_PARTS.values(), ids=INTEGER_PARTS)
def test_integers_in_parts_are_numbered_by_tables_and_by_sorting(parts, small_table, monkeypatch):
    monkeypatch.setattr(integers, "_SMALL_TABLE", small_table)
    monkeypatch.setattr(integers, "_BLOCK_ROWS", 16)  # of which threads number several
    vocabulary = Vocabulary("k")
    rows = [[None if row is None else int(row) for row in part] for part in parts]
    are_large = [any(row is not None and row >= 2**63 for row in part) for part in rows]
    types = ["uint64" if is_large else "int64" for is_large in are_large]
    numbered = [
        vocabulary.number(pa.array(part, kind)) for part, kind in zip(rows, types, strict=True)
    ]
    for numbers in numbered:
        is_kept = numbers >= 0
        vocabulary.mark_used(numbers[is_kept], is_kept.all())
    labels, indices = vocabulary.sort()
    expected = sorted({row for part in rows for row in part if row is not None})
    assert labels.entries.tolist() == expected
    assert labels.entries.dtype == (np.uint64 if any(are_large) else np.int64)
    for part, numbers in zip(rows, numbered, strict=True):
        assert numbers.dtype == np.int32
        found = [None if number < 0 else expected[indices[number]] for number in numbers]
        assert found == part


def test_integers_beside_other_numbers_in_parts():
    vocabulary = Vocabulary("k")
    parts = [pa.array([2, 1]), pa.array([1.5, 2.0]), pa.array([3, 1])]
    numbered = [vocabulary.number(part) for part in parts]
    labels, indices = vocabulary.sort()
    assert labels.entries.tolist() == [1, 1.5, 2, 3]
    assert [indices[numbers].tolist() for numbers in numbered] == [[2, 0], [1, 2], [3, 0]]
    with pytest.raises(TypeError, match="column 'k' holds numbers and text in different parts"):
        vocabulary.number(pa.array(["a"]))


def test_a_table_of_integers_takes_little_memory():
    """12 bytes a label, or 128 MB: those of few labels that are far apart are sorted."""
    vocabulary = Vocabulary("k")
    tracemalloc.start()
    for start in range(0, 10**9, 10**8):
        vocabulary.number(pa.array([start, start + 1]))
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert vocabulary.sort()[0].entries.size == 20
    assert peak_nbytes < 2**16


def test_integers_far_apart_are_hashed_at_the_same_time_as_text():
    """A table has a column of each kind; codes and labels are those of each column alone."""
    rng = np.random.default_rng(0)
    columns = {
        "near": pa.array(rng.integers(0, 9, 100)),
        "far": pa.array(rng.choice(rng.integers(-(2**62), 2**62, 20), 100)),
        "some missing": pa.array([None if k % 7 == 0 else k % 5 for k in range(100)]),
        "text": pa.array(rng.choice(["b", "a", "c"], 100).tolist()),
    }
    assert [name for name, column in columns.items() if is_hashed(column)] == ["far", "text"]
    coded, _ = read_rows(columns, [*columns], None, {}, "drop")
    kept = np.arange(100) % 7 > 0
    for name, column in columns.items():
        expected = column.filter(pa.array(kept)).to_pylist()
        labels = coded[name].labels.entries
        assert labels.tolist() == sorted(set(expected))
        assert labels[coded[name].codes].tolist() == expected

"""The labels of columns, and of columns in parts."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tensorly_flycoo.io import entries
from tensorly_flycoo.io.entries import (
    Vocabulary,
    convert_column,
    find_places,
    number_entries,
    unite_labels,
)

WEEK = pd.CategoricalDtype(["Mon", "Tue", "Wed"], ordered=True)
BIG = 2**60


def convert(part, **options):
    if isinstance(part, pa.Array):
        return part
    return convert_column(pd.Series(part, **options), "k")


def number(part, **options):
    return number_entries(convert(part, **options), "k")


def times(*texts, zone=None):
    return pd.Series(pd.to_datetime(list(texts))).dt.tz_localize(zone)


UNITED = {
    "integers": ([np.arange(BIG, BIG + 3), [BIG + 1, 5]], [5, BIG, BIG + 1, BIG + 2]),
    "an empty part of another type": (
        [np.arange(BIG, BIG + 3), pd.Series([], dtype=float), pd.Series([None], dtype=object)],
        [BIG, BIG + 1, BIG + 2],
    ),
    "int64 and uint64": ([[BIG + 1], np.array([2**63 + 1], "u8")], [BIG + 1, 2**63 + 1]),
    "integers and floats": ([[1, BIG + 1], [3.0, np.nan]], [1, 3, BIG + 1]),
    "integers and fractions": ([[1, 2**53], [0.5, 1.0]], [0.5, 1, 2**53]),
    "floats of two sizes": ([np.array([0.1], "f4"), [0.1]], [0.1, float(np.float32(0.1))]),
    "texts": ([["b", "a"], ["c", "a"], [None]], ["a", "b", "c"]),
    "booleans": ([[True], [False, True]], [False, True]),
    "dates and times": (
        [pa.array([datetime.date(2024, 1, 2)]), times("2024-01-01T05:00")],
        [datetime.datetime(2024, 1, 1, 5), datetime.datetime(2024, 1, 2)],
    ),
    "one zone": (
        [times("2024-07-01", zone="Europe/Warsaw"), times("2024-01-01", zone="Europe/Warsaw")],
        [datetime.date(2024, 1, 1), datetime.date(2024, 7, 1)],
    ),
    "one order": (
        [pd.Series(["Wed"], dtype=WEEK), pd.Series(["Mon", "Wed"], dtype=WEEK)],
        ["Mon", "Wed"],
    ),
    "one order in two libraries": (
        [
            pd.Series(["Wed", "Tue"], dtype=WEEK),
            pl.Series(["Mon"], dtype=pl.Enum(["Mon", "Tue", "Wed"])).to_arrow(),
        ],
        ["Mon", "Tue", "Wed"],
    ),
    "an order and text": ([pd.Series(["Wed", "Tue"], dtype=WEEK), ["Mon"]], ["Mon", "Tue", "Wed"]),
    "two orders": (
        [
            pd.Series(["Wed"], dtype=WEEK),
            pd.Series(["Tue"], dtype=pd.CategoricalDtype(["Wed", "Tue"], ordered=True)),
        ],
        ["Tue", "Wed"],
    ),
}


@pytest.mark.parametrize(("parts", "expected"), UNITED.values(), ids=UNITED)
def test_labels_of_parts_are_united_exactly(parts, expected):
    numbered = [number(part) for part in parts]
    for order in (1, -1):
        united = unite_labels([labels for _, labels in numbered][::order], "k")
        assert united.entries.tolist() == expected
    for codes, labels in numbered:
        places = find_places(labels.entries, united.entries)
        assert (places >= 0).all()
        np.testing.assert_array_equal(united.entries[places], labels.entries)
        assert codes.max(initial=-1) < labels.entries.size


@pytest.mark.parametrize(("parts", "expected"), UNITED.values(), ids=UNITED)
def test_a_vocabulary_numbers_parts_before_it_knows_all_labels(parts, expected):
    columns = [convert(part) for part in parts]
    for order in (1, -1):
        vocabulary = Vocabulary("k")
        numbered = [(column, vocabulary.number(column)) for column in columns[::order]]
        labels, indices = vocabulary.sort()
        assert labels.entries.tolist() == expected
        for column, numbers in numbered:
            is_present = numbers >= 0
            found = labels.entries[indices[numbers[is_present]]]
            codes, own = number_entries(column, "k")
            np.testing.assert_array_equal(found, own.entries[codes[is_present]])
            assert (codes[~is_present] == -1).all()


def test_labels_that_no_row_has_are_left_out():
    """Categories that do not occur, and entries of rows that are left out."""
    vocabulary = Vocabulary("k")
    first = pa.array(["b", "a", None, "c"]).dictionary_encode()
    second = pa.DictionaryArray.from_arrays([1, 1], ["z", "d", None])
    numbers = [vocabulary.number(column) for column in (first, second)]
    assert numbers[0].tolist() == [0, 1, -1, 2]
    vocabulary.mark_used(numbers[0][:2], are_all=False)
    vocabulary.mark_used(numbers[1], are_all=False)
    labels, indices = vocabulary.sort()
    assert labels.entries.tolist() == ["a", "b", "d"]
    assert indices[np.concatenate([numbers[0][:2], numbers[1]])].tolist() == [1, 0, 2, 2]


@pytest.mark.parametrize("labels", [["a", "b", "c", "d"], [1, 2, 3, 4]])
def test_a_label_of_a_row_that_is_left_out_may_occur_later(labels):
    first, second, third, fourth = labels
    vocabulary = Vocabulary("k")
    for rows, kept in [
        ([second, first], slice(None)),  # from here on all that have come occur
        ([third, fourth, first], slice(2, None)),
        ([third], slice(None)),
    ]:
        numbers = vocabulary.number(pa.array(rows))
        vocabulary.mark_used(numbers[kept], are_all=kept == slice(None))
    united, _ = vocabulary.sort()
    assert united.entries.tolist() == [first, second, third]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_texts_are_numbered_in_blocks(size, monkeypatch):
    monkeypatch.setattr(entries, "_TEXT_BLOCK", size)
    vocabulary = Vocabulary("k")
    texts = [f"{number % 7}" for number in range(20)]
    numbers = [vocabulary.number(pa.array(part, "string_view")) for part in (texts, texts[::-1])]
    assert numbers[0].tolist() == [number % 7 for number in range(20)]
    np.testing.assert_array_equal(numbers[1], numbers[0][::-1])


def test_an_order_is_kept_only_if_all_parts_have_it():
    for name, (parts, _) in UNITED.items():
        united = unite_labels([number(part)[1] for part in parts], "k")
        assert (united.categories is not None) == name.startswith("one order")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[1], ["a"]], "'k' holds numbers and text in different parts"),
        ([[True], [1]], "holds booleans and numbers"),
        ([[-1], np.array([2**63 + 1], "u8")], f"no type has all numbers from -1 to {2**63 + 1} "),
        ([[BIG + 1], [0.5]], f"no type has all numbers from 0.5 to {BIG + 1} exactly"),
        ([times("2024-01-01"), times("2024-01-01", zone="UTC")],
         "holds times of UTC and times of no zone in different parts"),
        ([times("2024-01-01", zone="UTC"), times("2024-01-01", zone="Europe/Warsaw")],
         "holds times of Europe/Warsaw and times of UTC in different parts"),
        ([pa.array([datetime.date(3000, 1, 1)]), times("2024-01-01T00:00:00.000000001")],
         "times from 3000-01-01 to 3000-01-01 do not fit"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(parts, message):
    with pytest.raises(TypeError, match=message):
        unite_labels([number(part)[1] for part in parts], "k")


def test_places():
    labels = np.array(["b", "a", 3], object)
    assert find_places(np.array(["a", "c", "b"], object), labels).tolist() == [1, -1, 0]
    labels = np.array([5, 3, 1])
    assert find_places(np.array([1, 2, 5, 9]), labels).tolist() == [2, -1, 0, -1]
    assert find_places(np.array([1.0, 2.5, 5.0]), labels).tolist() == [2, -1, 0]
    assert find_places(np.array([1.0, np.nan]), np.array([np.nan, 1.0])).tolist() == [1, -1]
    assert find_places(np.array([float(BIG)]), np.array([BIG + 1, BIG])).tolist() == [1]
    assert find_places(np.array([1]), np.array([], int)).tolist() == [-1]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([BIG + 1, None, BIG + 2], [BIG + 1, BIG + 2]),
        ([2**63, 5, None], [5, 2**63]),
        ([1, 2.5, None], [1.0, 2.5]),
        ([datetime.date(2024, 1, 2), None], [datetime.date(2024, 1, 2)]),
        ([pd.Period("2024-02"), None], [datetime.date(2024, 2, 1)]),
        ([pd.Timestamp("2024-07-01", tz="Europe/Warsaw"), None], [datetime.date(2024, 7, 1)]),
        (["a", None, np.nan, pd.NA], ["a"]),
    ],
    ids=str,
)
def test_objects_of_pandas(entries, expected):
    codes, labels = number(entries, dtype=object)
    assert labels.entries.tolist() == expected
    assert (codes < 0).tolist() == pd.isna(pd.Series(entries, dtype=object)).tolist()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([1, True], "it holds bool and int"),
        ([1.5, True], "it holds bool and float"),
        ([-1, 2**63], "out of bounds"),
        ([BIG + 1, 0.5], "outside of the range exactly representable"),
        ([datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 5)], "holds date and datetime"),
        ([datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)],
         "datetimes of several kinds or zones"),
    ],
    ids=str,
)  # fmt: skip
def test_objects_that_would_be_merged_are_refused(entries, message):
    with pytest.raises(TypeError, match=f"column 'k' of object: .*{message}.*, expected numbers"):
        number(entries, dtype=object)

"""Tables in files: what the text of a file becomes, and what times are rounded to."""

import csv
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorly_flycoo import from_dataframe
from tensorly_flycoo.io import table_files
from tensorly_flycoo.io.table_files import UNITS, read_table


def write(path, rows, header=("k", "v"), **options):
    with open(path, "w", newline="") as file:
        csv.writer(file, **options).writerows([header, *rows] if header else rows)
    return path


def read_labels(path, texts):
    table = read_table(write(path, [(text, 1) for text in texts]), ["k"], "v")
    x = from_dataframe(table, ["k"], "v", aggregate="sum", missing="drop", device="cpu")
    return x.labels["k"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # Numbers, each in its usual spelling
        (["10", "9", "-1", "0"], [-1, 0, 9, 10]),
        (["9007199254740993", "9007199254740992"], [2**53, 2**53 + 1]),
        (["18446744073709551615", "5"], [5, 2**64 - 1]),
        (["0.5", "-1.25", "3.0"], [-1.25, 0.5, 3.0]),
        (["0.5", "-1.25", "3"], [-1.25, 0.5, 3.0]),
        (["1e-07", "1e+20", "1e16", "0.00001"], [1e-07, 1e-05, 1e16, 1e20]),
        (["0.0", "-0.0", "1.0"], [0.0, 1.0]),
        # Else text
        (["7", "007"], ["007", "7"]),
        (["010", "020"], ["010", "020"]),
        (["10", "010"], ["010", "10"]),
        (["1", "1.0"], ["1", "1.0"]),
        (["2.5", "2.50"], ["2.5", "2.50"]),
        (["1.10", "1.20"], ["1.10", "1.20"]),
        (["1e5", "100000.0"], ["100000.0", "1e5"]),
        (["1E5", "2"], ["1E5", "2"]),
        (["+1", "1"], ["+1", "1"]),
        ([" 1", "1", "1 "], [" 1", "1", "1 "]),
        (["a", " a", "a "], [" a", "a", "a "]),
        (["-1", "18446744073709551615"], ["-1", "18446744073709551615"]),
        (["18446744073709551616", "1"], ["1", "18446744073709551616"]),
        (["0.1", "0.10000000000000000001"], ["0.1", "0.10000000000000000001"]),
        (["9007199254740993", "0.5"], ["0.5", "9007199254740993"]),
        (["0x10", "16"], ["0x10", "16"]),
        (["1_000", "1000"], ["1000", "1_000"]),
        (["inf", "nan", "1.0"], ["1.0", "inf", "nan"]),
        (["true", "True", "TRUE", "1"], ["1", "TRUE", "True", "true"]),
        (["NA", "N/A", "null", "NULL", "None", "#N/A"],
         ["#N/A", "N/A", "NA", "NULL", "None", "null"]),
        # Dates and times
        (["2024-01-02", "2024-01-01"], ["2024-01-01", "2024-01-02"]),
        (["2024-01-01 05:00:00", "2024-01-01"], ["2024-01-01T00:00:00", "2024-01-01T05:00:00"]),
        (["2024-01-01T05:00:00.123456789"], ["2024-01-01T05:00:00.123456789"]),
        (["2024-07-01 00:00:00+02:00", "2024-01-01 00:00:00+01:00"], ["2024-01-01", "2024-07-01"]),
        (["2024-07-01T05:00Z", "2024-07-02T00:00Z"],
         ["2024-07-01T05:00:00", "2024-07-02T00:00:00"]),
        (["9999-12-31", "0001-01-01"], ["0001-01-01", "9999-12-31"]),
        # Text again
        (["2024-01-01", "2024-01-01 00:00:00"], ["2024-01-01", "2024-01-01 00:00:00"]),
        (["2024-01-01 00:00:00", "2024-01-01T00:00:00"],
         ["2024-01-01 00:00:00", "2024-01-01T00:00:00"]),
        (["2024-01-01 05:00", "2024-01-01 05:00+02:00"],
         ["2024-01-01 05:00", "2024-01-01 05:00+02:00"]),
        (["2024-02-30", "2024-02-01"], ["2024-02-01", "2024-02-30"]),
        (["2024-01", "2024-02"], ["2024-01", "2024-02"]),
        (["05:30", "06:30"], ["05:30", "06:30"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_texts_become(texts, expected, tmp_path):
    """Numbers or times if every text is spelt as such; different texts are different labels."""
    labels = read_labels(tmp_path / "x.csv", [*texts, "", *texts])
    assert (labels.astype(str) if labels.dtype.kind == "M" else labels).tolist() == expected


PIECES = [
    "",
    "0",
    "1",
    "7",
    ".",
    "-",
    "+",
    "e",
    " ",
    "00",
    "10",
    "NA",
    "nan",
    "true",
    "a",
    ":",
    "T",
]
STAMPS = ["2024-01-01", " 00:00:00", "T00:00:00", ".5", ".50", "Z"]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=4).map("".join),
    st.lists(st.sampled_from(STAMPS), min_size=1, max_size=3).map("".join),
    st.floats(allow_nan=False).map(repr),
    st.integers(-(2**65), 2**65).map(str),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_texts_that_differ_are_labels_that_differ(tmp_path_factory, texts):
    """But for zeros with and without a sign, and the missing ones."""
    folder = tmp_path_factory.mktemp("texts")
    distinct = {text for text in texts if text}
    if not distinct:
        return
    labels = read_labels(folder / "x.csv", texts)
    if labels.dtype.kind == "f":
        assert set(labels.tolist()) == {float(text) for text in distinct}
        assert labels.size == len({"0" if float(text) == 0 else text for text in distinct})
    elif labels.dtype.kind in "iu":
        assert {str(label) for label in labels} == distinct
    elif labels.dtype == object:
        assert set(labels.tolist()) == distinct
    else:
        assert labels.size == len({text.removesuffix("Z") for text in distinct})


def test_line_breaks_in_quotes(tmp_path, monkeypatch):
    """A block may end between them; one that is read at a time is small here."""
    monkeypatch.setattr(table_files, "_BLOCK_NBYTES", 1000)
    rows = [(f"line {n % 7}\nand\r\n'{n % 3}'", n) for n in range(2000)]
    table = read_table(write(tmp_path / "x.csv", rows), ["k"], "v")
    x = from_dataframe(table, ["k"], "v", aggregate="sum", zeros="drop")
    expected = pd.DataFrame(rows, columns=["k", "v"]).groupby("k")["v"].sum()
    assert x.labels["k"].tolist() == expected.index.tolist()
    assert x.nonzeros()[1].tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [".csv", ".csv.gz"])
def test_a_file_without_a_header(kind, tmp_path):
    frame = pd.DataFrame([("a", 1, 2.5), ("b", 2, 1.0), ("a", 1, 2.0)])
    frame.to_csv(tmp_path / f"x{kind}", index=False, header=False)
    table = read_table(tmp_path / f"x{kind}", ["2", "1"], "3", has_header=False)
    x = from_dataframe(table, ["2", "1"], "3", aggregate="sum")
    assert (x.labels["2"].tolist(), x.labels["1"].tolist()) == ([1, 2], ["a", "b"])
    assert x.to_coo().todense().tolist() == [[4.5, 0], [0, 1]]
    with pytest.raises(ValueError, match=r"has no column 'k', expected one of \['1', '2', '3'\]"):
        read_table(tmp_path / f"x{kind}", ["k"], has_header=False)


def test_texts_for_missing_entries(tmp_path):
    path = write(tmp_path / "x.csv", [("NA", 1), ("a", "NA"), ("b", 2), ("-", 3)])
    table = read_table(path, ["k"], "v", missing_text=["NA", "-"])
    x = from_dataframe(table, ["k"], "v", missing="drop")
    assert (x.labels["k"].tolist(), x.nonzeros()[1].tolist()) == (["b"], [2])
    with pytest.raises(TypeError, match="column 'v' holds text, such as 'NA', expected numbers"):
        from_dataframe(read_table(path, ["k"], "v"), ["k"], "v")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "2.50", " 3 ", "1e2"], [1, 2.5, 3, 100]),
        (["true", "False", "TRUE", "false"], [1, 0, 1, 0]),
        (["9007199254740993", "", "007", "nan"], [2.0**53, np.nan, 7, np.nan]),
    ],
)
def test_values_are_numbers_however_spelt(texts, expected, tmp_path):
    table = read_table(write(tmp_path / "x.csv", enumerate(texts)), ["k"], "v")
    np.testing.assert_array_equal(table["v"].cast("float64").to_numpy(), expected)


def test_a_column_may_be_a_mode_and_the_values(tmp_path):
    path = write(tmp_path / "x.csv", [("a", 3), ("b", 3), ("a", 5)])
    x = from_dataframe(read_table(path, ["k", "v"], "v"), ["k", "v"], "v")
    assert x.labels["v"].tolist() == [3, 5]
    assert x.to_coo().todense().tolist() == [[3, 5], [3, 0]]


# Times

INSTANTS = ["2024-02-29 23:30:00", "2024-07-01 00:00:00", "2024-12-31 22:59:59.5"]
ROUNDED = {
    "second": ["2024-02-29T23:30:00", "2024-07-01T00:00:00", "2024-12-31T22:59:59"],
    "minute": ["2024-02-29T23:30:00", "2024-07-01T00:00:00", "2024-12-31T22:59:00"],
    "hour": ["2024-02-29T23:00:00", "2024-07-01T00:00:00", "2024-12-31T22:00:00"],
    "day": ["2024-02-29", "2024-07-01", "2024-12-31"],
    "week": ["2024-02-26", "2024-07-01", "2024-12-30"],
    "month": ["2024-02-01", "2024-07-01", "2024-12-01"],
    "quarter": ["2024-01-01", "2024-04-01", "2024-07-01", "2024-10-01"],
    "year": ["2024-01-01"],
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("zone", [None, "Europe/Warsaw", "+05:30", "-03:30"])
def test_times_are_rounded_to_local_units(zone, unit, tmp_path):
    """The wall time of the column's zone, in a file of either kind."""
    times = pd.to_datetime(pd.Series(INSTANTS), format="ISO8601").dt.tz_localize(zone)
    frame = pd.DataFrame({"time": times})
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    expected = [of for of in ROUNDED[unit] if unit != "quarter" or "04-01" not in of]
    for name in ("x.csv", "x.parquet"):
        x = from_dataframe(read_table(tmp_path / name, [f"time:{unit}"]), [f"time:{unit}"])
        assert x.labels[f"time:{unit}"].astype(str).tolist() == expected
    if unit == "day" and zone is not None:  # as advised in Python
        x = from_dataframe(frame.assign(time=times.dt.floor("D")), ["time"])
        assert x.labels["time"].astype(str).tolist() == expected


def test_texts_of_one_time_are_rounded(tmp_path):
    """They are labels of their own otherwise, which would make the column text."""
    rows = [("2024-01-01", 1), ("2024-01-01 00:00:00", 2), ("2024-01-02 05:00:00", 3)]
    path = write(tmp_path / "x.csv", rows)
    x = from_dataframe(read_table(path, ["k:day"], "v"), ["k:day"], "v", aggregate="sum")
    assert x.labels["k:day"].astype(str).tolist() == ["2024-01-01", "2024-01-02"]
    assert x.nonzeros()[1].tolist() == [3, 3]
    write(path, [*rows, ("soon", 4)])
    with pytest.raises(
        ValueError, match="column 'k' is text such as 'soon', expected times to round to days; "
    ):
        read_table(path, ["k:day"], "v")
    pd.DataFrame({"k": [1, 2]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="column 'k' is of int64, expected times to round"):
        read_table(tmp_path / "x.parquet", ["k:day"])


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns"])
def test_hours_that_the_clock_repeats_are_named(zone, tmp_path):
    first = {"Europe/Berlin": "2026-10-25 02", "America/St_Johns": "2026-11-01 01"}[zone]
    times = pd.date_range("2026-10-20", periods=15 * 48, freq="30min", tz="UTC").tz_convert(zone)
    frame = pd.DataFrame({"t": times.insert(5, pd.NaT), "k": "a"})
    frame.to_parquet(tmp_path / "x.parquet")
    message = rf"column 't': the hour of {first}:00:00 in {zone} is one label of two, .* in UTC"
    with pytest.warns(UserWarning, match=message) as caught:
        table = read_table(tmp_path / "x.parquet", ["t:hour"])
    assert len(caught) == 1
    counts = from_dataframe(table, ["t:hour"], missing="drop")
    assert counts.labels["t:hour"][np.argmax(counts.nonzeros()[1])] == np.datetime64(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_table(tmp_path / "x.parquet", ["t:day"])
        frame[: 4 * 48].to_parquet(tmp_path / "y.parquet")
        read_table(tmp_path / "y.parquet", ["t:hour"])

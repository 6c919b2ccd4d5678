"""A table in partitions is the table in one piece: tensor, labels and their order, or an error."""

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

from tensorly_flycoo import FlycooTensor, from_dataframe
from tensorly_flycoo.dask import loading, partitions
from tensorly_flycoo.dask.loading import PartitionedData
from tensorly_flycoo.dask.partitions import Summary, TableReader, list_parquet_parts

BIG = 2**60
WEEKDAYS = pd.CategoricalDtype(["Mon", "Tue", "Wed", "Thu", "Fri"], ordered=True)


def make_columns():
    """Columns of each kind of entries, some of them missing."""
    times = pd.Series(
        pd.to_datetime(["2024-03-31 00:30", "2024-10-27 00:30", "2024-01-01 00:00"] * 4)
    )
    numbers = pd.Series(range(12))
    return {
        "large ids": pd.Series([BIG + 1, BIG, None, BIG + 2] * 3, dtype="Int64"),
        "ids beyond int64": pd.Series([2**63 + 1, 2**63, 2**64 - 1] * 4, dtype="uint64"),
        "floats": pd.Series([0.0, -0.0, 1.5, np.nan] * 3),
        "text": pd.Series(["b", None, "a", "B"] * 3),
        "text that looks like numbers": pd.Series(["7", "07", "10", "9"] * 3),
        "bools": pd.Series([True, False, True] * 4),
        "ordered": pd.Series(["Tue", "Fri", "Mon", None] * 3, dtype=WEEKDAYS),
        "categories": pd.Series(["x", "y", "w"] * 4, dtype=pd.CategoricalDtype(list("zyxw"))),
        "categories of numbers": pd.Series([3, 20, 3] * 4, dtype="category"),
        "days": times.dt.floor("D"),
        "times": times + pd.to_timedelta(numbers, "ms"),
        "times of a zone": times.dt.tz_localize("UTC").dt.tz_convert("Europe/Warsaw"),
        "spans": pd.to_timedelta(numbers % 5, "min"),
        "months": times.dt.to_period("M"),
    }


def make_frame(name):
    column = make_columns()[name]
    return pd.DataFrame({name: column, "row": np.arange(12) % 5, "value": np.arange(12) + 1.0})


def pass_on(frames, _):
    return frames


def convert_to_polars(frame):
    converted = polars.from_pandas(frame)
    if frame.columns[0] == "ordered":  # which in polars only an Enum is
        order = polars.Enum(list(WEEKDAYS.categories))
        converted = converted.with_columns(polars.col("ordered").cast(polars.String).cast(order))
    return converted


def write_files(frames, folder):
    for number, frame in enumerate(frames):
        frame.to_parquet(folder / f"{number}.parquet", row_group_size=2)
    return folder


#: What partitions are tables of.
DOORS = {
    "pandas": pass_on,
    "pandas of Arrow": lambda frames, _: [
        f.convert_dtypes(dtype_backend="pyarrow") for f in frames
    ],
    "Arrow": lambda frames, _: [pa.Table.from_pandas(frame) for frame in frames],
    "polars": lambda frames, _: [convert_to_polars(frame) for frame in frames],
    "parquet": write_files,
}


def summarise(partition):
    values = partition.values
    return Summary(values.size, values.dtype, partition.shape, partition.entries)


def read_parts(parts, modes, values="value"):
    """Do here what a cluster does; return the tensor, its labels and the ordered modes."""
    reader = TableReader(tuple(modes), values, False, "drop")
    if not isinstance(parts, list):
        parts = list_parquet_parts(parts, reader)
    data = PartitionedData(parts, reader)
    found = [reader(part) for part in parts]
    _, shape, dtype, labels = data.unite(map(summarise, found))
    placed = [[loading._place(part, n, labels) for n in range(len(modes))] for part in found]
    coords = np.concatenate([np.stack(rows) for rows in placed], axis=1)
    values = np.concatenate([partition.values for partition in found])
    return FlycooTensor(coords, values.astype(dtype), shape), labels, tuple(data.ordered)


def check_same(found, expected):
    x, labels, ordered = found
    for own, other in zip(labels, expected.labels.values(), strict=True):
        assert own.dtype == other.dtype
        assert own.tolist() == other.tolist()
    assert {*ordered} == {*ordered} & {*expected.labels.ordered}
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    for own, other in zip(x.nonzeros(), expected.tensor.nonzeros(), strict=True):
        np.testing.assert_array_equal(own, other)


#: Pairs of columns and doors; only pandas has periods.
CASES = [
    (name, door)
    for name in make_columns()
    for door in DOORS
    if name != "months" or door.startswith("pandas")
]


@pytest.mark.parametrize(("name", "door"), CASES)
def test_one_table_one_tensor(name, door, tmp_path):
    frame = make_frame(name)
    expected = from_dataframe(frame, [name, "row"], "value", missing="drop")
    frames = [frame[:5], frame[5:5], frame[5:6], frame[6:]]
    found = read_parts(DOORS[door](frames, tmp_path), [name, "row"])
    check_same(found, expected)
    assert (name in found[2]) == (name == "ordered")


@pytest.mark.parametrize("name", make_columns())
def test_any_division_of_a_file(name, tmp_path, monkeypatch):
    frame = make_frame(name)
    if name == "months":
        frame[name] = frame[name].dt.to_timestamp()
    expected = from_dataframe(frame, [name, "row"], "value", missing="drop")
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=5)
    for num_rows in (1, 6):
        monkeypatch.setattr(partitions, "_PARTITION_ROWS", num_rows)
        check_same(read_parts(tmp_path, [name, "row"]), expected)


def unite(*columns):
    """Return the labels, their dtype and whether they are ordered, of a column in several parts."""
    frames = [pd.DataFrame({"a": column, "b": 0}) for column in columns]
    _, labels, ordered = read_parts(frames, ["a", "b"], None)
    return labels[0].tolist(), labels[0].dtype, "a" in ordered


def naive(*texts):
    return pd.Series(pd.to_datetime(list(texts)))


IDS = pd.Series(range(BIG, BIG + 5))
DAYS = pd.Series(["Fri", "Tue"], dtype=WEEKDAYS)


@pytest.mark.parametrize("other", [float, "uint64", str, bool, "datetime64[ns, UTC]", WEEKDAYS])
@pytest.mark.parametrize("place", [0, 1])
def test_parts_without_rows_do_not_count(other, place):
    parts = [IDS]
    parts.insert(place, pd.Series([], dtype=other))
    assert unite(*parts) == (IDS.tolist(), np.int64, False)


def test_values_of_parts_without_rows_do_not_count():
    frames = [pd.DataFrame({"a": [0, 1], "v": np.ones(2, of)}) for of in (np.float32, np.float64)]
    assert read_parts([frames[0], frames[1][:0]], ["a"], "v")[0].dtype == np.float32
    assert read_parts(frames, ["a"], "v")[0].dtype == np.float64


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([IDS, IDS.astype("uint64") + 1], ([*range(BIG, BIG + 6)], np.int64, False)),
        ([IDS, pd.Series([7.0, float(BIG)])], ([7, *IDS], np.int64, False)),
        ([IDS, pd.Series([2**63], dtype="uint64")], ([*IDS, 2**63], np.uint64, False)),
        ([pd.Series([1, 2]), pd.Series([1.5, 2.0])], ([1.0, 1.5, 2.0], np.float64, False)),
        ([pd.Series([10, 9], dtype="int8"), pd.Series([8])], ([8, 9, 10], np.int64, False)),
        ([DAYS, DAYS[:0], DAYS[1:]], (["Tue", "Fri"], object, True)),
        ([DAYS, pd.Series(["Mon"], dtype=WEEKDAYS)], (["Mon", "Tue", "Fri"], object, True)),
        # An order that is not in all parts is none.
        ([DAYS, pd.Series(["Mon"])], (["Fri", "Mon", "Tue"], object, False)),
        ([DAYS, DAYS.cat.reorder_categories(list(WEEKDAYS.categories)[::-1], ordered=True)],
         (["Fri", "Tue"], object, False)),
        ([DAYS, pd.Series(["Sun"], dtype=pd.CategoricalDtype(["Sun"], ordered=True))],
         (["Fri", "Sun", "Tue"], object, False)),
    ],
)  # fmt: skip
def test_labels_are_united_exactly(parts, expected):
    assert unite(*parts) == expected
    assert unite(*reversed(parts)) == expected


@pytest.mark.parametrize(
    ("parts", "error", "match"),
    [
        ([IDS + 1, pd.Series([0.5])], TypeError, "which no type of numbers holds exactly"),
        ([pd.Series([-1]), pd.Series([2**63 + 1], dtype="uint64")], TypeError, "holds exactly"),
        ([IDS, pd.Series(["7"])], TypeError, "'a' is of int64 and text in different parts"),
        ([pd.Series([True]), pd.Series([1])], TypeError, "bool and int64 in different parts"),
        (
            [naive("2024-01-01"), naive("2024-01-01").dt.tz_localize("UTC")],
            ValueError,
            "times of UTC and no zone, expected one zone",
        ),
        (
            [naive("2024-01-01").dt.tz_localize(zone) for zone in ("UTC", "Europe/Warsaw")],
            ValueError,
            "times of Europe/Warsaw and UTC, expected one zone",
        ),
        ([naive("2024-01-01"), pd.Series(["2024-01-02"])], TypeError, "in different parts"),
    ],
)
def test_parts_that_cannot_be_united_are_refused(parts, error, match):
    for given in (parts, parts[::-1]):
        with pytest.raises(error, match=match):
            unite(*given)

"""A table in partitions is the table in one piece: tensor, labels and their order, or an error."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from messy_table import DAYS, FRAME, FRAMES, TABLE, check

from tensorly_flycoo import FlycooTensor, LabelledTensor
from tensorly_flycoo.dask import cluster_layout, partitions
from tensorly_flycoo.dask.loading import PartitionedData
from tensorly_flycoo.dask.partitions import Summary, TableReader, list_parquet_parts
from tensorly_flycoo.tensor.labelled import Labels

BIG = 2**60


def summarise(partition):
    values = partition.values
    return Summary(values.size, values.dtype, partition.shape, partition.entries)


def read_parts(parts, modes, values=None):
    """Do here what a cluster does."""
    reader = TableReader(tuple(modes), values, False, "drop")
    if not isinstance(parts, list):
        parts = list_parquet_parts(parts, reader)
    data = PartitionedData(parts, reader)
    found = [reader(part) for part in parts]
    _, shape, dtype, labels = data.unite(map(summarise, found))
    placed = [[cluster_layout._place(part, n, labels) for n in range(len(modes))] for part in found]
    coords = np.concatenate([np.stack(rows) for rows in placed], axis=1)
    numbers = np.concatenate([partition.values for partition in found]).astype(dtype)
    labels = Labels(dict(zip(modes, labels, strict=True)), data.ordered)
    return LabelledTensor(FlycooTensor(coords, numbers, shape), labels)


def split(name):
    """Divide a column of the table; some parts have no rows, or only missing entries."""
    table = TABLE.select([name, "row"])
    return [table[:2], table[2:2], table[2:3], table[3:]]


@pytest.mark.parametrize("name", FRAME)
@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_parts_of_any_library(make, name):
    check(read_parts([make(part) for part in split(name)], [name, "row"]), name, False)


@pytest.mark.parametrize("name", FRAME)
@pytest.mark.parametrize("num_rows", [1, 3])
def test_any_division_into_files_and_row_groups(name, num_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(partitions, "_PARTITION_ROWS", num_rows)
    first, *others = split(name)
    first.to_pandas().to_parquet(tmp_path / "0.parquet")
    for number, part in enumerate(others):
        pa.parquet.write_table(part, tmp_path / f"{number + 1}.parquet", row_group_size=2)
    check(read_parts(tmp_path, [name, "row"]), name, False)


# Parts of different types


def unite(*columns):
    """Return the labels, their dtype and whether they are ordered, of a column in several parts."""
    labels = read_parts([pd.DataFrame({"a": column, "b": 0}) for column in columns], "ab").labels
    return labels["a"].tolist(), labels["a"].dtype, "a" in labels.ordered


def make_days(*days, order=DAYS):
    return pd.Series(days, dtype=pd.CategoricalDtype(order, ordered=True))


IDS = pd.Series(range(BIG, BIG + 5))


@pytest.mark.parametrize("other", [float, "uint64", str, bool, "datetime64[ns, UTC]", "category"])
@pytest.mark.parametrize("place", [0, 1])
def test_parts_without_rows_do_not_count(other, place):
    parts = [IDS]
    parts.insert(place, pd.Series([], dtype=other))
    assert unite(*parts) == (IDS.tolist(), np.int64, True)


def test_values_of_parts_without_rows_do_not_count():
    frames = [pd.DataFrame({"a": [0, 1], "v": np.ones(2, of)}) for of in (np.float32, np.float64)]
    assert read_parts([frames[0], frames[1][:0]], ["a"], "v").dtype == np.float32
    assert read_parts(frames, ["a"], "v").dtype == np.float64


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([IDS, IDS.astype("uint64") + 1], ([*range(BIG, BIG + 6)], np.int64, True)),
        ([IDS, pd.Series([7.0, float(BIG)])], ([7, *IDS], np.int64, True)),
        ([make_days("Wed"), make_days("Mon", "Wed")], (["Mon", "Wed"], object, True)),
        ([make_days("Wed"), make_days("Mon", order=DAYS[:3])], (["Mon", "Wed"], object, False)),
    ],
)
def test_labels_are_united_exactly(parts, expected):
    assert unite(*parts) == unite(*reversed(parts)) == expected


@pytest.mark.parametrize("zones", [(None, "UTC"), ("UTC", "Europe/Warsaw")])
def test_times_of_two_zones_are_refused(zones):
    times = [pd.Series(pd.to_datetime(["2024-01-01"])).dt.tz_localize(zone) for zone in zones]
    for parts in (times, times[::-1]):
        with pytest.raises(
            TypeError, match=r"'a' holds times of .* and times of .* different parts"
        ):
            unite(*parts)

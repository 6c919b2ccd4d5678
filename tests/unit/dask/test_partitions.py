"""What tasks read on workers, called here: files of folders, and columns."""

from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pandas as pd
import psutil
import pyarrow
import pytest

from tensorly_flycoo.dask import partitions
from tensorly_flycoo.dask.partitions import TableReader, keep_partition, list_parquet_parts
from tensorly_flycoo.io.places import list_files, open_file

MODES = ("a", "b")


def make_reader(values="n", are_indices=False):
    return TableReader(MODES, values, are_indices, "raise")


@pytest.fixture
def table():
    return pd.DataFrame({"a": [0, 1, 2], "b": [1, 1, 0], "n": [1.0, 2.0, 4.0]})


# Files of folders


@pytest.mark.parametrize(
    "hidden",
    [
        "_temporary/0/part.parquet",
        ".x.parquet",
        "_x.parquet",
        "day=1/.part.crc.parquet",
        ".staging/day=1/part.parquet",
        "day=1/_delta_log/part.parquet",
    ],
)
def test_hidden_and_temporary_files_are_no_data(table, tmp_path, hidden):
    folder = tmp_path / "_not.hidden"  # what is above does not matter
    for name in ("b.parquet", "day=1/a.parquet", hidden):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(folder / name)
    found = list_files(folder)
    assert found == [str(folder / name) for name in ("b.parquet", "day=1/a.parquet")]
    assert len(pd.read_parquet(folder, columns=["a"])) == len(table) * len(found)
    assert [part.path for part in list_parquet_parts(folder, make_reader())] == found
    assert list_files(folder / hidden) == [str(folder / hidden)]  # a file by its name


def test_all_other_files_are_data(tmp_path):
    """As for Arrow: what is left out for its name would be missing silently."""
    for name in ("part-0", "b.tns.gz", "_SUCCESS", ".b.tns.gz.crc"):
        (tmp_path / name).touch()
    assert [Path(name).name for name in list_files(tmp_path)] == ["b.tns.gz", "part-0"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty has no files"):
        list_files(tmp_path / "empty")


def test_ways_to_write_a_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "[1].tns").touch()
    expected = [str(tmp_path / "[1].tns")]
    for path in (tmp_path, f"file://{tmp_path}", "~", "~/[1].tns", [f"file://{tmp_path}/[1].tns"]):
        assert list_files(path) == expected


def test_patterns_and_urls_are_read(table, tmp_path):
    system = fsspec.filesystem("memory")
    for name in ("b-1.parquet", "a-2.parquet", "_a-3.parquet", "c.parquet/part-0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        table.to_parquet(tmp_path / name)
    system.put(str(tmp_path), "/patterns", recursive=True)
    for place in (str(tmp_path), f"file://{tmp_path}", "memory://patterns"):
        found = list_files(f"{place}/[a-c]*.parquet")
        expected = ["a-2.parquet", "b-1.parquet", "c.parquet/part-0"]
        assert [name[-len(own) :] for name, own in zip(found, expected, strict=True)] == expected
        with open_file(found[0]) as file:
            assert file.read() == (tmp_path / "a-2.parquet").read_bytes()
        parts = list_parquet_parts(f"{place}/[a-c]*.parquet", make_reader())
        assert [make_reader()(part).values.tolist() for part in parts] == 3 * [[1, 2, 4]]
    with pytest.raises(FileNotFoundError, match=r"x\* has no files"):
        list_files(f"{tmp_path}/x*")


# Columns are looked at before tasks are sent


@pytest.mark.parametrize(
    ("reader", "error", "match"),
    [
        (make_reader("sum"), ValueError, r"x\.parquet: the file has no column 'sum', expected one"),
        (make_reader(None, True), TypeError, r"x\.parquet: column 'b' is of object, expected int"),
    ],
)
def test_a_wrong_column_is_found_by_the_footer(tmp_path, table, reader, error, match):
    table.assign(b=list("xyz")).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(error, match=match):
        list_parquet_parts(tmp_path, reader)


def test_a_file_without_rows_is_no_part(tmp_path, table):
    table[:0].astype({"a": object, "b": float}).to_parquet(tmp_path / "0.parquet")
    table.to_parquet(tmp_path / "1.parquet")
    parts = list_parquet_parts(tmp_path, make_reader(are_indices=True))
    assert [Path(part.path).name for part in parts] == ["1.parquet"]


def test_names_of_folders_are_columns(tmp_path, table):
    table.assign(day=[3, 12, 3], city=["b", "a", "a"]).to_parquet(
        tmp_path, partition_cols=["day", "city"]
    )
    reader = TableReader(("day", "city", "a"), "n", False, "raise")
    found = [reader(part) for part in list_parquet_parts(tmp_path, reader)]
    labels = [[own.entries.tolist() for own in part.entries] for part in found]
    assert labels == [[[12], ["a"], [1]], [[3], ["a"], [2]], [[3], ["b"], [0]]]


def test_memory_of_the_table_is_given_back(tmp_path, monkeypatch):
    kept = []
    actor = SimpleNamespace(keep=lambda _, partition: kept.append(partition))
    worker = SimpleNamespace(address="here", state=SimpleNamespace(actors={"key": actor}))
    monkeypatch.setattr(partitions, "get_worker", lambda: worker)
    reader = make_reader(are_indices=True)
    for size in (2, 2**22):  # what is loaded for the first one stays
        columns = np.arange(size), np.arange(size)[::-1], np.random.default_rng(0).random(size)
        table = dict(zip("abn", columns, strict=True))
        pd.DataFrame(table).to_parquet(tmp_path / "x.parquet", row_group_size=2**19)
        pyarrow.default_memory_pool().release_unused()
        before = psutil.Process().memory_info().rss
        for part in list_parquet_parts(tmp_path, reader):
            keep_partition(part, 0, reader, {"here": "key"})
        grown = psutil.Process().memory_info().rss - before
    assert sum(own.coords.nbytes + own.values.nbytes for own in kept) > 16 * size
    assert grown < 24 * size


def test_a_column_may_be_called_path(table, monkeypatch):
    actor = SimpleNamespace(keep=lambda *_: None)
    worker = SimpleNamespace(address="here", state=SimpleNamespace(actors={"key": actor}))
    monkeypatch.setattr(partitions, "get_worker", lambda: worker)
    part = table.assign(path="x")
    assert keep_partition(part, 0, make_reader(), {"here": "key"}).nnz == 3


def test_zeros_are_refused_as_in_one_process(table):
    table = table.assign(n=[1.0, 0.0, 2.0])
    with pytest.raises(ValueError, match=r'1 of 3 values of column \'n\' are 0: pass zeros="drop"'):
        make_reader()(table)
    assert TableReader(MODES, "n", False, "raise", "drop")(table).values.tolist() == [1, 0, 2]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(ValueError, match=r"x\.parquet: "):
        list_parquet_parts(tmp_path, make_reader())


@pytest.mark.parametrize("most", [2**32, 2**63, 2**64 - 1])
def test_an_index_that_is_too_large_is_shown_as_it_is(table, most):
    table = table.assign(a=np.array([0, 1, most], np.uint64))
    with pytest.raises(ValueError, match=f"column 'a' holds the index {most}, expected less than"):
        make_reader(are_indices=True)(table)

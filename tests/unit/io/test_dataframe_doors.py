"""One frame, one tensor, one set of labels: whatever library or file holds it."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from messy_table import FRAME, FRAMES, TABLE, check, to_polars
from pyarrow import csv

from tensorly_flycoo import LabelledCP, from_dataframe
from tensorly_flycoo.command_line.commands import make_parser
from tensorly_flycoo.command_line.reading import read_tensor
from tensorly_flycoo.io.table_files import read_table


def write_arrow_csv(table, path, separator):
    buffer = io.BytesIO()
    csv.write_csv(table, buffer, csv.WriteOptions(delimiter=separator))
    path.write_bytes(buffer.getvalue())


def decode(table):
    """Arrow writes no dictionaries as text."""
    columns = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in table]
    return pa.table(columns, table.column_names)


#: What writes a table to a file; and what its text has for nan, true and false.
FILES = {
    "pandas.parquet": lambda table, path: table.to_pandas().to_parquet(path),
    "arrow.parquet": lambda table, path: pa.parquet.write_table(table, path),
    "pandas.csv": lambda table, path: table.to_pandas().to_csv(path, index=False),
    "pandas.tsv": lambda table, path: table.to_pandas().to_csv(path, index=False, sep="\t"),
    "polars.csv": lambda table, path: to_polars(table).write_csv(path),
    "arrow.csv": lambda table, path: write_arrow_csv(decode(table), path, ","),
    "arrow.tsv": lambda table, path: write_arrow_csv(decode(table), path, "\t"),
}


def read_by_command(table, path, modes):
    """The tensor that the command line makes of a file."""
    FILES[path.name](table, path)
    options = ["--rank", "1", "--missing", "drop", "--missing-text", "nan,NaN", "--device", "cpu"]
    arguments = make_parser().parse_args(["fit", str(path), "--modes", ",".join(modes), *options])
    return read_tensor(arguments, path.suffix)


def open_file(table, path, modes):
    """The table that the command line reads of a file."""
    FILES[path.name](table, path)
    separator = "\t" if path.suffix == ".tsv" else ","
    return read_table(path, modes, separator=separator, missing_text=["nan", "NaN"])


@pytest.mark.parametrize("name", FRAME)
@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_a_frame_of_any_library(make, name):
    table = make(TABLE.select([name, "row"]))
    check(from_dataframe(table, [name, "row"], missing="drop", device="cpu"), name, False)


@pytest.mark.parametrize("name", FRAME)
@pytest.mark.parametrize("file", FILES)
def test_a_file_by_the_command_line(file, name, tmp_path):
    x = read_by_command(TABLE.select([name, "row"]), tmp_path / file, [name, "row"])
    check(x, name, not file.endswith("parquet"))


@pytest.mark.parametrize("name", sorted(FRAME.keys() - {"is open", "empty"}))
def test_a_model_of_one_frame_predicts_any_other(name, tmp_path):
    """A model of each door's labels, and the rows of every other."""
    column = TABLE[name]
    table = TABLE.select([name, "row"]).filter(pa.compute.is_valid(column).combine_chunks())
    if name == "size":
        table = table.filter(pa.compute.is_finite(table[name]))
    doors = {of: make(table) for of, make in FRAMES.items()}
    doors |= {of: open_file(table, tmp_path / of, [name, "row"]) for of in FILES}
    for door in doors.values():
        x = from_dataframe(door, [name, "row"], device="cpu")
        random = np.random.RandomState(0)
        cp = LabelledCP((None, [random.rand(size, 2) for size in x.shape]), x.labels)
        predicted = [cp.predict(other) for other in doors.values()]
        assert all(np.array_equal(of, predicted[0]) for of in predicted)
        places = x.labels["row"].tolist()
        assert places == table["row"].to_pylist()
        codes = x.nonzeros()[0]
        dense = cp.weights * cp.factors[0][codes[0]] * cp.factors[1][codes[1]]
        expected = np.empty(len(places))
        expected[codes[1]] = dense.sum(axis=1)
        np.testing.assert_allclose(predicted[0], expected, rtol=1e-12)

"""A table of columns of all kinds, with missing and unusual entries, and the tensor of it."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute

WARSAW = "Europe/Warsaw"
DAYS = ["Mon", "Tue", "Wed", "Thu"]


def encode(entries, categories, ordered):
    numbers = [None if entry is None else categories.index(entry) for entry in entries]
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int8()), categories, ordered=ordered)


def local(*texts):
    """Times whose wall time in Warsaw is written."""
    naive = pa.array(np.array(texts, "M8[us]"))
    return pa.compute.assume_timezone(naive, WARSAW)


def dates(*texts):
    return np.array(texts, "M8").tolist()


#: The columns of a frame, and for each the labels that a tensor of it has.
FRAME = {
    "text": (pa.array(["7", "007", " 7", "Łódź", "NA", None]), [" 7", "007", "7", "NA", "Łódź"]),
    "empty": (pa.array(["b", "", "true", "b", "", "a"]), ["", "a", "b", "true"]),
    "number": (pa.array([3, -1, None, 3, 2**40, 0]), [-1, 0, 3, 2**40]),
    "id": (
        pa.array([2**60, 2**53, 2**53 + 1, 2**60 + 1, 2**53, 2**60]),
        [2**53, 2**53 + 1, 2**60, 2**60 + 1],
    ),
    "long id": (
        pa.array([2**64 - 1, 2**63, 5, 2**63 + 1, 2**63, 5], pa.uint64()),
        [5, 2**63, 2**63 + 1, 2**64 - 1],
    ),
    "size": (pa.array([0.0, -0.0, 1e16, None, float("nan"), 1e-7]), [0.0, 1e-7, 1e16]),
    "is open": (pa.array([True, False, None, True, True, False]), [False, True]),
    "date": (
        pa.array([datetime.date(2024, 3, day) for day in (9, 1, 9, 30)] + [None] * 2),
        dates("2024-03-01", "2024-03-09", "2024-03-30"),
    ),
    "time": (
        pa.array(np.array(["2024-03-01T00:00", "2024-03-01T05:30:01.5", "NaT"] * 2, "M8[us]")),
        dates("2024-03-01T00:00:00.000", "2024-03-01T05:30:01.500"),
    ),
    "local day": (
        local(*["2024-07-01", "2024-01-01", "2024-07-01", "2024-03-31", "NaT", "2024-10-27"]),
        dates("2024-01-01", "2024-03-31", "2024-07-01", "2024-10-27"),
    ),
    "local time": (
        local(*["2024-07-01T23:30", "2024-01-01T00:10"] * 3),
        dates("2024-01-01T00:10:00", "2024-07-01T23:30:00"),
    ),
    "category": (encode(["b", "a", None, "b", "a", "a"], ["z", "b", "a"], False), ["a", "b"]),
    "weekday": (encode(["Wed", "Mon", None, "Tue", "Mon", "Mon"], DAYS, True), DAYS[:3]),
}
TABLE = pa.table({name: column for name, (column, _) in FRAME.items()} | {"row": range(6)})

NULLABLE = {
    pa.int64(): pd.Int64Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
}


class Stream:
    """Has Arrow's stream interface alone, as relations of DuckDB have it."""

    def __init__(self, table):
        self.__arrow_c_stream__ = table.__arrow_c_stream__


def to_polars(table):
    frame = pl.from_arrow(table)
    return frame.with_columns(pl.col("^weekday$").cast(str).cast(pl.Enum(DAYS)))


def to_objects(table):
    frame = table.to_pandas()
    return frame.astype({name: object for name in frame if frame[name].dtype != "category"})


def encode_chunks(table):
    """Encode each column, in chunks whose dictionaries differ; ordered ones stay as they are."""
    parts = []
    for start in range(0, max(1, table.num_rows), 2):
        part = table.slice(start, 2).combine_chunks()
        columns = [c if pa.types.is_dictionary(c.type) else c.dictionary_encode() for c in part]
        parts.append(pa.table(columns, part.column_names))
    return pa.concat_tables(parts)


FRAMES = {
    "pandas": lambda table: table.to_pandas(),
    "pandas, nullable": lambda table: table.to_pandas(types_mapper=NULLABLE.get),
    "pandas, of Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas, objects": to_objects,
    "polars": to_polars,
    "lazy polars": lambda table: to_polars(table).lazy(),
    "Arrow": lambda table: table,
    "Arrow, encoded in chunks": encode_chunks,
    "stream": Stream,
    "stream of polars": lambda table: Stream(to_polars(table)),
}


def as_text_has_it(name, entries, labels):
    """What a text file knows: neither booleans, nor empty texts, nor an order of categories."""
    if name == "is open":
        return [None if entry is None else str(entry) for entry in entries], ["False", "True"]
    if name == "empty":
        return [entry or None for entry in entries], labels[1:]
    return entries, sorted(labels) if name == "weekday" else labels


def check(x, name, is_text):
    """Compare a tensor of a column and of the rows' numbers with the frame."""
    column, labels = FRAME[name]
    if pa.types.is_timestamp(column.type):
        column = pa.compute.local_timestamp(column) if column.type.tz else column
    entries = [None if entry != entry else entry for entry in column.to_pylist()]
    if is_text:
        entries, labels = as_text_has_it(name, entries, labels)
    found = x.labels[name].tolist()
    if isinstance(found[0], str):
        found = [text if labels[0] != "False" else text.title() for text in found]
    assert found == labels
    midnights = [datetime.datetime.combine(of, datetime.time()) if type(of) is datetime.date else of
                 for of in labels]  # fmt: skip
    places = midnights if pa.types.is_timestamp(column.type) else labels
    kept = [row for row, entry in enumerate(entries) if entry is not None]
    expected = np.zeros((len(labels), len(kept)))
    for place, row in enumerate(kept):
        expected[places.index(entries[row]), place] = 1
    assert x.labels["row"].tolist() == kept
    np.testing.assert_array_equal(x.to_coo().todense(), expected)
    kinds = ("number", "id", "long id", "size", "date", "time", "local day", "local time")
    is_ordered = name in kinds or (name == "weekday" and not is_text)
    assert x.labels.ordered == ((name, "row") if is_ordered else ("row",))

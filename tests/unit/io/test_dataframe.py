"""Tensors from pandas, polars and Arrow tables."""

import datetime
import decimal
import sys
import uuid
import warnings
import weakref

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    cp_fit,
    from_dataframe,
    observed_parafac,
)
from tensorly_flycoo.io import dataframe, integers, table_parts


def make_chunked(columns):
    parts = (slice(2), slice(2, None))
    return pa.concat_tables(
        [pa.table({name: column[part] for name, column in columns.items()}) for part in parts]
    )


MAKERS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "arrow in chunks": make_chunked,
}

make_table = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())

COLUMNS = {
    "shop": ["b", "a", "b", "c", "b"],
    "day": [datetime.date(2020, 1, day) for day in (7, 9, 7, 1, 9)],
    "number": [30, -10, 30, 20, 30],
    "size": [0.5, 2.5, 0.5, 0.5, -1.0],
    "is_open": [True, False, True, True, True],
    "price": [1.0, 2.0, 4.0, 8.0, 0.5],
}


def expect(modes, values):
    """Return the expected dense tensor and labels, summed row by row."""
    labels = [sorted(set(COLUMNS[name])) for name in modes]
    dense = np.zeros([len(entries) for entries in labels])
    for row, value in enumerate(values):
        place = (ls.index(COLUMNS[name][row]) for name, ls in zip(modes, labels, strict=True))
        dense[tuple(place)] += value
    return dense, labels


@make_table
@pytest.mark.parametrize("values", [None, "price", "number"])
@pytest.mark.parametrize("modes", [["shop", "day", "number"], ["size", "is_open"], ["number"]])
def test_tables(make, modes, values):
    dense, labels = expect(modes, [1] * 5 if values is None else COLUMNS[values])
    result = from_dataframe(make(COLUMNS), modes, values, device="cpu")
    assert isinstance(result, LabelledTensor)
    np.testing.assert_array_equal(result.tensor.to_coo().todense(), dense)
    assert list(result.labels) == modes
    for name, expected_labels in zip(modes, labels, strict=True):
        found = result.labels[name]
        found = found.astype("M8[D]") if name == "day" else found
        assert found.tolist() == expected_labels


def test_options():
    options = {"dtype": "float32", "layout": "indexed", "device": "cpu"}
    x = from_dataframe(pd.DataFrame(COLUMNS), ("shop", "day"), "price", **options).tensor
    assert (x.dtype, x.layout) == (np.float32, "indexed")


def list_categoricals(entries, categories, ordered):
    """A column k of these entries in each library; an Enum is ordered, a Categorical is not."""
    kind = pd.CategoricalDtype(categories, ordered=ordered)
    frame = pd.DataFrame({"k": pd.Series(entries, dtype=kind)})
    of_polars = pl.Enum(categories) if ordered else pl.Categorical
    yield frame
    yield pl.DataFrame({"k": pl.Series(entries, dtype=of_polars)})
    yield pa.Table.from_pandas(frame)
    yield pa.concat_tables([pa.Table.from_pandas(part) for part in (frame[:1], frame[1:])])


@pytest.mark.parametrize("ordered", [True, False])
def test_categories_that_occur_are_labels(ordered):
    """In their order, if they have one; else sorted as other entries are."""
    expected = ["b", "a"] if ordered else ["a", "b"]
    for table in list_categoricals(["a", None, "b", "a"], ["z", "b", "c", "a"], ordered):
        x = from_dataframe(table, ["k"], missing="drop")
        assert x.labels["k"].tolist() == expected
        assert x.labels.ordered == (("k",) if ordered else ())
        assert x.to_coo().todense().tolist() == ([1, 2] if ordered else [2, 1])
        with pytest.raises(ValueError, match="column 'k' has no entry in row 1"):
            from_dataframe(table, ["k"])
        given = {"k": ["c", "b", "a"]}
        x = from_dataframe(table, ["k"], missing="drop", labels=given)
        assert (x.labels["k"].tolist(), x.labels.ordered) == (["c", "b", "a"], ())
        assert x.to_coo().todense().tolist() == [0, 1, 2]


def test_chunks_of_different_categories_have_no_order():
    parts = (["Tue", "Mon"], ["Wed", "Tue"])
    chunks = [pa.DictionaryArray.from_arrays([1, 0], of, ordered=True) for of in parts]
    x = from_dataframe(pa.table({"k": pa.chunked_array(chunks)}), ["k"])
    assert (x.labels["k"].tolist(), x.labels.ordered) == (["Mon", "Tue", "Wed"], ())


def test_dictionaries_are_not_categories():
    """An encoding, which slicing leaves with entries that no longer occur."""
    column = pa.chunked_array([pa.array(["z", "a", "b"]).dictionary_encode()[1:]])
    assert from_dataframe(pa.table({"k": column}), ["k"]).labels["k"].tolist() == ["a", "b"]
    series = pl.Series("k", ["b", "a", "b"], dtype=pl.Categorical)
    x, labels = from_dataframe(series.to_frame(), ["k"])
    assert labels["k"].tolist() == ["a", "b"]
    assert x.nonzeros()[1].tolist() == [1, 2]


@make_table
def test_without_pyarrow_it_says_what_to_install(make, monkeypatch):
    table = make(COLUMNS)
    monkeypatch.setitem(sys.modules, "pyarrow.compute", None)
    with pytest.raises(ImportError, match=r'pip install "tensorly-flycoo\[tables\]"'):
        from_dataframe(table, ["shop"])


# Labels


NEW = {
    "shop": ["c", "b", "b"],
    "day": [datetime.date(2020, 1, day) for day in (9, 1, 9)],
    "number": [20, 30, -10],
    "size": [0.5, -1.0, 0.5],
    "is_open": [False, True, True],
}


@make_table
@pytest.mark.parametrize("make_old", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("modes", [["shop", "day"], ["number", "size", "is_open"]])
def test_new_data_has_the_old_labels(modes, make_old, make):
    """Whichever library the old data came from."""
    old = from_dataframe(make_old(COLUMNS), modes).labels
    x, labels = from_dataframe(make(NEW), modes, labels=old)
    assert list(labels) == modes
    assert x.shape == tuple(len(set(COLUMNS[name])) for name in modes)
    expected = np.zeros(x.shape)
    for row in zip(*(NEW[name] for name in modes), strict=True):
        numbers = [sorted(set(COLUMNS[n])).index(e) for n, e in zip(modes, row, strict=True)]
        expected[tuple(numbers)] += 1
    np.testing.assert_array_equal(x.to_coo().todense(), expected)
    for name in modes:
        assert labels[name].tolist() == old[name].tolist()


@make_table
def test_labels_of_some_modes(make):
    given = {"shop": ["x", "c", "b"], "number": (30, 20, -10)}
    x, labels = from_dataframe(make(NEW), ["number", "size", "shop"], labels=given)
    assert list(labels) == ["number", "size", "shop"]
    assert labels["number"].tolist() == [30, 20, -10]
    assert labels["size"].tolist() == [-1.0, 0.5]
    assert labels["shop"].tolist() == ["x", "c", "b"]
    assert x.nonzeros()[0].tolist() == [[0, 1, 2], [0, 1, 1], [2, 1, 2]]


def test_labels_renumber_categories():
    frame = pd.DataFrame({"k": pd.Categorical(["a", "b"], categories=["z", "b", "a"])})
    x, labels = from_dataframe(frame, ["k"], labels={"k": ["a", "b", "c"]})
    assert labels["k"].tolist() == ["a", "b", "c"]
    assert x.nonzeros()[0].tolist() == [[0, 1]]


@make_table
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"shop": ["b", "a"]}, "column 'shop' is 'c' in row 0, .* its 2 labels, such as 'b'"),
        ({"shop": ["b", "c", "b"]}, r"labels\['shop'\] holds 'b' twice, expected distinct ones"),
        ({"shop": [["b", "c"]]}, r"labels\['shop'\] is a list of shape \(1, 2\), expected"),
        ({"shop": {"c"}}, r"labels\['shop'\] is a set of shape \(\), expected a list"),
        ({"shop": []}, "column 'shop' is 'c' in row 0, expected one of its 0 labels; drop"),
        ({"day": np.array(["2020-01-01"], "M8[D]")}, "column 'day' is 2020-01-09.* in row 0"),
        (
            {"shop": np.array(["2020-01-01"], "M8[D]")},
            r"'shop' is 'c' in row 0, .*such as 2020-01-01; these are dates: .*pandas\.to_datetime",
        ),
        ({"number": ["20", "30", "-10"]}, "column 'number' is 20 in row 0, .*, such as '20'"),
        ({"size": [1, 2]}, r"labels has \['size'\], expected only columns of modes: \['shop', "),
    ],
    ids=str,
)
def test_wrong_labels(labels, message, make):
    with pytest.raises(ValueError, match=message):
        from_dataframe(make(NEW), ["shop", "day", "number"], labels=labels)


# Rows with the same entries

REPEATED = {
    "k": ["b", "a", "b", "a", "b", "c"],
    "n": [1, 1, 1, 1, 2, 1],
    "v": [5.0, -1.0, 2.0, -3.0, 7.0, 4.0],
}


@make_table
@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("sum", [[-4, 0], [7, 7], [4, 0]]),
        ("mean", [[-2, 0], [3.5, 7], [4, 0]]),
        ("last", [[-3, 0], [2, 7], [4, 0]]),
        ("max", [[-1, 0], [5, 7], [4, 0]]),
        ("count", [[2, 0], [2, 1], [1, 0]]),
    ],
)
def test_aggregates(aggregate, expected, make):
    table = make(REPEATED)
    for dtype in ("float64", "float32"):
        x = from_dataframe(table, ["k", "n"], "v", aggregate=aggregate, dtype=dtype).tensor
        assert x.dtype == dtype
        np.testing.assert_array_equal(x.to_coo().todense(), expected)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "last", "max", "count"])
def test_aggregates_of_many_rows(aggregate):
    """As pandas computes them; means of up to 20 values in another order."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 9, (500, 2)), columns=["a", "b"])
    frame["v"] = rng.standard_normal(500)
    found = from_dataframe(frame, ["a", "b"], "v", aggregate=aggregate).tensor.to_coo().todense()
    expected = frame.groupby(["a", "b"])["v"].agg(aggregate).unstack(fill_value=0).to_numpy()
    assert np.abs(found - expected).max() <= 20 * np.finfo(float).eps * 5


@make_table
def test_aggregates_without_values(make):
    for aggregate, expected in (("count", [2, 3, 1]), ("sum", [2, 3, 1]), ("last", [1, 1, 1])):
        x = from_dataframe(make(REPEATED), ["k"], aggregate=aggregate).tensor
        assert x.nonzeros()[1].tolist() == expected


# Missing entries


@make_table
def test_incomplete_rows_are_dropped(make):
    columns = {
        "k": ["a", None, "b", "a", "b"],
        "n": [1.0, 2.0, None, 1.0, float("nan")],
        "v": [1.0, 2.0, 3.0, None, 5.0],
    }
    x, labels = from_dataframe(make(columns), ["k", "n"], "v", missing="drop")
    assert (x.nonzeros()[0].tolist(), x.nonzeros()[1].tolist()) == ([[0], [0]], [1])
    assert (labels["k"].tolist(), labels["n"].tolist()) == (["a"], [1])
    x = from_dataframe(make(columns), ["k"], "v", missing="drop", aggregate="count").tensor
    assert x.nonzeros()[1].tolist() == [1, 2]
    x = from_dataframe(make(REPEATED), ["k"], missing="drop").tensor
    assert x.nonzeros()[1].tolist() == [2, 3, 1]


@make_table
def test_new_rows_are_folded_in_from_any_table(make):
    """The factor row of a new label: least squares, by hand."""
    days = np.array(["2024-07-01", "2024-07-02", "2024-07-03"], "M8[D]")
    factor = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]])
    cp = LabelledCP((None, [np.eye(2), factor]), {"user": ["a", "b"], "day": days})
    new = {"user": ["z", "z", "y"], "day": days[[2, 0, 0]].tolist(), "v": [1.0, 2.0, 4.0]}
    rows = cp.transform(make(new), "user", "v")
    targets = np.array([[4.0, 2.0], [0.0, 0.0], [0.0, 1.0]])
    expected = np.linalg.lstsq(cp.factors[1] * cp.weights, targets)[0].T
    assert rows.index.tolist() == ["y", "z"]
    np.testing.assert_allclose(rows.to_numpy(), expected, rtol=1e-10)


def test_dropping_rows_keeps_fixed_labels():
    table = pd.DataFrame({"k": ["a", "z"], "n": [1, 2], "v": [1.0, None]})
    fixed = {"labels": {"n": [1, 2]}, "missing": "drop"}
    assert from_dataframe(table, ["k", "n"], "v", **fixed).tensor.shape == (1, 2)


def test_no_complete_row():
    table = pd.DataFrame({"k": ["a", None], "v": [None, 1.0]})
    with pytest.raises(ValueError, match="df has no row without a missing entry"):
        from_dataframe(table, ["k"], "v", missing="drop")


@pytest.mark.parametrize("dtype", ["Int64", "float64[pyarrow]"])
def test_nullable_numbers_of_pandas(dtype):
    table = pd.DataFrame({"k": ["a", "b", "c"], "v": pd.array([1, None, 3], dtype=dtype)})
    x = from_dataframe(table, ["k"], "v", missing="drop").tensor
    assert x.nonzeros()[1].tolist() == [1, 3]
    with pytest.raises(ValueError, match="column 'v' has no value in row 1"):
        from_dataframe(table, ["k"], "v")


@make_table
@pytest.mark.parametrize(
    "column",
    [
        pytest.param(["a", "b", None, "a"], id="texts"),
        pytest.param([1, 2, None, 1], id="integers"),
        pytest.param([1.5, 2.0, None, 1.5], id="floats"),
        pytest.param([1.5, 2.0, float("nan"), 1.5], id="nan"),
        pytest.param(
            [datetime.date(2020, 1, 1)] * 2 + [None, datetime.date(2020, 1, 2)], id="dates"
        ),
    ],
)
def test_missing_entries(make, column):
    with pytest.raises(ValueError, match="column 'k' has no entry in row 2, expected one in every"):
        from_dataframe(make({"k": column}), ["k"])


@make_table
def test_missing_values(make):
    table = make({"k": ["a", "b", "c", "a"], "v": [1.0, 2.0, None, 3.0]})
    with pytest.raises(ValueError, match="column 'v' has no value in row 2, expected one in every"):
        from_dataframe(table, ["k"], "v", device="cpu")
    infinite = make({"k": ["a", "b", "c", "a"], "v": [1.0, float("-inf"), None, 2.0]})
    with pytest.raises(ValueError, match="column 'v' is -inf in row 1, expected finite numbers"):
        from_dataframe(infinite, ["k"], "v", device="cpu")


@make_table
def test_wrong_arguments(make):
    table = make(COLUMNS)
    with pytest.raises(ValueError, match=r"df has no column 'absent', expected one of \['shop'"):
        from_dataframe(table, ["shop", "absent"])
    with pytest.raises(ValueError, match="df has no column 'absent'"):
        from_dataframe(table, ["shop"], "absent")
    with pytest.raises(
        ValueError, match=r"modes is \['shop', 'shop'\], expected distinct column names"
    ):
        from_dataframe(table, ["shop", "shop"])
    with pytest.raises(ValueError, match=r"modes is \[\], expected .* at least one"):
        from_dataframe(table, [])
    with pytest.raises(
        TypeError, match=r"column 'shop' holds text, such as 'b', expected numbers; .*to_numeric"
    ):
        from_dataframe(table, ["number"], "shop")
    empty = pl.DataFrame({"shop": [1], "number": pl.Series([None], dtype=pl.String)})
    with pytest.raises(TypeError, match="column 'number' holds text, expected numbers; convert it"):
        from_dataframe(empty, ["shop"], "number")
    with pytest.raises(TypeError, match=r"values is \['number'\], expected the name of one column"):
        from_dataframe(table, ["shop"], ["number"])
    with pytest.raises(TypeError, match="from_dataframe has no argument 'value'; further ones are"):
        from_dataframe(table, ["shop"], value="number")
    with pytest.raises(TypeError, match=r"modes is 'shop', expected a list .*, like \['shop'\]"):
        from_dataframe(table, "shop")
    with pytest.raises(TypeError, match="labels is a list, expected a dict by column"):
        from_dataframe(table, ["shop"], labels=[["a"]])
    with pytest.raises(
        ValueError, match=r"aggregate is 'median', expected one of \('sum', 'mean',"
    ):
        from_dataframe(table, ["shop"], aggregate="median")
    for missing in ("ignore", "shop"):
        with pytest.raises(
            ValueError,
            match=f'missing is \'{missing}\', expected "raise", "drop", "unknown", or a list',
        ):
            from_dataframe(table, ["shop"], missing=missing)


class _Stream:
    """Has Arrow's stream interface alone, as relations of DuckDB have it."""

    def __init__(self, table):
        self.__arrow_c_stream__ = table.__arrow_c_stream__


#: Tables that are not in memory, or not as columns.
LAZY = {
    "polars": pl.LazyFrame,
    "stream": lambda columns: _Stream(pa.table(columns)),
    "two batches": lambda columns: _Stream(make_chunked(columns)),
    "reader": lambda columns: pa.table(columns).to_reader(),
}


@pytest.mark.parametrize("make", LAZY.values(), ids=LAZY)
def test_lazy_tables_are_read_by_the_columns_that_are_needed(make):
    columns = COLUMNS | {"other": ["-"] * len(COLUMNS["shop"])}
    x = from_dataframe(make(columns), ["shop", "number"])
    y = from_dataframe(pd.DataFrame(COLUMNS), ["shop", "number"])
    np.testing.assert_array_equal(x.tensor.to_coo().todense(), y.tensor.to_coo().todense())
    for name in x.labels:
        np.testing.assert_array_equal(x.labels[name], y.labels[name])
    with pytest.raises(ValueError, match=r"df has no column 'absent', expected one of \['shop'"):
        from_dataframe(make(columns), ["shop", "absent"])


def test_a_stream_without_rows():
    with pytest.raises(ValueError, match="df has no rows"):
        from_dataframe(_Stream(pa.table(COLUMNS).slice(0, 0)), ["shop"])


def test_an_index_is_no_column():
    frame = pd.DataFrame(REPEATED).groupby(["k", "n"]).sum()
    with pytest.raises(ValueError, match=r"no column 'k', .*; pass df.reset_index\(\)"):
        from_dataframe(frame, ["k", "n"], "v")
    with pytest.raises(TypeError, match=r"df is a Series, expected .*: pass df.reset_index\(\)"):
        from_dataframe(frame["v"], ["k", "n"], "v")
    assert from_dataframe(frame.reset_index(), ["k", "n"], "v").shape == (3, 2)


def test_other_tables():
    with pytest.raises(
        TypeError, match="df is a dict, expected a table of pandas, polars, Arrow or"
    ):
        from_dataframe(COLUMNS, ["shop"])
    with pytest.raises(ValueError, match="df has no rows"):
        from_dataframe(pd.DataFrame({"k": []}), ["k"])
    twice = pd.DataFrame([[1, 2]], columns=["k", "k"])
    with pytest.raises(ValueError, match="df has 2 columns 'k'"):
        from_dataframe(twice, ["k"])
    with pytest.raises(TypeError, match=r"column 'k': .*list<.*, expected numbers, text or dates"):
        from_dataframe(pd.DataFrame({"k": [[1], [2]]}), ["k"])


# Types of columns


def test_nulls_of_encoded_values_are_missing():
    """A dictionary of Arrow has no entry for them."""
    values = pa.chunked_array([pa.array([5.0, None, 9.0]).dictionary_encode()])
    categories = pd.DataFrame({"v": pd.Categorical([5.0, None, 9.0])})
    for column in (values, pa.Table.from_pandas(categories)["v"]):
        table = pa.table({"k": ["a", "b", "c"], "v": column})
        with pytest.raises(ValueError, match="column 'v' has no value in row 1"):
            from_dataframe(table, ["k"], "v")
        x, labels = from_dataframe(table, ["k"], "v", missing="drop")
        assert labels["k"].tolist() == ["a", "c"]
        assert x.nonzeros()[1].tolist() == [5, 9]


@make_table
def test_booleans_and_decimals_with_nulls_are_values(make):
    for values in ([True, None, True], [decimal.Decimal("2.50"), None, decimal.Decimal("1.25")]):
        if make is pd.DataFrame:
            values = pd.array(values, dtype=pd.ArrowDtype(pa.array(values).type))
        table = make({"k": ["a", "b", "c"], "v": values})
        x = from_dataframe(table, ["k"], "v", missing="drop")
        assert x.nonzeros()[1].tolist() == [float(values[0]), float(values[2])]


@pytest.mark.parametrize("missing", [None, np.nan])
def test_booleans_as_objects_are_values(missing):
    table = pd.DataFrame({"k": ["a", "b", "c"], "v": [True, missing, True]})
    assert table["v"].dtype == object
    assert from_dataframe(table, ["k"], "v", missing="drop").nonzeros()[1].tolist() == [1, 1]


def test_numbers_of_128_bits_are_refused():
    table = pl.DataFrame({"k": ["a"], "v": pl.Series([1], dtype=pl.Int128)})
    message = "column 'v' of Int128: .*, expected numbers.*: convert the others"
    with pytest.raises(TypeError, match=message):
        from_dataframe(table, ["k"], "v")


class Thing:
    pass


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pl.DataFrame({"k": pl.Series([uuid.UUID(int=1)] * 2, dtype=pl.Object)}), "bytes"),
        (pl.DataFrame({"k": [[1], [2]]}), "dictionary_encode"),
        (pl.DataFrame({"k": [{"a": 1}]}), "dictionary_encode"),
        (pa.table({"k": [[1], [2]]}), "dictionary_encode"),
        (pa.table({"k": [b"x", b"y"]}), "holds bytes"),
        (pa.table({"k": [decimal.Decimal(1)]}), "holds Decimal"),
        (pa.table({"k": [datetime.time(1)]}), "holds time"),
        (pd.DataFrame({"k": [b"x"]}), "holds bytes"),
        (pd.DataFrame({"k": [1, "x"]}), "holds int and str"),
        (pd.DataFrame({"k": [Thing()]}), "of object: .*Thing"),
        (pd.DataFrame({"k": [1j]}), "of complex128"),
    ],
)
def test_columns_that_have_no_labels(table, message):
    with pytest.raises(TypeError, match=f"column 'k'.*{message}.*expected numbers, text or dates"):
        from_dataframe(table, ["k"])


UTC = datetime.UTC


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pd.to_datetime(["2024-01-02 01:00+02:00", "2024-01-03 02:00+02:00"]),
         ["2024-01-02T01:00:00", "2024-01-03T02:00:00"]),
        (pd.to_datetime(["2024-01-02", "2024-01-03"], utc=True), ["2024-01-02", "2024-01-03"]),
        (pd.PeriodIndex(["2024-01", "2024-02"], freq="M"), ["2024-01-01", "2024-02-01"]),
        (pd.Series([datetime.datetime(2024, 1, 2, tzinfo=UTC)] * 2, dtype=object), ["2024-01-02"]),
        (pd.to_datetime(["2024-01-02 03:04:05", "2024-01-03 00:00:00"]),
         ["2024-01-02T03:04:05", "2024-01-03T00:00:00"]),
        (pd.to_datetime(["2024-01-02 03:04:05.250", "2024-01-03 00:00:00.000"]),
         ["2024-01-02T03:04:05.250", "2024-01-03T00:00:00.000"]),
        (pd.Series([2, 1], dtype=object), ["1", "2"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_pandas_makes_becomes_labels_of_numpy(column, expected, tmp_path):
    """They have an order, and can be saved; new data fits them."""
    table = pd.DataFrame({"k": column, "one": 1})
    x = from_dataframe(table, ["k", "one"])
    assert [str(label) for label in x.labels["k"]] == expected
    assert x.labels.ordered == ("k", "one")
    cp = LabelledCP((None, [np.ones((size, 1)) for size in x.shape]), x.labels)
    cp.save(tmp_path / "model.npz")
    again = from_dataframe(table, ["k", "one"], labels=cp.labels)
    assert np.array_equal(again.nonzeros()[0], x.nonzeros()[0])


def test_intervals_become_text_in_their_order():
    table = pd.DataFrame({"k": pd.cut([1, 9, 11], [0, 5, 10, 100])})
    labels = from_dataframe(table, ["k"]).labels
    assert labels["k"].tolist() == ["(0, 5]", "(5, 10]", "(10, 100]"]
    assert labels.ordered == ("k",)
    plain = pd.DataFrame({"k": pd.arrays.IntervalArray.from_breaks([0, 5, 10])})
    assert from_dataframe(plain, ["k"]).labels["k"].tolist() == ["(0, 5]", "(5, 10]"]


def test_views_of_text():
    column = pa.array(["b", "a", None]).cast(pa.string_view())
    x = from_dataframe(pa.table({"k": column}), ["k"], missing="drop")
    assert x.labels["k"].tolist() == ["a", "b"]


# Zeros


SEEN = {"k": ["a", "a", "b", "c", "c"], "v": [1.0, -1.0, 0.0, 2.0, -3.0]}


@make_table
def test_zeros_are_named_dropped_or_kept(make):
    table = make(SEEN)
    with pytest.raises(ValueError, match="2 of 3 values of column 'v' are 0: pass zeros=\"drop\""):
        from_dataframe(table, ["k"], "v")
    assert from_dataframe(table, ["k"], "v", zeros="drop").nnz == 1
    for dtype in ("float32", "float64"):
        x = from_dataframe(table, ["k"], "v", zeros="keep", dtype=dtype).tensor
        assert (x + x)[:].nnz == 3
        np.testing.assert_allclose(x.to_coo().todense(), [0, 0, -1], atol=1e-15)
    for aggregate, nnz in [("mean", 3), ("last", 3), ("max", 3), ("count", 3)]:
        assert from_dataframe(table, ["k"], "v", zeros="keep", aggregate=aggregate).nnz == nnz
    zeros = make({"k": ["a", "b", "c"], "v": [0.0, 0.0, 0.0]})
    assert from_dataframe(zeros, ["k"], "v", zeros="keep").nnz == 3


def test_observed_parafac_sees_the_zeros_of_a_table():
    """A fifth of the observed values is 0: as with a confidence that lists them."""
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 2)) * (rng.random((size, 2)) < 0.85) for size in (15, 16, 17)]
    coords = np.argwhere(rng.random((15, 16, 17)) < 0.4)
    values = np.prod([f[c] for f, c in zip(factors, coords.T, strict=True)], axis=0).sum(axis=1)
    assert 0.1 < (values == 0).mean() < 0.5
    table = pd.DataFrame(coords, columns=list("abc")).assign(v=values)
    x = from_dataframe(table, list("abc"), "v", zeros="keep")
    options = {"l2_reg": 0.01, "n_iter_max": 20, "random_state": 0}
    found = observed_parafac(x, 2, **options)
    plain = FlycooTensor(coords.T, values, (15, 16, 17))
    seen = FlycooTensor(coords.T, np.ones(values.size), (15, 16, 17))
    errors = [
        cp_fit(x, cp).relative_error
        for cp in (found, observed_parafac(plain, 2, confidence=seen, **options))
    ]
    assert errors[0] < 0.1
    np.testing.assert_allclose(errors[0], errors[1], rtol=0.2)


# What the log says


def test_the_log_counts_rows_that_are_left_out(caplog):
    table = pd.DataFrame({"k": ["a", None, "c", "d"], "v": [1.0, 2.0, 0.0, None]})
    from_dataframe(table[:1], ["k"], "v")  # compiles, which the log may tell
    caplog.clear()
    x = from_dataframe(table, ["k"], "v", missing="drop", zeros="drop")
    assert x.nnz == 1
    assert caplog.messages == ["left out 2 of 4 rows: an entry or value is missing"]
    caplog.clear()
    from_dataframe(table, ["k"], "v", missing="drop", aggregate="count")
    from_dataframe(table[:1], ["k"], "v", missing="drop")
    assert caplog.messages == ["left out 2 of 4 rows: an entry or value is missing"]


def test_the_log_warns_of_nearly_as_many_labels_as_rows(caplog):
    times = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(2000), "s")
    table = pd.DataFrame({"when": times, "day": times.floor("D")})
    labels = from_dataframe(table, ["when", "day"]).labels
    (message,) = caplog.messages
    assert "column 'when' has 2000 labels in 2000 rows" in message
    from_dataframe(table, ["when", "day"], labels=labels)
    from_dataframe(table[:999], ["when", "day"])
    assert len(caplog.messages) == 1


OF_MANY_LABELS = "leave rare labels out, bin numbers (pandas.cut), or parse dates that are text"


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (pd.to_datetime, "round times (--modes k{x}:day, or .dt.floor('D') in pandas)"),
        (pd.to_timedelta, "round times (--modes k{x}:day, or .dt.floor('D') in pandas)"),
        (
            lambda numbers: pd.PeriodIndex.from_ordinals(numbers, freq="h"),
            "round times (--modes k{x}:day, or .dt.floor('D') in pandas)",
        ),
        (np.asarray, OF_MANY_LABELS),
        (lambda numbers: numbers.astype(str), OF_MANY_LABELS),
    ],
)
def test_the_advice_fits_the_entries(make, advice, caplog):
    from_dataframe(pd.DataFrame({"k{x}": make(np.arange(1000))}), ["k{x}"])
    assert [text.partition("patterns: ")[2] for text in caplog.messages] == [advice]


# Tables in parts


LARGE = pd.DataFrame(
    {
        "user": np.random.default_rng(0).integers(0, 50, 1000),
        "item": np.random.default_rng(1).choice(list("hgfedcba"), 1000),
        "day": pd.Timestamp("2026-01-01", tz="Europe/Berlin")
        + pd.to_timedelta(np.random.default_rng(2).integers(0, 9, 1000), "D"),
        "v": np.random.default_rng(3).normal(size=1000),
    }
)
LARGE_MODES = ["user", "item", "day"]


def cut(table):
    return [table[:0], table[:10], table[10:600], table[600:]]


def make_dataset(table, folder):
    for number, part in enumerate(cut(table)):
        part.to_parquet(folder / f"{number}.parquet")
    return pyarrow.dataset.dataset(folder)


def read_chunks(table, folder):
    table.assign(day=table["day"].dt.tz_localize(None)).to_csv(folder / "x.csv", index=False)
    return pd.read_csv(folder / "x.csv", chunksize=77, parse_dates=["day"])


def make_row_groups(table, folder):
    table.to_parquet(folder / "x.parquet", row_group_size=300)
    return pyarrow.dataset.dataset(folder / "x.parquet")


def make_filtered(table, folder):
    more = pd.concat([table, table[:9].assign(v=1e9)])
    return make_row_groups(more, folder).filter(pyarrow.dataset.field("v") < 1e8)


def make_reader(table, _):
    whole = pa.table(table)
    return pa.RecordBatchReader.from_batches(whole.schema, whole.to_batches(max_chunksize=130))


class Stream:
    """Has Arrow's stream interface, and nothing else."""

    def __init__(self, table):
        self._reader = make_reader(table, None)

    def __arrow_c_stream__(self, requested_schema=None):
        return self._reader.__arrow_c_stream__(requested_schema)


class Relation(Stream):
    """What we call of DuckDB's relations; its batches are made when they are asked for."""

    def __init__(self, table):
        self._table = table
        self.columns = list(table.columns)

    def project(self, names):
        return Relation(self._table[names.replace('"', "").split(", ")])

    def fetch_record_batch(self, batch_size):
        assert batch_size > 1000
        return make_reader(self._table, None)


class NewRelation(Relation):
    """As of DuckDB 2, where the other name is deprecated."""

    def project(self, names):
        return NewRelation(super().project(names)._table)

    def to_arrow_reader(self, batch_size):
        return super().fetch_record_batch(batch_size)

    def fetch_record_batch(self, batch_size):
        raise DeprecationWarning


PARTS = {
    "list": lambda table, _: cut(table),
    "tuple": lambda table, _: tuple(map(pa.table, cut(table))),
    "generator": lambda table, _: (pl.DataFrame(part) for part in cut(table)),
    "one": lambda table, _: [table],
    "data set": make_dataset,
    "row groups": make_row_groups,
    "filtered data set": make_filtered,
    "reader": make_reader,
    "stream": lambda table, _: Stream(table),
    "relation": lambda table, _: Relation(table),
    "new relation": lambda table, _: NewRelation(table),
    "chunks of a file": read_chunks,
}


@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("labels", [None, {"item": list("abchgfed"), "user": range(60)}])
def test_a_table_in_parts_is_that_of_all_rows(make, labels, tmp_path):
    options = {"aggregate": "mean", "labels": labels}
    expected = from_dataframe(LARGE, LARGE_MODES, "v", **options)
    found = from_dataframe(make(LARGE, tmp_path), LARGE_MODES, "v", **options)
    for own, other in zip(found.labels.values(), expected.labels.values(), strict=True):
        assert own.dtype == other.dtype
        np.testing.assert_array_equal(own, other)
    for own, other in zip(found.nonzeros(), expected.nonzeros(), strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("make", [lambda table: table, cut], ids=["whole", "parts"])
def test_rows_are_written_in_blocks(make, monkeypatch):
    expected = from_dataframe(LARGE, LARGE_MODES, "v", aggregate="last").to_coo()
    monkeypatch.setattr(dataframe, "_BLOCK_ROWS", 64)
    monkeypatch.setattr(integers, "_BLOCK_ROWS", 48)
    x = from_dataframe(make(LARGE), LARGE_MODES, "v", aggregate="last").to_coo()
    np.testing.assert_array_equal(x.coords, expected.coords)
    np.testing.assert_array_equal(x.data, expected.data)


def test_parts_are_read_one_at_a_time():
    alive = []

    def make_parts():
        for part in cut(LARGE):
            assert sum(reference() is not None for reference in alive) <= 1  # the last one
            table = pa.table(part)
            alive.append(weakref.ref(table))
            yield table
            del table

    counts = from_dataframe(make_parts(), LARGE_MODES)
    assert counts.sum() == 1000


@pytest.mark.parametrize("make", [make_reader, make_row_groups])
def test_batches_are_read_one_at_a_time(make, tmp_path, monkeypatch):
    alive = []

    def watch(table, *arguments):
        assert all(reference() is None for reference in alive)
        alive.append(weakref.ref(table))
        return open_table(table, *arguments)

    open_table = table_parts.open_table
    monkeypatch.setattr(table_parts, "open_table", watch)
    assert from_dataframe(make(LARGE, tmp_path), LARGE_MODES).sum() == 1000
    assert len(alive) > 3


def test_what_can_be_read_once_says_so():
    parts = iter([LARGE])
    reader = make_reader(LARGE, None)
    for df, kind in [(parts, "list_iterator"), (reader, "RecordBatchReader")]:
        from_dataframe(df, LARGE_MODES)
        with pytest.raises(ValueError, match=f"df has no rows, .*: a {kind} gives its parts once"):
            from_dataframe(df, LARGE_MODES)


def test_rows_that_are_left_out_leave_no_labels():
    """Also if other parts have them; the log says how many there are, once."""
    table = pd.DataFrame({"k": list("abcab"), "v": [1, np.nan, np.nan, 2, 3]})
    with_log = from_dataframe([table[:2], table[2:]], ["k"], "v", missing="drop")
    assert with_log.labels["k"].tolist() == ["a", "b"]
    assert with_log.tensor.nonzeros()[1].tolist() == [3, 3]


def test_ordered_categories_of_parts():
    sizes = pd.Categorical(list("LSML"), categories=list("SMLX"), ordered=True)
    table = pd.DataFrame({"size": sizes, "v": [1.0, 2, 3, 4]})
    x = from_dataframe([table[:1], table[1:]], ["size"], "v", aggregate="sum")
    assert x.labels["size"].tolist() == list("SML")
    assert x.labels.ordered == ("size",)
    assert x.nonzeros()[1].tolist() == [2, 3, 5]


def test_parts_that_do_not_fit():
    for parts, kind, message in [
        ([LARGE[:5], LARGE.drop(columns="item")], ValueError, "part 1 of df: it has no column 'it"),
        ([LARGE[:5], {"user": 1}], TypeError, "part 1 of df: it is a dict, expected a table"),
        ([LARGE[:5], LARGE.assign(user="a")], TypeError, "holds numbers and text in different"),
        ([], ValueError, "df has no rows"),
        ([LARGE[:0]], ValueError, "df has no rows"),
        (iter([]), ValueError, "df has no rows, expected at least one: a list_iterator gives"),
        ([LARGE[:5], [1, 2]], TypeError, "part 1 of df: it is a list, expected a table of pandas"),
        ([LARGE.assign(v=np.nan)], ValueError, "part 0 of df: column 'v' has no value in row 0"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=message):
            from_dataframe(parts, LARGE_MODES, "v")
    with pytest.raises(ValueError, match=r"df has no column 'user', expected one of \['k'\]"):
        from_dataframe(pyarrow.dataset.dataset(pa.table({"k": [1]})), ["user"])


def test_a_pivot_is_told_to_melt():
    pivot = LARGE.pivot_table(index="user", columns="item", values="v")
    plain = pivot.reset_index().rename_axis(columns=None)
    expected = from_dataframe(LARGE, ["user", "item"], "v", aggregate="mean")
    for df in (pivot, pivot.reset_index(), plain):
        with pytest.raises(
            ValueError, match="if the columns are labels of 'item', pass "
        ) as caught:
            from_dataframe(df, ["user", "item"], "v")
        melted = eval(str(caught.value).partition(", pass ")[2])
        found = from_dataframe(melted, ["user", "item"], "v")
        np.testing.assert_allclose(found.to_coo().todense(), expected.to_coo().todense())
    with pytest.raises(ValueError, match=r"expected one of \['user', .*\]$"):
        from_dataframe(LARGE, ["user", "shop"], "v")


# Numbers and text that cannot be held


@make_table
def test_integers_that_would_be_rounded_are_refused(make):
    for last in (2**53 + 1, -(2**53) - 1, 2**63 - 1):
        table = make({"k": ["a", "b", "c"], "v": [1, 2, last]})
        with pytest.raises(ValueError, match=f"'v' is {last} in row 2, which float64 does not"):
            from_dataframe(table, ["k"], "v")
    for values in ([2**53, -(2**53), 1], [2**60, -(2**63), 3], [2**62 + 2**20, 1, 2]):
        x = from_dataframe(make({"k": ["a", "b", "c"], "v": values}), ["k"], "v")
        assert x.nonzeros()[1].tolist() == values
    unsigned = np.array([2**64 - 1, 2**63, 1], np.uint64)
    with pytest.raises(ValueError, match=f"'v' is {2**64 - 1} in row 0"):
        from_dataframe(make({"k": np.arange(3), "v": unsigned}), ["k"], "v")
    exact = make({"k": np.arange(3), "v": unsigned & np.uint64(2**64 - 2**11)})
    assert from_dataframe(exact, ["k"], "v", zeros="drop").max() == 2**64 - 2**11


def test_half_a_surrogate_pair_is_no_text():
    table = pd.DataFrame({"k": np.array(["a", "b\ud800"], object)}, dtype=object)
    with pytest.raises(
        ValueError, match="column 'k' has text with half a surrogate pair"
    ) as caught:
        from_dataframe(table, ["k"])
    df = table
    df["k"] = eval(str(caught.value).partition("as by ")[2])
    assert from_dataframe(df, ["k"]).labels["k"].tolist() == ["a", "b?"]


# Times with a zone


def test_hours_that_the_clock_repeats_are_named():
    hours = pd.date_range("2026-10-24", periods=72, freq="h", tz="Europe/Berlin")
    table = pd.DataFrame({"t": hours, "k": "a"})
    message = (
        r"column 't': 2026-10-25 02:00:00 in Europe/Berlin is one label of two times, 2026-10-25 "
        r"00:00:00\+00:00 and 2026-10-25 01:00:00\+00:00, .* df\['t'\].dt.tz_convert\('UTC'\)"
    )
    for df in (table, pl.DataFrame(table), pa.table(table), [table[:40], table[40:]]):
        with pytest.warns(UserWarning, match=message) as caught:
            assert from_dataframe(df, ["t", "k"]).shape == (71, 1)
        assert len(caught) == 1
        assert caught[0].filename == __file__
    others = [
        table.assign(t=hours.tz_convert("UTC")), table.assign(t=hours.floor("D")), table[30:],
        table.assign(t=hours.tz_convert("+05:30")),
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shapes = [from_dataframe(df, ["t", "k"]).shape[0] for df in others]
    assert shapes == [72, 3, 42, 72]


def test_labels_may_have_the_zone_of_the_column():
    days = pd.date_range("2026-01-01", periods=6, tz="Europe/Berlin")
    table = pd.DataFrame({"t": np.repeat(days, 2), "k": list("ab") * 6})
    expected = from_dataframe(table, ["t", "k"])
    for labels in (days, list(days), pd.Series(days), pl.Series(days), days.to_pydatetime()):
        x = from_dataframe(table, ["t", "k"], labels={"t": labels})
        np.testing.assert_array_equal(x.labels["t"], expected.labels["t"])
        np.testing.assert_array_equal(x.nonzeros()[0], expected.nonzeros()[0])

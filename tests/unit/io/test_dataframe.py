"""Tables of pandas, polars and Arrow as tensors."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tensorly_flycoo import LabelledTensor, from_dataframe


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
    """Add up the rows with a dictionary."""
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
    for name, entries in zip(modes, labels, strict=True):
        found = result.labels[name]
        found = found.astype("M8[D]") if name == "day" else found
        assert found.tolist() == entries


def test_options():
    options = {"dtype": "float32", "layout": "indexed", "device": "cpu"}
    x = from_dataframe(pd.DataFrame(COLUMNS), ("shop", "day"), "price", **options).tensor
    assert (x.dtype, x.layout) == (np.float32, "indexed")


def test_categories():
    """Those of pandas keep their order; of all libraries only those in use are there."""
    kind = pd.CategoricalDtype(["z", "b", "c", "a"])
    x, labels = from_dataframe(pd.DataFrame({"k": pd.Series(["a", "b", "a"], dtype=kind)}), ["k"])
    assert labels["k"].tolist() == ["b", "a"]
    assert x.nonzeros()[1].tolist() == [1, 2]
    column = pa.chunked_array([pa.array(["z", "a", "b"]).dictionary_encode()[1:]])
    assert from_dataframe(pa.table({"k": column}), ["k"]).labels["k"].tolist() == ["a", "b"]
    series = pl.Series("k", ["b", "a", "b"], dtype=pl.Categorical)
    x, labels = from_dataframe(series.to_frame(), ["k"])
    assert labels["k"].tolist() == ["a", "b"]
    assert x.nonzeros()[1].tolist() == [1, 2]


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
    with pytest.raises(ValueError, match=r"values\[2\] is nan, expected finite numbers"):
        from_dataframe(table, ["k"], "v", device="cpu")


@make_table
def test_wrong_arguments(make):
    table = make(COLUMNS)
    with pytest.raises(ValueError, match=r"df has 0 columns 'absent', expected one of \['shop'"):
        from_dataframe(table, ["shop", "absent"])
    with pytest.raises(ValueError, match="df has 0 columns 'absent'"):
        from_dataframe(table, ["shop"], "absent")
    with pytest.raises(
        ValueError, match=r"modes is \['shop', 'shop'\], expected distinct column names"
    ):
        from_dataframe(table, ["shop", "shop"])
    with pytest.raises(ValueError, match=r"modes is \[\], expected .* at least one"):
        from_dataframe(table, [])
    with pytest.raises(TypeError, match="dtype of values"):
        from_dataframe(table, ["number"], "shop")


def test_other_tables():
    with pytest.raises(TypeError, match="df is a dict, expected a pandas, polars or Arrow table"):
        from_dataframe(COLUMNS, ["shop"])
    with pytest.raises(ValueError, match="df has no rows"):
        from_dataframe(pd.DataFrame({"k": []}), ["k"])
    twice = pd.DataFrame([[1, 2]], columns=["k", "k"])
    with pytest.raises(ValueError, match="df has 2 columns 'k'"):
        from_dataframe(twice, ["k"])

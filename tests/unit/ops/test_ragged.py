"""Slices with different numbers of rows, stacked to one matrix."""

import types

import numpy as np
import pandas
import pytest
import scipy.sparse
import sparse
import tensorly as tl
import xarray

from tensorly_flycoo import (
    DensifyError,
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    RaggedTensor,
    from_dataframe,
    from_xarray,
)
from tensorly_flycoo.tensor.labelled import as_labels
from tensorly_flycoo.testing import random_tensor

HEIGHTS = (5, 0, 3, 5, 8)


def make_slices(heights=HEIGHTS, width=6, dtype=np.float64):
    rng = np.random.default_rng(0)
    dense = [
        rng.random((height, width)) * (rng.random((height, width)) < 0.5) for height in heights
    ]
    return [part.astype(dtype) for part in dense]


def unstack(x):
    """Return the dense slices."""
    matrix = x.matrix.to_coo().todense()
    return [matrix[s : s + n] for s, n in zip(x.starts, x.row_counts, strict=True)]


def assert_slices(x, expected):
    for found, part in zip(unstack(x), expected, strict=True):
        np.testing.assert_array_equal(found, part)


KINDS = {
    "csr": scipy.sparse.csr_array,
    "csc_matrix": scipy.sparse.csc_matrix,
    "COO": sparse.COO.from_numpy,
    "GCXS": lambda part: sparse.GCXS.from_numpy(part),
    "FlycooTensor": FlycooTensor.from_dense,
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_of_each_kind(kind, dtype):
    dense = [part for part in make_slices(dtype=dtype) if len(part)]
    x = RaggedTensor(map(kind, dense))
    assert (x.dtype, x.shape, x.nnz) == (dtype, (4, 8, 6), sum(map(np.count_nonzero, dense)))
    assert_slices(x, dense)


def test_slices_with_fewer_rows_come_first():
    x = RaggedTensor(map(scipy.sparse.csr_array, make_slices()))
    assert x.starts.tolist() == [3, 0, 0, 8, 13]
    assert_slices(x, make_slices())


def test_duplicates_are_summed():
    twice = scipy.sparse.coo_array(([1.0, 2.0], ([1, 1], [0, 0])), (2, 3))
    assert unstack(RaggedTensor([twice]))[0].tolist() == [[0, 0, 0], [3, 0, 0]]


def test_a_tensor_is_cut_into_slices():
    x = random_tensor((4, 5, 6), 40, random_state=0)
    dense = x.to_coo().todense()
    assert_slices(RaggedTensor(x), dense)
    assert_slices(RaggedTensor(x, drop_empty=True), [part[part.any(axis=1)] for part in dense])


def test_a_table():
    frame = pandas.DataFrame(
        {"who": ["a", "c", "c", "a"], "day": [9, 2, 9, 9], "code": [1, 1, 0, 0], "n": [3, 4, 5, 6]}
    )
    labelled = from_dataframe(frame, ["who", "day", "code"], "n", labels={"who": ["a", "b", "c"]})
    x = RaggedTensor(labelled, drop_empty=True)
    assert x.row_counts.tolist() == [1, 0, 2]
    assert_slices(x, [np.array([[6, 3]]), np.zeros((0, 2)), np.array([[0, 4], [5, 0]])])
    assert [days.tolist() for days in x.labels["day"]] == [[9], [], [2, 9]]
    assert (list(x.labels["who"]), list(x.labels["code"])) == (["a", "b", "c"], [0, 1])
    assert list(RaggedTensor(labelled).labels["day"]) == [2, 9]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_are_divided_by_their_labels(kind):
    matrix = np.concatenate(make_slices((7,)))
    labels = ["b", "a", "c", "a", "b", "b", "a"]
    x = RaggedTensor(kind(matrix), by=labels, dtype="float32")
    expected = {"a": [1, 3, 6], "b": [0, 4, 5], "c": [2]}
    assert_slices(x, [matrix[rows].astype("float32") for rows in expected.values()])
    assert x.labels["slice"].tolist() == [*expected]
    assert [rows.tolist() for rows in x.labels["row"]] == [*expected.values()]
    with pytest.raises(ValueError, match=r"by has shape \(6,\), expected \(7,\), one per row"):
        RaggedTensor(kind(matrix), by=labels[1:])


MISSING = {
    "nan": [1.5, np.nan, 2.5],
    "None": ["b", None, "a"],
    "nan of text": np.array(["b", np.nan, "a"], object),
    "NaT": np.array(["2024-01-01", "NaT", "2024-01-02"], "M8[D]"),
    "pandas.NA": pandas.array([3, None, 2], "Int64"),
    "a Series": pandas.Series(["b", None, "a"]),
    "a categorical": pandas.Categorical(["b", None, "a"]),
    "a masked array": np.ma.masked_array([2, 3, 1], [False, True, False]),
    "zoned times": pandas.to_datetime(["2024-01-01", None, "2024-01-02"]).tz_localize("UTC"),
}


@pytest.mark.parametrize("labels", MISSING.values(), ids=MISSING)
def test_missing_labels_are_refused(labels):
    matrix = scipy.sparse.eye_array(3)
    cells = pandas.DataFrame(
        {"condition": getattr(labels, "array", labels)}, index=["c1", "c2", "c3"]
    )
    names = pandas.Index(["g1", "g2", "g3"])
    data = types.SimpleNamespace(X=matrix, obs=cells, obs_names=cells.index, var_names=names)
    for slices, by in ((matrix, labels), (data, "condition")):
        with pytest.raises(
            ValueError, match=r"by is (nan|None|NaT|<NA>) for row 1, exp.*: leave 1 such"
        ):
            RaggedTensor(slices, by=by)
    x, plain = FlycooTensor.from_scipy(matrix), as_labels(labels)
    message = r"labels\['b'\] is (nan|None|NaT|<NA>) at index 1, expected a label for each index"
    with pytest.raises(ValueError, match=message):
        LabelledTensor(x, {"a": [1, 2, 3], "b": labels})
    with pytest.raises(ValueError, match=message):
        LabelledCP((None, [np.ones((3, 2))] * 2), {"a": [1, 2, 3], "b": labels})
    with pytest.raises(ValueError, match=message):
        from_xarray(xarray.DataArray(np.eye(3), {"a": [1, 2, 3], "b": plain}))
    keep = [0, 2]
    assert RaggedTensor(scipy.sparse.eye_array(2), by=plain[keep]).shape == (2, 1, 2)


def test_labels_of_several_types_are_refused():
    with pytest.raises(TypeError, match=r"by holds \['int', 'str'\], expected labels of one type"):
        RaggedTensor(scipy.sparse.eye_array(2), by=np.array([1, "a"], object))


def test_an_annotated_matrix():
    """Has the attributes of an AnnData that count."""
    (matrix,) = make_slices((4,))
    cells = pandas.DataFrame(
        {"condition": pandas.Categorical(["T", "C", "T", "T"])}, index=["c1", "c2", "c3", "c4"]
    )
    genes = pandas.Index([f"g{n}" for n in range(6)])
    data = types.SimpleNamespace(
        X=scipy.sparse.csr_matrix(matrix), obs=cells, obs_names=cells.index, var_names=genes
    )
    x = RaggedTensor(data, by="condition")
    assert_slices(x, [matrix[[1]], matrix[[0, 2, 3]]])
    assert x.labels["slice"].tolist() == ["C", "T"]
    assert [names.tolist() for names in x.labels["row"]] == [["c2"], ["c1", "c3", "c4"]]
    assert x.labels["column"].tolist() == list(genes)
    for by in (None, "donor", ["C", "T", "T", "T"]):
        with pytest.raises(ValueError, match=r"by is .*, expected a column of obs: \['condition'"):
            RaggedTensor(data, by=by)


def test_a_labelled_matrix_keeps_the_labels_of_its_rows():
    (matrix,) = make_slices((3,))
    names = {"cell": ["c1", "c2", "c3"], "gene": list("abcdef")}
    x = RaggedTensor(LabelledTensor(FlycooTensor.from_dense(matrix), names), by=["T", "C", "T"])
    assert [own.tolist() for own in x.labels["cell"]] == [["c2"], ["c1", "c3"]]
    assert x.labels["gene"].tolist() == names["gene"]
    assert x.labels["slice"].tolist() == ["C", "T"]


def test_options_reach_the_tensor():
    x = RaggedTensor(map(scipy.sparse.csr_array, make_slices()), dtype="float32", layout="indexed")
    assert (x.matrix.dtype, x.matrix.layout) == (np.float32, "indexed")


@pytest.mark.parametrize(
    ("slices", "error", "text"),
    [
        ([], ValueError, "have no columns"),
        ([scipy.sparse.eye_array(2), scipy.sparse.eye_array(3)], ValueError, r"\[2, 3\] columns"),
        ([sparse.eye(2), np.eye(2)], TypeError, "x is a ndarray, expected a FlycooTensor"),
        ([sparse.COO(np.ones((2, 2, 2)))], ValueError, r"slices\[0\] has shape \(2, 2, 2\)"),
        ([sparse.COO(np.eye(2), fill_value=1)], ValueError, "fill_value is 1"),
        (sparse.eye(2), ValueError, "expected three modes"),
    ],
)
def test_what_is_refused(slices, error, text):
    with pytest.raises(error, match=text):
        RaggedTensor(slices)


@pytest.mark.parametrize("options", [{"by": [0, 1]}, {}])
def test_rows_are_dropped_of_one_tensor_alone(options):
    slices = scipy.sparse.eye_array(2) if options else [scipy.sparse.eye_array(2)]
    with pytest.raises(ValueError, match="drop_empty is True, expected False"):
        RaggedTensor(slices, drop_empty=True, **options)


def test_only_parafac2_takes_it():
    x = RaggedTensor([scipy.sparse.eye_array(3)])
    with (
        tl.backend_context("flycoo"),
        pytest.raises(TypeError, match="only parafac2 takes slices"),
    ):
        tl.decomposition.parafac(x, 2)
    with pytest.raises(DensifyError, match="only parafac2"):
        np.asarray(x)

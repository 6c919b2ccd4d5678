"""Tensors from arrays of xarray, and from AnnData."""

from types import SimpleNamespace

import dask.array
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sparse
import tensorly as tl
import xarray

from tensorly_flycoo import LabelledCP, RaggedTensor, from_anndata, from_xarray

DAYS = pd.date_range("2020-01-01", periods=4)


def make_array(data):
    return xarray.DataArray(
        data, dims=("shop", "day", "item"), coords={"shop": [3, 1, 2], "day": DAYS}
    )


@pytest.mark.parametrize("kind", [sparse.COO.from_numpy, sparse.GCXS.from_numpy, np.asarray])
def test_an_array_of_xarray_there_and_back(kind):
    dense = np.random.default_rng(0).random((3, 4, 2)).round()
    array = make_array(kind(dense))
    x = from_xarray(array, dtype="float32")
    assert x.dtype == np.float32
    assert {name: of.tolist() for name, of in x.labels.items() if name != "day"} == {
        "shop": [3, 1, 2],
        "item": [0, 1],
    }
    assert x.labels["day"].dtype == "M8[D]"
    back = x.to_xarray()
    np.testing.assert_array_equal(back.data.todense(), dense)
    assert back.dims == array.dims
    assert back.indexes["day"].equals(array.indexes["day"])


def test_ordered_categories_of_an_array():
    sizes = pd.CategoricalIndex(["S", "L"], ["S", "L"], ordered=True)
    x = from_xarray(xarray.DataArray(np.eye(2), {"size": sizes, "shop": ["a", "b"]}))
    assert x.labels.ordered == ("size",)


def test_what_is_no_array_of_xarray():
    with pytest.raises(TypeError, match=r"array is a COO, expected an xarray\.DataArray"):
        from_xarray(sparse.eye(3))
    with pytest.raises(TypeError, match=r"array is a Dataset, expected an xarray\.DataArray"):
        from_xarray(xarray.Dataset({"a": make_array(np.ones((3, 4, 2)))}))
    with pytest.raises(ValueError, match=r"labels\['a'\] holds 'x' twice"):
        from_xarray(xarray.DataArray(np.eye(2), {"a": ["x", "x"], "b": [1, 2]}))
    with tl.backend_context("flycoo"), pytest.raises(TypeError, match=r"pass .*from_xarray\(x\)"):
        tl.decomposition.parafac(make_array(np.ones((3, 4, 2))), 2)


@pytest.mark.parametrize("kind", ["dense", "sparse", "of a table"])
@pytest.mark.usefixtures("flycoo_backend")
def test_nan_is_filled_or_masked(kind):
    dense = np.random.default_rng(0).random((5, 6, 7))
    dense[dense < 0.3] = np.nan
    array = xarray.DataArray(dense, dims=["a", "b", "c"])
    if kind == "sparse":
        array = array.copy(data=sparse.COO.from_numpy(dense))
    elif kind == "of a table":  # its fill_value is nan
        table = array.to_series().dropna().to_frame("v")
        array = xarray.Dataset.from_dataframe(table, sparse=True)["v"]
        assert np.isnan(array.data.fill_value)
    with pytest.raises(ValueError, match=r"array holds nan.*, expected .*: pass array\.fillna"):
        from_xarray(array)
    x = from_xarray(array.fillna(0))
    np.testing.assert_array_equal(x.tensor.to_coo().todense(), np.nan_to_num(dense))
    if kind == "of a table":
        table.loc[table.index[0], "v"] = 0.0  # a known one
        array = xarray.Dataset.from_dataframe(table, sparse=True)["v"]
        x = from_xarray(array, missing="unknown")
        assert x.unknown == "all"
        assert x.nnz == len(table)
        known = x.tensor.to_coo().todense()[~np.isnan(dense)]
        np.testing.assert_allclose(known, table["v"], atol=1e-19)
    else:
        x = from_xarray(array, missing="unknown")
        np.testing.assert_array_equal(x.tensor.to_coo().todense(), np.nan_to_num(dense))
        np.testing.assert_array_equal(x.unknown.todense(), ~np.isnan(dense))
        np.testing.assert_array_equal(x.to_xarray().data.todense(), dense)
        errors = tl.decomposition.parafac(
            x.tensor,
            2,
            mask=x.unknown,
            init="random",
            random_state=0,
            n_iter_max=5,
            return_errors=True,
        )[1]
        assert errors[-1] < errors[0]


@pytest.mark.parametrize("compressed_axis", [0, 1])
def test_nan_of_a_compressed_array_is_masked_where_it_is(compressed_axis):
    dense = np.arange(1.0, 13.0).reshape(3, 4)
    dense[[0, 2], [2, 1]] = np.nan
    data = sparse.GCXS.from_numpy(dense, compressed_axes=[compressed_axis])
    x = from_xarray(xarray.DataArray(data), missing="unknown")
    np.testing.assert_array_equal(x.tensor.to_coo().todense(), np.nan_to_num(dense))
    np.testing.assert_array_equal(x.unknown.todense(), ~np.isnan(dense))


def test_nan_that_fills_fibres_is_a_block():
    dense = np.random.default_rng(0).random((4, 5, 6))
    dense[:, [0, 3], [2, 5]] = np.nan
    x = from_xarray(xarray.DataArray(dense, dims=["gene", "donor", "type"]), missing="unknown")
    assert x.unknown.shape == (1, 5, 6)
    assert x.unknown.coords.tolist() == [[0, 0], [0, 3], [2, 5]]
    assert repr(x).endswith("unknown: 2 blocks of donor x type>")
    again = from_xarray(x.to_xarray(), missing="unknown")
    np.testing.assert_array_equal(again.unknown.coords, x.unknown.coords)
    np.testing.assert_array_equal(x.to_xarray().data.todense(), dense)
    dense[0, 0, 0] = np.nan
    x = from_xarray(xarray.DataArray(dense), missing="unknown")
    assert x.unknown.shape == dense.shape
    assert x.unknown.nnz == 9
    dense[:] = 1.0
    assert from_xarray(xarray.DataArray(dense), missing="unknown").unknown is None


def make_cells():
    """Make what is read of an AnnData: 12 cells and 5 genes."""
    counts = scipy.sparse.random_array((12, 5), density=0.5, format="csr", rng=0)
    obs = pd.DataFrame(
        {
            "donor": pd.Categorical(["ann", "bob", "cy"] * 4, ["cy", "bob", "ann"], ordered=True),
            "type": ["B", "T"] * 6,
        },
        index=[f"cell {n}" for n in range(12)],
    )
    layers = {"raw": 2 * counts, "dense": counts.toarray()}
    names = {"obs_names": obs.index, "var_names": pd.Index(list("vwxyz"))}
    return SimpleNamespace(X=counts, obs=obs, layers=layers, **names)


def test_cells_and_genes():
    adata = make_cells()
    x = from_anndata(adata)
    np.testing.assert_array_equal(x.to_coo().todense(), adata.X.toarray())
    assert x.labels["obs"].tolist() == [*adata.obs_names]
    assert x.labels["var"].tolist() == list("vwxyz")


class OnDisk:
    """Has what is used of a matrix of a backed AnnData, and of the table of a lazy one."""

    def __init__(self, matrix):
        self.to_memory = lambda: matrix

    def __iter__(self):
        return iter(self.to_memory())


#: The same matrix, as an AnnData may have it.
HOLDERS = {
    "backed": OnDisk,
    "lazy": lambda m: dask.array.from_array(m.toarray(), 5).map_blocks(scipy.sparse.csr_matrix),
    "dense": lambda m: m.toarray(),
    "lazy, dense": lambda m: dask.array.from_array(m.toarray(), 5),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_backed_lazy_and_dense_matrices(hold):
    plain, adata = make_cells(), make_cells()
    adata.X, adata.layers = hold(plain.X), {"raw": hold(plain.layers["raw"])}
    if hold is HOLDERS["lazy"]:
        adata.obs = OnDisk(plain.obs)
    for options in ({}, {"obs": "donor"}, {"layers": "raw"}, {"layers": ["raw"]}):
        found, expected = from_anndata(adata, **options), from_anndata(plain, **options)
        assert found.to_frame().equals(expected.to_frame())
        assert found.labels.ordered == expected.labels.ordered
    found, expected = (RaggedTensor(of, by="donor") for of in (adata, plain))
    assert found.matrix.nonzeros()[1].tolist() == expected.matrix.nonzeros()[1].tolist()
    assert found.labels["slice"].tolist() == expected.labels["slice"].tolist()


def test_one_layer_in_place_of_the_matrix():
    adata = make_cells()
    x = from_anndata(adata, layers="raw")
    assert [*x.labels] == ["obs", "var"]
    np.testing.assert_array_equal(x.to_coo().todense(), adata.layers["raw"].toarray())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"obs": "var"}, r"obs has \['var'\], expected some of \['donor', 'type'\]"),
        ({"obs": ["donor", "donor"]}, "expected one or more different names"),
        ({"obs": []}, r"obs is \[\], expected one or more different names"),
        ({"obs": 3}, r"obs has \[3\], expected some of"),
        ({"layers": []}, r"layers is \[\], expected one or more"),
        ({"layers": "counts"}, r"layers has \['counts'\], expected some of \['raw', 'dense'\]"),
        ({"layer": "raw"}, "from_anndata has no option 'layer': pass layers="),
    ],
)
def test_options_of_anndata_that_are_refused(options, message):
    with pytest.raises(TypeError if "layer" in options else ValueError, match=message):
        from_anndata(make_cells(), **options)


def test_cells_that_are_refused():
    adata = make_cells()
    with pytest.raises(TypeError, match=r"adata is a csr_array, expected an anndata\.AnnData"):
        from_anndata(adata.X)
    adata.obs = adata.obs.rename(columns={"donor": "var", "type": "layer"})
    for options in ({"obs": "var"}, {"obs": "layer", "layers": ["raw"]}):
        with pytest.raises(ValueError, match="expected different ones: rename columns of obs"):
            from_anndata(adata, **options)
    adata.X = None
    with pytest.raises(ValueError, match=r"adata has no X, expected one, or layers=.*'raw'"):
        from_anndata(adata)


def test_groups_of_cells_and_layers():
    adata = make_cells()
    x = from_anndata(adata, ["donor", "type"], layers=["raw", "dense"])
    assert [*x.labels] == ["donor", "type", "var", "layer"]
    assert x.labels.ordered == ("donor",)
    found, counts = x.to_coo().todense(), adata.X.toarray()
    for i, donor in enumerate(["cy", "bob", "ann"]):
        for j, kind in enumerate(["B", "T"]):
            rows = ((adata.obs["donor"] == donor) & (adata.obs["type"] == kind)).to_numpy()
            for k, scale in enumerate([2, 1]):
                expected = scale * counts[rows].sum(axis=0)
                np.testing.assert_allclose(found[i, j, :, k], expected, rtol=1e-15)
    with tl.backend_context("flycoo"):
        cp = tl.decomposition.parafac(x, 2, n_iter_max=2, init="random", random_state=0)
    assert isinstance(cp, LabelledCP)


def test_cells_that_do_not_fit():
    adata = make_cells()
    with pytest.raises(ValueError, match=r"obs has \['batch'\], expected some of \['donor', 't"):
        from_anndata(adata, "batch")
    with pytest.raises(ValueError, match=r"layers has \['X'\], expected some of \['raw', 'dense"):
        from_anndata(adata, layers=["raw", "X"])
    adata.obs.loc["cell 3", "type"] = None
    with pytest.raises(ValueError, match=r"obs\['type'\] has no entry for 'cell 3'"):
        from_anndata(adata, "type")

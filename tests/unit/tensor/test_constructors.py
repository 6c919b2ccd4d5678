"""Tensors made from the arrays of other libraries."""

import importlib
import re
import sys
import types

import dask.array
import numpy as np
import pytest
import pyttb
import scipy.io
import scipy.sparse
import sparse
import tensorly as tl
from small_tensors import make_dense, to_dense

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    cp_fit,
    cp_to_entries,
    load,
    mttkrp,
    save,
)
from tensorly_flycoo.io.checkpoint import load_checkpoint
from tensorly_flycoo.models.match import factor_match_score

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


@LAYOUTS
@DTYPES
@pytest.mark.parametrize("kind", ["coo", "gcxs", "dok"])
def test_from_pydata_sparse(kind, dtype, layout):
    dense = make_dense(dtype)
    x = FlycooTensor.from_coo(sparse.COO.from_numpy(dense).asformat(kind), layout=layout)
    np.testing.assert_array_equal(to_dense(x), dense)
    assert (x.layout, x.dtype) == (layout, dtype)


@DTYPES
@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.csr_array])
@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"])
def test_from_scipy(make, kind, dtype):
    dense = make_dense(dtype)[0]
    x = FlycooTensor.from_scipy(make(dense).asformat(kind))
    np.testing.assert_array_equal(to_dense(x), dense)
    assert x.dtype == dtype


def test_from_scipy_with_duplicates_and_zeros():
    matrix = scipy.sparse.coo_array(([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 2])), shape=(2, 3))
    x = FlycooTensor.from_scipy(matrix)
    assert to_dense(x).tolist() == [[0, 3, 0], [0, 0, 0]]


@DTYPES
@pytest.mark.skipif(np.lib.NumpyVersion(scipy.__version__) < "1.15.0", reason="matrices only")
@pytest.mark.parametrize("index", [(), 0, (0, 0)], ids=["3 modes", "2", "1"])
def test_from_a_scipy_array_of_any_number_of_modes(index, dtype):
    dense = make_dense(dtype)[index]
    array = scipy.sparse.coo_array(dense)
    with tl.backend_context("flycoo"):
        tensors = FlycooTensor.from_scipy(array), tl.tensor(array)
    for x in tensors:
        assert x.shape == dense.shape
        np.testing.assert_array_equal(to_dense(x), dense)
        assert x.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "bool"])
def test_from_dense(dtype):
    dense = np.random.default_rng(0).integers(0, 2, (4, 5, 6)).astype(dtype)
    x = FlycooTensor.from_dense(dense, layout="indexed", device="cpu")
    assert x.dtype == (dtype if dtype.startswith("float") else np.float64)
    assert x.layout == "indexed"
    assert x.nnz == np.count_nonzero(dense)
    np.testing.assert_array_equal(x.to_coo().todense(), dense)


def test_from_dense_of_bad_arguments():
    assert FlycooTensor.from_dense([[0, 2], [0, 0]], device="cpu").nnz == 1
    with pytest.raises(ValueError, match="values"):
        FlycooTensor.from_dense([[0, np.nan]])
    with pytest.raises(ValueError, match="1 masked entries, expected none"):
        FlycooTensor.from_dense(np.ma.masked_array([[1.0, 2.0]], [[True, False]]))
    with pytest.raises(ValueError, match="shape is empty"):
        FlycooTensor.from_dense(3.0)
    with pytest.raises(TypeError, match=r"array is a dia_array, .* call from_scipy"):
        FlycooTensor.from_dense(scipy.sparse.dia_array(np.eye(3)))
    with pytest.raises(TypeError, match=r"array is a sptensor, .* call from_coo"):
        FlycooTensor.from_dense(pyttb.sptensor(np.array([[0, 1]]), np.ones((1, 1)), (2, 2)))


class SparseStandIn:
    """A stand-in for a sparse torch.Tensor, with what `from_torch` uses of it."""

    layout = "torch.sparse_coo"
    shape = (3, 4)

    def __init__(self, num_dense_modes=0):
        self.dense_dim = lambda: num_dense_modes
        self.detach = self.to_sparse_coo = self.coalesce = lambda: self
        self.indices = lambda: np.array([[0, 2], [3, 1]])
        self.values = lambda: np.array([1.0, 2.0], np.float32)


SparseStandIn.__module__ = "torch"


def test_from_torch_by_a_stand_in():
    x = FlycooTensor.from_torch(SparseStandIn(), layout="replicated", device="cpu")
    assert (x.shape, x.dtype, x.layout) == ((3, 4), np.float32, "replicated")
    assert x.to_coo().todense()[[0, 2], [3, 1]].tolist() == [1, 2]
    with pytest.raises(ValueError, match="tensor has 1 dense modes, expected none"):
        FlycooTensor.from_torch(SparseStandIn(1))
    with pytest.raises(TypeError, match=r"tensor is a ndarray, expected a sparse torch\.Tensor"):
        FlycooTensor.from_torch(np.eye(3))
    with pytest.raises(TypeError, match="expected a dense array: call from_torch instead"):
        FlycooTensor.from_dense(SparseStandIn())


def test_from_torch():
    torch = pytest.importorskip("torch")
    dense = torch.randint(0, 2, (4, 5, 6), dtype=torch.float64, requires_grad=True)
    coo = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 3))
    for tensor in (dense.to_sparse(), dense[0].to_sparse_csr(), dense[0].to_sparse_csc(), coo):
        x = FlycooTensor.from_torch(tensor, device="cpu")
        np.testing.assert_array_equal(x.to_coo().todense(), tensor.detach().to_dense().numpy())
    with pytest.raises(TypeError, match=r"Tensor torch\.strided, expected a sparse torch\.Tensor"):
        FlycooTensor.from_torch(dense)
    with pytest.raises(ValueError, match="1 dense modes"):
        FlycooTensor.from_torch(dense.to_sparse(2))


class UstStandIn:
    """A stand-in for a Universal Sparse Tensor of nvmath-python 1.0, with what `from_ust` uses."""

    num_dimensions = 3
    val = np.array([1.0, 2.0], np.float32)

    def __init__(self, format_name="COO3"):
        self.shape = [3, 4, 2]
        self.tensor_format = types.SimpleNamespace(name=format_name)

    def crd(self, level):
        return np.array([[0, 2], [3, 1], [0, 1]], np.int32)[level]


UstStandIn.__module__ = "nvmath.sparse.ust.tensor"


@pytest.mark.usefixtures("flycoo_backend")
def test_from_ust_by_a_stand_in():
    for x in (FlycooTensor.from_ust(UstStandIn(), layout="indexed"), tl.tensor(UstStandIn())):
        assert (x.shape, x.dtype) == ((3, 4, 2), np.float32)
        assert x.to_coo().todense()[[0, 2], [3, 1], [0, 1]].tolist() == [1, 2]
    for name in ("CSF3", "COO3-b1"):
        with pytest.raises(ValueError, match=rf"has the format {name}, .*NamedFormats\.COOd\(3\)"):
            FlycooTensor.from_ust(UstStandIn(name))
    with pytest.raises(TypeError, match=r"tensor is a ndarray, expected a nvmath\.sparse\.ust"):
        FlycooTensor.from_ust(np.eye(3))
    with pytest.raises(TypeError, match=r"pass FlycooTensor\.from_ust\(x\)"):
        tl.decomposition.parafac(UstStandIn(), 1)


@pytest.mark.usefixtures("flycoo_backend")
def test_from_ust():
    ust = pytest.importorskip("nvmath.sparse.ust")
    for dense in (make_dense("float32"), make_dense("float64")[0]):
        given = ust.Tensor.from_package(dense)
        with pytest.raises(ValueError, match="expected COO") as caught:
            FlycooTensor.from_ust(given)
        convert = re.search(r"convert\(.*\)$", str(caught.value))[0]
        converted = eval(f"given.{convert}", {"given": given, "nvmath": sys.modules["nvmath"]})
        for x in (FlycooTensor.from_ust(converted), tl.tensor(converted)):
            np.testing.assert_array_equal(to_dense(x), dense)
            assert x.dtype == dense.dtype
    view = ust.Tensor.from_package(scipy.sparse.coo_array(dense))
    np.testing.assert_array_equal(to_dense(FlycooTensor.from_ust(view)), dense)


# Objects of other libraries


@pytest.mark.usefixtures("flycoo_backend")
def test_tensors_and_models_of_pyttb():
    dense = np.random.default_rng(0).random((5, 6, 7)) * (np.arange(7) % 2)
    theirs = pyttb.tensor(dense).to_sptensor()
    for x in (FlycooTensor.from_coo(theirs), tl.tensor(theirs)):
        np.testing.assert_array_equal(to_dense(x), dense)
    assert FlycooTensor.from_coo(pyttb.sptensor(shape=(2, 3))).nnz == 0
    x, model = FlycooTensor.from_coo(theirs), pyttb.cp_als(theirs, 2, printitn=0)[0]
    error = np.linalg.norm(dense - model.full().data) / np.linalg.norm(dense)
    np.testing.assert_allclose(cp_fit(x, model).relative_error, error)
    np.testing.assert_allclose(
        cp_to_entries(model, np.zeros((3, 1), int)), model.full().data[0, 0, 0]
    )
    labels = [range(size) for size in x.shape]
    np.testing.assert_allclose(tl.cp_to_tensor(LabelledCP(model, labels)), model.full().data)
    _, errors = tl.decomposition.parafac(x, 2, init=model, n_iter_max=3, return_errors=True)
    assert errors[-1] <= error + 1e-9
    assert factor_match_score(model, model) == pytest.approx(1)
    for call in (lambda: tl.decomposition.parafac(theirs, 2), lambda: save("x", theirs)):
        with pytest.raises(
            TypeError, match=r"sptensor, expected .*: pass FlycooTensor.from_coo\(x"
        ):
            call()
    with pytest.raises(TypeError, match=r"x is a tensor, expected .*: pass x.data"):
        tl.decomposition.parafac(pyttb.tensor(dense), 2)


@pytest.mark.usefixtures("flycoo_backend")
def test_dask_arrays_of_sparse_blocks():
    coo = sparse.random((8, 6, 4), density=0.2, random_state=0)
    array = dask.array.from_array(coo.todense(), 4).map_blocks(sparse.COO.from_numpy)
    assert FlycooTensor.from_coo(array).nnz == coo.nnz
    np.testing.assert_array_equal(to_dense(FlycooTensor.from_coo(array)), coo.todense())
    for call in (lambda: tl.decomposition.parafac(array, 2), lambda: mttkrp(array, [], 0)):
        with pytest.raises(TypeError, match=r"x is a Array, expected .*: pass x.compute\(\)"):
            call()


def test_a_sptensor_of_matlab(tmp_path):
    """Each error on the way names what to do; the first one all of it."""
    coo = sparse.random((5, 6, 7), density=0.2, random_state=0)
    path = tmp_path / "x.mat"
    facts = {"subs": coo.coords.T + 1.0, "vals": coo.data[:, None], "size": [[5.0, 6.0, 7.0]]}
    scipy.io.savemat(path, facts)
    subs, vals, size = (scipy.io.loadmat(path)[name] for name in facts)
    assert (subs.dtype, vals.shape, size.shape) == (float, (coo.nnz, 1), (1, 3))
    with pytest.raises(
        TypeError, match=r"coords has dtype float64, .* sptensor of MATLAB"
    ) as caught:
        FlycooTensor(subs.T, vals, coo.shape)
    make = str(caught.value).partition("make ")[2]
    x = eval(make, {"FlycooTensor": FlycooTensor, "subs": subs, "vals": vals, "size": size})
    np.testing.assert_array_equal(to_dense(x), coo.todense())
    with pytest.raises(ValueError, match=r"values has shape .*, pass values.ravel\(\)"):
        FlycooTensor(subs.T.astype(int), vals, coo.shape)
    with pytest.raises(
        ValueError, match=r"expected 0 to [456]; if the first index is 1, .*coords - 1"
    ):
        FlycooTensor(subs.T.astype(int), vals.ravel(), coo.shape)


@pytest.mark.parametrize("library", ["sparse", "scipy.sparse"])
@pytest.mark.parametrize("compressed", [True, False])
def test_files_of_other_libraries(library, compressed, tmp_path):
    coo, path = sparse.random((5, 6), density=0.5, random_state=0), tmp_path / "x.npz"
    of = coo if library == "sparse" else coo.to_scipy_sparse()
    importlib.import_module(library).save_npz(path, of, compressed=compressed)
    constructor = "from_coo" if library == "sparse" else "from_scipy"
    call = rf"call FlycooTensor.{constructor}\({library}.load_npz\(path\)\)"
    for read in (load, LabelledCP.load, load_checkpoint):
        with pytest.raises(ValueError, match=rf"x\.npz is .*not a .*: {call}"):
            read(path)

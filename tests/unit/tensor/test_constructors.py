"""Tensors made from the arrays of other libraries."""

import importlib

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl
from small_tensors import make_dense, to_dense

from tensorly_flycoo import FlycooTensor

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


class SparseStandIn:
    """A stand-in for a sparse torch.Tensor, with what `from_torch` uses of it."""

    layout = "torch.sparse_coo"
    shape = (3, 4)

    def __init__(self, num_dense_modes=0):
        self.dense_dim = lambda: num_dense_modes
        self.detach = self.to_sparse_coo = self.coalesce = lambda: self
        self.indices = lambda: np.array([[0, 2], [3, 1]])
        self.values = lambda: np.array([1.0, 2.0], np.float32)


def test_from_torch_by_a_stand_in():
    x = FlycooTensor.from_torch(SparseStandIn(), layout="replicated", device="cpu")
    assert (x.shape, x.dtype, x.layout) == ((3, 4), np.float32, "replicated")
    assert x.to_coo().todense()[[0, 2], [3, 1]].tolist() == [1, 2]
    with pytest.raises(ValueError, match="tensor has 1 dense modes, expected none"):
        FlycooTensor.from_torch(SparseStandIn(1))
    with pytest.raises(TypeError, match=r"tensor is a ndarray, expected a sparse torch\.Tensor"):
        FlycooTensor.from_torch(np.eye(3))


class JaxStandIn:
    """A stand-in for a BCOO of JAX: two nonzeros, and one entry of padding."""

    shape, n_dense = (3, 4), 0
    indices = np.array([[0, 3], [2, 1], [3, 4]])
    data = np.array([1.0, 2.0, 0.0], np.float32)

    def __init__(self, n_batch=0):
        self.n_batch = n_batch


def test_from_jax_by_a_stand_in():
    x = FlycooTensor.from_jax(JaxStandIn(), layout="replicated", device="cpu")
    assert (x.shape, x.dtype, x.layout) == ((3, 4), np.float32, "replicated")
    assert x.to_coo().todense()[[0, 2], [3, 1]].tolist() == [1, 2]
    with pytest.raises(ValueError, match="array has 1 batch modes and 0 dense modes, expected"):
        FlycooTensor.from_jax(JaxStandIn(1))
    with pytest.raises(TypeError, match="array is a ndarray, expected a sparse JAX array"):
        FlycooTensor.from_jax(np.eye(3))
    with pytest.raises(TypeError, match="expected a dense array: call from_jax instead"):
        FlycooTensor.from_dense(JaxStandIn())


def test_from_jax():
    jax = pytest.importorskip("jax")
    sparse = importlib.import_module("jax.experimental.sparse")
    dense = jax.numpy.arange(6.0).reshape(2, 3)
    for array in (sparse.BCOO.fromdense(dense, nse=6), sparse.BCSR.fromdense(dense)):
        x = FlycooTensor.from_jax(array, device="cpu")
        np.testing.assert_array_equal(x.to_coo().todense(), dense)


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

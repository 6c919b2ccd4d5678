"""Functions, extremes, transposes and lists of a tensor on the GPU, against NumPy's."""

import cupy
import numpy as np
import pytest
import sparse
import tensorly as tl

from tensorly_flycoo import DensifyError, FlycooTensor, mttkrp

SHAPE = (6, 7, 8)
LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])


def make_coo():
    coo = sparse.random(SHAPE, nnz=90, random_state=0)
    return sparse.COO(coo.coords, coo.data - 0.5, SHAPE)


def to_host(found):
    """Copy a result to the host, and fail if it was not on the GPU."""
    if isinstance(found, FlycooTensor):
        assert found.device == "cuda"
        return found.to_coo().todense()
    assert isinstance(found, cupy.ndarray)
    return found.get()


#: Operations whose results are exact.
EXACT = {
    "sign": np.sign,
    "floor": np.floor,
    "minimum": lambda x: np.minimum(x, 0.25),
    "tl.abs": tl.abs,
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "tl.max": lambda x: tl.max(x, (0, 1, 2)),
    "transposed": lambda x: x.T,
    "permuted": lambda x: x.transpose(1, 2, 0),
    "list": lambda x: x[[3, -1, 3]],
    "list and slice": lambda x: x[:, [0, 5, 5], ::-2],
    "list and integer": lambda x: x[2, :, [7, 1]],
}

#: Those that CuPy rounds in its own way.
ROUNDED = {
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "log1p": np.log1p,
    "tl.sin": tl.sin,
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean((0, 1)),
    "square": lambda x: x**2,
}


@LAYOUTS
@pytest.mark.parametrize("function", EXACT.values(), ids=EXACT)
def test_exact(function, layout):
    coo = make_coo()
    x = FlycooTensor.from_coo(coo, device="cuda", layout=layout)
    np.testing.assert_array_equal(to_host(function(x)), function(coo.todense()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", ROUNDED.values(), ids=ROUNDED)
def test_rounded(function, dtype):
    """Functions to 8 ulps; sums of at most 42 numbers below 1."""
    coo = make_coo().astype(dtype)
    found = function(FlycooTensor.from_coo(coo, device="cuda"))
    assert found.dtype == dtype
    expected = function(coo.todense().astype(float))
    assert np.abs(to_host(found) - expected).max() <= 50 * np.finfo(dtype).eps


@LAYOUTS
def test_functions_in_any_resident_mode(layout):
    """The result has the same norm, and the right MTTKRP."""
    coo, factors = make_coo(), [cupy.ones((size, 4)) for size in SHAPE]
    x = FlycooTensor.from_coo(coo, device="cuda", layout=layout)
    norm = np.cbrt(x).norm()
    for mode in range(3):
        mttkrp(x, factors, mode)
        y = np.cbrt(x)
        assert (y.layout, y.nnz, y.norm()) == (layout, x.nnz, norm)
        expected = np.cbrt(coo.todense()).sum(tuple({0, 1, 2} - {mode}))
        found = mttkrp(y, factors, mode).get()
        assert np.abs(found - expected[:, None]).max() <= 60 * 60 * np.finfo(float).eps


def test_functions_of_ones_own():
    x = FlycooTensor.from_coo(make_coo(), device="cuda")
    y = x.map(lambda values: cupy.minimum(values, 0))
    np.testing.assert_array_equal(to_host(y), np.minimum(make_coo().todense(), 0))
    for function in (np.exp, lambda values: values + 1):
        with pytest.raises(DensifyError, match=r"\(0\) is 1.0, not 0"):
            x.map(function)
    with pytest.raises(ValueError, match="expected finite numbers"):
        np.sqrt(x)


def test_no_nonzeros():
    x = FlycooTensor(cupy.zeros((2, 0), int), cupy.zeros(0), (3, 4), device="cuda")
    assert np.sqrt(x).nnz == x[[0, 0]].nnz == x.T.nnz == 0
    assert to_host(x.max()) == 0


def test_index_arrays_of_cupy():
    coo = make_coo()
    x = FlycooTensor.from_coo(coo, device="cuda")
    np.testing.assert_array_equal(to_host(x[cupy.array([4, 0])]), coo.todense()[[4, 0]])


def test_a_huge_tensor_of_a_cp_is_refused():
    with pytest.raises(MemoryError, match="cp_to_entries"):
        tl.cp_to_tensor((None, [cupy.ones((2**14, 2))] * 5))


def test_sparse_matrices_of_cupy_are_named():
    import cupyx.scipy.sparse

    matrix = cupyx.scipy.sparse.eye(5, format="csr")
    message = r"sparse cupyx\.scipy\.sparse.*from_scipy\(x\)"
    with pytest.raises(TypeError, match=message):
        tl.decomposition.parafac(matrix, 2)

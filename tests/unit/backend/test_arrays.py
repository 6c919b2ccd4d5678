"""TensorLy's functions under "flycoo": dense arrays as under numpy, sparse ones never densified."""

import threading

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.backend import register
from tensorly_flycoo.testing import random_tensor

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


pytestmark = pytest.mark.usefixtures("flycoo_backend")


@pytest.fixture
def dense():
    rng = np.random.default_rng(0)
    return rng.standard_normal((4, 5, 3)) * (rng.random((4, 5, 3)) < 0.5)


@pytest.fixture(params=["COO", "FlycooTensor"])
def x(request, dense):
    coo = sparse.COO.from_numpy(dense)
    return coo if request.param == "COO" else FlycooTensor.from_coo(coo)


# Dense arrays

MATRIX = np.random.default_rng(1).standard_normal((6, 4))
SQUARE = MATRIX.T @ MATRIX
ARRAY = np.random.default_rng(2).standard_normal((4, 5, 3))

DENSE_CALLS = [
    ("norm", (ARRAY,)),
    ("norm", (ARRAY, 1)),
    ("norm", (ARRAY, 2, 1)),
    ("norm", (ARRAY, "inf")),
    ("solve", (SQUARE, MATRIX.T)),
    ("solve", (SQUARE, MATRIX[0])),
    ("conj", (MATRIX,)),
    ("conj", (MATRIX + 1j,)),
    ("transpose", (ARRAY,)),
    ("transpose", (ARRAY, (1, 2, 0))),
    ("moveaxis", (ARRAY, 0, 2)),
    ("moveaxis", (ARRAY, 2, 0)),
    ("reshape", (ARRAY, (20, 3))),
    ("reshape", (ARRAY, (4, -1))),
    ("shape", (ARRAY,)),
    ("ndim", (ARRAY,)),
    ("copy", (ARRAY,)),
    ("copy", ([[1.0, 2.0]],)),
    ("zeros_like", (ARRAY,)),
    ("zeros", ((3, 2),)),
    ("ones", ((3, 2),)),
    ("eye", (3,)),
    ("dot", (MATRIX, SQUARE)),
    ("sum", (ARRAY, 1)),
    ("mean", (ARRAY,)),
    ("abs", (ARRAY,)),
    ("max", (ARRAY,)),
    ("argmax", (ARRAY,)),
    ("concatenate", ([MATRIX, MATRIX],)),
    ("stack", ([MATRIX, MATRIX],)),
    ("where", (MATRIX > 0, MATRIX, -MATRIX)),
    ("einsum", ("ij,ik->jk", MATRIX, MATRIX)),
    ("kron", (MATRIX, SQUARE)),
    ("clip", (MATRIX, 0.0)),
    ("all", (MATRIX > 0,)),
    ("to_numpy", (MATRIX,)),
    ("tensor", ([[1, 2], [3, 4]],)),
    ("tensor", (MATRIX, np.float32)),
    ("is_tensor", (MATRIX,)),
    ("is_tensor", ([1.0],)),
    ("qr", (MATRIX,)),
    ("svd", (MATRIX,)),
    ("svd", (MATRIX, False)),
    ("eigh", (SQUARE,)),
    ("unfold", (ARRAY, 1)),
    ("fold", (MATRIX, 0, (6, 2, 2))),
    ("tensor_to_vec", (ARRAY,)),
]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [pytest.param(*call, id=f"{call[0]}-{k}") for k, call in enumerate(DENSE_CALLS)],
)
def test_dense_arrays_behave_as_under_numpy(name, arguments):
    found = getattr(tl, name)(*arguments)
    with tl.backend_context("numpy"):
        expected = getattr(tl, name)(*arguments)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for part, expected_part in zip(found, expected, strict=True):
        assert type(part) is type(expected_part)
        np.testing.assert_array_equal(part, expected_part)
        assert getattr(part, "dtype", None) == getattr(expected_part, "dtype", None)


@pytest.mark.parametrize("name", ["mode_dot", "inner", "outer", "kronecker", "khatri_rao"])
@pytest.mark.parametrize("tenalg", ["core", "einsum"])
def test_dense_tensor_algebra_behaves_as_under_numpy(name, tenalg):
    arguments = {
        "mode_dot": (ARRAY, MATRIX[:, :4], 0),
        "inner": (ARRAY, ARRAY),
        "outer": ([MATRIX, SQUARE],),
        "kronecker": ([MATRIX, SQUARE],),
        "khatri_rao": ([MATRIX, SQUARE],),
    }[name]
    before = tl.tenalg.get_backend()
    tl.tenalg.set_backend(tenalg)
    try:
        found = getattr(tl.tenalg, name)(*arguments)
        with tl.backend_context("numpy"):
            expected = getattr(tl.tenalg, name)(*arguments)
    finally:
        tl.tenalg.set_backend(before)
    np.testing.assert_array_equal(found, expected)


def test_conj_of_a_real_array_is_no_copy():
    assert tl.conj(MATRIX) is MATRIX
    assert tl.conj(MATRIX + 1j)[0, 0] == MATRIX[0, 0] - 1j


# solve


def make_gram(condition, size=6, dtype="float64"):
    """Make a symmetric positive definite matrix of a known condition number."""
    rng = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(rng.standard_normal((size, size)))
    values = np.logspace(0, -np.log10(condition), size)
    gram = (vectors * values) @ vectors.T
    return ((gram + gram.T) / 2).astype(dtype)


MANY, FEW = 1000, 3
COUNTS = pytest.mark.parametrize("num_columns", [MANY, FEW, None], ids=["many", "few", "vector"])


def make_right_sides(gram, num_columns):
    """Make a known x, and right-hand sides that it solves up to rounding."""
    rng = np.random.default_rng(1)
    shape = gram.shape[:1] if num_columns is None else (gram.shape[0], num_columns)
    x = rng.standard_normal(shape)
    return x, (gram.astype("float64") @ x).astype(gram.dtype)


@DTYPES
@COUNTS
@pytest.mark.parametrize("digits", [0, 2, 4, 5])
def test_solve_is_as_accurate_as_the_condition_allows(dtype, num_columns, digits):
    gram = make_gram(10.0**digits, dtype=dtype)
    x, b = make_right_sides(gram, num_columns)
    found = tl.solve(gram, b)
    assert found.dtype == dtype
    assert found.shape == x.shape
    error = np.linalg.norm(found - x, axis=0)
    bound = 20 * 6 * np.finfo(dtype).eps * np.linalg.cond(gram.astype("float64"))
    assert (error <= bound * np.linalg.norm(x, axis=0)).all()


@COUNTS
@pytest.mark.parametrize("digits", [8, 11])
def test_solve_of_ill_conditioned_grams(num_columns, digits):
    gram = make_gram(10.0**digits)
    x, b = make_right_sides(gram, num_columns)
    error = np.linalg.norm(tl.solve(gram, b) - x, axis=0)
    bound = 20 * 6 * np.finfo("float64").eps * np.linalg.cond(gram)
    assert (error <= bound * np.linalg.norm(x, axis=0)).all()


SINGULAR = [
    pytest.param(np.zeros((4, 4)), id="zero"),
    pytest.param(np.ones((4, 4)), id="rank 1"),
    pytest.param(np.diag([1.0, 0, 2, 0]), id="zero rows"),
    pytest.param(np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 2, 1], [0, 0, 1, 2]]), id="rank 3"),
    pytest.param(MATRIX[:3].T @ MATRIX[:3], id="rank 3, not exact"),
    pytest.param(MATRIX[:1].T @ MATRIX[:1], id="rank 1, not exact"),
    pytest.param(1e-300 * np.diag([1.0, 0, 0, 0]), id="rank 1, tiny"),
]


@DTYPES
@COUNTS
@pytest.mark.parametrize("gram", SINGULAR)
def test_solve_of_singular_systems_is_finite(gram, num_columns, dtype):
    gram = gram.astype(dtype)
    _, b = make_right_sides(gram, num_columns)
    found = tl.solve(gram, b)
    assert found.shape == b.shape
    assert found.dtype == dtype
    assert np.isfinite(found).all()


@DTYPES
@pytest.mark.parametrize("gram", SINGULAR[:6])
def test_solve_of_singular_systems_solves_them(gram, dtype):
    """Right-hand sides lie in the range, as MTTKRP's do, so the residual is only rounding."""
    gram = gram.astype(dtype)
    _, b = make_right_sides(gram, MANY)
    residual = np.abs(gram.astype("float64") @ tl.solve(gram, b) - b)
    size = np.linalg.norm(gram, 2) + np.linalg.norm(b, axis=0)
    assert (residual <= 100 * 4 * np.finfo(dtype).eps * size).all()


@DTYPES
@COUNTS
@pytest.mark.parametrize("size", [1e-30, 1e-37, 1e-40, 1e30])
def test_solve_of_extreme_sizes_is_never_nan(size, num_columns, dtype):
    """Factors of a vanishing component are tiny, and their Gram matrix is tinier."""
    gram = np.diag([size, size / 2]).astype(dtype)
    b = np.zeros(2 if num_columns is None else (2, num_columns), dtype)
    b[0] = gram[0, 0]
    with np.errstate(all="ignore"):
        found = tl.solve(gram, b)
    assert not np.isnan(found).any()


def test_solve_gives_c_order_after_transposing():
    """TensorLy transposes the result to get a factor, which is fastest in C order."""
    assert tl.transpose(tl.solve(SQUARE, np.ones((4, MANY)))).flags.c_contiguous


def test_solve_does_not_write_to_its_arguments():
    gram, b = np.ones((4, 4)), np.ones((4, MANY))
    tl.solve(gram, b)
    assert (gram == 1).all()
    assert (b == 1).all()


def test_solve_of_complex_systems():
    gram = SQUARE + 1j * np.triu(SQUARE)
    b = np.ones((4, MANY)) + 2j
    expected = np.linalg.solve(gram, b)
    bound = 20 * 4 * np.finfo("float64").eps * np.linalg.cond(gram) * np.abs(expected).max()
    assert np.abs(tl.solve(gram, b) - expected).max() <= bound


@pytest.mark.parametrize("gram", [np.ones((3, 4)), np.ones(4)], ids=["not square", "a vector"])
def test_solve_of_bad_arguments(gram):
    with pytest.raises(np.linalg.LinAlgError):
        tl.solve(gram, np.ones((4, MANY)))


# Sparse tensors


def test_tensor_makes_a_flycoo_tensor(x, dense):
    found = tl.tensor(x)
    assert isinstance(found, FlycooTensor)
    np.testing.assert_array_equal(found.to_coo().todense(), dense)
    if isinstance(x, FlycooTensor):
        assert found is x


@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.coo_matrix])
def test_tensor_of_a_scipy_matrix(make, dense):
    found = tl.tensor(make(dense[0]))
    assert isinstance(found, FlycooTensor)
    np.testing.assert_array_equal(found.to_coo().todense(), dense[0])


@pytest.mark.parametrize("kind", ["gcxs", "dok"])
def test_tensor_of_other_formats(kind, dense):
    found = tl.tensor(sparse.COO.from_numpy(dense).asformat(kind))
    np.testing.assert_array_equal(found.to_coo().todense(), dense)


def test_tensor_in_another_dtype(x):
    assert tl.tensor(x, dtype=tl.float32).dtype == np.float32


def test_tensor_in_another_layout(dense):
    found = tl.tensor(sparse.COO.from_numpy(dense), layout="replicated")
    assert found.layout == "replicated"


def test_is_tensor_shape_and_ndim(x):
    assert tl.is_tensor(x)
    assert tl.shape(x) == (4, 5, 3)
    assert tl.ndim(x) == 3


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int64", "float64"),
        ("int8", "float64"),
        ("uint16", "float64"),
        ("bool", "float64"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
)
def test_context_of_counts_is_float64(dtype, expected):
    coo = sparse.COO([[0, 1]], np.ones(2, dtype), (3,))
    assert tl.context(coo)["dtype"] == expected
    assert tl.context(tl.tensor(coo))["dtype"] == expected
    assert tl.zeros((2, 2), **tl.context(coo)).dtype == expected


def test_context_of_complex_values():
    with pytest.raises(TypeError, match="complex128, expected float32"):
        tl.context(sparse.COO([[0]], [1j], (3,)))


def test_context_of_a_dense_integer_array_is_numpys():
    assert tl.context(np.ones(2, np.int32)) == {"dtype": np.dtype("int32")}


def test_norm(x, dense):
    assert abs(tl.norm(x) - np.linalg.norm(dense)) <= 1e-15 * np.linalg.norm(dense)
    assert tl.norm(x, 2) == tl.norm(x)


@pytest.mark.parametrize("options", [{"order": 0}, {"axis": 0}, {"order": -np.inf}])
def test_other_norms(x, options):
    with pytest.raises(ValueError, match='expected a number above 0 or "inf", and None'):
        tl.norm(x, **options)


def test_norm_finds_changes_of_a_raw_coo(dense):
    coo = sparse.COO.from_numpy(dense)
    before = tl.norm(coo)
    coo.data *= 2
    assert tl.norm(coo) == 2 * before


def test_copy(x, dense):
    """A copy is immutable: what TensorLy subtracts from a raw COO would make it dense."""
    found = tl.copy(x)
    assert isinstance(found, FlycooTensor)
    np.testing.assert_array_equal(found.to_coo().todense(), dense)


@pytest.mark.parametrize("mode", range(3))
def test_unfold_is_lazy(x, dense, mode):
    found = tl.unfold(x, mode)
    assert tuple(found.shape) == (dense.shape[mode], dense.size // dense.shape[mode])
    assert found.dtype == dense.dtype
    with pytest.raises(DensifyError):
        np.asarray(found)


@pytest.mark.parametrize("method", ["truncated_svd", "randomized_svd"])
def test_svd_interface(x, dense, method):
    for mode in range(3):
        matrix = np.moveaxis(dense, mode, 0).reshape(dense.shape[mode], -1)
        left, values, _ = tl.tenalg.svd_interface(tl.unfold(x, mode), n_eigenvecs=2, method=method)
        vectors, expected, _ = np.linalg.svd(matrix)
        assert left.shape == (dense.shape[mode], 2)
        bound = 8 * max(matrix.shape) * np.finfo(float).eps * expected[0] ** 2
        assert np.abs(values**2 - expected[:2] ** 2).max() <= bound
        rest = left - vectors[:, :2] @ (vectors[:, :2].T @ left)
        assert np.abs(rest).max() <= bound / (expected[1] ** 2 - expected[2] ** 2)


def test_svd_of_a_sparse_matrix(dense):
    x = FlycooTensor.from_coo(sparse.COO.from_numpy(dense[0]))
    left, values, _ = tl.svd(x, full_matrices=False)
    expected = np.linalg.svd(dense[0], compute_uv=False)
    assert left[:, :2].shape == (5, 2)
    assert np.abs(values[:2] ** 2 - expected[:2] ** 2).max() <= 1e-14 * expected[0] ** 2


DENSIFYING = [
    pytest.param(tl.to_numpy, "tl.to_numpy", id="to_numpy"),
    pytest.param(tl.zeros_like, "tl.zeros_like", id="zeros_like"),
    pytest.param(lambda x: tl.to_numpy(tl.transpose(x)), "tl.to_numpy", id="transpose"),
    pytest.param(lambda x: tl.reshape(x, (10, 6)), "tl.reshape", id="reshape"),
    pytest.param(lambda x: tl.where(x, 1, 0), "tl.where", id="where"),
    pytest.param(lambda x: tl.stack([x, x]), "tl.stack", id="in a list"),
    pytest.param(lambda x: tl.concatenate([x, np.ones((2, 5, 4))]), "concatenate", id="with dense"),
    pytest.param(lambda x: tl.kron(x, MATRIX), "tl.kron", id="kron"),
    pytest.param(lambda x: tl.svd(x, full_matrices=False), "tl.svd", id="svd of a tensor"),
    pytest.param(lambda x: tl.tenalg.inner(x, x, n_modes=1), "inner", id="inner"),
    pytest.param(lambda x: tl.tenalg.outer([x, x]), "numpy.multiply", id="outer"),
]


@pytest.mark.parametrize(("operate", "name"), DENSIFYING)
def test_densifying_operations_are_refused(x, operate, name):
    with pytest.raises(DensifyError) as caught:
        operate(x)
    assert name in str(caught.value)
    assert "would make a dense array of shape" in str(caught.value)


@pytest.mark.parametrize("tenalg", ["core", "einsum"])
@pytest.mark.parametrize("weights", [None, np.ones(2), np.array([2.0, -0.5])])
def test_unfolding_dot_khatri_rao(x, dense, weights, tenalg):
    factors = [np.random.default_rng(3).standard_normal((size, 2)) for size in dense.shape]
    before = tl.tenalg.get_backend()
    tl.tenalg.set_backend(tenalg)
    try:
        for mode in range(3):
            found = tl.tenalg.unfolding_dot_khatri_rao(x, (weights, factors), mode)
            expected = tensorly_flycoo.mttkrp(x, factors, mode, weights=weights)
            np.testing.assert_array_equal(found, expected)
    finally:
        tl.tenalg.set_backend(before)


# Registration


def test_registered_once():
    register()
    register()
    assert tl.backend.BackendManager.available_backend_names.count("flycoo") == 1
    assert not hasattr(tl.decomposition.parafac._flycoo_original, "_flycoo_original")
    hook = tl.tenalg.core_tenalg.CoreTenalgBackend.unfolding_dot_khatri_rao
    assert not hasattr(hook._flycoo_original, "_flycoo_original")


def test_other_backends_get_a_raw_coo_as_it_is():
    """Under numpy, TensorLy does with a COO whatever it does without the plugin."""
    coo = sparse.eye(3)
    original = tl.tenalg.core_tenalg.CoreTenalgBackend.inner.__wrapped__
    with tl.backend_context("numpy"):
        assert tl.tenalg.inner(coo, coo) == original(coo, coo)


def test_other_backends_refuse_a_flycoo_tensor():
    x = FlycooTensor.from_coo(sparse.eye(3))
    with tl.backend_context("numpy"):
        assert not tl.is_tensor(x)
        with pytest.raises(RuntimeError, match="inner has a FlycooTensor, but TensorLy's backend"):
            tl.tenalg.inner(x, x)


def test_context_is_restored_after_an_error():
    with tl.backend_context("numpy"):
        with pytest.raises(DensifyError), tl.backend_context("flycoo"):
            tl.to_numpy(sparse.eye(3))
        assert tl.get_backend() == "numpy"


def test_the_backend_in_another_thread():
    found = []

    def work():
        with tl.backend_context("flycoo", local_threadsafe=True):
            found.append(tl.is_tensor(sparse.eye(3)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_reductions_name_themselves_when_they_refuse_an_option(x, name):
    message = rf"^tl.{name} of a sparse tensor has no option 'keepdims'"
    with pytest.raises(TypeError, match=message):
        getattr(tl, name)(x, axis=0, keepdims=True)
    with pytest.raises(TypeError, match=message):
        getattr(tl, name)(tl.unfold(x, 1), 0, keepdims=True)


def test_clip_keeps_what_is_within_the_limits():
    x = random_tensor((4, 5, 6), 20, random_state=0)
    with tl.backend_context("flycoo"):
        found = tl.clip(x, 0, 1)
        with pytest.raises(DensifyError, match="clip"):
            tl.clip(x, 1, 2)
    np.testing.assert_array_equal(found.to_coo().todense(), x.to_coo().todense().clip(0, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (tl.argmax, r"tl\.argmax takes no sparse tensor; x\.max\(\)"),
        (tl.any, r"tl\.any takes no sparse tensor"),
        (np.argmax, r"numpy\.argmax takes no sparse tensor; x\.max\(\)"),
        (lambda x: tl.einsum("ijk,ia->ajk", x, np.ones((4, 2))), "mode_dot"),
        (lambda x: tl.tensordot(x, np.ones((4, 2)), ([0], [0])), "mode_dot"),
        (lambda x: np.einsum("ijk,ia->ajk", x, np.ones((4, 2))), "mode_dot"),
    ],
)
def test_refusals_name_what_does(call, message):
    x = random_tensor((4, 5, 6), 20, random_state=0)
    with tl.backend_context("flycoo"), pytest.raises(DensifyError, match=message) as error:
        call(x)
    assert ("dense" in str(error.value)) == (message == "mode_dot")

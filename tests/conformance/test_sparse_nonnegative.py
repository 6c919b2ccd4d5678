"""Non-negative CP under "flycoo": multiplicative updates and HALS, with all starts and options."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from rounding import check_same_as_dense
from sparse_problems import (
    BOTH_KINDS,
    BOTH_PRECISIONS,
    EDGE_CASES,
    community_coo,
    dense_of,
    densification_alarm,
    planted_coo,
    random_coo,
    reconstruct,
    spread,
)
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import (
    CP_NN,
    CP_NN_HALS,
    non_negative_parafac,
    non_negative_parafac_hals,
)
from tensorly.metrics.factors import congruence_coefficient

from tensorly_flycoo import DensifyError

_RANK = 3
_SHAPES = {2: (14, 15), 3: (9, 11, 10), 4: (8, 6, 9, 7)}
_FUNCTIONS = {"mu": non_negative_parafac, "hals": non_negative_parafac_hals}
_BY_FUNCTION = pytest.mark.parametrize("function", _FUNCTIONS.values(), ids=_FUNCTIONS)


def _factors(shape, dtype, seed=11):
    rng = np.random.RandomState(seed)
    return [(0.1 + rng.random_sample((size, _RANK))).astype(dtype) for size in shape]


def _init(shape, dtype, weights=None):
    weights = weights if weights is None else np.array(weights, dtype)
    return CPTensor((weights, _factors(shape, dtype)))


#: Options of both functions; a function makes them for a shape and the dtype of factors.
_OPTIONS = {
    "random": lambda shape, dtype: {"init": "random"},
    "svd": lambda shape, dtype: {},
    "init": lambda shape, dtype: {"init": _init(shape, dtype)},
    "weighted-init": lambda shape, dtype: {"init": _init(shape, dtype, [0.5, 1.0, 2.0])},
    "normalize": lambda shape, dtype: {"init": "random", "normalize_factors": True},
    "normalize-svd": lambda shape, dtype: {"normalize_factors": True},
    "fixed-first": lambda shape, dtype: {"init": _init(shape, dtype), "fixed_modes": [0]},
    "tol": lambda shape, dtype: {"init": "random", "tol": 1e-2, "cvg_criterion": "rec_error"},
}
_HALS_OPTIONS = {
    "sparsity": lambda shape, dtype: {
        "init": "random", "sparsity_coefficients": [0.1] * len(shape)
    },
    "nn_modes": lambda shape, dtype: {"init": "random", "nn_modes": {0}},
    "no nn_modes": lambda shape, dtype: {"init": "random", "nn_modes": None},
}  # fmt: skip
_CASES = [
    *((name, method, make) for name, make in _OPTIONS.items() for method in _FUNCTIONS),
    *((name, "hals", make) for name, make in _HALS_OPTIONS.items()),
]


@BOTH_PRECISIONS
@pytest.mark.parametrize(
    ("method", "make_options"),
    [case[1:] for case in _CASES],
    ids=[f"{method}-{name}" for name, method, _ in _CASES],
)
@pytest.mark.filterwarnings("ignore:Sparsity coefficient is ignored")
def test_same_as_dense(method, make_options, dtype, kind):
    coo = community_coo(_SHAPES[3], dtype, seed=1)
    _check(coo, method, make_options, kind)


@pytest.mark.parametrize("ndim", [2, 4])
@pytest.mark.parametrize("method", _FUNCTIONS)
@pytest.mark.parametrize("name", ["random", "svd"])
def test_same_as_dense_for_any_number_of_modes(name, method, ndim):
    _check(community_coo(_SHAPES[ndim], seed=1), method, _OPTIONS[name], lambda coo: coo)


@pytest.mark.usefixtures("modes_in_groups")
@pytest.mark.filterwarnings("ignore:Sparsity coefficient is ignored")
@pytest.mark.parametrize(
    ("method", "make_options"),
    [case[1:] for case in _CASES],
    ids=[f"{method}-{name}" for name, method, _ in _CASES],
)
def test_same_as_dense_with_groups(method, make_options):
    _check(community_coo(_SHAPES[4], seed=1), method, make_options, lambda coo: coo)


@BOTH_KINDS
@pytest.mark.parametrize("dtype", ["int64", "bool"])
@pytest.mark.parametrize("method", _FUNCTIONS)
def test_counts_become_floats(method, dtype, kind):
    _check(community_coo(_SHAPES[3], dtype, seed=1), method, _OPTIONS["svd"], kind)


def _check(coo, method, make_options, kind):
    def decompose(x):
        dtype = np.float32 if coo.dtype == np.float32 else np.float64
        options = {"rank": _RANK, "n_iter_max": 8, "tol": 1e-30, "random_state": 5}
        options |= make_options(coo.shape, dtype)
        return _FUNCTIONS[method](x, return_errors=True, **options)

    check_same_as_dense(decompose, coo, kind, _RANK)


@pytest.mark.usefixtures("flycoo_backend")
def test_exact_hals_solves_the_last_least_squares_problem():
    coo = community_coo(_SHAPES[3], seed=1)
    # exact=True makes up to 50,000 sweeps of each non-negative mode; here only the last mode is.
    options = {"init": _init(coo.shape, float), "nn_modes": {2}, "exact": True, "n_iter_max": 1}
    with densification_alarm():
        cp_tensor = non_negative_parafac_hals(coo, _RANK, **options)
    a, b, c = cp_tensor.factors
    gram = (a.T @ a) * (b.T @ b)
    gradient = c @ gram - np.einsum("ijk,ir,jr->kr", dense_of(coo), a, b)
    rounding = coo.nnz * np.finfo(float).eps * np.abs(gram).max() * np.abs(c).max()
    assert (c >= 0).all()
    assert (c == 0).any()
    assert (gradient >= -rounding).all()
    assert (np.abs(gradient[c > 0]) <= rounding).all()


@BOTH_KINDS
@pytest.mark.parametrize("nntype", [True, "nndsvda", "nndsvd"])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_non_negative_singular_vectors(dtype, mode, nntype, kind):
    coo = random_coo((9, 11, 10), 200, dtype, seed=4)
    coo = sparse.COO(coo.coords, coo.data - coo.data.dtype.type(0.9), coo.shape)  # of both signs
    options = {"n_eigenvecs": 4, "non_negative": nntype}
    matrix = np.moveaxis(dense_of(coo), mode, 0).reshape(coo.shape[mode], -1)
    with tl.backend_context("numpy"):
        expected, _, right = tl.svd_interface(matrix, **options)
    with tl.backend_context("flycoo"), densification_alarm():
        left, _, lazy_right = tl.svd_interface(tl.unfold(kind(coo), mode), **options)
    assert left.dtype == expected.dtype
    # Singular vectors rotate by the error of the Gram matrix over the gap of its eigenvalues.
    squares = np.linalg.svd(matrix.astype(np.float64), compute_uv=False) ** 2
    bound = coo.nnz * np.finfo(dtype).eps * squares[0] / -np.diff(squares[:5]).max()
    assert bound < (1e-9 if dtype == "float64" else 0.1)
    assert np.abs(left - expected).max() <= bound * np.abs(expected).max()
    assert lazy_right.shape == right.shape
    with pytest.raises(DensifyError, match="RightVectors"):
        np.asarray(lazy_right)


@pytest.mark.usefixtures("flycoo_backend")
def test_an_unknown_kind_of_non_negative_start_is_an_error():
    unfolded = tl.unfold(random_coo((4, 5, 6), 40), 0)
    with pytest.raises(ValueError, match="'nndsvdb', expected"):
        tl.svd_interface(unfolded, n_eigenvecs=2, non_negative="nndsvdb")


@_BY_FUNCTION
def test_randomized_svd_starts_much_as_numpys(function):
    """The left vectors are NumPy's; right ones, whose norms matter too, are less rough than its."""
    coo = community_coo((15, 18, 21), seed=1)
    options = {"svd": "randomized_svd", "random_state": 0, "n_iter_max": 4}
    with tl.backend_context("numpy"):
        expected = function(coo.todense(), _RANK, **options)
    with tl.backend_context("flycoo"):
        found = function(coo, _RANK, **options)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other, atol=0.02)


@BOTH_KINDS
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@_BY_FUNCTION
@pytest.mark.usefixtures("flycoo_backend")
def test_more_than_2_to_63_cells(function, dtype, kind):
    """Zero rows stay zero, so the other rows must be the same as without them."""
    coo = community_coo((8, 6, 9, 7, 6), dtype, seed=1)
    huge, rows = spread(coo, (2**13 + 1,) * 5)
    factors = _factors(coo.shape, dtype)
    start = [np.zeros((2**13 + 1, _RANK), dtype) for _ in factors]
    for full, row, factor in zip(start, rows, factors, strict=True):
        full[row] = factor
    with densification_alarm():
        expected, errors = function(
            coo, _RANK, init=(None, factors), n_iter_max=5, return_errors=True
        )
        got, huge_errors = function(
            kind(huge), _RANK, init=(None, start), n_iter_max=5, return_errors=True
        )
    # Gram matrices and MTTKRP add the same numbers, with zeros between them, in another order.
    tolerance = 1e3 * np.finfo(dtype).eps
    np.testing.assert_allclose(huge_errors, errors, rtol=tolerance)
    for full, row, factor in zip(got.factors, rows, expected.factors, strict=True):
        assert np.abs(full[row] - factor).max() <= tolerance * factor.max()
        assert np.delete(full, row, axis=0).max() == 0


@_BY_FUNCTION
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.usefixtures("flycoo_backend")
def test_starts_with_more_than_2_to_63_cells(init, function):
    huge, _ = spread(community_coo((8, 6, 9, 7, 6), seed=1), (2**13 + 1,) * 5)
    with densification_alarm():
        cp_tensor, errors = function(
            huge, _RANK, init=init, n_iter_max=10, random_state=0, return_errors=True
        )
    assert all((factor >= 0).all() for factor in cp_tensor.factors)
    assert errors[-1] < 0.9


_EDGE_CASES = EDGE_CASES | {"negative": lambda: -random_coo((4, 5, 6), 40)}


@pytest.mark.filterwarnings("ignore::RuntimeWarning:tensorly")  # error / norm where nnz is 0
@pytest.mark.filterwarnings("ignore:Trying to compute SVD")
@pytest.mark.parametrize("rank", [1, 8])
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize("make", _EDGE_CASES.values(), ids=_EDGE_CASES)
@_BY_FUNCTION
@pytest.mark.usefixtures("flycoo_backend")
def test_edge_cases_run_to_finite_factors(function, make, init, rank):
    coo = make()
    with densification_alarm():
        cp_tensor = function(coo, rank, init=init, random_state=0, n_iter_max=9)
    for factor, size in zip(cp_tensor.factors, coo.shape, strict=True):
        assert factor.shape == (size, rank)
        assert np.isfinite(factor).all()
        assert (factor >= 0).all()


@BOTH_KINDS
@_BY_FUNCTION
@pytest.mark.usefixtures("flycoo_backend")
def test_one_nonzero_is_found(function, kind):
    x = kind(_EDGE_CASES["one nonzero"]())
    cp_tensor = function(x, 1, init="random", random_state=0, n_iter_max=3, tol=0)
    # Multiplicative updates replace zeros by the rounding unit.
    np.testing.assert_allclose(reconstruct(cp_tensor.factors), dense_of(x), atol=1e-12)


@BOTH_KINDS
@pytest.mark.usefixtures("flycoo_backend")
def test_classes(kind):
    coo = community_coo(_SHAPES[3], seed=1)
    options = {"random_state": 1, "n_iter_max": 5}
    for cls, function in [(CP_NN_HALS, non_negative_parafac_hals), (CP_NN, non_negative_parafac)]:
        decomposition = cls(_RANK, **options)
        with densification_alarm():
            cp_tensor = decomposition.fit_transform(kind(coo))
        expected = function(coo, _RANK, tol=decomposition.tol, **options)
        for factor, other in zip(cp_tensor.factors, expected.factors, strict=True):
            np.testing.assert_array_equal(factor, other)


@_BY_FUNCTION
@pytest.mark.usefixtures("flycoo_backend")
def test_init_of_another_precision_is_an_error(function):
    start = CPTensor((None, _factors((4, 5, 6), np.float64)))
    with pytest.raises(TypeError, match=r"factors\[0\] has dtype float64, expected float32"):
        function(random_coo((4, 5, 6), 40, np.float32), _RANK, init=start)


# TensorLy's own tests of these functions with sparse input and TensorLy's thresholds.


@BOTH_KINDS
@pytest.mark.parametrize(("rank", "init"), [(3, "svd"), (4, "random")])
@pytest.mark.parametrize("normalize_factors", [False, True])
@_BY_FUNCTION
@pytest.mark.usefixtures("flycoo_backend")
def test_planted_components_are_found(function, normalize_factors, init, rank, kind):
    coo = planted_coo((6, 5, 12), 3, seed=1)
    x, rng = kind(coo), np.random.RandomState(1)
    with densification_alarm():
        cp_tensor, errors = function(
            x, rank, n_iter_max=80, tol=1e-6, init=init, normalize_factors=normalize_factors,
            random_state=rng, return_errors=True,
        )  # fmt: skip
    assert np.all(np.diff(errors) <= 1e-3)
    assert all((factor >= 0).all() for factor in cp_tensor.factors)
    assert errors[-1] < 0.07
    reconstruction = reconstruct(cp_tensor.factors, cp_tensor.weights)
    assert np.abs(reconstruction - dense_of(coo)).max() < 0.1
    start = CPTensor((None, _factors(coo.shape, float)))
    for mode in (0, 1):
        fixed = function(x, 3, n_iter_max=1, init=start, fixed_modes=[mode])
        np.testing.assert_array_equal(fixed.factors[mode], start.factors[mode])


@BOTH_KINDS
@pytest.mark.usefixtures("flycoo_backend")
def test_one_mode_unconstrained(kind):
    rng = np.random.RandomState(1234)
    weights = rng.uniform(size=_RANK)
    factors = [
        rng.uniform(size=(8, _RANK)),
        rng.standard_normal((9, _RANK)),
        rng.uniform(0.1, 1.1, (10, _RANK)),
    ]
    dense = reconstruct(factors, weights)
    x = kind(sparse.COO.from_numpy(dense))
    with densification_alarm():
        cp_tensor, _ = non_negative_parafac_hals(
            x, 3, n_iter_max=100, tol=0, init="svd", nn_modes={0, 2}, return_errors=True
        )
    assert np.linalg.norm(dense - reconstruct(cp_tensor.factors, cp_tensor.weights)) < 1e-3
    for factor, found in zip(factors, cp_tensor.factors, strict=True):
        assert congruence_coefficient(factor, found, absolute_value=True)[0] > 0.99
    assert (cp_tensor.factors[0] > -1e-10).all()
    assert (cp_tensor.factors[2] > -1e-10).all()

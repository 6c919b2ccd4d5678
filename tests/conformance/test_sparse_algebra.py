"""TensorLy's tensor algebra gives the same results for sparse tensors and their dense twins."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from sparse_problems import (
    BOTH_KINDS,
    dense_of,
    densification_alarm,
    random_coo,
)
from tensorly.decomposition import parafac2

from tensorly_flycoo import FlycooTensor, RaggedTensor

_SHAPE = (6, 7, 8)
_EPS = np.finfo(np.float64).eps

#: Upper bounds of the number of products in a sum and of the sum of their magnitudes.
_BOUND = 336 * _EPS * 3e3


pytestmark = pytest.mark.usefixtures("flycoo_backend", "each_tenalg")


def _huge_coo():
    """Make a COO of 2**70 cells, 50 of them stored."""
    coords = np.sort(np.random.RandomState(0).randint(0, 2**14, (5, 50)), axis=1)
    values = 1 + np.random.RandomState(1).random_sample(50)
    return sparse.COO(coords, values, shape=(2**14,) * 5, sorted=True, has_duplicates=False)


def _vectors(shape):
    rng = np.random.RandomState(5)
    return [rng.uniform(-1, 1, size) for size in shape]


def _check(found, expected):
    """Compare a sparse tensor, a vector or a number with NumPy's result for the dense twin."""
    dense = dense_of(found) if isinstance(found, FlycooTensor) else found
    assert np.shape(dense) == np.shape(expected)
    assert np.abs(dense - expected).max() <= _BOUND


def _dense(x):
    """Make the dense twin in float64, without triggering the alarm."""
    return dense_of(x, np.float64)


_ON_ALL = {
    "sum": tl.sum,
    "sum over one": lambda x: tl.sum(x, axis=1),
    "sum over the last": lambda x: tl.sum(x, axis=-1),
    "sum over two": lambda x: tl.sum(x, axis=(0, 2)),
    "sum over all": lambda x: tl.sum(x, axis=(0, 1, 2)),
    "sum of an unfolding": lambda x: tl.sum(tl.unfold(x, 1)),
    "row sums of an unfolding": lambda x: tl.sum(tl.unfold(x, 1), axis=1),
    "mean": tl.mean,
    "mean over one": lambda x: tl.mean(x, axis=0),
    "mean over two": lambda x: tl.mean(x, axis=(1, 2)),
    "mean of an unfolding": lambda x: tl.mean(tl.unfold(x, 2)),
    "max": tl.max,
    "max of an unfolding": lambda x: tl.max(tl.unfold(x, 1)),
    "min": tl.min,
    "sqrt": lambda x: tl.sqrt(tl.abs(x)),
    "sin": tl.sin,
    "minimum": lambda x: tl.minimum(x, 0.1),
    "norm": tl.norm,
    "norm of an unfolding": lambda x: tl.norm(tl.unfold(x, 1)),
    "norms of unfoldings": lambda x: tl.norm(tl.unfold(x, 1), 1) + tl.norm(tl.unfold(x, 0), "inf"),
    "abs": tl.abs,
    "conj": lambda x: tl.tensor(tl.conj(x)),
    "inner with itself": lambda x: tl.tenalg.inner(x, x),
    "inner with one vector": lambda x: tl.tenalg.inner(x, np.arange(x.shape[2]), 1),
    "vector before": lambda x: tl.tenalg.inner(np.arange(x.shape[0]), x, 1),
    "mode_dot 0": lambda x: tl.tenalg.mode_dot(x, _vectors(_SHAPE)[0], 0),
    "mode_dot 1": lambda x: tl.tenalg.mode_dot(x, _vectors(_SHAPE)[1], 1, transpose=True),
    "mode_dot of int": lambda x: tl.tenalg.mode_dot(x, np.arange(8), 2),
    "multi_mode_dot": lambda x: tl.tenalg.multi_mode_dot(x, _vectors(_SHAPE)),
    "multi_mode_dot of two": lambda x: tl.tenalg.multi_mode_dot(x, _vectors(_SHAPE)[1:], [1, 2]),
    "in disorder": lambda x: tl.tenalg.multi_mode_dot(x, _vectors(_SHAPE)[::-1], [2, 1, 0]),
    "skip": lambda x: tl.tenalg.multi_mode_dot(x, _vectors(_SHAPE), skip=1),
    "skip and modes": lambda x: tl.tenalg.multi_mode_dot(
        x, _vectors(_SHAPE)[2:] + _vectors(_SHAPE)[:1], [2, 0], skip=0
    ),
    "unfolding @ dense": lambda x: tl.dot(tl.unfold(x, 1), np.vander(np.linspace(0, 1, 48), 3)),
    "matmul": lambda x: tl.matmul(tl.unfold(x, 0), np.linspace(0, 1, 56)),
    "operator @": lambda x: tl.unfold(x, 2) @ np.vander(np.linspace(0, 1, 42), 2),
    "dense @ transposed": lambda x: np.ones((2, 56)) @ tl.transpose(tl.unfold(x, 0)),
    "matricize": lambda x: tl.dot(tl.base.matricize(x, [1], [2, 0]), np.linspace(0, 1, 48)),
    "fold": lambda x: tl.fold(tl.unfold(x, 1), 1, _SHAPE),
    "fold of mode 0": lambda x: tl.fold(tl.unfold(x, 0), 0, _SHAPE),
    "vec and back": lambda x: tl.base.vec_to_tensor(tl.tensor_to_vec(x), _SHAPE),
    "partial_fold": lambda x: tl.partial_fold(tl.partial_unfold(x, 1), 1, _SHAPE),
    "transposed twice": lambda x: tl.transpose(tl.transpose(x)),
    "moveaxis": lambda x: tl.tensor(tl.moveaxis(x, -1, 0)),
    "unfold": lambda x: tl.tensor(tl.unfold(x, 1)),
    "partial_unfold": lambda x: tl.tensor(tl.partial_unfold(x, 1)),
    "partial_tensor_to_vec": lambda x: tl.tensor(tl.base.partial_tensor_to_vec(x)),
    "tensor_to_vec": lambda x: tl.tensor(tl.tensor_to_vec(x)),
    "reshape": lambda x: tl.tensor(tl.reshape(x, (1, 6, 56))),
}


@BOTH_KINDS
@pytest.mark.parametrize("function", _ON_ALL.values(), ids=_ON_ALL)
def test_as_on_dense_tensors(function, kind):
    coo = random_coo(_SHAPE, 90, seed=3)
    coo.data[::2] *= -1
    expected = function(_dense(coo))
    with densification_alarm():
        found = function(kind(coo))
    _check(found.tensor if hasattr(found, "tensor") else found, expected)


@BOTH_KINDS
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_dtypes_are_those_of_tensors(dtype, kind):
    coo = random_coo(_SHAPE, 90, dtype)
    expected = np.float32 if dtype == "float32" else np.float64
    x = kind(coo)
    for found in (tl.sum(x), tl.sum(x, 0), tl.sum(x, (0, 1)), tl.mean(x), tl.tenalg.inner(x, x)):
        assert found.dtype == expected
    error = np.abs(tl.sum(x) - _dense(coo).sum())
    assert error <= np.finfo(np.float32).eps * _dense(coo).sum()


@BOTH_KINDS
def test_inner_of_two_tensors(kind):
    first, second = random_coo(_SHAPE, 90, seed=1), random_coo(_SHAPE, 200, seed=2)
    expected = (_dense(first) * _dense(second)).sum()
    assert expected > 0
    with densification_alarm():
        _check(tl.tenalg.inner(kind(first), kind(second)), expected)
        _check(tl.tenalg.inner(kind(second), kind(first)), expected)


@BOTH_KINDS
@pytest.mark.parametrize("order", [0.5, 1, 2, 3, 400, "inf", np.inf])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_any_order(dtype, scale, order, kind):
    coo = (random_coo(_SHAPE, 90) * scale).astype(dtype)
    values = np.abs(coo.data.astype(np.longdouble))
    largest = expected = values.max()
    if order not in ("inf", np.inf):
        expected = largest * ((values / largest) ** order).sum() ** (1 / np.longdouble(order))
    with densification_alarm():
        found = tl.norm(kind(coo), order)
    assert found.dtype == dtype
    np.testing.assert_allclose(float(found), float(expected), rtol=100 * np.finfo(dtype).eps)
    assert tl.norm(kind(coo * 0), order) == 0


@BOTH_KINDS
def test_inner_with_a_dense_tensor(kind):
    coo, dense = random_coo(_SHAPE, 90), np.random.RandomState(1).random_sample(_SHAPE)
    expected = (_dense(coo) * dense).sum()
    with densification_alarm():
        _check(tl.tenalg.inner(kind(coo), dense), expected)
        _check(tl.tenalg.inner(dense, kind(coo)), expected)


@BOTH_KINDS
@pytest.mark.parametrize("weights", [None, np.array([2.0, -1.0])], ids=["none", "weights"])
def test_khatri_rao_with_a_sparse_mask(weights, kind):
    mask = random_coo(_SHAPE, 40)
    rng = np.random.RandomState(0)
    factors = [rng.random_sample((size, 2)) for size in _SHAPE]
    expected = tl.tenalg.khatri_rao(factors) * _dense(mask).reshape(-1, 1)
    expected = expected if weights is None else expected * weights
    with densification_alarm():
        found = tl.tenalg.khatri_rao(factors, weights=weights, mask=kind(mask))
        assert found.shape == expected.shape
        _check(tl.tensor(found), expected)


@BOTH_KINDS
def test_cp_to_tensor_with_a_sparse_mask(kind):
    """It gives the elements at the nonzeros of a CP tensor that is too large to form."""
    mask = _huge_coo()
    rng = np.random.RandomState(0)
    factors = [rng.random_sample((size, 3)) for size in mask.shape]
    weights = np.array([1.0, 0.5, 2.0])
    rows = weights * np.prod([f[c] for f, c in zip(factors, mask.coords, strict=True)], axis=0)
    with densification_alarm():
        found = tl.cp_to_tensor((weights, factors), mask=kind(mask))
    coords, values = found.nonzeros()
    np.testing.assert_array_equal(coords, mask.coords)
    np.testing.assert_allclose(values, rows.sum(axis=1) * mask.data, rtol=20 * _EPS)


# More than 2**63 cells


_ON_HUGE = {
    "sum": (tl.sum, lambda v, c: v.sum()),
    "mean": (tl.mean, lambda v, c: v.sum() / 2.0**70),
    "inner": (lambda x: tl.tenalg.inner(x, x), lambda v, c: v @ v),
    "sum over all but one": (
        lambda x: tl.sum(x, (0, 1, 3, 4)),
        lambda v, c: np.bincount(c[2], v, minlength=2**14),
    ),
    "vectors": (
        lambda x: tl.tenalg.multi_mode_dot(x, [np.arange(2.0**14)] * 5, skip=4),
        lambda v, c: np.bincount(c[4], v * np.prod(c[:4].astype(float), axis=0), minlength=2**14),
    ),
    "number": (
        lambda x: tl.tenalg.multi_mode_dot(x, [np.arange(2.0**14)] * 5),
        lambda v, c: v @ np.prod(c.astype(float), axis=0),
    ),
}


@BOTH_KINDS
@pytest.mark.parametrize(("function", "expect"), _ON_HUGE.values(), ids=_ON_HUGE)
def test_huge_shapes(function, expect, kind):
    coo = _huge_coo()
    with densification_alarm():
        found = function(kind(coo))
    np.testing.assert_allclose(found, expect(coo.data, coo.coords), rtol=100 * _EPS)


@BOTH_KINDS
def test_huge_shapes_stay_sparse(kind):
    coo = _huge_coo()
    with densification_alarm():
        summed = tl.sum(kind(coo), 1)
        contracted = tl.tenalg.mode_dot(kind(coo), np.ones(2**14), 1)
        folded = tl.fold(tl.unfold(kind(coo), 3), 3, coo.shape)
    assert summed.shape == (2**14,) * 4
    for found, kept in ((summed, [0, 2, 3, 4]), (contracted, [0, 2, 3, 4]), (folded, range(5))):
        np.testing.assert_array_equal(found.nonzeros()[0], coo.coords[list(kept)])
        np.testing.assert_array_equal(found.nonzeros()[1], coo.data)


# Decompositions based on singular value decompositions


def _check_parafac2(as_list, kind, **options):
    """Compare errors and factors with those of the dense tensor, or of its slices."""
    coo = random_coo((4, 9, 7), 120, seed=2)
    dense = _dense(coo)
    options |= {"random_state": 0, "n_iter_max": 9, "return_errors": True}
    expected, expected_errors = parafac2(list(dense) if as_list else dense, 2, **options)
    with densification_alarm():
        slices = [kind(sparse.COO.from_numpy(part)) for part in dense]
        found, errors = parafac2(slices if as_list else kind(coo), 2, **options)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-9)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other, rtol=1e-6, atol=1e-8)


@BOTH_KINDS
@pytest.mark.parametrize("as_list", [False, True], ids=["tensor", "slices"])
def test_parafac2(as_list, kind):
    _check_parafac2(as_list, kind)


_PARAFAC2 = {
    "no line search": {"linesearch": False},
    "normalised": {"normalize_factors": True},
    "two inner iterations": {"n_iter_parafac": 2},
    "svd": {"init": "svd"},
    "non-negative A": {"nn_modes": [0], "linesearch": False},
    "non-negative A and C": {"nn_modes": [0, 2], "linesearch": False},
}


@pytest.mark.parametrize("options", _PARAFAC2.values(), ids=_PARAFAC2)
def test_parafac2_with_options(options):
    _check_parafac2(False, FlycooTensor.from_coo, **options)


@BOTH_KINDS
def test_parafac2_of_slices_of_different_heights(kind):
    slices = [random_coo((size, 7), 5 * size, seed=size) for size in (5, 8, 11)]
    options = {"random_state": 0, "n_iter_max": 5, "return_errors": True}
    _, expected = parafac2([_dense(part) for part in slices], 2, **options)
    with densification_alarm():
        model = tl.decomposition.Parafac2(2, linesearch=True, **options)
        model.fit_transform([kind(part) for part in slices])
    np.testing.assert_allclose(model.errors_, expected, rtol=1e-10)


@pytest.mark.parametrize("normalize_factors", [False, True])
def test_parafac2_of_matrices_of_scipy(normalize_factors):
    """Some have fewer rows than the rank; after seven iterations every other one extrapolates."""
    coos = [random_coo((size, 7), 5 * size, seed=size) for size in (5, 8, 2, 11, 8, 1)]
    options = {"random_state": 0, "n_iter_max": 15, "return_errors": True, "tol": 1e-14}
    options["normalize_factors"] = normalize_factors
    expected, expected_errors = parafac2([_dense(part) for part in coos], 3, **options)
    with densification_alarm():
        found, errors = parafac2([part.tocsr() for part in coos], 3, **options)
        ragged, others = parafac2(RaggedTensor(coos), 3, **options)
    assert errors == others
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-9)
    pairs = zip(found.projections, expected.projections, strict=True)
    for factor, other in [*zip(found.factors, expected.factors, strict=True), *pairs]:
        np.testing.assert_allclose(factor, other, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(ragged.weights, found.weights)


@BOTH_KINDS
def test_parafac2_with_a_mask(kind):
    x, mask = random_coo((4, 9, 7), 120), np.random.default_rng(0).random((4, 9, 7)) < 0.9
    options = {"random_state": 0, "n_iter_max": 8, "linesearch": True, "return_errors": True}
    options["mask"] = mask.astype(float)
    _, expected = parafac2(_dense(x) * mask, 2, **options)
    with densification_alarm():
        _, errors = parafac2(kind(x), 2, **options)
    np.testing.assert_allclose(errors, expected, rtol=1e-10)


# Errors


_BAD = {
    "length": (lambda x: tl.tenalg.mode_dot(x, np.ones(6), 1), ValueError, r"\(6,\), expected \(7"),
    "mode": (lambda x: tl.tenalg.mode_dot(x, np.ones(6), 3), ValueError, "out of bounds"),
    "twice": (
        lambda x: tl.tenalg.multi_mode_dot(x, [np.ones(6)] * 2, [0, 0]),
        ValueError,
        "each mode once",
    ),
    "axis": (lambda x: tl.sum(x, axis=3), ValueError, "axis 3 is out of bounds"),
    "axis type": (lambda x: tl.sum(x, axis=1.5), TypeError, "axis is 1.5"),
    "shapes": (lambda x: tl.tenalg.inner(x, np.ones((6, 7))), ValueError, "shapes .* differ"),
    "unfold": (lambda x: tl.unfold(x, 3), ValueError, "out of bounds"),
    "reshape": (lambda x: tl.reshape(x, (5, -1)), ValueError, "cannot reshape array of size 336"),
    "rows": (lambda x: tl.unfold(x, 0) @ np.ones((5, 2)), ValueError, r"expected \(56, rank\)"),
    "dtype": (
        lambda x: tl.unfold(x, 0) @ np.ones((56, 2), "float32"),
        TypeError,
        "float32, expected float64",
    ),
    "mask": (
        lambda x: tl.tenalg.khatri_rao([np.ones((2, 2))] * 3, mask=x),
        ValueError,
        r"mask has shape \(6, 7, 8\), expected \(2, 2, 2\)",
    ),
    "fill_value": (
        lambda x: tl.tenalg.khatri_rao(
            [np.ones((2, 2))] * 2, mask=sparse.COO([[0], [1]], [0.0], (2, 2), fill_value=1.0)
        ),
        ValueError,
        "fill_value is 1.0",
    ),
    "parafac2": (lambda x: parafac2(x[0], 2), ValueError, "expected three modes"),
}


@pytest.mark.parametrize(("function", "error", "named"), _BAD.values(), ids=_BAD)
def test_bad_arguments_are_named(function, error, named):
    with pytest.raises(error, match=named):
        function(FlycooTensor.from_coo(random_coo(_SHAPE, 90)))

"""Randomised CP under "flycoo": the same samples of fibres and entries as dense TensorLy's."""

import functools
import inspect

import numpy as np
import pytest
import sparse
import tensorly as tl
from rounding import check_same_as_dense
from sparse_problems import (
    BOTH_KINDS,
    BOTH_PRECISIONS,
    EDGE_CASES,
    ErrorTracker,
    community_coo,
    dense_of,
    densification_alarm,
    planted_coo,
    random_coo,
    reconstruct,
    spread,
)
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import RandomizedCP, randomised_parafac

from tensorly_flycoo import DensifyError

_RANK = 3
_NUM_SAMPLES = 100
_SHAPES = {2: (14, 15), 3: (9, 11, 10), 4: (8, 6, 9, 7)}

#: TensorLy 0.9 samples uniformly and computes the exact error only.
_HAS_SAMPLING = "sampling" in inspect.signature(randomised_parafac).parameters
_NEEDS_SAMPLING = pytest.mark.skipif(not _HAS_SAMPLING, reason="TensorLy 0.9 has no such option")


class _Tracker(ErrorTracker):
    """An `ErrorTracker` that TensorLy also calls before the first error."""

    def __call__(self, cp_tensor, error=None):
        return False if error is None else super().__call__(cp_tensor, error)


def _decompose(x, **options):
    """Decompose with a fresh generator; also return the errors that the callback saw."""
    tracker = _Tracker(options.pop("stop_after", None))
    options = {"init": "random", "n_iter_max": 3, "tol": 0, "max_stagnation": 0} | options
    rng = np.random.RandomState(5)
    cp_tensor = randomised_parafac(
        x, _RANK, _NUM_SAMPLES, random_state=rng, callback=tracker, **options
    )
    return cp_tensor, tracker.errors


_OPTIONS = {"random": {}, "svd": {"init": "svd"}, "stops": {"stop_after": 2}}
if _HAS_SAMPLING:
    _OPTIONS |= {
        "uniform": {"sampling": "uniform"},
        "estimated": {"n_samples_fit": 100},
        "estimated-svd": {"n_samples_fit": 100, "init": "svd"},
        "exact": {"n_samples_fit": None},
    }


@BOTH_PRECISIONS
@pytest.mark.parametrize("ndim", [3, 4])
@pytest.mark.parametrize("name", _OPTIONS)
def test_same_as_dense(name, ndim, dtype, kind):
    decompose = functools.partial(_decompose, **_OPTIONS[name])
    check_same_as_dense(decompose, community_coo(_SHAPES[ndim], dtype, seed=1), kind, _RANK)


@BOTH_KINDS
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_same_as_dense_of_matrices(dtype, kind):
    coo = community_coo(_SHAPES[2], dtype, seed=1)
    check_same_as_dense(functools.partial(_decompose, init="svd"), coo, kind, _RANK)


@BOTH_KINDS
@pytest.mark.usefixtures("flycoo_backend")
def test_the_class_and_a_start(kind):
    coo = community_coo(_SHAPES[3], seed=1)
    rng = np.random.RandomState(0)
    start = CPTensor((None, [rng.random_sample((size, _RANK)) for size in coo.shape]))
    options = {"n_iter_max": 5, "init": start}
    with densification_alarm():
        decomposition = RandomizedCP(
            _RANK, _NUM_SAMPLES, random_state=np.random.RandomState(5), **options
        )
        cp_tensor = decomposition.fit_transform(kind(coo))
    expected = randomised_parafac(
        coo, _RANK, _NUM_SAMPLES, random_state=np.random.RandomState(5), tol=decomposition.tol,
        **options,
    )  # fmt: skip
    for factor, other in zip(cp_tensor.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


@BOTH_KINDS
@pytest.mark.parametrize("init", ["random", "svd"])
@pytest.mark.usefixtures("flycoo_backend")
def test_more_than_2_to_63_cells(init, kind):
    """Leverage scores find the few nonempty rows among thousands in each mode."""
    huge, _ = spread(planted_coo((8, 6, 9, 7, 6), 2, seed=1), (2**13 + 1,) * 5)
    with densification_alarm():
        cp_tensor, errors = _decompose(kind(huge), init=init, n_iter_max=5, **_exact_error())
    assert all(np.isfinite(factor).all() for factor in cp_tensor.factors)
    assert np.isfinite(errors).all()
    if init == "svd" and _HAS_SAMPLING:
        assert errors[-1] < 0.05


def _exact_error():
    return {"n_samples_fit": None} if _HAS_SAMPLING else {}


@_NEEDS_SAMPLING
@BOTH_KINDS
@pytest.mark.usefixtures("flycoo_backend")
def test_the_error_is_estimated_with_more_than_2_to_63_cells(kind):
    """The estimate is scaled by the number of cells, which would overflow 64 bits."""
    huge, _ = spread(community_coo((8, 6, 9, 7, 6), seed=1), (2**13 + 1,) * 5)
    factors = [np.ones((size, 1)) for size in huge.shape]
    errors = []

    def stop(cp_tensor, error=None):
        errors.append(error)
        return error is not None

    randomised_parafac(
        kind(huge), 1, 10, init=(None, factors), n_iter_max=1, sampling="uniform", callback=stop,
        random_state=np.random.RandomState(0),
    )  # fmt: skip
    # No sampled fibre or entry holds a nonzero, so the factors and the error are zero.
    assert errors == [None, 0.0]


_EDGE_CASES = EDGE_CASES | {"full": lambda: random_coo((3, 4, 5), 60)}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # error / norm where nnz is 0
@pytest.mark.filterwarnings("ignore:Trying to compute SVD")
@pytest.mark.parametrize("rank", [1, 8])
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize("make", _EDGE_CASES.values(), ids=_EDGE_CASES)
@pytest.mark.usefixtures("flycoo_backend")
def test_edge_cases_run_to_finite_factors(make, init, rank):
    coo = make()
    with densification_alarm():
        cp_tensor = randomised_parafac(
            coo, rank, 30, init=init, random_state=np.random.RandomState(0), n_iter_max=5
        )
    for factor, size in zip(cp_tensor.factors, coo.shape, strict=True):
        assert factor.shape == (size, rank)
        assert np.isfinite(factor).all()


@pytest.mark.usefixtures("flycoo_backend")
def test_samples_and_the_exact_error_do_not_disturb_each_other():
    """The MTTKRP of the exact error moves nonzeros; samples must not depend on where they are."""
    coo = community_coo(_SHAPES[3], seed=1)
    cp_tensor, errors = _decompose(coo, **_exact_error())
    dense = dense_of(coo)
    residual = dense - reconstruct(cp_tensor.factors, cp_tensor.weights)
    # The error is the root of a difference of squares.
    expected = np.linalg.norm(residual) / np.linalg.norm(dense)
    assert abs(errors[-1] ** 2 - expected**2) <= coo.nnz * np.finfo(float).eps


@pytest.mark.usefixtures("flycoo_backend")
def test_a_callback_may_form_dense_tensors():
    sampled = []

    def look(cp_tensor, error=None):
        sampled.append(tl.cp_to_tensor(cp_tensor))

    coo = community_coo(_SHAPES[3], seed=1)
    randomised_parafac(
        coo, 1, 10, n_iter_max=1, random_state=np.random.RandomState(0), callback=look
    )
    assert all(isinstance(dense, np.ndarray) for dense in sampled)
    with pytest.raises(DensifyError):
        tl.tensor(coo) - sampled[0]


# TensorLy's own tests with sparse input and TensorLy's thresholds.


@pytest.mark.parametrize("sampling", ["leverage", "uniform"] if _HAS_SAMPLING else [None])
@pytest.mark.usefixtures("flycoo_backend")
def test_planted_components_are_found(sampling):
    rng = np.random.RandomState(1234)
    dense = reconstruct([rng.random_sample((10, 4)) for _ in range(3)])
    options = {"sampling": sampling} if sampling else {}
    with densification_alarm():
        cp_tensor = randomised_parafac(
            sparse.COO.from_numpy(dense), 4, 100, max_stagnation=20, n_iter_max=60, tol=0,
            random_state=rng, **options,
        )  # fmt: skip
    residual = reconstruct(cp_tensor.factors, cp_tensor.weights) - dense
    assert np.linalg.norm(residual) / np.linalg.norm(dense) < 0.05


@_NEEDS_SAMPLING
@BOTH_KINDS
@pytest.mark.filterwarnings("ignore:You are creating a new random number generator")
@pytest.mark.parametrize("sampling", ["leverage", "uniform"])
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.usefixtures("flycoo_backend")
def test_more_components_than_the_rank_of_the_tensor(init, sampling, kind):
    dense = np.ones((2, 3, 4))
    cp_tensor = randomised_parafac(
        kind(sparse.COO.from_numpy(dense)), 2, 12, n_iter_max=20, init=init, random_state=1,
        sampling=sampling,
    )  # fmt: skip
    residual = reconstruct(cp_tensor.factors, cp_tensor.weights) - dense
    assert np.linalg.norm(residual) / np.linalg.norm(dense) < 1e-3


@_NEEDS_SAMPLING
@BOTH_KINDS
@pytest.mark.parametrize("n_samples_fit", [None, 4000])
@pytest.mark.usefixtures("flycoo_backend")
def test_the_error_is_near_the_exact_one(n_samples_fit, kind):
    rng = np.random.RandomState(1234)
    dense = reconstruct([rng.random_sample((20, 3)) for _ in range(3)])
    dense = dense + 0.1 * rng.standard_normal((20, 20, 20))
    estimated, exact = [], []

    def callback(cp_tensor, error=None):
        if error is not None:
            residual = reconstruct(cp_tensor.factors, cp_tensor.weights) - dense
            estimated.append(float(error))
            exact.append(np.linalg.norm(residual) / np.linalg.norm(dense))

    randomised_parafac(
        kind(sparse.COO.from_numpy(dense)), 3, 100, n_iter_max=10, tol=0, max_stagnation=0,
        random_state=rng, callback=callback, n_samples_fit=n_samples_fit,
    )  # fmt: skip
    assert len(estimated) == 10
    tolerance = 1e-5 if n_samples_fit is None else 0.05
    assert np.abs(np.array(estimated) / np.array(exact) - 1).max() < tolerance


@_NEEDS_SAMPLING
@pytest.mark.usefixtures("flycoo_backend")
def test_invalid_arguments():
    coo = sparse.COO.from_numpy(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match="n_samples"):
        randomised_parafac(coo, 2, 1)
    with pytest.raises(ValueError, match="sampling"):
        randomised_parafac(coo, 2, 10, sampling="importance")
    with pytest.raises(ValueError, match="n_samples_fit"):
        randomised_parafac(coo, 2, 10, n_samples_fit=0)

"""Non-negative and constrained CP, and operations of Tucker and parafac2, on the GPU.

CP is compared with dense TensorLy on the host, within the bound of `rounding`; the rest is compared
with the CPU engine.
"""

import functools
import importlib

import cupy
import cupyx.scipy.sparse
import numpy as np
import pytest
import scipy.sparse
import tensorly as tl
from rounding import check_same_as_dense
from sides import fetch
from sparse_problems import AS_COO, AS_FLYCOO, BOTH_PRECISIONS, community_coo, random_coo
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import (
    CP_NN,
    CP_NN_HALS,
    ConstrainedCP,
    constrained_parafac,
    non_negative_parafac,
    non_negative_parafac_hals,
    parafac2,
)

from tensorly_flycoo import DensifyError, FlycooTensor, RaggedTensor, decomposition
from tensorly_flycoo.base import array_modules
from tensorly_flycoo.decomposition import admm
from tensorly_flycoo.engines import tall as linear_algebra
from tensorly_flycoo.loop.hals import solve_nonnegative
from tensorly_flycoo.spread.levels import find_levels

RANK, SHAPE = 3, (9, 11, 10)
KINDS = pytest.mark.parametrize("kind", [AS_COO, AS_FLYCOO])
LOOP = {"n_iter_max": 4, "random_state": 5, "return_errors": True}


@pytest.fixture(params=[False, True], ids=["short", "tall"])
def rows(request, monkeypatch):
    """Treat the short factors as short or as tall: tall ones have their own functions."""
    if request.param:
        monkeypatch.setattr(linear_algebra, "MIN_TALL_ROWS", 4)


def run(function, x, **options):
    return function(x, RANK, **{**LOOP, "tol": 1e-30, **options})


def constrain(x, **options):
    return constrained_parafac(x, RANK, init="svd", **{**LOOP, "n_iter_max": 3}, **options)


MU = functools.partial(run, non_negative_parafac)
HALS = functools.partial(run, non_negative_parafac_hals)
NON_NEGATIVE = {
    "MU": functools.partial(MU, init="random"),
    "MU, svd": MU,
    "MU, normalized": functools.partial(MU, init="random", normalize_factors=True),
    "HALS": functools.partial(HALS, init="random"),
    "HALS, svd": HALS,
    "HALS, normalized": functools.partial(HALS, init="random", normalize_factors=True),
    "HALS, sparsity": functools.partial(HALS, init="random", sparsity_coefficients=[0.1] * 3),
    "HALS of one mode": functools.partial(HALS, init="random", nn_modes={0}),
}


@pytest.mark.usefixtures("rows")
@BOTH_PRECISIONS
@pytest.mark.parametrize("decompose", NON_NEGATIVE.values(), ids=NON_NEGATIVE)
def test_non_negative(decompose, dtype, kind):
    coo = community_coo(SHAPE, dtype, seed=1)
    check_same_as_dense(decompose, coo, kind, RANK, has_tensors_dtype=True)


def make_guess(xp, dtype):
    rng = np.random.RandomState(11)
    factors = [xp.asarray((0.1 + rng.random_sample((n, RANK))).astype(dtype)) for n in SHAPE]
    return CPTensor((xp.asarray(np.array([0.5, 1.0, 2.0], dtype)), factors))


@BOTH_PRECISIONS
@pytest.mark.parametrize("decompose", [MU, HALS], ids=["MU", "HALS"])
def test_non_negative_from_a_guess(decompose, dtype, kind):
    def decompose_guess(x):
        xp = np if isinstance(x, np.ndarray) else cupy
        return decompose(x, init=make_guess(xp, dtype), fixed_modes=[0])

    check_same_as_dense(decompose_guess, community_coo(SHAPE, dtype, seed=1), kind, RANK)


CONSTRAINTS = {
    "none": {},
    "non_negative": {"non_negative": True},
    "l1_reg": {"l1_reg": 1e-3},
    "l2_square_reg": {"l2_square_reg": 1e-2},
    "simplex": {"simplex": 3.0},
    "soft_sparsity": {"soft_sparsity": 1.0},
    "smoothness": {"smoothness": 0.01},
    "monotonicity": {"monotonicity": True},
    "one a mode": {"non_negative": {0: True}, "l1_reg": {1: 0.01}, "smoothness": {2: 0.1}},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_rows", [1, 130, 1000])
@pytest.mark.parametrize("rank", [1, 3, 16, 32, 33, 100])
def test_sweeps_of_hals_are_the_cpus(rank, num_rows, dtype):
    """Three sweeps with a well-conditioned matrix; each element is a sum of rank products."""
    rng = np.random.default_rng(rank)
    gram = (np.eye(rank) + 0.5 * rng.random((rank, rank)) / rank).astype(dtype)
    if rank > 1:
        gram[1, 1] = 0  # leaves a column unchanged
    targets = rng.standard_normal((num_rows, rank)).astype(dtype)
    start = rng.random((num_rows, rank)).astype(dtype)
    expected = solve_nonnegative(targets, gram, start, 3, 0.0, 0.1)
    on_gpu = [cupy.asarray(array) for array in (targets, gram, start)]
    found = solve_nonnegative(*on_gpu, 3, 0.0, 0.1)
    again = solve_nonnegative(*on_gpu, 3, 0.0, 0.1)
    largest = max(np.abs(targets).max(), 1)
    assert np.abs(found.get() - expected).max() <= 30 * (rank + 2) * np.finfo(dtype).eps * largest
    assert found.get().tobytes() == again.get().tobytes()


def test_hals_stops_and_keeps_nan():
    rows = cupy.ones((5, 2))
    gram, targets = cupy.asarray([[2.0, 1.0], [1.0, 2.0]]), cupy.asarray([[4.0, 1.0]] * 5)
    targets[3, 0] = cupy.nan
    rows = solve_nonnegative(targets, gram, rows, 100, 0.0)
    np.testing.assert_array_equal(rows[:3].get(), [[2, 0]] * 3)
    assert cupy.isnan(rows[3, 0])


@pytest.mark.usefixtures("rows")
@BOTH_PRECISIONS
@pytest.mark.parametrize("options", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_constrained(options, dtype, kind):
    decompose = functools.partial(constrain, **options)
    coo = community_coo(SHAPE, dtype, seed=1)
    check_same_as_dense(decompose, coo, kind, RANK, has_tensors_dtype=True)


@KINDS
@pytest.mark.parametrize(
    "model",
    [
        CP_NN(RANK, n_iter_max=2),
        CP_NN_HALS(RANK, n_iter_max=2),
        ConstrainedCP(RANK, n_iter_max=2, non_negative=True),
    ],
    ids=lambda model: type(model).__name__,
)
def test_classes(model, kind):
    x = kind(random_coo(SHAPE, 200))
    cp_tensor = model.fit_transform(x)
    for factor, size in zip(cp_tensor.factors, SHAPE, strict=True):
        assert factor.shape == (size, RANK)
        assert np.isfinite(fetch(factor, x)).all()


# The same on both engines


def matrices(x):
    """Make a matrix for each mode, on the device of the tensor."""
    rng = np.random.RandomState(3)
    return [tl.tensor(rng.uniform(-1, 1, (size, 2)), **tl.context(x)) for size in x.shape]


def multiply(x, first, **options):
    modes = list(range(first, x.ndim))
    return tl.tenalg.multi_mode_dot(x, matrices(x)[first:], modes, transpose=True, **options)


#: Signs of singular vectors are arbitrary.
ON_BOTH = {
    "all matrices": lambda x: [multiply(x, 0)],
    "all matrices but one": lambda x: [multiply(x, 1)],
    "one skipped": lambda x: [
        abs(tl.svd_interface(tl.unfold(multiply(x, 0, skip=1), 1), n_eigenvecs=2)[0])
    ],
    "one matrix": lambda x: [tl.tenalg.mode_dot(x[0, 1], matrices(x)[2].T, 0)],
}


def compare(found, expected, x):
    for array, other in zip(found, expected, strict=True):
        assert np.abs(fetch(array, x) - other).max() <= 1e-9 * np.abs(other).max()


@KINDS
@pytest.mark.parametrize("function", ON_BOTH.values(), ids=ON_BOTH)
def test_as_on_the_cpu(function, kind):
    coo = random_coo((6, 5, 5, 7), 500)
    x = kind(coo)
    compare(function(x), function(FlycooTensor.from_coo(coo, device="cpu")), x)


PARAFAC2 = {
    "plain": {},
    "normalized": {"normalize_factors": True},
    "line search": {"linesearch": True},
    "non-negative": {"nn_modes": {0}},
    "svd": {"init": "svd"},
}


@KINDS
@pytest.mark.parametrize("options", PARAFAC2.values(), ids=PARAFAC2)
def test_parafac2_of_slices_of_several_heights(options, kind):
    slices = [random_coo((size, 7), 5 * size, seed=size) for size in (5, 8, 11)]
    options = {"random_state": 0, "n_iter_max": 5, "return_errors": True, **options}
    on_cpu = [FlycooTensor.from_coo(part, device="cpu") for part in slices]
    expected, expected_errors = parafac2(on_cpu, 2, **options)
    given = [kind(part) for part in slices]
    found, errors = parafac2(given, 2, **options)
    np.testing.assert_allclose([float(e) for e in errors], expected_errors, rtol=1e-8)
    fetch(found.factors[0], given[0])
    assert [p.shape for p in found.projections] == [p.shape for p in expected.projections]


@pytest.mark.parametrize("longest", [2**12, 6], ids=["batched", "one by one"])
@pytest.mark.parametrize("options", [{"center": True}, {"normalize_factors": True}], ids=str)
def test_parafac2_of_ragged_slices(options, longest, monkeypatch):
    """Some have fewer rows than the rank, some fewer nonzeros."""
    module = importlib.import_module("tensorly_flycoo.loop.projected_slices")
    monkeypatch.setattr(module, "_MAX_BATCHED_ROWS", longest)
    slices = [random_coo((n, 7), 1 + 2 * n, seed=k) for k, n in enumerate((5, 8, 2, 11, 8, 1) * 5)]
    options = {"random_state": 0, "n_iter_max": 6, "return_errors": True, **options}
    found = {}
    for device in ("cpu", "cuda", "cuda"):
        x = RaggedTensor(slices, device=device)
        model, errors = decomposition.parafac2(x, 4, **options)
        arrays = [
            a.get() if isinstance(a, cupy.ndarray) else a
            for a in (*model.factors, *model.projections)
        ]
        if device in found:  # the same bits again
            assert errors == found[device][0]
            assert all(map(np.array_equal, arrays, found[device][1]))
        found[device] = errors, arrays
    np.testing.assert_allclose(found["cuda"][0], found["cpu"][0], rtol=1e-8)
    for part in found["cuda"][1][3:]:
        gram = part.T @ part if len(part) >= 4 else part @ part.T
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-10)


@pytest.mark.parametrize("is_on_gpu", [False, True], ids=["scipy", "cupyx"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parafac2_of_rows_divided_by_labels(dtype, is_on_gpu):
    matrix = scipy.sparse.random_array((40, 9), density=0.5, rng=0, dtype=dtype, format="csr")
    labels = np.random.default_rng(0).integers(0, 6, 40)
    given = cupyx.scipy.sparse.csr_matrix(scipy.sparse.csr_matrix(matrix)) if is_on_gpu else matrix
    options = {"random_state": 0, "n_iter_max": 8, "return_errors": True, "nn_modes": [0, 2]}
    options |= {"sparsity_coefficients": 0.01, "normalize_factors": True}
    x = RaggedTensor(given, by=labels, device="cuda")
    model, errors = decomposition.parafac2(x, 3, **options)
    expected = RaggedTensor(matrix, by=labels, device="cpu")
    assert x.labels["slice"].tolist() == expected.labels["slice"].tolist()
    _, expected_errors = decomposition.parafac2(expected, 3, **options)
    assert all(isinstance(array, cupy.ndarray) for array in (*model.factors, *model.projections))
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-8 if dtype == "float64" else 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scales_of_parafac2_of_one_slice_of_lower_rank_stay_finite(dtype):
    dense = np.zeros((5, 4), dtype)
    dense[3, 1], dense[1, 1] = 0.99, 0.3
    x = RaggedTensor([scipy.sparse.csr_array(dense)], device="cuda")
    options = {"random_state": 0, "n_iter_max": 100, "tol": None, "return_errors": True}
    model, errors = decomposition.parafac2(x, 2, **options)
    assert errors[-1] < 1e3 * np.finfo(dtype).eps ** 0.5
    limit = float(np.finfo(dtype).max) ** 0.5
    assert all(float(abs(factor).max()) < limit for factor in model.factors)


@KINDS
def test_regressors_refuse(kind):
    x = kind(random_coo(SHAPE, 200))
    for regressor in (tl.regression.CPRegressor(2), tl.regression.TuckerRegressor([2, 2])):
        with pytest.raises(DensifyError, match="would make a dense array"):
            regressor.fit(x, cupy.ones(SHAPE[0]))


def halve_small(rows):
    """A proximal operator of one's own, for arrays of either kind."""
    return rows.clip(0) - 0.5 * rows.clip(0, 0.1)


@BOTH_PRECISIONS
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("constrained_parafac", {"prox": halve_small}),
        ("constrained_parafac", {"non_negative": True, "linesearch": "nesterov"}),
        ("non_negative_parafac", {"linesearch": "nesterov"}),
        ("non_negative_parafac_hals", {"exact": True}),
    ],
)
def test_options_of_ours_give_the_errors_of_the_cpu(name, options, dtype, kind):
    """Ten iterations; rounding may decide where an inner loop or a step of momentum ends."""
    coo = community_coo(SHAPE, dtype, seed=1)
    options = {"init": "random", "random_state": 0, "n_iter_max": 10, **options}
    errors = []
    for device in ("cpu", "cuda"):
        with tl.backend_context("flycoo"):
            x = FlycooTensor.from_coo(coo, device=device)
            result = getattr(decomposition, name)(x, RANK, return_errors=True, **options)
        errors.append([float(error) for error in result[1]])
    bound = {"float32": 1e-3, "float64": 1e-6}[dtype]
    np.testing.assert_allclose(errors[1], errors[0], rtol=0, atol=bound)


def test_mostly_negative_values_give_the_errors_of_the_cpu(monkeypatch):
    """Steps of ADMM leave nothing above zero; both engines take them to the same levels."""
    found = []

    def find_and_list(*arguments):
        levels = find_levels(*arguments)
        found.append(not np.isnan(levels).all())
        return levels

    monkeypatch.setattr(admm, "find_levels", find_and_list)
    coo = random_coo((40, 30, 20), 4000)
    coo.data = np.random.default_rng(0).standard_normal(coo.nnz) - 1
    options = {"init": "random", "random_state": 0, "n_iter_max": 10, "tol_outer": -1}
    errors = []
    for device in ("cpu", "cuda"):
        found.clear()
        x = FlycooTensor.from_coo(coo, device=device)
        with tl.backend_context("flycoo"):
            _, own = constrained_parafac(x, 5, non_negative=True, return_errors=True, **options)
        assert any(found)
        errors.append([float(error) for error in own])
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-6)


#: Functions whose iterations wait for the GPU once, for the error, and their tolerance.
WAITING_ONCE = [
    pytest.param(decomposition.non_negative_parafac, {"tol": -1}, id="mu"),
    pytest.param(decomposition.non_negative_parafac_hals, {"tol": -1}, id="hals"),
    pytest.param(constrained_parafac, {"tol_outer": -1, "non_negative": True}, id="admm"),
    pytest.param(constrained_parafac, {"tol_outer": -1, "l1_reg": 0.01}, id="l1"),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("function", "options"), WAITING_ONCE)
def test_an_iteration_does_not_read_from_the_gpu(function, options, dtype, monkeypatch):
    """Nothing is copied to the host; the kernel that computes the error writes it there."""
    x = FlycooTensor.from_coo(community_coo(SHAPE, dtype, seed=1), device="cuda")
    copied = []
    copy_parts = array_modules.copy_parts

    def copy_and_list(source, target):
        copied.append(source)
        copy_parts(source, target)

    options = {"init": "random", "random_state": 0, "return_errors": True, **options}
    with tl.backend_context("flycoo"):
        _, few = function(x, RANK, n_iter_max=2, **options)
        monkeypatch.setattr(array_modules, "copy_parts", copy_and_list)
        counts = []
        for n_iter_max in (2, 6):
            copied.clear()
            _, errors = function(x, RANK, n_iter_max=n_iter_max, **options)
            counts.append(len(copied))
    assert errors[:2] == few
    assert all(isinstance(error, float) for error in errors)
    assert counts[0] == counts[1]

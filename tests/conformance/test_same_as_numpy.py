"""parafac under "flycoo" against dense TensorLy on numpy: same seed, same errors per iteration.

The bound. One step of ALS solves ``F P = M`` for a factor F. Both sides compute M, the MTTKRP, by
sums of row_nnz products of ndim numbers (products with a zero add nothing, so the dense sum rounds
no more often than the sparse one), P by ndim products, and the solution by sums of rank products.
Solving amplifies the deviations by the condition number of P with its diagonal scaled to one
(Higham, Accuracy and Stability of Numerical Algorithms, 10.1). Each step starts from the result of
the previous one, so to first order deviations add up. Rounding errors of n operations add up to
about sqrt(n) eps (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019);
the strict bound n eps would accept errors that are plainly wrong in float32. So

    |e_k^2 - e'_k^2|  <=  sqrt(steps * (row_nnz + 2 * ndim + 2 * rank)) * eps * kappa * (1 + e_k)^2

with kappa the largest condition number in the dense run, recorded while it runs, times a factor for
some options. Squares are compared because TensorLy computes ``e = sqrt(|norm^2 + rec^2 -
2 iprod|)``, which cancels near an exact fit; (1 + e)^2 bounds the three terms over norm^2. A test
fails if its bound is so weak that it would accept anything.
"""

import contextlib
import re

import numpy as np
import pytest
import sparse
import tensorly as tl
from sparse_problems import (
    BOTH_KINDS,
    ErrorTracker,
    community_coo,
    dense_of,
    densification_alarm,
    planted_coo,
    reconstruct,
)
from tensorly.backend.numpy_backend import NumpyBackend
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac

import tensorly_flycoo

_RANK = 3
_NUM_ITERATIONS = 8

_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")

_SHAPES = {2: (14, 15), 3: (9, 11, 10), 4: (8, 6, 9, 7), 5: (6, 6, 7, 5, 6)}
_BY_NDIM = pytest.mark.parametrize("ndim", [2, 3, 4, 5], ids="ndim{}".format)
_DTYPES = ["float32", "float64", "int64", "bool"]
_BY_DTYPE = pytest.mark.parametrize("dtype", _DTYPES)

#: A bound above this proves too little.
_WEAKEST_BOUNDS = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-2}


def _init(shape, dtype, weights=None):
    rng = np.random.RandomState(11)
    factors = [rng.random_sample((size, _RANK)).astype(dtype) for size in shape]
    return CPTensor((weights if weights is None else np.array(weights, dtype), factors))


#: Options of parafac; a function makes them for a shape and the dtype of factors.
_OPTIONS = {
    "random": lambda shape, dtype: {"init": "random"},
    "svd": lambda shape, dtype: {},
    "init": lambda shape, dtype: {"init": _init(shape, dtype)},
    "weighted-init": lambda shape, dtype: {"init": _init(shape, dtype, [0.5, 1.0, 2.0])},
    "normalize": lambda shape, dtype: {"init": "random", "normalize_factors": True},
    "normalize-svd": lambda shape, dtype: {"normalize_factors": True},
    "orthogonalise": lambda shape, dtype: {"init": "random", "orthogonalise": True},
    "orthogonalise-3": lambda shape, dtype: {"init": "random", "orthogonalise": 3},
    "l2_reg": lambda shape, dtype: {"init": "random", "l2_reg": 0.1},
    "fixed-first": lambda shape, dtype: {"init": "random", "fixed_modes": [0]},
    "fixed-middle": lambda shape, dtype: {
        "init": _init(shape, dtype), "fixed_modes": list(range(1, len(shape) - 1))
    },
    "linesearch": lambda shape, dtype: {"init": "random", "linesearch": True, "n_iter_max": 9},
    "callback": lambda shape, dtype: {"init": "random", "callback": ErrorTracker()},
    "callback-svd": lambda shape, dtype: {"callback": ErrorTracker()},
    "callback-stops": lambda shape, dtype: {"init": "random", "callback": ErrorTracker(4)},
    "normalize-and": lambda shape, dtype: {
        "init": "random", "normalize_factors": True, "l2_reg": 0.1, "linesearch": True,
        "callback": ErrorTracker(), "n_iter_max": 9,
    },
    "fixed-and": lambda shape, dtype: {
        "init": "random", "fixed_modes": [0], "l2_reg": 0.1, "linesearch": True,
        "orthogonalise": 2, "callback": ErrorTracker(), "n_iter_max": 9,
    },
}  # fmt: skip


def _factor_dtype(coo):
    return np.dtype(np.float32 if coo.dtype == np.float32 else np.float64)


class _DenseRun:
    """Decompose the dense twin under numpy and record the condition numbers."""

    def __init__(self, coo, options):
        self.dtype = _factor_dtype(coo)  # TensorLy would make integer factors of integers
        self.dense = dense_of(coo, self.dtype)
        self.conditions = [1.0]
        # For matrices, TensorLy's core algebra loses the weights: its `khatri_rao` returns a single
        # factor unchanged. Its einsum algebra keeps them.
        tenalg = "einsum" if coo.ndim == 2 else "core"
        with tl.backend_context("numpy"), _tenalg_backend(tenalg), self._recording():
            self.cp_tensor, errors = parafac(self.dense, return_errors=True, **options)
        self.errors = np.array(errors, np.float64)
        self.kappa = max(self.conditions) * self._amplification(options)
        self.row_nnz = max(np.bincount(rows).max() for rows in coo.coords)

    @contextlib.contextmanager
    def _recording(self):
        solve = NumpyBackend.solve

        def recording_solve(matrix, right_hand_sides):
            matrix64 = matrix.astype(np.float64)
            scales = np.sqrt(np.diagonal(matrix64))
            self.conditions.append(np.linalg.cond(matrix64 / np.outer(scales, scales)))
            return solve(matrix, right_hand_sides)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NumpyBackend, "solve", staticmethod(recording_solve))
            yield

    def _amplification(self, options):
        """Bound the growth of deviations outside `solve`: from singular vectors and line search."""
        growth = 1.0
        if options.get("init", "svd") == "svd":
            # Ours are eigenvectors of X X^T. They rotate by the error of that matrix over the gap
            # between its eigenvalues.
            growth *= max(self._svd_condition(mode) for mode in range(self.dense.ndim))
        if options.get("linesearch"):
            # new = last + jump * (factor - last), at every even iteration above 5.
            for iteration in range(6, options["n_iter_max"], 2):
                growth *= 2 * np.sqrt(iteration)
        return growth

    def _svd_condition(self, mode):
        matrix = np.moveaxis(self.dense, mode, 0).reshape(self.dense.shape[mode], -1)
        squares = np.append(np.linalg.svd(matrix, compute_uv=False) ** 2, 0)
        return squares[0] / -np.diff(squares[: _RANK + 1]).max()

    def bound(self, errors):
        """Bound the deviation of squared errors, and check that the bound is not too weak."""
        steps = max(len(self.conditions) - 1, 1)
        operations = steps * (self.row_nnz + 2 * self.dense.ndim + 2 * _RANK)
        bound = np.sqrt(operations) * np.finfo(self.dtype).eps * self.kappa
        assert bound < _WEAKEST_BOUNDS[self.dtype]
        return bound * (1 + errors) ** 2

    def check_errors(self, got, errors=None):
        errors = self.errors if errors is None else np.array(errors)
        assert len(got) == len(errors)
        assert (np.abs(np.square(got) - np.square(errors)) <= self.bound(errors)).all()


@contextlib.contextmanager
def _tenalg_backend(name):
    """Set TensorLy's tensor algebra; its own context manager fails on exit up to 0.9."""
    before = tl.tenalg.get_backend()
    tl.tenalg.set_backend(name)
    try:
        yield
    finally:
        tl.tenalg.set_backend(before)


def _sparse_parafac(x, **options):
    with tl.backend_context("flycoo"), densification_alarm():
        return parafac(x, **options)


def _problem(ndim, dtype):
    return community_coo(_SHAPES[ndim], dtype, seed=1)


def _options(name, coo, **more):
    options = {"rank": _RANK, "n_iter_max": _NUM_ITERATIONS, "random_state": 5, "tol": 0}
    return options | _OPTIONS[name](coo.shape, _factor_dtype(coo)) | more


@_BY_NDIM
@_BY_DTYPE
@pytest.mark.parametrize("name", _OPTIONS)
def test_same_errors_per_iteration(name, dtype, ndim):
    coo = _problem(ndim, dtype)
    options, dense_options = _options(name, coo), _options(name, coo)
    expected = _DenseRun(coo, dense_options)
    cp_tensor, errors = _sparse_parafac(coo, return_errors=True, **options)
    expected.check_errors(errors)
    if "callback" in options:
        expected.check_errors(options["callback"].errors, dense_options["callback"].errors)
    assert {factor.dtype for factor in cp_tensor.factors} == {expected.dtype}


@pytest.mark.usefixtures("modes_in_groups")
@pytest.mark.parametrize("ndim", [3, 4, 5], ids="ndim{}".format)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", _OPTIONS)
def test_same_errors_per_iteration_with_groups(name, dtype, ndim):
    test_same_errors_per_iteration(name, dtype, ndim)


@_BY_NDIM
@pytest.mark.parametrize("cvg_criterion", ["abs_rec_error", "rec_error"])
@pytest.mark.parametrize(
    ("init", "dtype"),
    # With an SVD start, the float32 bound exceeds any tol that stops after a few iterations.
    [("random", dtype) for dtype in _DTYPES] + [("svd", dtype) for dtype in _DTYPES[1:]],
)
def test_same_number_of_iterations(init, cvg_criterion, dtype, ndim):
    coo, tol = _problem(ndim, dtype), 2e-3
    options = _options("random", coo, init=init, tol=tol, cvg_criterion=cvg_criterion)
    expected = _DenseRun(coo, options | {"n_iter_max": 30})
    _, errors = _sparse_parafac(coo, return_errors=True, **options | {"n_iter_max": 30})
    # No decrease of the error is so close to tol that rounding could decide.
    margin = 2 * expected.bound(expected.errors[-1]) / expected.errors[-1]
    assert (np.abs(-np.diff(expected.errors) - tol) > margin).all()
    assert 2 <= len(expected.errors) < 30
    expected.check_errors(errors)


@_BY_NDIM
@_BY_DTYPE
@pytest.mark.parametrize("init", ["random", "svd"])
def test_same_decomposition_without_computing_errors(init, dtype, ndim):
    coo = _problem(ndim, dtype)
    options = _options("random", coo, init=init)
    expected = _DenseRun(coo, options)
    cp_tensor = _sparse_parafac(coo, **options)
    difference = reconstruct(cp_tensor.factors) - reconstruct(expected.cp_tensor.factors)
    # Unlike the error, the reconstruction is not at a minimum: to first order it deviates by kappa
    # times the deviation of the factors, and each sweep passes that on.
    bound = expected.bound(expected.errors[-1]) * _NUM_ITERATIONS
    assert np.linalg.norm(difference) <= bound * np.linalg.norm(expected.dense)


@_BY_DTYPE
@pytest.mark.parametrize("shape", [(15, 18, 21), (15, 12, 14, 13)])
def test_randomized_svd_starts_as_numpys(shape, dtype):
    """The same algorithm, from the same random numbers, where it leaves vectors out."""
    coo = community_coo(shape, dtype, seed=1)
    options = {**_options("svd", coo), "svd": "randomized_svd"}
    _, errors = _sparse_parafac(coo, return_errors=True, **options)
    _DenseRun(coo, options).check_errors(errors)


@pytest.mark.parametrize("seed", range(3))
def test_randomized_svd_fits_as_well_as_numpys(seed):
    coo = planted_coo((9, 11, 10), _RANK, seed)
    options = {"rank": _RANK, "svd": "randomized_svd", "tol": 1e-9, "random_state": seed}
    with tl.backend_context("numpy"):
        _, expected = parafac(dense_of(coo), return_errors=True, **options)
    _, errors = _sparse_parafac(coo, return_errors=True, **options)
    assert expected[-1] < 1e-3
    assert errors[-1] < 1e-3


@BOTH_KINDS
@pytest.mark.parametrize("verbose", [1, 2])
def test_verbose_prints_the_same_lines(verbose, kind, capsys):
    coo = _problem(3, np.float64)
    printed = []
    for x, backend in [(dense_of(coo), "numpy"), (kind(coo), "flycoo")]:
        with tl.backend_context(backend):
            parafac(
                x, _RANK, init="random", random_state=5, linesearch=True, n_iter_max=12, tol=1e-12,
                verbose=verbose, callback=ErrorTracker(),
            )  # fmt: skip
        printed.append(capsys.readouterr().out)
    expected, got = (_NUMBER.split(text) for text in printed)
    assert got == expected
    assert "Accepted line search jump" in printed[0]
    numbers = (np.array(_NUMBER.findall(text), float) for text in printed)
    np.testing.assert_allclose(*numbers, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("tenalg", ["core", "einsum"])
@pytest.mark.parametrize("name", ["random", "svd", "normalize", "callback", "linesearch"])
def test_both_tensor_algebras_give_the_same_bits(name, tenalg):
    coo = _problem(4, np.float64)
    first = _sparse_parafac(coo, return_errors=True, **_options(name, coo))
    with _tenalg_backend(tenalg):
        second = _sparse_parafac(coo, return_errors=True, **_options(name, coo))
    _check_same_bits(first, second)


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("name", ["random", "svd", "normalize", "callback", "linesearch"])
def test_both_layouts_give_the_bits_of_the_raw_tensor(name, layout):
    coo = _problem(4, np.float64)
    x = tensorly_flycoo.FlycooTensor.from_coo(coo, layout=layout)
    first = _sparse_parafac(coo, return_errors=True, **_options(name, coo))
    second = _sparse_parafac(x, return_errors=True, **_options(name, coo))
    _check_same_bits(first, second)


def test_components_of_very_different_sizes_are_all_found():
    # Two blocks on the diagonal: each step solves two independent problems. Their matrix is
    # diagonal, so perfectly conditioned after scaling, whatever the ratio of its entries.
    blocks = np.repeat(np.eye(2), 6, axis=0)
    coords = np.stack(np.nonzero(reconstruct([blocks] * 3)))
    sizes = np.where(coords[0] < 6, 1e10, 1.0)
    values = sizes * (1 + np.random.RandomState(0).random_sample(sizes.size))
    coo = sparse.COO(coords, values, shape=(12, 12, 12))
    start = [blocks * np.random.RandomState(n).random_sample((12, 2)) for n in range(3)]
    options = {"rank": 2, "n_iter_max": 5, "tol": 0, "init": CPTensor((None, start))}
    expected = _DenseRun(coo, options)
    cp_tensor = _sparse_parafac(coo, **options)
    for component in range(2):
        of_numpy, ours = (
            reconstruct([factor[:, [component]] for factor in cp.factors])
            for cp in (expected.cp_tensor, cp_tensor)
        )
        bound = expected.bound(1.0) * np.linalg.norm(of_numpy)
        assert np.linalg.norm(ours - of_numpy) <= bound


def _check_same_bits(first, second):
    (first, first_errors), (second, second_errors) = first, second
    np.testing.assert_array_equal(first_errors, second_errors)
    np.testing.assert_array_equal(first.weights, second.weights)
    for factor, other in zip(first.factors, second.factors, strict=True):
        np.testing.assert_array_equal(factor, other)

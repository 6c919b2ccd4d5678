"""parafac on the GPU: the CPU's errors, iteration by iteration, and nothing leaves the device."""

import sys

import cupy
import numpy as np
import pytest
import sparse
import tensorly as tl
from sides import fetch
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import CP, parafac

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines import tall as linear_algebra
from tensorly_flycoo.loop import whole_tensor
from tensorly_flycoo.loop.whole_tensor import WholeTensor
from tensorly_flycoo.tensor.coo_cache import as_flycoo

SHAPE, RANK, NUM_ITERATIONS = (30, 20, 10), 3, 8
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def make_coo(dtype="float64", shape=SHAPE, nnz=600, seed=0):
    coo = sparse.random(shape, nnz=nnz, random_state=seed)
    return sparse.COO(coo.coords, coo.data.astype(dtype), shape)


def to_raw_coo(coo):
    return coo


def to_tensor(coo):
    return FlycooTensor.from_coo(coo, device="cuda")


def to_tensor_of_device_arrays(coo):
    return FlycooTensor(cupy.asarray(coo.coords), cupy.asarray(coo.data), coo.shape)


KINDS = pytest.mark.parametrize("convert", [to_raw_coo, to_tensor, to_tensor_of_device_arrays])


def make_guess(convert, dtype="float64"):
    rng = np.random.default_rng(1)
    factors = [rng.random((size, RANK)).astype(dtype) for size in SHAPE]
    weights = np.array([1.0, 2.0, 0.5], dtype)
    return CPTensor((convert(weights), list(map(convert, factors))))


def decompose(x, on_gpu, init="random", **options):
    """Run parafac; return the result and the errors as floats."""
    if not isinstance(init, str):
        init = init(cupy.asarray if on_gpu else np.asarray)
    options = {"n_iter_max": NUM_ITERATIONS, "tol": 0, "random_state": 0, **options}
    cp_tensor, errors = parafac(x, RANK, init=init, return_errors=True, **options)
    return cp_tensor, [float(error) for error in errors]


def assert_same_result(found, expected, dtype, x=None):
    """ALS carries rounding errors along, but a wrong step changes the first digits."""
    (found, errors), (expected, expected_errors) = found, expected
    tolerance = 2e-4 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(errors, expected_errors, rtol=tolerance)
    arrays = zip(
        [found.weights, *found.factors], [expected.weights, *expected.factors], strict=True
    )
    for array, expected_array in arrays:
        assert array.dtype == dtype
        size = np.abs(expected_array).max()
        # Signs of columns are arbitrary when factors are made orthonormal.
        assert (
            np.abs(np.abs(fetch(array, x)) - np.abs(expected_array)).max() <= 50 * tolerance * size
        )


OPTIONS = [
    {"init": "random"},
    {"init": "svd"},
    {"init": "svd", "svd": "randomized_svd"},
    {"init": make_guess},
    {"normalize_factors": True},
    {"init": "svd", "normalize_factors": True},
    {"orthogonalise": 3},
    {"l2_reg": 0.1},
    {"init": make_guess, "fixed_modes": [0]},
    {"linesearch": True, "n_iter_max": 12},
    {"linesearch": "nesterov", "n_iter_max": 12},
    {"linesearch": "gauss-newton", "n_iter_max": 12},
    {"tol": 1e-3, "n_iter_max": 50},
    {"tol": 1e-3, "n_iter_max": 50, "cvg_criterion": "rec_error"},
]


@DTYPES
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options)))
def test_the_errors_of_the_cpu(options, dtype):
    coo = make_coo(dtype)
    if dtype == "float32" and "init" in options and options["init"] is make_guess:
        options = {**options, "init": lambda convert: make_guess(convert, dtype)}
    found = decompose(to_tensor(coo), on_gpu=True, **options)
    expected = decompose(FlycooTensor.from_coo(coo, device="cpu"), on_gpu=False, **options)
    assert_same_result(found, expected, dtype)


@KINDS
@pytest.mark.parametrize("init", ["random", "svd"])
def test_every_kind_of_tensor(init, convert):
    coo = make_coo()
    x = convert(coo)
    found = decompose(x, on_gpu=True, init=init)
    expected = decompose(FlycooTensor.from_coo(coo, device="cpu"), on_gpu=False, init=init)
    assert_same_result(found, expected, "float64", x)


def test_the_errors_of_dense_numpy():
    coo = make_coo()
    found = decompose(coo, on_gpu=True)
    with tl.backend_context("numpy"):
        expected = decompose(coo.todense(), on_gpu=False)
    assert_same_result(found, expected, "float64", coo)


@DTYPES
def test_gauss_newton_where_components_are_alike(dtype):
    """It ends at the error of the CPU, far below that of plain iterations."""
    rng = np.random.default_rng(0)
    bases = [rng.standard_normal((20, 1)) for _ in range(3)]
    factors = [base + 0.3 * rng.standard_normal((20, 4)) for base in bases]
    coo = sparse.COO(np.einsum("ir,jr,kr->ijk", *factors).astype(dtype))
    options = {"rank": 4, "init": "random", "random_state": 1, "n_iter_max": 60, "tol": 0}
    ends = {}
    for linesearch in (False, "gauss-newton", "auto"):
        x = FlycooTensor.from_coo(coo, device="cuda")
        errors = parafac(x, linesearch=linesearch, return_errors=True, **options)[1]
        ends[linesearch] = float(errors[-1])
    assert max(ends["gauss-newton"], ends["auto"]) < 0.1 * ends[False]


def test_tall_factors_take_the_functions_in_blocks(monkeypatch):
    """normalize_factors, orthogonalise and tol together use all of them."""
    coo = make_coo("float32", (3000, 2500, 2100), 20_000)
    options = {"normalize_factors": True, "orthogonalise": 2}
    expected = decompose(to_tensor(coo), on_gpu=True, **options)
    monkeypatch.setattr(linear_algebra, "MIN_TALL_ROWS", 2048)
    found = decompose(to_tensor(coo), on_gpu=True, **options)
    np.testing.assert_allclose(found[1], expected[1], rtol=2e-4)


@pytest.mark.parametrize("linesearch", [False, "gauss-newton"])
@DTYPES
def test_the_same_seed_gives_the_same_bits(dtype, linesearch):
    options = {"on_gpu": True, "linesearch": linesearch, "n_iter_max": 12}
    runs = [decompose(make_coo(dtype), **options)[0] for _ in range(2)]
    for first, second in zip(runs[0].factors, runs[1].factors, strict=True):
        np.testing.assert_array_equal(first, second)


@DTYPES
@pytest.mark.parametrize("options", [{}, {"fixed_modes": [0]}, {"tol": 1e-3}])
def test_an_mttkrp_that_is_launched_early_is_the_same(options, dtype, monkeypatch):
    """The next iteration's first one is launched before the host waits for the error."""
    x, options, launched, num_early = to_tensor(make_coo(dtype)), {"tol": -1.0} | options, [], []
    multiply, look_ahead = whole_tensor.multiply, WholeTensor.look_ahead

    def look(self, factors):
        num_before = len(launched)
        look_ahead(self, factors)
        num_early.append(len(launched) - num_before)

    def multiply_and_count(*arguments, **options):
        launched.append(1)
        return multiply(*arguments, **options)

    loop = sys.modules["tensorly_flycoo.decomposition.parafac"]
    monkeypatch.setattr(loop, "suits", lambda *_: False)  # no whole iterations
    monkeypatch.setattr(whole_tensor, "multiply", multiply_and_count)
    monkeypatch.setattr(WholeTensor, "look_ahead", look)
    found, errors = decompose(x, True, **options)
    assert num_early == [int(n < NUM_ITERATIONS) for n in range(1, len(errors) + 1)]
    assert len(errors) < NUM_ITERATIONS or options["tol"] < 0
    monkeypatch.setattr(WholeTensor, "look_ahead", lambda self, factors: None)
    expected, expected_errors = decompose(x, True, **options)
    assert errors == expected_errors
    for factor, other in zip(found.factors, expected.factors, strict=True):
        assert factor.tobytes() == other.tobytes()


def test_integers_are_counts():
    coo = sparse.COO(make_coo().coords, np.arange(1, 601), SHAPE)
    cp_tensor, _ = decompose(coo, on_gpu=True)
    assert {factor.dtype for factor in cp_tensor.factors} == {np.dtype("float64")}


def test_callback_and_verbose(capsys):
    seen = []
    parafac(
        make_coo(), RANK, init="random", random_state=0, n_iter_max=4, verbose=1,
        callback=lambda cp_tensor, error: seen.append((type(cp_tensor.factors[0]), float(error))),
    )  # fmt: skip
    kinds, errors = zip(*seen, strict=True)
    assert set(kinds) == {np.ndarray}
    assert len(errors) == 5
    assert f"{errors[1]}"[:6] in capsys.readouterr().out


def test_the_class():
    _, errors = decompose(make_coo(), on_gpu=True)
    model = CP(RANK, init="random", random_state=0, tol=0, n_iter_max=NUM_ITERATIONS)
    model.fit_transform(make_coo())
    assert isinstance(model.decomposition_.factors[0], np.ndarray)
    if len(model.errors_):
        np.testing.assert_array_equal([float(error) for error in model.errors_], errors)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_guess_on_the_other_side_is_moved(device):
    """The factors are where the tensor is."""
    x = FlycooTensor.from_coo(make_coo(), device=device)
    runs = [
        parafac(x, RANK, init=make_guess(convert), n_iter_max=2)
        for convert in (np.asarray, cupy.asarray)
    ]
    assert isinstance(runs[0].factors[0], cupy.ndarray if device == "cuda" else np.ndarray)
    for first, second in zip(runs[0].factors, runs[1].factors, strict=True):
        np.testing.assert_array_equal(tl.to_numpy(first), tl.to_numpy(second))


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 2), ({"normalize_factors": True}, 2), ({"orthogonalise": True}, 15)],
)
def test_nothing_but_small_matrices_comes_to_the_host(options, most, monkeypatch):
    sizes, get = [], cupy.ndarray.get

    def record(array, *arguments, **keywords):
        sizes.append(array.size)
        return get(array, *arguments, **keywords)

    x = to_tensor(make_coo(shape=(3000, 1500, 1200), nnz=20_000))
    monkeypatch.setattr(cupy.ndarray, "get", record)
    monkeypatch.setattr(linear_algebra, "MIN_TALL_ROWS", 1024)
    parafac(x, RANK, init="random", random_state=0, n_iter_max=5, **options)
    assert 0 < len(sizes) <= most  # of five iterations
    assert max(sizes) <= RANK**2


def test_a_tensor_on_the_host_stays_there():
    x = FlycooTensor.from_coo(make_coo(), device="cpu")
    cp_tensor, _ = decompose(x, on_gpu=False)
    assert {type(factor) for factor in cp_tensor.factors} == {np.ndarray}


def test_a_raw_coo_follows_the_chosen_device():
    coo = make_coo()
    for device, expected in [("cuda", "cuda"), ("cpu", "cpu"), ("auto", "cuda")]:
        with tensorly_flycoo.set_device(device):
            cp_tensor, _ = decompose(coo, on_gpu=False)
            assert as_flycoo(coo).device == expected
        assert isinstance(cp_tensor.factors[0], np.ndarray)

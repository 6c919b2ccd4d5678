"""Initial guesses are the same as TensorLy's."""

import numpy as np
import pytest
import tensorly as tl
from sparse_problems import community_coo, dense_of
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition._cp import initialize_cp

from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.loop.initial_guess import make_initial_guess

SHAPE = (9, 11, 10)


def check(options, rank, dtype="float64", shape=SHAPE):
    coo = community_coo(shape, dtype, seed=1)
    with tl.backend_context("numpy"):
        expected = initialize_cp(dense_of(coo), rank, random_state=3, **options)
    x = FlycooTensor.from_coo(coo)
    options = {"svd": "truncated_svd"} | options
    weights, factors = make_initial_guess(x, rank, random_state=3, **options)
    assert (weights is None) == (not options.get("normalize_factors"))
    found = [np.ones(rank) if weights is None else weights, *factors]
    for array, other in zip(found, [expected.weights, *expected.factors], strict=True):
        tolerance = 1e-9 if dtype == "float64" else 1e-3
        np.testing.assert_allclose(array, other, rtol=tolerance, atol=tolerance)
    assert {factor.dtype for factor in factors} == {np.dtype(dtype)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("normalize_factors", [False, True])
@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize("init", ["random", "svd"])
def test_same_as_tensorly(init, non_negative, normalize_factors, dtype):
    options = {"non_negative": non_negative, "normalize_factors": normalize_factors}
    check({"init": init} | options, 3, dtype)


@pytest.mark.parametrize("kind", [lambda coo: coo, FlycooTensor.from_coo], ids=["COO", "Flycoo"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("normalize_factors", [False, True])
@pytest.mark.parametrize("non_negative", [False, True])
def test_a_random_start_has_tensorlys_bits(non_negative, normalize_factors, dtype, kind):
    """From a given generator, which is then in the same state."""
    coo = community_coo(SHAPE, dtype, seed=1)
    options = {"non_negative": non_negative, "normalize_factors": normalize_factors}
    starts = []
    for backend, tensor in (("numpy", dense_of(coo)), ("flycoo", kind(coo))):
        random = np.random.RandomState(3)
        with tl.backend_context(backend):
            start = tl.decomposition._cp.initialize_cp(
                tensor, 3, init="random", random_state=random, **options
            )
        starts.append([start.weights, *start.factors, random.random_sample(2)])
    for array, expected in zip(*starts, strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype


def test_a_random_start_that_does_not_fit(monkeypatch):
    x = FlycooTensor.from_coo(community_coo(SHAPE, seed=1))

    def run_out(*arguments):
        raise MemoryError

    monkeypatch.setattr(CPU, "draw_uniform", run_out)
    with pytest.raises(MemoryError, match=r"a random start of rank 3 needs .* is free"):
        make_initial_guess(x, 3, "random", "truncated_svd", 0)


def test_a_generator_of_cupy_is_refused():
    random = type("Generator", (), {"__module__": "cupy.random._generator"})()
    x = FlycooTensor.from_coo(community_coo(SHAPE, seed=1))
    with (
        tl.backend_context("flycoo"),
        pytest.raises(TypeError, match="random_state is a Generator of CuPy, expected an int or"),
    ):
        tl.decomposition.parafac(x, 3, init="random", random_state=random)


@pytest.mark.filterwarnings("ignore:Trying to compute SVD")
def test_more_components_than_rows():
    check({"init": "svd"}, 4, shape=(3, 11, 10))


def test_weights_of_a_guess_multiply_the_last_factor():
    x = FlycooTensor.from_coo(community_coo(SHAPE, seed=1))
    rng = np.random.RandomState(0)
    given = [rng.random_sample((size, 3)) for size in SHAPE]
    guess = CPTensor((np.array([1.0, 2.0, 3.0]), given))
    weights, factors = make_initial_guess(x, 3, guess, "truncated_svd", None)
    assert weights is None
    np.testing.assert_array_equal(factors[2], given[2] * guess.weights)
    for factor, other in zip(factors[:2], given, strict=False):
        np.testing.assert_array_equal(factor, other)
        assert not np.shares_memory(factor, other)
    with pytest.warns(UserWarning, match="taken as it is"):
        make_initial_guess(x, 3, guess, "truncated_svd", None, normalize_factors=True)


BAD = {
    "name": ({"init": "nvecs"}, ValueError, "init is 'nvecs'"),
    "number": ({"init": 3}, ValueError, "init is 3"),
    "svd": ({"init": "svd", "svd": "symeig_svd"}, DensifyError, "symeig_svd"),
    "dtype": (
        {"init": (None, [np.ones((size, 2), "float32") for size in SHAPE])}, TypeError,
        r"factors\[0\] has dtype float32, expected float64",
    ),
    "shape": (
        {"init": (None, [np.ones((size, 2)) for size in SHAPE[::-1]])}, ValueError, r"factors\[0\]"
    ),
    "rank": ({"init": (None, [np.ones((size, 3)) for size in SHAPE])}, ValueError, "the rank 2"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "error", "text"), BAD.values(), ids=BAD)
def test_bad_guesses_are_named(options, error, text):
    x = FlycooTensor.from_coo(community_coo(SHAPE, seed=1))
    with pytest.raises(error, match=text):
        make_initial_guess(x, 2, **{"svd": "truncated_svd", "random_state": None} | options)

"""The MTTKRP of ratios on the CPU against its specification, which is checked densely.

As in `test_engine.py`, each combination of types compiles a kernel, so not all are tested.
"""

import hashlib
import itertools

import numba
import numpy as np
import pytest
import reference_ratios as reference
from error_bounds import bound_ratios, count_additions

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.engines.cpu import ratios
from tensorly_flycoo.format.primitives import MTTKRP_OF_RATIOS

LAYOUTS = ("remap", "replicated", "indexed")
SIZES = (7, 5, 6, 4, 3)

pytestmark = pytest.mark.usual_limits("groups", "prefixes")  # the engine is called with modes


@pytest.fixture
def small_tiles(monkeypatch):
    """Cut tiles and buckets so small that tiny tensors have many of both."""
    monkeypatch.setattr(cpu, "TILE_SIZE", 16)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 64)


def make_counts(shape, nnz, rank, dtype="float64", seed=0):
    """Draw distinct cells with counts, and a positive model."""
    rng = np.random.default_rng(seed)
    coords = np.unique([rng.integers(0, size, nnz) for size in shape], axis=1)
    values = 1.0 + rng.poisson(2, coords.shape[1])
    factors = [(0.1 + rng.random((size, rank))).astype(dtype) for size in shape]
    return coords, values.astype(dtype), shape, factors


def compute(x, factors, mode, smallest=1e-30, **options):
    out = np.full((x.shape[mode], factors[0].shape[1]), np.nan, x.dtype)
    arguments = (MTTKRP_OF_RATIOS, cpu.CPU, dict(enumerate(factors)), mode, out)
    log_sum = x._layout.apply(*arguments, smallest=smallest, wants_sum=True, **options)
    return out, float(log_sum)


def check(x, problem, mode, out, log_sum, smallest=1e-30):
    coords, values, shape, factors = problem
    arguments = (coords, values, shape, factors, mode, smallest)
    expected, expected_sum = reference.mttkrp_of_ratios(*arguments)
    bound, sum_bound = bound_ratios(x, coords, values, factors, mode, smallest)
    assert (np.abs(out - expected) <= bound).all()
    assert abs(log_sum - expected_sum) <= sum_bound


def test_the_specification_is_the_dense_formula():
    coords, values, shape, factors = make_counts((4, 3, 5), 20, 2)
    dense = np.zeros(shape)
    dense[tuple(coords)] = values
    model = np.einsum("ir,jr,kr->ijk", *factors)
    expected = np.einsum("ijk,ir,kr->jr", dense / model, factors[0], factors[2])
    product, log_sum = reference.mttkrp_of_ratios(coords, values, shape, factors, 1, 0.0)
    np.testing.assert_allclose(product, expected, rtol=1e-13)
    np.testing.assert_allclose(log_sum, (dense * np.log(model)).sum(), rtol=1e-13)


@pytest.mark.parametrize(("dtype", "rank"), [
    *itertools.product(["float64"], (3, 40)),
    *[pytest.param("float64", rank, marks=pytest.mark.slow) for rank in (1, 16, 25)],
    *[pytest.param("float32", rank, marks=pytest.mark.slow) for rank in (2, 33, 64)],
])  # fmt: skip
def test_every_rank(small_tiles, dtype, rank):
    problem = make_counts((30, 20, 10), 700, rank, dtype)
    x = FlycooTensor(*problem[:3])
    for mode in (0, 1, 2, 0):
        check(x, problem, mode, *compute(x, problem[3], mode))


@pytest.mark.parametrize("ndim", [2, 4, *[pytest.param(n, marks=pytest.mark.slow) for n in (1, 5)]])
def test_every_ndim(small_tiles, ndim):
    problem = make_counts(SIZES[:ndim], 200, 3)
    x = FlycooTensor(*problem[:3])
    for mode in range(ndim):
        check(x, problem, mode, *compute(x, problem[3], mode))


def test_every_layout_and_number_of_threads_gives_the_same_bits(small_tiles):
    problem = make_counts((40, 3, 50), 2000, 3)
    digests = set()
    for layout, num_threads in itertools.product(LAYOUTS, (1, 2)):
        x, before = FlycooTensor(*problem[:3], layout=layout), numba.get_num_threads()
        numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
        try:
            results = [compute(x, problem[3], mode) for mode in (0, 1, 2, 1, 0)]
        finally:
            numba.set_num_threads(before)
        text = b"".join(out.tobytes() + str(log_sum).encode() for out, log_sum in results)
        digests.add(hashlib.sha256(text).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("dtype", "rank"),
    [("float64", 3), pytest.param("float64", 40, marks=pytest.mark.slow), ("float32", 16)],
)
def test_multiplied_by_models_of_both_signs(small_tiles, dtype, rank):
    coords, values, shape, factors = make_counts((30, 20, 10), 700, rank, dtype)
    factors = [factor - np.dtype(dtype).type(0.6) for factor in factors]
    x = FlycooTensor(coords, values, shape)
    for mode in (0, 1, 2, 0):
        out = np.full((shape[mode], rank), np.nan, dtype)
        x._layout.apply(
            MTTKRP_OF_RATIOS, cpu.CPU, dict(enumerate(factors)), mode, out, smallest=None
        )
        additions = count_additions(x, coords, mode, rank)
        arguments = (coords, values, shape, factors, mode, dtype)
        expected, bound = reference.mttkrp_of_products(*arguments, additions=additions)
        assert (np.abs(out - expected) <= bound).all()


def test_a_mode_may_stay(small_tiles):
    problem = make_counts((40, 30, 50), 500, 3)
    x = FlycooTensor(*problem[:3], layout="remap")
    for mode in (1, 1, 1, 0, 2):
        check(x, problem, mode, *compute(x, problem[3], mode, stays=True))
        assert x._layout.mode == mode
    check(x, problem, 2, *compute(x, problem[3], 2))
    assert x._layout.mode == 0


@numba.njit
def sum_logs(terms):
    return ratios.sum_logs(terms, 2)


@pytest.mark.parametrize("odd", [5e-324, 1e-310, 0.0])
def test_logarithms_of_odd_numbers(odd):
    terms = np.array([[1.0, 2.0], [odd, 3.0]])
    with np.errstate(divide="ignore"):
        assert sum_logs(terms) == np.log(odd) + 2 * np.log(3.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_model_of_zero_divides_as_the_smallest_number(dtype):
    coords, values, shape, factors = make_counts((6, 5, 4), 60, 3, dtype)
    factors[1][:] = 0
    out, log_sum = compute(FlycooTensor(coords, values, shape), factors, 1, smallest=1e-3)
    expected, _ = reference.mttkrp_of_ratios(coords, values, shape, factors, 1, 1e-3)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    assert log_sum == -np.inf


def test_empty_rows_and_no_nonzeros():
    problem = make_counts((900, 3, 4), 30, 3)
    out, _ = compute(FlycooTensor(*problem[:3]), problem[3], 0)
    assert (np.delete(out, problem[0][0], axis=0) == 0).all()
    empty = FlycooTensor(np.zeros((3, 0), int), np.zeros(0), (9, 3, 4))
    out, log_sum = compute(empty, [factor[:9] for factor in problem[3]], 0)
    assert (out == 0).all()
    assert log_sum == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_are_measured_and_extrapolated(dtype):
    t0, t1, t2 = factors = np.random.default_rng(0).random((3, 3000, 3)).astype(dtype)
    change, bend = t1 - t0, t2 - t1 - (t1 - t0)
    squares, sums = np.empty((2, 3)), np.empty(3)
    cpu.CPU.measure_steps(factors, squares)
    expected = [(step.astype(float) ** 2).sum(axis=0) for step in (change, bend)]
    np.testing.assert_allclose(squares, expected, rtol=1e-12)
    moved = cpu.CPU.extrapolate(factors, 3.0, sums)
    far = 100 * np.finfo(dtype).eps  # near 0 rounding decides whether an element moves
    expected = t0 + 6 * change + 9 * bend
    is_clear = abs(expected) > far
    expected = np.where(expected > 0, expected, t2)
    np.testing.assert_allclose(moved[is_clear], expected[is_clear], rtol=0, atol=far)
    np.testing.assert_allclose(sums, moved.sum(axis=0, dtype=float), rtol=1e-12)
    assert (moved > 0).all()
    assert moved.dtype == dtype


@pytest.mark.parametrize("num_scales", [1, 3000])
def test_rows_are_scaled_and_added_up(num_scales):
    rng = np.random.default_rng(0)
    product, factor = rng.random((2, 3000, 3)).astype("float32")
    scales = rng.random((num_scales, 3)).astype("float32")
    expected = product * factor * scales
    sums = np.empty(3)
    cpu.CPU.scale_rows(product, factor, scales, sums)
    assert (product == expected).all()
    np.testing.assert_allclose(sums, expected.sum(axis=0, dtype="float64"), rtol=1e-12)

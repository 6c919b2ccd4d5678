"""Row-sharded factors: NumPy's results within rounding, the same bits on any number of devices."""

import copy

import numpy as np
import pytest
import tensorly as tl
from hypothesis import given
from hypothesis import strategies as st
from numpy_devices import NumpyDevices
from strategies import quick, seeds

from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.engines import tall
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.spread import row_shards
from tensorly_flycoo.spread.row_shards import RowShards, Sharding, cut_evenly

NUM_ROWS, RANK = 37, 4
NUMS_DEVICES = pytest.mark.parametrize("num_devices", [1, 2, 3, 5, 8])
EDGES = pytest.mark.parametrize(
    "edges", [cut_evenly(NUM_ROWS, 8), (0, 0, 1, 3, 3, 30, 36, 36, 37), (0, 37)], ids=str
)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])

#: Elementwise functions of two factors.
ELEMENTWISE = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: 1 - x - 2 * y,
    "product": lambda x, y: x * y * np.arange(1.0, RANK + 1).astype(x.dtype),
    "quotient": lambda x, y: x / (2 + abs(y)),
    "column": lambda x, y: x * np.float32(3) - np.ones((1, RANK), x.dtype) / y,
    "power": lambda x, y: tl.abs(x) ** 2 + tl.sqrt(tl.abs(y)),
    "negative": lambda x, y: -x,
    "conj": lambda x, y: tl.conj(x) + tl.copy(y),
    "clip": lambda x, y: tl.clip(x, 0) - tl.clip(y, -0.5, 0.5),
    "where": lambda x, y: tl.where(x > y, x, 0 * y),
    "where number": lambda x, y: tl.where(x < 0, 0.0, y),
    "maximum": lambda x, y: np.maximum(x, 0.25) + np.minimum(y, x),
    "transposes": lambda x, y: tl.transpose(tl.transpose(x) * np.ones((RANK, 1), x.dtype)) + y.T.T,
    "product with a matrix": lambda x, y: tl.dot(x, np.full((RANK, 3), 0.5, x.dtype)),
    "columns": lambda x, y: x[:, 1:3] + y[:, [0, 2]],
    "concatenate": lambda x, y: tl.concatenate([x[:, :1], y], axis=1),
}
#: Functions whose results are plain arrays.
REDUCTIONS = {
    "gram": lambda x, y: tl.dot(tl.conj(tl.transpose(x)), x),
    "product": lambda x, y: tl.dot(tl.transpose(x), y),
    "matmul": lambda x, y: x.T @ y,
    "column sums": lambda x, y: tl.sum(x, axis=0),
    "inner product": lambda x, y: tl.sum(tl.sum(x * tl.conj(y), axis=0)),
    "total": lambda x, y: np.sum(x),
    "largest": lambda x, y: np.max(x),
    "smallest of columns": lambda x, y: np.min(x, axis=-2),
    "norms": lambda x, y: tl.norm(x, 2, axis=0),
    "norm": lambda x, y: tl.norm(x),
    "numpy.linalg.norm": lambda x, y: np.linalg.norm(y, axis=0),
    "numpy.linalg.norm of all": lambda x, y: np.linalg.norm(y),
    "row sums of the transpose": lambda x, y: np.sum(x.T, axis=1),
}


@pytest.fixture(autouse=True)
def numpy_backend():
    with tl.backend_context("numpy"):
        yield


def draw(dtype="float64", num_rows=NUM_ROWS, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((num_rows, RANK)).astype(dtype) for _ in range(2)]


def scatter(arrays, edges, num_devices):
    sharding = Sharding.of(edges, NumpyDevices(num_devices))
    return [RowShards.scatter(array, sharding) for array in arrays]


@NUMS_DEVICES
@EDGES
@DTYPES
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_functions_give_the_bits_of_numpy(name, dtype, edges, num_devices):
    x, y = draw(dtype)
    found = ELEMENTWISE[name](*scatter((x, y), edges, num_devices))
    expected = ELEMENTWISE[name](x, y)
    assert isinstance(found, RowShards)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if "matrix" in name:
        np.testing.assert_allclose(found.to_numpy(), expected, atol=1e-5)
    else:
        np.testing.assert_array_equal(found.to_numpy(), expected)


@EDGES
@DTYPES
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_close_to_numpy_and_the_same_on_all_devices(name, dtype, edges):
    """An error of (rows + 2) eps times the sum of magnitudes, for each of the two results."""
    x, y = draw(dtype)
    expected, magnitude = REDUCTIONS[name](x, y), REDUCTIONS[name](np.abs(x), np.abs(y))
    results = {
        np.asarray(REDUCTIONS[name](*scatter((x, y), edges, num_devices))).tobytes()
        for num_devices in (1, 2, 3, 5, 8)
    }
    assert len(results) == 1
    found = np.frombuffer(results.pop(), expected.dtype).reshape(np.shape(expected))
    bound = 2 * (NUM_ROWS * RANK + 2) * np.finfo(dtype).eps * np.abs(magnitude)
    assert (np.abs(found - expected) <= bound).all()


@quick
@given(st.lists(st.integers(0, 40), max_size=9), st.integers(1, 9), seeds)
def test_sums_of_integers_are_exact_for_all_blocks(cuts, num_devices, seed):
    rng = np.random.default_rng(seed)
    edges = (0, *sorted(cuts), 40)
    x, y = (rng.integers(-9, 10, (40, 3)).astype("float32") for _ in range(2))
    sharding = Sharding.of(edges, OneDevice(count=num_devices))
    a, b = (RowShards.scatter(array, sharding) for array in (x, y))
    np.testing.assert_array_equal(np.dot(a.T, b), x.T @ y)
    np.testing.assert_array_equal(np.sum(a, axis=0), x.sum(axis=0))
    np.testing.assert_array_equal((a - b).to_numpy(), x - y)


@NUMS_DEVICES
@EDGES
def test_solve(edges, num_devices):
    """As TensorLy calls it. The backward error of LU is at most R**2 * growth * eps."""
    x, y = draw()
    matrix = y.T @ y + np.eye(RANK)
    (shards,) = scatter([x], edges, num_devices)
    found = tl.transpose(tl.solve(tl.transpose(matrix), tl.transpose(shards)))
    expected = np.linalg.solve(matrix.T, x.T).T
    tolerance = 100 * RANK**2 * np.finfo(float).eps * np.linalg.cond(matrix)
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=tolerance, atol=tolerance)


@NUMS_DEVICES
@EDGES
def test_an_ill_conditioned_system_is_refined(edges, num_devices):
    x, _ = draw()
    matrix = np.ones((RANK, RANK)) + 2e-8 * np.eye(RANK)
    rows = x @ matrix
    (shards,) = scatter([rows], edges, num_devices)
    found = tall.solve(matrix, shards.T).T.to_numpy()
    tolerance = 100 * RANK * np.finfo(float).eps  # 1e-8 without the refinement
    assert np.abs(found @ matrix - rows).max() <= tolerance * np.abs(found).max()


@NUMS_DEVICES
@pytest.mark.parametrize("matrix", [np.diag([1.0, 2, 4, 8]), np.diag([1.0, 2, 0, 8])])
def test_solve_for_few_rows(matrix, num_devices):
    """A block may have none; a singular matrix takes the pseudo-inverse."""
    rows = np.arange(12.0).reshape(3, 4)
    (shards,) = scatter([rows], (0, 1, 3), num_devices)
    found = tall.solve(matrix, shards.T).T
    expected = rows @ np.linalg.pinv(matrix)  # whose elements each are one product
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=4 * np.finfo(float).eps)


@NUMS_DEVICES
@EDGES
def test_qr(edges, num_devices):
    x, _ = draw()
    basis, triangle = tl.qr(scatter([x], edges, num_devices)[0])
    found = basis.to_numpy()
    tolerance = 100 * NUM_ROWS * np.finfo(float).eps
    np.testing.assert_allclose(found.T @ found, np.eye(RANK), atol=tolerance)
    np.testing.assert_allclose(found @ triangle, x, atol=tolerance * np.linalg.norm(x))
    np.testing.assert_array_equal(np.tril(triangle, -1), 0)


def test_a_gram_is_computed_once(monkeypatch):
    (x,) = scatter(draw()[:1], cut_evenly(NUM_ROWS, 8), 2)
    calls, real = [], tall.transposed_product  # of each block
    monkeypatch.setattr(tall, "transposed_product", lambda *a: calls.append(1) or real(*a))
    first = tl.dot(tl.conj(tl.transpose(x)), x)
    expected = first.copy()
    first[...] = 0  # not what is kept
    np.testing.assert_array_equal(tl.dot(tl.transpose(tl.copy(x)), x), expected)
    np.testing.assert_array_equal((x.T @ x), expected)
    np.testing.assert_array_equal(row_shards.replicate_gram(x.T, x), expected)
    assert len(calls) == 8
    tl.dot((2 * x).T, 2 * x)
    assert len(calls) == 16


def test_an_inner_product_is_found_with_the_gram_matrices():
    x, y = draw()
    a, b = scatter((x, y), cut_evenly(NUM_ROWS, 8), 3)
    found = row_shards.inner_product_with_grams(a, [a, b])
    assert found == tall.inner_product(a, b)
    known = [factor.memo.gram for factor in (a, b)]
    for factor, gram in zip(scatter((x, y), cut_evenly(NUM_ROWS, 8), 2), known, strict=True):
        np.testing.assert_array_equal(np.dot(factor.T, factor), gram)


@NUMS_DEVICES
@EDGES
@DTYPES
def test_a_column_is_rounded_by_its_largest_number_in_any_block(dtype, edges, num_devices):
    x, _ = draw(dtype)
    x[-1] *= 2**100  # beyond the scale of the other rows, float64 too
    (sharded,) = scatter([x], edges, num_devices)
    CPU.round_rows(x, CPU.find_scales(x))
    rounded, narrow = row_shards.round_rows(sharded)
    np.testing.assert_array_equal(rounded.to_numpy(), x)
    expected = CPU.round_rows(x, narrow.scales)
    np.testing.assert_array_equal(narrow.rows.to_numpy(), expected.rows)


def test_nothing_changes_a_matrix():
    x, _ = draw()
    (a,) = scatter([x], cut_evenly(NUM_ROWS, 8), 3)
    b = a
    b += 1
    b *= np.arange(RANK)
    with pytest.raises(TypeError, match=r"factor\.to_numpy\(\) copies all rows"):
        a[:, 0] = 1
    a.to_numpy()[:, 0] = 1
    np.testing.assert_array_equal(a.to_numpy(), x)
    np.testing.assert_array_equal(b.to_numpy(), (x + 1) * np.arange(RANK))
    assert copy.deepcopy(a) is copy.copy(a) is a.copy() is a


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("numpy.linalg.svd", np.linalg.svd),
        ("numpy.sort", np.sort),
        ("numpy.exp", np.exp),
        ("numpy.add.reduce", np.add.reduce),
        ("numpy.asarray", np.asarray),
        ("sum with axis=1", lambda x: np.sum(x, axis=1)),
        ("norm with axis=1", lambda x: np.linalg.norm(x, axis=1)),
        ("the product of", lambda x: np.dot(x, x)),
        ("the product of", lambda x: x @ x.T),
        ("indexing with 3", lambda x: x[3]),
        ("indexing with", lambda x: x[:, 0]),
        ("numpy.concatenate", lambda x: np.concatenate([x, x])),
        ("numpy.where", lambda x: np.where(np.ones((NUM_ROWS, RANK)) > 0, x, x)),
    ],
)
def test_other_functions_are_refused_by_name(name, function):
    (x,) = scatter(draw()[:1], cut_evenly(NUM_ROWS, 3), 2)
    with pytest.raises(TypeError, match=name) as caught:
        function(x)
    assert "gather them with tl.to_numpy" in str(caught.value)


def test_matrices_that_are_not_sharded():
    x, y = draw()
    (a,) = scatter([x], cut_evenly(NUM_ROWS, 3), 2)
    np.testing.assert_array_equal((a * y).to_numpy(), x * y)
    np.testing.assert_array_equal((y - a).to_numpy(), y - x)
    np.testing.assert_array_equal((a.T * y.T).to_numpy(), (x * y).T)


def test_other_attributes_are_refused_by_name():
    (x,) = scatter(draw()[:1], cut_evenly(NUM_ROWS, 3), 2)
    with pytest.raises(AttributeError, match=r"ravel is not supported .* tl\.to_numpy"):
        x.ravel()


def test_operands_that_do_not_fit():
    x, y = draw()
    (a,) = scatter([x], cut_evenly(NUM_ROWS, 3), 2)
    (b,) = scatter([y], cut_evenly(NUM_ROWS, 4), 2)
    with pytest.raises(ValueError, match="not sharded in the same way"):
        a + b
    with pytest.raises(ValueError, match="not sharded in the same way"):
        a + a.T
    for other in (np.ones(NUM_ROWS), np.ones((NUM_ROWS, 1)), np.ones(3)):
        with pytest.raises(ValueError, match="does not broadcast along the rows"):
            a * other
    with pytest.raises(ValueError, match=r"shape \(5, 4\), expected \(37, R\)"):
        scatter([np.ones((5, 4))], cut_evenly(NUM_ROWS, 3), 2)


def test_als_iterations_agree_with_those_of_plain_factors():
    """TensorLy's steps on a dense tensor, whose MTTKRP is scattered; normalised, and the error."""
    rng = np.random.default_rng(0)
    truth = [rng.random((size, 2)) for size in (37, 11, 20)]
    tensor = np.einsum("ir,jr,kr->ijk", *truth)
    start = [rng.random((size, 2)) for size in tensor.shape]
    expected = run_als(tensor, start, lambda array: array)
    results = []
    for num_devices in (1, 2, 3, 5):
        shardings = {
            size: Sharding.of(cut_evenly(size, 5), NumpyDevices(num_devices))
            for size in tensor.shape
        }
        results.append(run_als(tensor, start, lambda f: RowShards.scatter(f, shardings[len(f)])))  # noqa: B023
    for errors in results:
        assert errors == results[0]
    np.testing.assert_allclose(results[0], expected, rtol=1e-9)


def run_als(tensor, start, place):
    """Return the inner products and norms that make the error, after each of 4 iterations."""
    factors, errors = [place(factor) for factor in start], []
    for _ in range(4):
        for mode in range(3):
            dense = [f.to_numpy() if isinstance(f, RowShards) else f for f in factors]
            others = [n for n in range(3) if n != mode]
            inner = tl.ones((2, 2))
            for n in others:
                inner = inner * tl.dot(tl.conj(tl.transpose(factors[n])), factors[n])
            sides = [np.moveaxis(tensor, mode, 0), *(dense[n] for n in others)]
            mttkrp = place(np.einsum("ijk,jr,kr->ir", *sides))
            factor = tl.transpose(tl.solve(tl.transpose(inner), tl.transpose(mttkrp)))
            scales = tl.norm(factor, 2, axis=0)
            scales = tl.where(scales == 0, tl.ones(2), scales)
            factors[mode] = factor / tl.reshape(scales, (1, -1))
        errors.append(float(tl.sum(tl.sum(mttkrp * tl.conj(factor), axis=0))))
        errors.append(float(tl.norm(factor)))
    return errors


def test_even_blocks():
    assert cut_evenly(10, 4) == (0, 3, 6, 9, 10)
    assert cut_evenly(2, 4) == (0, 1, 2, 2, 2)
    (x,) = scatter([np.arange(10.0).reshape(5, 2)], cut_evenly(5, 3), 2)
    assert repr(x) == "<RowShards: shape=(5, 2), dtype=float64, 3 blocks>"
    np.testing.assert_array_equal(np.dot(x.T, x), [[120, 140], [140, 165]])
    np.testing.assert_allclose(np.linalg.norm(x / x.sum(axis=0), axis=0), [0.548, 0.514], atol=5e-4)

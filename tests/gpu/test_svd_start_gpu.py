"""The SVD start on a GPU, against the CPU's and NumPy's."""

import cupy
import numpy as np
import pytest
from numpy_primitives import NumpyPrimitives
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines import select_engine
from tensorly_flycoo.format.primitives import Entries, ModeRows
from tensorly_flycoo.svd import eigen
from tensorly_flycoo.svd import gram as gram_module
from tensorly_flycoo.svd.unfolding import Unfolding

EPS = np.finfo(np.float64).eps


def make_tensor(shape, nnz, dtype="float64", device="cuda", power=1, seed=0):
    rng = np.random.default_rng(seed)
    coords = np.stack([(size * rng.random(nnz) ** power).astype(np.int64) for size in shape])
    return FlycooTensor(coords, rng.standard_normal(nnz), shape, dtype=dtype, device=device)


def iterate_always(monkeypatch):
    monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
    monkeypatch.setattr(gram_module.UnfoldingGram, "is_cheap_to_form", lambda gram: False)


SHAPES = pytest.mark.parametrize(
    ("shape", "nnz", "power"),
    [
        pytest.param((300, 40, 50), 30_000, 1, id="all rows coupled"),
        pytest.param((3000, 400, 500), 30_000, 1, id="few rows coupled"),
        pytest.param((3000, 400, 500), 30_000, 3, id="heavy rows"),
        pytest.param((5000, 3, 4), 30_000, 1, id="few columns"),
        pytest.param((100_000, 90_000, 80_000), 200_000, 3, id="hypersparse"),
        pytest.param((60, 50, 40, 30, 20), 30_000, 2, id="five modes"),
        pytest.param((3, 1, 5), 4, 1, id="tiny"),
    ],
)


@SHAPES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_iterated", [False, True])
def test_against_the_cpu(shape, nnz, power, dtype, is_iterated, monkeypatch):
    """Singular values agree to rounding, and vectors span what they should."""
    if is_iterated:
        iterate_always(monkeypatch)
    x, y = (make_tensor(shape, nnz, dtype, device, power) for device in ("cuda", "cpu"))
    for mode in range(x.ndim):
        rank = min(8, *Unfolding(x, mode).shape)
        left, values = Unfolding(x, mode).svd(rank)
        expected_left, expected = Unfolding(y, mode).svd(rank)
        eps = np.finfo(dtype).eps
        assert left.dtype == values.dtype == dtype
        assert np.abs(values.get() ** 2 - expected**2).max() <= 1e3 * eps * expected[0] ** 2
        gram = (left.T.astype(np.float64) @ left).get()
        assert np.abs(gram - np.eye(rank)).max() <= 100 * eps
        gaps = -np.diff(expected**2) / expected[0] ** 2
        if rank > 1 and gaps[0] > 1e-2:
            assert abs(abs(left[:, 0].get() @ expected_left[:, 0]) - 1) <= 1e4 * eps


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_unfoldings_fall_short_by_less_than_the_bound(dtype, monkeypatch):
    iterate_always(monkeypatch)
    x = make_tensor((2000, 300, 400), 100_000, dtype)
    exact = Unfolding(make_tensor((2000, 300, 400), 100_000, device="cpu"), 0).svd(16)[1]
    monkeypatch.setattr(gram_module, "MAX_GRAM_SIZE", 0)
    unfolding = Unfolding(x, 0)
    values = unfolding.svd(16)[1].get()
    assert unfolding.gram[0].dtype == dtype
    shortfall = 1 - values**2 / exact**2
    assert shortfall.max() <= 0.02
    assert shortfall.min() >= -100 * np.finfo(dtype).eps


@pytest.mark.parametrize("num_rows", [1, 2, 100, 10**6])
def test_sums_of_single_squares(num_rows):
    """The same as NumPy's, and the same bits in any order of additions."""
    rng, engine = np.random.default_rng(0), select_engine("cuda")
    nnz = 500_000
    is_first = np.append(rng.random(nnz) < 0.7, True)
    is_first[0] = True
    rows = rng.integers(0, num_rows, nnz).astype(np.uint32)
    values = rng.standard_normal(nnz) * 10.0 ** rng.integers(-6, 1, nnz)
    values /= np.linalg.norm(values)
    entries = Entries(is_first, rows, values)
    on_gpu = Entries(*map(cupy.asarray, entries))
    found = [engine.sum_single_squares(on_gpu, num_rows, 1.0).get() for _ in range(3)]
    expected = select_engine("cpu").sum_single_squares(entries, num_rows, 1.0)
    np.testing.assert_allclose(found[0], expected, rtol=1e-11, atol=2.0**-80)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("pair_cost", [0, 2**40])
def test_gram_matrices_of_pairs_and_of_dense_blocks(pair_cost, monkeypatch):
    """Both to rounding, and pairs to the same bits in any order of additions."""
    from tensorly_flycoo.engines.cuda import engine as cuda_engine

    monkeypatch.setattr(cuda_engine, "_PAIR_COST", pair_cost)
    rng, engine = np.random.default_rng(0), select_engine("cuda")
    dense = rng.standard_normal((500, 20_000)) * (rng.random((500, 20_000)) < 0.01)
    dense /= np.linalg.norm(dense)
    columns, rows = np.nonzero(dense.T)
    numbers = np.unique(columns, return_inverse=True)[1]
    coords, values = cupy.asarray(np.stack([numbers, rows])), cupy.asarray(dense[rows, columns])
    diagonal = rng.random(500)
    found = [engine.gram(coords, values, cupy.asarray(diagonal)).get() for _ in range(3)]
    expected = dense @ dense.T + np.diag(diagonal)
    assert np.abs(found[0] - expected).max() <= 500 * EPS
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("has_places", [False, True])
@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_split_columns(mode, has_places, dtype):
    x = make_tensor((70_000, 9, 500, 3), 20_000, dtype)
    engine, record_format = x._engine, x._layout.record_format
    records = x._layout.records
    order = np.random.default_rng(0).permutation(len(records)).astype(np.uint32)
    places = cupy.asarray(order) if has_places else None
    found = engine.split_columns(ModeRows(records, record_format, mode, places))
    given = ModeRows(records.get(), record_format, mode, order if has_places else None)
    for array, expected in zip(found, NumpyPrimitives().split_columns(given), strict=True):
        np.testing.assert_array_equal(array.get(), expected)


@pytest.mark.parametrize("svd", ["truncated_svd", "randomized_svd"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_are_those_of_the_cpu(svd, dtype):
    runs = []
    for device in ("cuda", "cpu"):
        x = make_tensor((60, 50, 70), 9000, dtype, device)
        options = {"n_iter_max": 6, "tol": 0, "random_state": 0, "return_errors": True, "svd": svd}
        runs.append([float(error) for error in parafac(x, 5, init="svd", **options)[1]])
    np.testing.assert_allclose(*runs, rtol=200 * np.finfo(dtype).eps)


def test_memory_is_given_back_before_the_first_iteration():
    x = make_tensor((100_000, 90_000, 80_000), 400_000, power=2)
    pool, used = cupy.get_default_memory_pool(), []
    before = pool.used_bytes()
    parafac(x, 16, n_iter_max=1, callback=lambda *_: used.append(pool.used_bytes()))
    factors_nbytes = sum(x.shape) * 16 * 8
    assert used[0] - before <= 2.5 * factors_nbytes

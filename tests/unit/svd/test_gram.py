"""The Gram matrix of an unfolding, in parts: single nonzeros, shared columns, coupled rows."""

import numpy as np
import pytest
import tensorly as tl
from tensorly.tenalg.svd import svd_interface
from unfoldings import check_orthonormal, make_dense, make_unfolding

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.svd import columns, eigen
from tensorly_flycoo.svd import gram as gram_module
from tensorly_flycoo.svd.gram import UnfoldingGram
from tensorly_flycoo.svd.unfolding import Unfolding

EPS = np.finfo(np.float64).eps


def make_hypersparse(num_rows, num_nonzeros, seed=0, dtype="float64"):
    """Make a tensor most of whose columns have one nonzero, and its dense first unfolding."""
    rng = np.random.default_rng(seed)
    shape = (num_rows, 40, 50)
    places = rng.choice(np.prod(shape), num_nonzeros, replace=False)
    coords = np.stack(np.unravel_index(places, shape))
    values = rng.standard_normal(num_nonzeros).astype(dtype)
    dense = np.zeros(shape)
    dense[tuple(coords)] = values
    return FlycooTensor(coords, values, shape), dense.reshape(num_rows, -1)


def iterate_always(monkeypatch, is_exact=False):
    """Iterate whatever the size, as above 8192 coupled rows unless `is_exact`."""
    monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
    monkeypatch.setattr(gram_module.UnfoldingGram, "is_cheap_to_form", lambda gram: False)
    if not is_exact:
        monkeypatch.setattr(gram_module, "MAX_GRAM_SIZE", 0)


@pytest.mark.parametrize("num_nonzeros", [3, 60, 400, 4000])
def test_the_parts_add_up(num_nonzeros):
    x, dense = make_hypersparse(30, num_nonzeros)
    gram, scale = Unfolding(x, 0).gram
    expected = dense @ dense.T
    counts = (dense != 0).sum(axis=0)
    is_coupled = (dense[:, counts > 1] != 0).any(axis=1)
    rows = np.asarray(gram.rows)
    np.testing.assert_array_equal(rows, np.flatnonzero(is_coupled))
    bound = 2000 * EPS * np.trace(expected)
    formed = gram.form() * scale**2
    assert np.abs(formed - np.tril(expected[np.ix_(rows, rows)])).max(initial=0) <= bound
    block = np.random.default_rng(1).standard_normal((gram.size, 4))
    product = expected[np.ix_(rows, rows)] @ block
    assert np.abs(gram.multiply(block) * scale**2 - product).max(initial=0) <= 10 * bound
    projected = gram.project(block) * scale**2
    assert np.abs(projected - block.T @ product).max(initial=0) <= 1000 * bound
    alone = np.where(counts == 1, dense, 0)
    for found, part in zip(gram.squares, (np.maximum(alone, 0), np.minimum(alone, 0)), strict=True):
        assert np.abs(found * scale**2 - (part**2).sum(axis=1)).max() <= bound


@pytest.mark.parametrize("num_nonzeros", [5, 60, 400, 2000])
@pytest.mark.parametrize("is_iterated", [False, True])
def test_free_and_coupled_rows_together(num_nonzeros, is_iterated, monkeypatch):
    """Vectors of rows that share no column are merged with those of the others, by value."""
    if is_iterated:
        iterate_always(monkeypatch, is_exact=True)
    x, dense = make_hypersparse(120, num_nonzeros)
    expected = np.linalg.svd(dense, compute_uv=False)[:12]
    left, values = Unfolding(x, 0).svd(12)
    check_orthonormal(left)
    assert np.abs(values**2 - expected**2).max() <= 500 * EPS * expected[0] ** 2
    norms = np.linalg.norm(left.T @ dense, axis=1)
    assert np.abs(norms - expected).max() <= 1e-7 * expected[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e-18, 1e18])
def test_extreme_values(scale, dtype):
    """Squares neither overflow nor underflow, in either precision."""
    x, _ = make_hypersparse(50, 700, dtype=dtype)
    left, values = Unfolding(x, 0).svd(5)
    scaled_left, scaled_values = Unfolding(x * scale, 0).svd(5)
    eps = np.finfo(dtype).eps
    assert np.abs(scaled_values / scale - values).max() <= 20 * eps * values[0]
    assert np.abs(np.abs(np.sum(scaled_left * left, axis=0)) - 1).max() <= 1e4 * eps


def test_one_value_much_larger_than_all_others():
    x = FlycooTensor([[0, 1, 2, 3], [0, 1, 2, 3]], [1e5, 3.0, 2.0, 1.0], (5, 6))
    _, values = Unfolding(x, 0).svd(4)
    np.testing.assert_allclose(values, [1e5, 3, 2, 1], rtol=4 * EPS)


@pytest.mark.parametrize(
    ("num_nonzeros", "dtype"),
    [
        (2000, "float32"),
        (20_000, "float64"),
        pytest.param(2000, "float64", marks=pytest.mark.slow),
        pytest.param(20_000, "float32", marks=pytest.mark.slow),
    ],
)
def test_large_unfoldings_fall_short_by_little(num_nonzeros, dtype, monkeypatch):
    """The spectrum has no gaps."""
    iterate_always(monkeypatch)
    x, dense = make_hypersparse(600, num_nonzeros, dtype=dtype)
    rank = 10
    expected = np.linalg.svd(dense, compute_uv=False)[:rank]
    unfolding = Unfolding(x, 0)
    left, values = unfolding.svd(rank)
    assert unfolding.gram[0].dtype == dtype
    check_orthonormal(left, dtype)
    shortfall = 1 - values**2 / expected**2
    assert shortfall.max() <= 0.02
    assert shortfall.min() >= -100 * np.finfo(dtype).eps
    norms = np.linalg.norm(left.T @ dense, axis=1)
    assert np.abs(norms / values - 1).max() <= 100 * np.finfo(dtype).eps


@pytest.mark.usual_limits("slabs")
@pytest.mark.parametrize("num_columns", [400, pytest.param(900, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_fewer_columns_than_rows(num_columns, dtype, monkeypatch):
    """The columns are iterated on, those with one nonzero too, and few vectors at a time."""
    monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
    monkeypatch.setattr(gram_module.UnfoldingGram, "is_cheap_to_form", lambda gram: False)
    monkeypatch.setattr(gram_module, "MAX_GRAM_SIZE", 300)
    monkeypatch.setattr(columns, "_MAX_PRODUCT_NBYTES", 0)
    rng = np.random.default_rng(0)
    coords = np.stack(
        [rng.integers(0, 3000, 3000), (num_columns * rng.random(3000) ** 3).astype(int)]
    )
    coords = np.unique(coords, axis=1)
    values = rng.standard_normal(coords.shape[1]).astype(dtype)
    dense = np.zeros((3000, num_columns))
    dense[tuple(coords)] = values
    unfolding = Unfolding(FlycooTensor(coords, values, dense.shape), 0)
    gram, scale = unfolding.gram
    assert 300 < gram._coupled.num_columns < gram.size
    left, found = unfolding.svd(12)
    check_orthonormal(left, dtype)
    expected = np.linalg.svd(dense, compute_uv=False)[:12]
    assert np.abs(np.linalg.norm(left.T @ dense, axis=1) / found - 1).max() <= 1e-4
    assert (1 - found**2 / expected**2).max() <= 0.02
    assert (1 - found**2 / expected**2).min() >= -100 * np.finfo(dtype).eps
    rows, eps = gram.rows, np.finfo(dtype).eps
    product = dense[rows] @ dense[rows].T / scale**2
    assert np.abs(np.tril(gram.form() - product)).max() <= 100 * eps
    block = rng.standard_normal((gram.size, 3)).astype(dtype)
    (right_gram,) = gram.reduce_right_products(block, lambda right: right.T @ right)
    is_shared = (dense != 0).sum(axis=0) > 1
    right = dense[np.ix_(rows, is_shared)].T @ block / scale
    assert np.abs(right_gram - right.T @ right).max() <= 1000 * eps * np.trace(right.T @ right)


@pytest.mark.usual_limits("slabs")
def test_columns_are_multiplied_some_at_a_time(monkeypatch):
    x, _ = make_hypersparse(30, 4000)
    block = np.random.default_rng(1).standard_normal((30, 4))
    expected = Unfolding(x, 0).gram[0].multiply(block)
    monkeypatch.setattr(columns, "_COLUMNS_AT_ONCE", 100)
    gram, _ = Unfolding(x, 0).gram
    assert np.abs(gram.multiply(block) - expected).max() <= 1000 * EPS
    assert len(gram._coupled.shared._tensors) > 5


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("options", [{}, {"n_oversamples": 9}, {"n_iter": 0}, {"n_iter": 4}])
def test_a_sketch_is_that_of_tensorly(mode, options):
    """With the same seed, if all rows are coupled."""
    dense = make_dense((60, 50, 70), density=0.05)
    with tl.backend_context("numpy"):
        left, values, _ = svd_interface(
            tl.unfold(dense, mode), "randomized_svd", 8, random_state=3, **options
        )
    with tl.backend_context("flycoo"):
        found, found_values, _ = svd_interface(
            make_unfolding(dense, mode), "randomized_svd", 8, random_state=3, **options
        )
    assert np.abs(found_values - values).max() <= 1e-12 * values[0]
    assert np.abs(found - left).max() <= 1e-10


def test_a_sketch_of_free_rows_is_exact():
    diagonal = np.arange(50.0, 0, -1)
    x = FlycooTensor(np.stack([np.arange(50)] * 2), diagonal, (50, 60))
    left, values = Unfolding(x, 0).randomized_svd(5, np.random.RandomState(0))
    np.testing.assert_allclose(values, diagonal[:5], rtol=4 * EPS)
    assert left[np.arange(5), np.arange(5)].tolist() == [1] * 5


def test_a_large_sketch_draws_by_seed(monkeypatch):
    monkeypatch.setattr(gram_module, "_MAX_DRAWN", 0)
    x, dense = make_hypersparse(60, 8000)
    expected = np.linalg.svd(dense, compute_uv=False)[:5]
    runs = [Unfolding(x, 0).randomized_svd(5, np.random.RandomState(s), 5, 6) for s in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert (runs[0][0] != runs[2][0]).any()
    for left, values in runs:
        check_orthonormal(left)
        assert np.abs(values - expected).max() <= 0.05 * expected[0]


def test_few_columns():
    """The columns' Gram matrix is decomposed if it is the smaller one."""
    dense = make_dense((300, 3, 4))
    gram, _ = make_unfolding(dense).gram
    assert gram.transposed.record_format.shape == (12, 300)
    assert make_unfolding(dense, 1).gram[0].transposed is None


def test_equal_values_of_free_and_coupled_rows():
    coords = [[0, 1, 2, 3, 4], [0, 0, 1, 2, 3]]
    x = FlycooTensor(coords, [1.0, 1.0, 2.0**0.5, 2.0**0.5, 1.0], (6, 5))
    left, values = Unfolding(x, 0).svd(5)
    np.testing.assert_allclose(values**2, [2, 2, 2, 1, 0], atol=8 * EPS)
    check_orthonormal(left)


def test_gram_is_an_operator_of_the_coupled_rows_only():
    x, _ = make_hypersparse(1000, 200)
    gram, _ = Unfolding(x, 0).gram
    assert isinstance(gram, UnfoldingGram)
    assert 0 < gram.size < 100
    assert gram.form().shape == (gram.size, gram.size)

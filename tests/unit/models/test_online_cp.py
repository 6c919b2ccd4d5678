"""A CP model that grows by slices."""

import gc
import pickle
import string
import tracemalloc

import numpy as np
import pytest
import sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from tensorly_flycoo import FlycooTensor, LabelledTensor, OnlineCP
from tensorly_flycoo.models.match import factor_match_score
from tensorly_flycoo.testing import random_tensor


def outer(factors, row):
    """Return a slice of a CP model, dense."""
    letters = string.ascii_lowercase[: len(factors)]
    terms = ",".join(f"{letter}z" for letter in letters)
    return np.einsum(f"{terms},z->{letters}", *factors, row)


def as_slice(dense, mode=-1):
    return sparse.COO.from_numpy(np.expand_dims(dense, mode))


def unfold(dense, mode):
    return np.moveaxis(dense, mode, 0).reshape(dense.shape[mode], -1)


def khatri_rao(factors, row):
    """Return the design matrix of a factor: a row for each cell of the other modes."""
    return outer_columns([*factors]) * row


def outer_columns(factors):
    columns = np.ones((1, factors[0].shape[1])) if factors else np.ones((1, 1))
    for factor in factors:
        columns = (columns[:, None] * factor).reshape(-1, factor.shape[1])
    return columns


def dense_cp_stream(factors, rows, dense_slices, forget, num_sweeps):
    """CP-stream by its formula: all old slices of the model, dense, and a least-squares solver."""
    factors, rows = [f.copy() for f in factors], list(rows)
    for x in dense_slices:
        old = [f.copy() for f in factors]
        ages = range(len(rows), 0, -1)
        history = [(forget ** (age / 2), row) for age, row in zip(ages, rows, strict=True)]
        for _ in range(num_sweeps):
            design = outer_columns(factors)
            row = np.linalg.lstsq(design, x.ravel(), rcond=None)[0]
            for n in range(len(factors)):
                others = [f for m, f in enumerate(factors) if m != n]
                designs, targets = [khatri_rao(others, row)], [unfold(x, n)]
                for weight, old_row in history:
                    designs.append(weight * khatri_rao(others, old_row))
                    targets.append(weight * unfold(outer(old, old_row), n))
                design, target = np.concatenate(designs), np.concatenate(targets, axis=1)
                factors[n] = np.linalg.lstsq(design, target.T, rcond=None)[0].T
        rows.append(row)
    return factors, np.array(rows)


def draw(shape, rank, num_slices, seed):
    random = np.random.RandomState(seed)
    factors = [random.standard_normal((size, rank)) for size in shape]
    rows = random.standard_normal((rank + 1, rank))
    data = random.standard_normal((num_slices, *shape))
    return factors, rows, data * (random.random_sample(data.shape) < 0.5)


@settings(deadline=None, max_examples=20)
@given(
    shape=st.lists(st.integers(2, 5), min_size=2, max_size=3),
    rank=st.integers(1, 3),
    sweeps=st.integers(1, 3),
    place=st.integers(0, 2),
    seed=st.integers(0, 10**6),
)
def test_equals_the_dense_formula(shape, rank, sweeps, place, seed):
    factors, rows, data = draw(shape, rank, 3, seed)
    expected, all_rows = dense_cp_stream(factors, rows, data, 0.9, sweeps)
    guess = [*factors]
    guess.insert(place, rows)
    online = OnlineCP(rank, place, forget=0.9, init=(None, guess), n_iter_max=sweeps, tol=0)
    for x in data:
        online.partial_fit(as_slice(x, place))
    found = list(online.cp_tensor_.factors)
    streamed = found.pop(place)
    # Random systems of equations may be ill-conditioned.
    tolerance = {"rtol": 1e-5, "atol": 1e-5 * max(np.abs(f).max() for f in expected)}
    np.testing.assert_allclose(streamed, all_rows, **tolerance)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def stream_of(shape, rank, num_slices, *, drift=0.0, noise=0.1, seed=0):
    """Return the slices of a planted model whose factors drift to others, and the last factors."""
    random = np.random.RandomState(seed)
    ends = [[random.random_sample((size, rank)) for size in shape] for _ in range(2)]
    slices = []
    for t in range(num_slices):
        share = drift * t / num_slices
        factors = [(1 - share) * a + share * b for a, b in zip(*ends, strict=True)]
        x = outer(factors, random.gamma(1.0, 1.0, rank))
        slices.append(x + noise * x.std() * random.standard_normal(x.shape))
    return np.stack(slices, axis=-1), factors


def match(online, factors):
    found = online.cp_tensor_.factors[:-1]
    return factor_match_score((None, found), (None, factors), consider_weights=False)


@pytest.mark.parametrize("seed", range(4))
def test_finds_a_planted_model(seed):
    data, factors = stream_of((8, 9, 10), 3, 120, seed=seed)
    online = OnlineCP(3, random_state=seed).partial_fit(sparse.COO(data[..., :40]))
    online.partial_fit(sparse.COO(data[..., 40:]))
    assert match(online, factors) > 0.99


@pytest.mark.parametrize("seed", range(4))
def test_tracks_a_drifting_model(seed):
    data, factors = stream_of((8, 9, 10), 3, 600, drift=0.5, seed=seed)
    online = OnlineCP(3, forget=0.95, random_state=seed).partial_fit(sparse.COO(data[..., :40]))
    before = match(online, factors)
    online.partial_fit(sparse.COO(data[..., 40:]))
    assert match(online, factors) > 0.98 > before


def test_slices_one_by_one_and_together_are_the_same():
    data, _ = stream_of((5, 6), 2, 20)
    first, rest = sparse.COO(data[..., :10]), data[..., 10:]
    together = OnlineCP(2, random_state=0).partial_fit(first).partial_fit(sparse.COO(rest))
    alone = OnlineCP(2, random_state=0).partial_fit(first)
    for t in range(10):
        alone.partial_fit(as_slice(rest[..., t]))
    for a, b in zip(alone.cp_tensor_.factors, together.cp_tensor_.factors, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(together.rows_, together.cp_tensor_.factors[-1][10:])
    assert alone.n_slices_ == together.n_slices_ == 20


def forms_of(x):
    coords, values = x.nonzeros()
    order = np.random.RandomState(0).permutation(values.size)
    shuffled = np.asfortranarray(coords[:, order]).astype(np.int32), values[order]
    return [x, x.to_coo(), (coords, values, x.shape), (*shuffled, x.shape), shuffled]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", ["gaussian", "poisson_count"])
def test_all_forms_of_slices_give_the_same(loss, dtype):
    x = random_tensor((6, 7, 8), 150, random_state=0, dtype=dtype).map(abs)
    expected = None
    for form in forms_of(x):
        online = OnlineCP(2, loss=loss, random_state=0).partial_fit(x).partial_fit(form)
        expected = online.rows_ if expected is None else expected
        assert online.rows_.dtype == dtype
        np.testing.assert_array_equal(online.rows_, expected)


def test_the_rows_kept_are_the_last_ones():
    data, _ = stream_of((5, 6), 2, 30)
    online = OnlineCP(2, keep=7, random_state=0).partial_fit(sparse.COO(data[..., :20]))
    assert online.cp_tensor_.shape == (5, 6, 7)
    assert online.rows_.shape == (20, 2)
    online.partial_fit(sparse.COO(data[..., 20:]))
    np.testing.assert_array_equal(online.cp_tensor_.factors[-1], online.rows_[-7:])


@pytest.mark.slow
def test_memory_is_constant():
    data, _ = stream_of((5, 6), 2, 20)
    online = OnlineCP(2, keep=10, random_state=0).partial_fit(sparse.COO(data))
    tracemalloc.start()
    sizes = []
    for _ in range(6):
        for t in range(100):
            online.partial_fit(as_slice(data[..., t % 20]))
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[-1] - sizes[1] < 10_000


def test_modes_grow_by_rows_of_zeros():
    factors, rows, data = draw((5, 6), 2, 3, seed=0)
    factors[0][4] = 0
    expected = OnlineCP(2, init=(None, [*factors, rows]))
    online = OnlineCP(2, init=(None, [factors[0][:4], factors[1], rows]))
    for model in (online, expected):
        model.partial_fit(as_slice(data[0])).partial_fit(as_slice(data[1, :2, :3]))
    assert online.cp_tensor_.shape == (5, 6, 5)
    for a, b in zip(online.cp_tensor_.factors, expected.cp_tensor_.factors, strict=True):
        np.testing.assert_array_equal(a, b)


def test_empty_slices_have_zero_rows_and_hardly_change_the_model():
    data, factors = stream_of((5, 6, 7), 2, 40)
    online = OnlineCP(2, random_state=0).partial_fit(sparse.COO(data))
    online.partial_fit((np.zeros((4, 0), int), np.zeros(0), (5, 6, 7, 3)))
    np.testing.assert_array_equal(online.rows_, np.zeros((3, 2)))
    assert match(online, factors) > 0.99
    online.partial_fit((np.zeros((4, 0), int), np.zeros(0)))
    assert online.n_slices_ == 44


@pytest.mark.parametrize("mode", [-1, 0, 1])
def test_pickled_it_goes_on_the_same(mode):
    x = random_tensor((6, 7, 8), 150, random_state=0)
    online = OnlineCP(np.int64(2), mode, forget=0.9, keep=5, random_state=0).partial_fit(x)
    loaded = pickle.loads(pickle.dumps(online))
    assert loaded.get_params() == online.get_params()
    np.testing.assert_array_equal(loaded.rows_, online.rows_)
    for model in (online, loaded):
        model.partial_fit(x)
    assert loaded.n_slices_ == online.n_slices_ == 2 * x.shape[mode]
    for a, b in zip(loaded.cp_tensor_.factors, online.cp_tensor_.factors, strict=True):
        np.testing.assert_array_equal(a, b)


def test_components_without_data_stay_as_they_are():
    data, factors = stream_of((5, 6), 2, 40, noise=0)
    online = OnlineCP(2, forget=0.5, random_state=0).partial_fit(sparse.COO(data))
    one = outer([factor[:, :1] for factor in factors], np.ones(1))
    for _ in range(300):
        online.partial_fit(as_slice(one))
    assert all(np.isfinite(factor).all() for factor in online.cp_tensor_.factors)
    np.testing.assert_allclose(
        outer(online.cp_tensor_.factors[:-1], online.rows_[0]), one, atol=1e-6
    )


def test_the_estimator_follows_scikit_learn():
    online = OnlineCP(2, forget=0.9)
    assert clone(online).get_params() == online.get_params()
    assert repr(online).startswith("OnlineCP(rank=2, mode=-1, loss='gaussian', forget=0.9, ")
    assert not hasattr(online, "cp_tensor_")
    with pytest.raises(ValueError, match="OnlineCP has no parameter 'ranks'"):
        online.set_params(ranks=3)


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        ({"loss": "poison"}, ValueError, "loss is 'poison', expected one of"),
        ({"forget": 0.0}, ValueError, "forget is 0.0, expected a number above 0"),
        ({"forget": "1"}, TypeError, "forget is '1', expected a number"),
        ({"tol": float("nan")}, ValueError, "tol is nan, expected a finite number, 0 or"),
        ({"keep": 0}, ValueError, "keep is 0, expected at least 1"),
        ({"rank": 0}, ValueError, "rank is 0, expected at least 1"),
        ({"mode": 3}, ValueError, "mode is 3, expected -3 to 2"),
        ({"init": "svd"}, ValueError, "init is 'svd', expected 'random'"),
        ({"init": (None, [np.ones((4, 3))] * 3)}, ValueError, "init has rank 3, expected 2"),
    ],
)
def test_wrong_parameters_are_refused(params, error, text):
    x = random_tensor((4, 4, 4), 10, random_state=0)
    with pytest.raises(error, match=text):
        OnlineCP(**{"rank": 2, **params}).partial_fit(x)


@pytest.mark.parametrize(
    ("slices", "error", "text"),
    [
        (np.ones((4, 4, 1)), TypeError, "expected a FlycooTensor or a sparse.COO"),
        (([[0], [0], [0]], [np.nan]), ValueError, r"values\[0\] is nan"),
        (([[0], [9], [0]], [1.0]), ValueError, r"coords\[1, 0\] is 9"),
        (([[0], [0]], [1.0]), ValueError, "modes|rows"),
        (([[0], [0]], [1.0], (4, 4)), ValueError, "slices has 2 modes, expected 3"),
        (([[0.5], [0], [0]], [1.0]), TypeError, "expected integers"),
    ],
)
def test_wrong_slices_are_refused_and_change_nothing(slices, error, text):
    x = random_tensor((4, 4, 4), 10, random_state=0)
    online = OnlineCP(2, random_state=0).partial_fit(x)
    before = [factor.copy() for factor in online.cp_tensor_.factors]
    with pytest.raises(error, match=text):
        online.partial_fit(slices)
    for a, b in zip(online.cp_tensor_.factors, before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("mode", "shape"), [(-1, "4, 5, 1"), (0, "1, 4, 5"), (-2, "4, 1, 5")])
def test_a_first_matrix_is_refused(mode, shape):
    """Its columns would be taken for slices."""
    with pytest.raises(ValueError, match=rf"pass a matrix .* with shape \({shape}\)"):
        OnlineCP(2, mode).partial_fit(random_tensor((4, 5), 10, random_state=0))


@pytest.mark.parametrize("loss", ["gaussian", "poisson_count"])
def test_repeated_cells_are_summed(loss):
    first = random_tensor((6, 7, 8), 150, random_state=0).map(abs)
    coords, values = np.array([[1, 2, 1], [3, 3, 3], [0, 0, 0]]), np.array([1.0, 2.0, 4.0])
    rows = [
        OnlineCP(2, loss=loss, random_state=0, tol=0.1).partial_fit(first).partial_fit(x).rows_
        for x in [
            (coords, values),
            (coords, values, (6, 7, 1)),
            FlycooTensor(coords, values, (6, 7, 1)),
        ]
    ]
    np.testing.assert_array_equal(rows[0], rows[2])
    np.testing.assert_array_equal(rows[1], rows[2])


def test_the_first_slices_need_a_shape_and_no_labels():
    with pytest.raises(ValueError, match=r"expected \(coords, values, shape\)"):
        OnlineCP(2).partial_fit(([[0], [0], [0]], [1.0]))
    x = FlycooTensor([[0], [0]], [1.0], (1, 1))
    with pytest.raises(TypeError, match=r"pass x\.tensor"):
        OnlineCP(2).partial_fit(LabelledTensor(x, [["a"], ["b"]]))

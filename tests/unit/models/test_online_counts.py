"""A CP model of counts that grows by slices."""

import pickle

import numpy as np
import pytest
import sparse

from tensorly_flycoo import OnlineCP
from tensorly_flycoo.models.match import factor_match_score
from tensorly_flycoo.models.online_cp import _PRIOR

SHAPE, RANK = (8, 9, 10), 3


def normalise(factors):
    return [factor / factor.sum(axis=0) for factor in factors]


def stream_of(num_slices, *, drift=0.0, seed=0, shape=SHAPE):
    """Return counts whose planted factors drift to others, and the last factors."""
    random = np.random.RandomState(seed)
    ends = [normalise(random.gamma(0.3, 1.0, (size, RANK)) for size in shape) for _ in range(2)]
    slices = []
    for t in range(num_slices):
        share = drift * t / num_slices
        factors = normalise([(1 - share) * a + share * b for a, b in zip(*ends, strict=True)])
        row = random.gamma(1.0, 150.0, RANK)
        slices.append(random.poisson(np.einsum("ar,br,cr,r->abc", *factors, row)))
    return np.stack(slices, axis=-1).astype(float), factors


def fit(*parts, **options):
    online = OnlineCP(RANK, **{"loss": "poisson_count", "random_state": 0, **options})
    for part in parts:
        online.partial_fit(sparse.COO(part))
    return online


def match(online, factors):
    found = online.cp_tensor_.factors[:-1]
    return factor_match_score((None, found), (None, factors), consider_weights=False)


def smooth(sums):
    return (sums / sums.sum(axis=0) + _PRIOR / len(sums)) / (1 + _PRIOR)


def dense_online_em(factors, rows, slices, forget, num_steps):
    """Online EM by its formula, on dense slices."""
    rows = rows * np.prod([f.sum(axis=0) for f in factors], axis=0)
    weights = forget ** np.arange(len(rows) - 1, -1, -1)
    sums = [f / f.sum(axis=0) * (weights @ rows) for f in factors]
    factors, added = [smooth(s) for s in sums], []
    for x in slices:
        row = np.full(RANK, x.sum() / RANK)
        for _ in range(num_steps):
            parts = np.einsum("ar,br,cr,r->abcr", *factors, row)
            row = (parts * (x / parts.sum(axis=-1))[..., None]).sum(axis=(0, 1, 2))
        parts = np.einsum("ar,br,cr,r->abcr", *factors, row)
        parts *= (x / parts.sum(axis=-1))[..., None]
        shares = [parts.sum(axis=axes) for axes in ((1, 2), (0, 2), (0, 1))]
        sums = [forget * old + share for old, share in zip(sums, shares, strict=True)]
        factors = [smooth(s) for s in sums]
        added.append(row)
    return factors, np.array(added)


@pytest.mark.parametrize("mode", [-1, 0, 2])
def test_equals_the_dense_formula(mode):
    random = np.random.RandomState(0)
    factors = [random.random_sample((size, RANK)) for size in SHAPE]
    rows, data = random.random_sample((4, RANK)), stream_of(5)[0]
    expected, added = dense_online_em(factors, rows, np.moveaxis(data, -1, 0), 0.9, 7)
    guess = [*factors]
    guess.insert(mode % 4, rows)
    options = {"mode": mode, "forget": 0.9, "n_iter_max": 7, "tol": -0.0}
    found = fit(np.moveaxis(data, -1, mode % 4), init=(None, guess), **options)
    np.testing.assert_allclose(found.rows_, added, rtol=1e-9)
    others = list(found.cp_tensor_.factors)
    others.pop(mode)
    for a, b in zip(others, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_tracks_a_drifting_model(seed):
    data, factors = stream_of(500, drift=0.5, seed=seed)
    online = fit(data[..., :40], forget=0.97, random_state=seed)
    before = match(online, factors)
    online.partial_fit(sparse.COO(data[..., 40:]))
    assert match(online, factors) > 0.97 > before


def test_the_model_predicts_the_sums_of_slices():
    data, _ = stream_of(30)
    online = fit(data[..., :10], data[..., 10:])
    np.testing.assert_allclose(online.rows_.sum(axis=1), data[..., 10:].sum(axis=(0, 1, 2)))
    for factor in online.cp_tensor_.factors[:-1]:
        np.testing.assert_allclose(factor.sum(axis=0), 1)
        assert (factor > 0).all()


def test_slices_one_by_one_and_together_are_the_same():
    data, _ = stream_of(30)
    together = fit(data[..., :10], data[..., 10:])
    alone = fit(data[..., :10], *(data[..., t : t + 1] for t in range(10, 30)))
    for a, b in zip(alone.cp_tensor_.factors, together.cp_tensor_.factors, strict=True):
        np.testing.assert_array_equal(a, b)


def test_new_indices_get_their_share():
    data, factors = stream_of(200, seed=2)
    online = fit(data[:7, :, :, :100], data[..., 100:], forget=0.97)
    assert online.cp_tensor_.shape == (*SHAPE, 200)
    assert match(online, factors) > 0.95


def test_empty_slices_change_nothing_but_the_history():
    data, _ = stream_of(30)
    online = fit(data)
    before = [factor.copy() for factor in online.cp_tensor_.factors[:-1]]
    online.partial_fit((np.zeros((4, 0), int), [], (*SHAPE, 2)))
    np.testing.assert_array_equal(online.rows_, np.zeros((2, RANK)))
    for a, b in zip(online.cp_tensor_.factors[:-1], before, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_an_empty_start_is_refused():
    for loss in ("gaussian", "poisson_count"):
        with pytest.raises(ValueError, match="the first slices have no nonzeros, expected some"):
            fit(np.zeros((*SHAPE, 2)), loss=loss)


def test_pickled_it_goes_on_the_same():
    data, _ = stream_of(30)
    online = fit(data[..., :20].astype(np.float32), forget=0.9)
    loaded = pickle.loads(pickle.dumps(online))
    for model in (online, loaded):
        model.partial_fit(sparse.COO(data[..., 20:]))
    for a, b in zip(loaded.cp_tensor_.factors, online.cp_tensor_.factors, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == np.float32


def test_negative_numbers_are_refused():
    data, _ = stream_of(3)
    with pytest.raises(ValueError, match=r"slices holds -\d+\.0, expected 0 or more"):
        fit(-data)
    with pytest.raises(ValueError, match="init has negative elements"):
        fit(data, init=(None, [-np.ones((size, RANK)) for size in (*SHAPE, 1)]))

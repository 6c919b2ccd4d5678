"""Poisson CP by multiplicative updates."""

import numpy as np
import pytest
import sparse

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, LabelledCP, LabelledTensor, Progress
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.io.checkpoint import load_checkpoint, save_checkpoint
from tensorly_flycoo.loop import poisson
from tensorly_flycoo.loop.masks import ObservedData, find_missing
from tensorly_flycoo.loop.poisson import add_columns, divide_counts, evaluate_loss, find_scales
from tensorly_flycoo.models.match import factor_match_score


def draw_counts(shape=(12, 15, 10), rank=3, mean=0.5, seed=0):
    """Draw a tensor of counts, and return it, its dense twin and the factors of its means."""
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(0.7, 1.0, (size, rank)) for size in shape]
    means = np.einsum("ir,jr,kr->ijk", *factors)
    factors[0] *= mean / means.mean()
    dense = rng.poisson(means * mean / means.mean())
    coords = np.stack(np.nonzero(dense))
    return FlycooTensor(coords, dense[tuple(coords)], shape), dense, factors


def form(cp_tensor):
    weights, factors = cp_tensor
    return np.einsum("r,ir,jr,kr->ijk", weights, *factors)


def measure_densely(cp_tensor, dense, observed=None):
    model = form(cp_tensor)
    cells = np.where(dense > 0, model - dense * np.log(np.where(dense > 0, model, 1)), model)
    return cells.sum() if observed is None else cells[observed].sum()


def make_mask(shape, count, seed=1):
    """Mark distinct cells as missing; return the mask, and which cells are observed."""
    rng = np.random.default_rng(seed)
    coords = np.stack(np.unravel_index(rng.choice(np.prod(shape), count, False), shape))
    observed = np.ones(shape, bool)
    observed[tuple(coords)] = False
    return sparse.COO(coords, np.zeros(count), shape, fill_value=1.0), observed


@pytest.mark.parametrize("has_mask", [False, True])
def test_the_loss_is_the_dense_formula(has_mask):
    x, dense, _ = draw_counts()
    mask, observed = make_mask(x.shape, 200) if has_mask else (None, None)
    seen = []

    def see(cp_tensor, loss):
        seen.append(loss)
        assert loss == pytest.approx(measure_densely(cp_tensor, dense, observed), rel=1e-12)

    options = {"mask": mask, "n_iter_max": 6, "random_state": 0, "tol": 0}
    _, losses = generalized_parafac(x, 3, callback=see, return_errors=True, **options)
    assert len(seen) == 7
    assert seen[1:] == losses
    assert all(type(loss) is float for loss in losses)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("has_mask", [False, True])
def test_mu_never_increases_the_loss(seed, has_mask):
    x, *_ = draw_counts(seed=seed)
    mask = make_mask(x.shape, 300)[0] if has_mask else None
    options = {"n_iter_max": 150, "random_state": seed, "tol": 0, "return_errors": True}
    _, losses = generalized_parafac(x, 3, mask=mask, **options)
    changes = np.diff(losses)
    assert (changes <= 1e-14 * np.abs(losses[1:])).all()
    assert losses[-1] < losses[0]


def test_a_sweep_of_mu_is_the_dense_update():
    x, dense, _ = draw_counts()
    mask, observed = make_mask(x.shape, 300)
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 2)) for size in x.shape]
    cp = generalized_parafac(x, 2, n_iter_max=1, init=(None, factors), mask=mask)
    letters = "ijk"
    for mode in range(3):
        model = np.einsum("ir,jr,kr->ijk", *factors)
        others = [f for n, f in enumerate(factors) if n != mode]
        terms = ",".join(f"{letter}r" for n, letter in enumerate(letters) if n != mode)
        rule = f"ijk,{terms}->{letters[mode]}r"
        ratios = np.einsum(rule, observed * dense / model, *others)
        factors[mode] = factors[mode] * ratios / np.einsum(rule, 1.0 * observed, *others)
    np.testing.assert_allclose(form(cp), np.einsum("ir,jr,kr->ijk", *factors), rtol=1e-11)


def test_mu_finds_a_stationary_point():
    """There the update is the identity where the factors are not zero."""
    x, _, _ = draw_counts()
    cp = generalized_parafac(x, 2, n_iter_max=3000, random_state=0, tol=1e-14)
    data, factors = ObservedData(x), cp.factors
    sums = add_columns(factors)
    for mode in range(3):
        step = divide_counts(data, factors, mode)[0] * find_scales(data, factors, sums, mode)
        assert (np.abs(step - 1)[factors[mode] > 1e-6] < 1e-3).all()
        assert (step < 1 + 1e-3).all()


def test_inadmissible_zeros_are_lifted():
    """An element that is zero, although the loss would decrease with it, does not stay zero."""
    x, _, _ = draw_counts(mean=3.0)
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 2)) for size in x.shape]
    factors[0][:4] = 0
    options = {"init": (None, factors), "return_errors": True, "n_iter_max": 20}
    cp, losses = generalized_parafac(x, 2, **options)
    assert np.isfinite(losses[-1])
    assert (cp.factors[0][:4].sum(axis=1) > 0).all()
    assert all(np.isfinite(factor).all() for factor in cp.factors)


def make_blocks():
    """Return two blocks of counts, as a tensor and dense, and a start with a component for each."""
    dense = np.zeros((6, 6, 6))
    dense[:3, :3, :3], dense[3:, 3:, 3:] = 5, 4
    factors = [np.array([[1.0, 0.1]] * 3 + [[0.1, 1.0]] * 3) for _ in range(3)]
    coords = np.nonzero(dense)
    return FlycooTensor(coords, dense[coords], dense.shape), dense, factors


@pytest.mark.parametrize("zero", [0.0, 1e-200])
@pytest.mark.parametrize("tol", [0, 1e-6])
def test_mu_gets_away_from_a_zero(zero, tol):
    """Also from a number so small that it would take thousands of sweeps to grow."""
    x, dense, factors = make_blocks()
    factors[0][[0, 5], 0] = zero  # wrong in row 0 of the first block, right in row 5 of the second
    options = {"return_errors": True, "tol": tol, "n_iter_max": 200}
    cp, losses = generalized_parafac(x, 2, init=(None, factors), **options)
    assert (np.diff(losses) <= 1e-14 * np.abs(losses[1:])).all()
    best = dense.sum() - (dense[dense > 0] * np.log(dense[dense > 0])).sum()
    assert losses[-1] == pytest.approx(best, rel=1e-3)
    assert cp.factors[0][0, 0] > 0.9 * cp.factors[0][1, 0]
    assert cp.factors[0][5, 0] <= zero
    fixed, _ = generalized_parafac(x, 2, init=(None, factors), fixed_modes=[0], **options)
    assert (fixed.factors[0] == factors[0]).all()


def test_zeros_are_lifted_alike_in_a_resumed_run(tmp_path, monkeypatch):
    monkeypatch.setattr(poisson, "_PERIOD", 2)
    monkeypatch.setattr(poisson, "_SETTLED", 1.0)
    x, _, factors = make_blocks()
    factors[0][[0, 5], 0] = 0

    def run(n_iter_max, name):
        with Progress(n_iter_max, show=None, checkpoint=tmp_path / name, every=1) as progress:
            init = progress.resume(default=(None, factors))
            return generalized_parafac(x, 2, progress.n_iter_left, init, tol=0, callback=progress)

    run(3, "parts.npz")
    resumed, whole = run(7, "parts.npz"), run(7, "whole.npz")
    assert whole.factors[0][0, 0] > 0
    for a, b in zip(resumed.factors, whole.factors, strict=True):
        assert (a == b).all()


def test_a_zero_that_cannot_be_lifted_makes_no_nan():
    x, _, _ = draw_counts()
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 2)) for size in x.shape]
    factors[1][3] = 0
    cp, losses = generalized_parafac(x, 2, 5, (None, factors), fixed_modes=[1], return_errors=True)
    assert losses[-1] == np.inf
    assert all(np.isfinite(factor).all() for factor in cp.factors)


def test_empty_rows_are_zero():
    x = FlycooTensor([[0, 2, 4], [1, 3, 3], [0, 0, 5]], [1, 2, 3], shape=(6, 5, 7))
    cp = generalized_parafac(x, 4, 30, random_state=0)
    for mode, factor in enumerate(cp.factors):
        assert np.isfinite(factor).all()
        assert (np.delete(factor, x.nonzeros()[0][mode], axis=0) == 0).all()


@pytest.mark.parametrize("init", ["random", "svd"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_guesses(init, dtype):
    x, dense, _ = draw_counts()
    coords, values = x.nonzeros()
    x = FlycooTensor(coords, values.astype(dtype), x.shape)
    cp, losses = generalized_parafac(x, 3, 20, init, random_state=0, return_errors=True)
    assert all(factor.dtype == dtype and (factor >= 0).all() for factor in cp.factors)
    assert losses[-1] == pytest.approx(measure_densely(cp, dense), rel=1e-5)


@pytest.mark.parametrize("fixed", [[0], [2], [0, 2], [0, 1, 2]])
def test_fixed_modes_stay(fixed):
    x, dense, _ = draw_counts()
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 2)) for size in x.shape]
    cp, losses = generalized_parafac(
        x, 2, 5, (None, factors), fixed_modes=fixed, return_errors=True
    )
    for mode in range(3):
        assert (cp.factors[mode] == factors[mode]).all() == (mode in fixed)
    if losses:
        assert losses[-1] == pytest.approx(measure_densely(cp, dense), rel=1e-12)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_resumed_run_gives_the_same_bits(first, tmp_path):
    x, *_ = draw_counts()

    def run(n_iter_max, name):
        with Progress(n_iter_max, show=None, checkpoint=tmp_path / name, every=1) as progress:
            init = progress.resume(default="random")
            return generalized_parafac(
                x, 3, progress.n_iter_left, init, random_state=0, tol=0,
                callback=progress,
            ), progress.errors  # fmt: skip

    run(first, "parts.npz")
    (resumed, errors), (whole, all_errors) = run(7, "parts.npz"), run(7, "whole.npz")
    assert errors == all_errors
    for a, b in zip(resumed.factors, whole.factors, strict=True):
        assert (a == b).all()
    with pytest.raises(ValueError, match="written by generalized_parafac, expected non_neg"):
        tensorly_flycoo.decomposition.non_negative_parafac_hals(
            x, 3, init=Progress(9, show=None, checkpoint=tmp_path / "whole.npz").resume()
        )


def test_a_model_of_a_callback_is_saved_as_it_was(tmp_path):
    """Later iterations do not change the state that it has beside its factors."""
    x, *_ = draw_counts()
    models, losses = [], []

    def keep(cp_tensor, loss):
        models.append(cp_tensor)
        losses.append(loss)

    whole = generalized_parafac(x, 3, 6, random_state=0, tol=0, callback=keep)
    save_checkpoint(tmp_path / "parts.npz", models[2], losses[:3])
    init = load_checkpoint(tmp_path / "parts.npz")
    resumed = generalized_parafac(x, 3, 4, init, tol=0)
    for a, b in zip(resumed.factors, whole.factors, strict=True):
        assert (a == b).all()


def test_a_resumed_run_of_a_long_mode_gives_the_same_bits(tmp_path):
    """Updates add up the columns of a long factor in blocks of rows."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 6000) for size in (5, 3000, 4)])
    x = FlycooTensor(coords, rng.integers(1, 5, 6000), (5, 3000, 4))

    def run(n_iter_max, name):
        with Progress(n_iter_max, show=None, checkpoint=tmp_path / name, every=1) as progress:
            init, options = progress.resume(default="random"), {"tol": 0, "callback": progress}
            cp = generalized_parafac(x, 3, progress.n_iter_left, init, random_state=0, **options)
            return b"".join(factor.tobytes() for factor in cp.factors)

    run(1, "parts.npz")
    assert run(6, "parts.npz") == run(6, "whole.npz")


def test_mu_stops_when_the_loss_settles():
    x, *_ = draw_counts()
    options = {"n_iter_max": 500, "random_state": 0, "return_errors": True}
    _, losses = generalized_parafac(x, 2, tol=1e-4, **options)
    decreases = -np.diff(losses) / np.abs(losses[1:])
    assert decreases[-1] < 1e-4
    assert (decreases[:-1] >= 1e-4).all()


def test_labels():
    x, *_ = draw_counts()
    sizes = zip("abc", x.shape, strict=True)
    labels = {name: [f"{name}{i}" for i in range(size)] for name, size in sizes}
    cp = generalized_parafac(LabelledTensor(x, labels), 2, 4, random_state=0)
    assert isinstance(cp, LabelledCP)
    again, losses = generalized_parafac(LabelledTensor(x, labels), 2, 4, cp, return_errors=True)
    assert again.names == ("a", "b", "c")
    assert np.isfinite(losses).all()


def test_integers_and_coos_are_taken_as_they_are():
    x, dense, _ = draw_counts()
    results = [
        generalized_parafac(data, 2, 3, random_state=0)
        for data in (x, sparse.COO.from_numpy(dense), sparse.COO.from_numpy(dense.astype("int8")))
    ]
    for cp in results[1:]:
        assert all((a == b).all() for a, b in zip(cp.factors, results[0].factors, strict=True))


def test_a_planted_model_is_found():
    """In 18 of 20 starts, each with data of its own."""
    num_found = 0
    for seed in range(20):
        x, _, factors = draw_counts((30, 25, 20), 3, 3.0, seed)
        cp = generalized_parafac(x, 3, 300, random_state=seed)
        score = factor_match_score((None, factors), cp)
        num_found += score > 0.95
    assert num_found >= 18


def _tensor(*values):
    return FlycooTensor(np.arange(len(values))[None].repeat(2, 0), values, (9, 9))


@pytest.mark.parametrize(("x", "options", "error", "message"), [
    (_tensor(1.0, -2.0), {}, ValueError, "tensor holds -2.0, expected numbers of 0 or more"),
    (_tensor(), {}, ValueError, r"tensor of shape \(9, 9\) has no nonzeros"),
    (_tensor(1.0), {"loss": "poison"}, ValueError, "loss is 'poison', expected one of"),
    (_tensor(1.0), {"loss": 3}, TypeError, "loss is a int, expected one of"),
    (_tensor(1.0), {"loss": (abs, abs)}, ValueError, "loss has 2 items"),
    (_tensor(1.0), {"loss": (1, 2, 0)}, TypeError, "f and df of loss are 1 and 2"),
    (_tensor(1.0), {"loss": (abs, abs, np.nan)}, ValueError, "lower_bound of loss is nan"),
    (
        _tensor(0.5),
        {"loss": "zero_truncated_poisson"},
        ValueError,
        "holds 0.5, expected numbers of 1 or more for loss='zero_truncated_poisson'",
    ),
    (_tensor(2.0), {"loss": "bernoulli_odds"}, ValueError, "holds 2.0, expected zeros and ones"),
    (_tensor(1.0), {"method": "sgd"}, ValueError, "method is 'sgd', expected one of"),
    (_tensor(1.0), {"method": "mu", "loss": "gamma"}, ValueError, "for loss='gamma'"),
    (_tensor(1.0), {"samples": (3, 3)}, ValueError, "samples is .*, expected None"),
    (_tensor(1.0), {"fixed_modes": [2]}, ValueError, "mode of fixed_modes is 2, exp"),
    (_tensor(1.0), {"rank": 0}, ValueError, "rank is 0"),
    (_tensor(1.0), {"init": "svdd"}, ValueError, "init is 'svdd'"),
    (_tensor(1.0), {"init": (None, [np.full((9, 2), -1.0)] * 2)}, ValueError,
     r"factors\[0\] of init has the element -1.0, expected 0 or more"),
    (_tensor(1.0), {"init": (None, [np.full((9, 2), np.nan)] * 2)}, ValueError,
     r"factors\[0\] of init has the element nan"),
    (np.ones((3, 3)), {}, TypeError, "sparse"),
])  # fmt: skip
def test_bad_input(x, options, error, message):
    with pytest.raises(error, match=message):
        generalized_parafac(x, **{"rank": 2, "n_iter_max": 2, **options})


def test_counts_need_not_be_whole_numbers():
    cp = generalized_parafac(_tensor(0.5, 2.25), 1, 200, random_state=0)
    assert np.isfinite(cp.factors[0]).all()


def test_nan_is_refused_by_the_tensor():
    with pytest.raises(ValueError, match="nan"):
        _tensor(1.0, np.nan)


def test_missing_entries_only_lose_what_the_model_says_there():
    x, dense, _ = draw_counts()
    mask, observed = make_mask(x.shape, 400)
    data, rng = ObservedData(x, find_missing(x, mask)), np.random.default_rng(0)
    factors = [rng.random((size, 2)) for size in x.shape]
    expected = measure_densely((np.ones(2), factors), dense, observed)
    assert evaluate_loss(data, factors) == pytest.approx(expected, rel=1e-12)


def test_slabs():
    x, *_ = draw_counts()
    pieces = FlycooTensor(*x.nonzeros(), x.shape, slabs=3)
    options = {"random_state": 0, "tol": 0, "return_errors": True}
    (cp, losses), (other, other_losses) = (
        generalized_parafac(z, 3, 5, **options) for z in (x, pieces)
    )
    np.testing.assert_allclose(other_losses, losses, rtol=1e-12)
    for found, expected in zip(other.factors, cp.factors, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


def test_on_several_devices_bits_depend_on_the_slabs_only(monkeypatch):
    whole, results = draw_counts()[0], set()
    for count in (1, 2, 4):
        with monkeypatch.context() as patch:
            patch.setattr(CPU, "devices", OneDevice(count=count))
            x = FlycooTensor(*whole.nonzeros(), whole.shape, slabs=4)
        cp, losses = generalized_parafac(x, 3, 5, random_state=0, return_errors=True)
        results.add((*losses, *(factor.tobytes() for factor in cp.factors)))
    assert len(results) == 1

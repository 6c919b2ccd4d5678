"""Coupled CP against least squares on dense arrays, TensorLy's coupled function, and parafac."""

import sys

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl
from model_cells import read_cells
from tensorly.decomposition import coupled_matrix_tensor_3d_factorization
from tensorly.decomposition._cp import initialize_cp

from tensorly_flycoo import FlycooTensor, Progress, coupled_parafac
from tensorly_flycoo.loop.guarding import tensorly_loop
from tensorly_flycoo.models import CoupledCP
from tensorly_flycoo.testing import random_tensor

RANK = 3
SIZES = {"user": 12, "item": 9, "day": 7, "tag": 8, "region": 5}
EVENTS, TAGS = ("user", "item", "day"), ("user", "tag")
#: Blocks by their modes: all kinds of sharing. The blocks of the last two share all of their modes.
CASES = {
    "a matrix": [EVENTS, TAGS],
    "a matrix first": [("tag", "user"), EVENTS],
    "two modes": [EVENTS, ("day", "tag", "item", "region")],
    "a chain": [EVENTS, ("day", "region"), TAGS],
    "two of one shape": [EVENTS, EVENTS],
    "a triangle": [("user", "item"), ("item", "day"), ("day", "user")],
}
#: How a dense array becomes a block.
KINDS = {
    "dense": lambda x: x,
    "FlycooTensor": FlycooTensor.from_dense,
    "COO": sparse.COO.from_numpy,
    "SciPy": lambda x: scipy.sparse.csr_array(x) if x.ndim == 2 else FlycooTensor.from_dense(x),
}


def make_arrays(case, seed=0, noise=0.3, non_negative=False):
    """Make dense data that are coupled, with noise, and a third of the cells zero."""
    rng = np.random.RandomState(seed)
    draw = rng.random_sample if non_negative else rng.standard_normal
    factors = {name: draw((size, RANK)) for name, size in SIZES.items()}
    arrays = []
    for modes in CASES[case]:
        model = evaluate(rng.random_sample(RANK) + 0.5, [factors[name] for name in modes])
        x = model + noise * draw(model.shape)
        arrays.append(np.where(rng.random_sample(x.shape) < 1 / 3, 0, x))
    return arrays


def make_start(case, seed=1):
    rng = np.random.RandomState(seed)
    names = dict.fromkeys(name for modes in CASES[case] for name in modes)
    return {name: rng.random_sample((SIZES[name], RANK)) for name in names}


def evaluate(weights, factors):
    return tl.cp_to_tensor((np.asarray(weights), factors))


def measure(arrays, models, omegas):
    squares = [np.sum((x - m) ** 2) for x, m in zip(arrays, models, strict=True)]
    norms = [np.sum(x**2) for x in arrays]
    return np.sqrt(np.dot(omegas, squares) / np.dot(omegas, norms))


def khatri_rao(factors, weights):
    product = weights[None]
    for factor in factors:
        product = (product[:, None] * factor[None]).reshape(-1, factor.shape[1])
    return product


def multiply_norms(factors):
    return np.prod([np.linalg.norm(factor, axis=0) for factor in factors], axis=0)


def solve_dense(case, arrays, start, omegas, n_iter_max, l2_reg=0.0):
    """Run alternating least squares with Khatri-Rao products and `lstsq`, without normalising.

    The ridge is one on the norm of each component in each block. Blocks that share all of their
    modes begin with the best weights.
    """
    blocks, factors = CASES[case], dict(start)
    counts = {name: sum(name in modes for modes in blocks) for name in factors}
    weights, errors = [np.ones(RANK) for _ in blocks], []

    def solve_weights():
        for b, modes in enumerate(blocks):
            if all(counts[name] > 1 for name in modes):
                own = [factors[name] for name in modes]
                ridge = l2_reg**0.5 * np.diag(multiply_norms(own))
                design = np.concatenate([khatri_rao(own, np.ones(RANK)), ridge])
                target = np.append(arrays[b].reshape(-1), np.zeros(RANK))
                weights[b] = np.linalg.lstsq(design, target, rcond=None)[0]

    solve_weights()
    for _ in range(n_iter_max):
        for name in sorted(factors, key=lambda name: counts[name] > 1):
            designs, targets = [], []
            for modes, x, own, omega in zip(blocks, arrays, weights, omegas, strict=True):
                if name in modes:
                    others = [factors[other] for other in modes if other != name]
                    designs.append(omega**0.5 * khatri_rao(others, own))
                    rows = np.moveaxis(x, modes.index(name), 0).reshape(SIZES[name], -1)
                    targets.append(omega**0.5 * rows.T)
                    designs.append((omega * l2_reg) ** 0.5 * np.diag(own * multiply_norms(others)))
                    targets.append(np.zeros((RANK, SIZES[name])))
            solution = np.linalg.lstsq(np.concatenate(designs), np.concatenate(targets), rcond=None)
            factors[name] = solution[0].T
        solve_weights()
        models = [
            evaluate(w, [factors[m] for m in b]) for w, b in zip(weights, blocks, strict=True)
        ]
        errors.append(measure(arrays, models, omegas))
    return models, errors


def fit(case, arrays, kind="dense", **options):
    make = KINDS[kind]
    pairs = zip(map(make, arrays), CASES[case], strict=True)
    return coupled_parafac(list(pairs), RANK, **{"tol": 0, **options})


def rebuild(model):
    return [evaluate(cp.weights, cp.factors) for cp in model.cp_tensors]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("l2_reg", [0, 0.3])
def test_each_iteration_is_that_of_dense_least_squares(case, kind, l2_reg):
    arrays, start = make_arrays(case), make_start(case)
    omegas = [0.5, 3.0, 1.5][: len(arrays)]
    models, errors = solve_dense(case, arrays, start, omegas, 6, l2_reg)
    options = {"n_iter_max": 6, "block_weights": omegas, "l2_reg": l2_reg}
    found = fit(case, arrays, kind, init=start, **options)
    np.testing.assert_allclose(found.errors, errors, rtol=1e-9)
    for own, expected in zip(rebuild(found), models, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-8 * abs(expected).max())
    assert list(found.factors) == list(start)


def test_errors_are_those_of_tensorly():
    x, y = make_arrays("a matrix")
    *_, expected = coupled_matrix_tensor_3d_factorization(x, y, RANK, n_iter_max=20, tol=0)
    # TensorLy's start; it updates the last mode first, and the shared one last.
    factors = initialize_cp(x, RANK, init="svd").factors
    both = np.concatenate([tl.unfold(x, 0), y], axis=1)
    start = {"user": initialize_cp(both, RANK, init="svd").factors[0]}
    start |= {"day": factors[2], "item": factors[1], "tag": np.ones((SIZES["tag"], RANK))}
    swapped = (x.transpose(0, 2, 1), ("user", "day", "item"))
    found = coupled_parafac([swapped, (y, TAGS)], RANK, init=start, n_iter_max=20, tol=0)
    norm = np.sqrt(np.sum(x**2) + np.sum(y**2))
    np.testing.assert_allclose(found.errors, np.sqrt(expected) / norm, rtol=1e-9)


def test_one_block_is_parafac():
    x = random_tensor((9, 8, 7), 200, random_state=0)
    options = {"n_iter_max": 8, "init": "random", "random_state": 4, "tol": 0}
    with tl.backend_context("numpy"):
        dense, dense_options = x.to_coo().todense(), {**options, "tol": 1e-30}
        _, expected = tensorly_loop("parafac")(dense, RANK, return_errors=True, **dense_options)
    found = coupled_parafac([(x, EVENTS)], RANK, **options)
    np.testing.assert_allclose(found.errors, expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nn_modes", [None, "all", ["user", "item"]])
@pytest.mark.parametrize("case", CASES)
def test_errors_never_rise(case, nn_modes, dtype):
    arrays = [x.astype(dtype) for x in make_arrays(case, non_negative=nn_modes is not None)]
    found = fit(case, arrays, "SciPy", random_state=0, nn_modes=nn_modes, n_iter_max=60)
    assert np.diff(found.errors).max() < 10 * np.finfo(dtype).eps / found.errors[-1]
    assert found.errors[-1] < found.errors[0]
    assert all(factor.dtype == dtype for factor in found.factors.values())
    assert all(cp.weights.dtype == dtype for cp in found.cp_tensors)
    for name in found.factors if nn_modes == "all" else nn_modes or ():
        assert found.factors[name].min() >= 0
    if nn_modes == "all":
        assert all(cp.weights.min() >= 0 for cp in found.cp_tensors)


@pytest.mark.parametrize("case", CASES)
def test_the_form_of_a_model(case):
    arrays, omegas = make_arrays(case), [2.0, 1.0, 0.1]
    omegas = omegas[: len(arrays)]
    found = fit(case, arrays, random_state=0, n_iter_max=30, block_weights=omegas)
    for factor in found.factors.values():
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1)
    strength = sum(w * cp.weights**2 for w, cp in zip(omegas, found.cp_tensors, strict=True))
    assert (np.diff(strength) <= 0).all()
    users = [sum(name in modes for modes in CASES[case]) for name in found.factors]
    has_own = [any(users[[*found.factors].index(n)] == 1 for n in modes) for modes in CASES[case]]
    for cp, modes, is_free, x, error in zip(
        found.cp_tensors, CASES[case], has_own, arrays, found.block_errors, strict=True
    ):
        assert all(a is found.factors[name] for a, name in zip(cp.factors, modes, strict=True))
        assert not is_free or (cp.weights > 0).all()
        residual = np.linalg.norm(x - evaluate(cp.weights, cp.factors))
        np.testing.assert_allclose(error, residual / np.linalg.norm(x), rtol=1e-9)
    for factor, count in zip(found.factors.values(), users, strict=True):
        if count > 1:
            assert (factor.max(axis=0) >= -factor.min(axis=0)).all()
    np.testing.assert_allclose(found.errors[-1], measure(arrays, rebuild(found), omegas), rtol=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SIZES)
def test_a_non_negative_mode_stays_so_beside_others(case, name):
    """Also where the sign of another mode turns that of a block's weights."""
    if name not in make_start(case):
        return
    arrays = [-x for x in make_arrays(case)]
    found = fit(case, arrays, random_state=0, n_iter_max=20, nn_modes=[name])
    assert found.factors[name].min() >= 0
    np.testing.assert_allclose(
        found.errors[-1], measure(arrays, rebuild(found), [1.0] * len(arrays)), rtol=1e-9
    )


def test_a_weight_scales_a_block():
    x, y = make_arrays("a matrix")
    options = {"init": make_start("a matrix"), "n_iter_max": 15}
    weighted = fit("a matrix", [x, y], block_weights=[1, 100], **options)
    scaled = fit("a matrix", [x, 10 * y], **options)
    np.testing.assert_allclose(weighted.errors, scaled.errors, rtol=1e-9)
    np.testing.assert_allclose(weighted.factors["user"], scaled.factors["user"], atol=1e-9)
    np.testing.assert_allclose(10 * weighted.cp_tensors[1].weights, scaled.cp_tensors[1].weights)
    plain = fit("a matrix", [x, y], **options)
    assert weighted.block_errors[1] < plain.block_errors[1]
    assert weighted.block_errors[0] > plain.block_errors[0]


@pytest.mark.parametrize("nn_modes", [None, "all"])
@pytest.mark.parametrize("case", ["a matrix", "a triangle"])
def test_what_the_ridge_minimises_never_rises(case, nn_modes):
    arrays, seen, ridge = make_arrays(case, non_negative=nn_modes == "all"), [], 0.2

    def compare(model, error):
        norms = [np.sum(cp.weights**2) for cp in model.cp_tensors]
        squares = error**2 * sum(np.sum(x**2) for x in arrays)
        seen.append(squares + ridge * sum(norms))

    options = {"random_state": 0, "nn_modes": nn_modes, "l2_reg": ridge, "n_iter_max": 60}
    fit(case, arrays, callback=compare, **options)
    assert np.diff(seen).max() < 1e-12 * seen[0]
    assert seen[-1] < seen[1]


@pytest.mark.parametrize("unit", [7.0, 1e-9, 1e200])
def test_the_ridge_has_no_unit(unit):
    arrays, options = make_arrays("a matrix"), {"random_state": 0, "l2_reg": 0.2, "n_iter_max": 9}
    found, scaled = (fit("a matrix", [u * x for x in arrays], **options) for u in (1, unit))
    np.testing.assert_allclose(scaled.errors, found.errors, rtol=1e-9)
    for one, other in zip(found.cp_tensors, scaled.cp_tensors, strict=True):
        np.testing.assert_allclose(unit * one.weights, other.weights, rtol=1e-9)


@pytest.mark.parametrize(
    ("case", "nn_modes"),
    [
        ("a matrix", None),
        ("a matrix", "all"),
        ("a triangle", None),
        pytest.param("a triangle", "all", marks=pytest.mark.slow),
    ],
)
def test_a_planted_model_is_found(case, nn_modes):
    arrays = make_arrays(case, noise=0, non_negative=True)
    rng = np.random.RandomState(3)
    factors = {name: rng.gamma(0.5, size=(size, RANK)) for name, size in SIZES.items()}
    arrays = [evaluate(np.ones(RANK), [factors[n] for n in modes]) for modes in CASES[case]]
    found = [
        fit(case, arrays, random_state=seed, n_iter_max=1000, tol=1e-10, nn_modes=nn_modes)
        for seed in range(4)
    ]
    assert min(model.errors[-1] for model in found) < 1e-4


@pytest.mark.parametrize("case", ["a matrix", "a triangle"])
def test_a_model_is_an_initial_guess(case):
    arrays = make_arrays(case)
    whole = fit(case, arrays, random_state=0, n_iter_max=9)
    half = fit(case, arrays, random_state=0, n_iter_max=4)
    rest = fit(case, arrays, init=half, n_iter_max=5)
    np.testing.assert_allclose(half.errors + rest.errors, whole.errors, rtol=1e-9)


def test_random_starts_are_numpys_numbers_in_the_order_of_the_modes():
    arrays, rng = make_arrays("a matrix"), np.random.RandomState(5)
    start = {name: rng.random_sample((SIZES[name], RANK)) for name in (*EVENTS, "tag")}
    drawn = fit("a matrix", arrays, random_state=5, n_iter_max=2)
    assert drawn.errors == fit("a matrix", arrays, init=start, n_iter_max=2).errors
    assert all(start[name] is not drawn.factors[name] for name in start)


def test_results_have_the_same_bits_in_every_run():
    arrays = make_arrays("a chain")
    a, b = (fit("a chain", arrays, "FlycooTensor", random_state=0, n_iter_max=5) for _ in range(2))
    for name, factor in a.factors.items():
        np.testing.assert_array_equal(factor, b.factors[name])


def test_integers_are_counts_and_float32_meets_float64():
    rng = np.random.RandomState(0)
    x, y = rng.poisson(1, (12, 9, 7)), rng.random_sample((12, 8)).astype(np.float32)
    found = fit("a matrix", [x, y], n_iter_max=2, random_state=0)
    assert found.factors["user"].dtype == np.float64
    sparse_y = fit("a matrix", [x, y], "SciPy", n_iter_max=2, random_state=0)
    np.testing.assert_allclose(sparse_y.errors, found.errors, rtol=1e-9)


def test_large_sparse_blocks_stay_sparse():
    sizes = (300_000, 200_000, 100_000)  # 6e15 cells, and 3e10 in the matrix
    x = random_tensor(sizes, 2000, random_state=0)
    y = scipy.sparse.random_array((300_000, 100_000), density=1e-7, rng=0)
    found = coupled_parafac([(x, EVENTS), (y, TAGS)], 2, n_iter_max=2, random_state=0)
    assert [factor.shape[0] for factor in found.factors.values()] == [*sizes, 100_000]


def test_a_callback_sees_each_model_and_may_stop():
    arrays, seen = make_arrays("a triangle"), []

    def callback(model, error):
        seen.append((model, [f.copy() for f in model.factors.values()], error))
        return len(seen) == 4

    found = fit("a triangle", arrays, random_state=0, n_iter_max=10, callback=callback)
    assert [error for *_, error in seen[1:]] == found.errors
    assert len(seen) == 4
    for model, copies, error in seen:
        assert isinstance(model, CoupledCP)
        np.testing.assert_allclose(error, measure(arrays, rebuild(model), np.ones(3)), rtol=1e-9)
        for factor, copy in zip(model.factors.values(), copies, strict=True):
            np.testing.assert_array_equal(factor, copy)  # never changed afterwards


def test_progress_keeps_the_best_model(tmp_path):
    arrays = make_arrays("a matrix")
    with Progress(6, show=None) as progress:
        found = fit("a matrix", arrays, random_state=0, n_iter_max=6, callback=progress)
    assert progress.errors[1:] == found.errors
    models = [evaluate(cp.weights, cp.factors) for cp in progress.best.cp_tensors]
    for own, expected in zip(models, rebuild(found), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-12)
    with (
        Progress(6, show=None, checkpoint=tmp_path / "run.npz") as progress,
        pytest.raises(TypeError, match="the model is a CoupledCP, expected a CPTensor"),
    ):
        fit("a matrix", arrays, callback=progress)


def test_the_tolerance_ends_the_run():
    found = fit("a matrix", make_arrays("a matrix"), random_state=0, tol=1e-3)
    changes = -np.diff(found.errors)
    assert changes[-1] < 1e-3 <= changes[:-1].min()


def test_a_component_that_a_block_lacks_has_weight_zero_there():
    rng = np.random.RandomState(0)
    users = np.linalg.qr(rng.standard_normal((12, 2)))[0]
    x = evaluate(np.ones(2), [users, rng.random_sample((9, 2)), rng.random_sample((7, 2))])
    y = users[:, :1] @ rng.random_sample((1, 8))
    found = coupled_parafac([(x, EVENTS), (y, TAGS)], 2, random_state=0, n_iter_max=500, tol=0)
    assert found.errors[-1] < 1e-6
    weights = found.cp_tensors[1].weights
    assert weights.min() < 1e-6 * weights.max()


BAD_OPTIONS = [
    ({"rank": 0}, ValueError, "rank is 0, expected at least 1"),
    ({"rank": 2.5}, TypeError, "rank is 2.5, expected an integer"),
    ({"init": "svd"}, ValueError, "init is 'svd', expected 'random', a CoupledCP, or a factor for"),
    ({"init": {"user": 1}}, ValueError, r"init is \['user'\], expected"),
    (
        {"init": make_start("a triangle")},
        ValueError,
        r"init is \['user', 'item', 'day'\], expected",
    ),
    ({"rank": 2, "init": make_start("a matrix")}, ValueError, "have 3 columns, expected 2"),
    ({"block_weights": [1]}, ValueError, r"block_weights is \[1\], expected 2 finite numbers"),
    ({"block_weights": [1, 0]}, ValueError, "expected 2 finite numbers above 0"),
    ({"block_weights": [1, np.nan]}, ValueError, "expected 2 finite numbers above 0"),
    ({"l2_reg": -1}, ValueError, "l2_reg is -1, expected a finite number, 0 or more"),
    ({"l2_reg": "some"}, TypeError, "l2_reg is 'some', expected a number"),
    ({"nn_modes": "user"}, ValueError, "nn_modes is 'user', expected 'all', None or some of"),
    (
        {"nn_modes": ["shop"]},
        ValueError,
        r"nn_modes is \['shop'\], expected 'all', None or some of",
    ),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD_OPTIONS)
def test_bad_options(options, kind, message):
    x, y = make_arrays("a matrix")
    with pytest.raises(kind, match=message):
        coupled_parafac([(x, EVENTS), (y, TAGS)], **{"rank": RANK, **options})


def test_a_start_must_fit():
    arrays, start = make_arrays("a matrix"), make_start("a matrix")
    other = fit("a triangle", make_arrays("a triangle"), random_state=0, n_iter_max=1)
    cases = [
        (start | {"day": start["day"].astype(np.float32)}, None, TypeError, "has dtype float32"),
        (start | {"day": start["item"]}, None, ValueError, r"has shape \(9, 3\), expected \(7"),
        (start | {"day": -start["day"]}, "all", ValueError, "mode 'day' of init has the element -"),
        (other, None, ValueError, "init is"),
    ]
    for init, nn_modes, kind, message in cases:
        with pytest.raises(kind, match=message):
            fit("a matrix", arrays, init=init, nn_modes=nn_modes)
    one = coupled_parafac([(arrays[0], EVENTS)], RANK, random_state=0, n_iter_max=1)
    with pytest.raises(ValueError, match="init has models of 1 blocks, expected 2"):
        coupled_parafac([(arrays[0], EVENTS)] * 2, RANK, init=one)


# Sums in float64: what is minimised, errors, and the unit of the data

#: Roundings of float64 in sums of terms that cancel, relative to these terms: how far a sweep may
#: raise what is minimised, and how far errors may be off.
RISE, OFF = 80 * np.finfo(np.float64).eps, 16 * np.finfo(np.float64).eps

#: Shapes, some smaller than the ranks, and blocks of modes that share all kinds of them.
SMALL = {
    "a matrix": ({"a": 2, "b": 7, "c": 7, "d": 4}, ["abc", "ad"]),
    "all modes of one": ({"a": 9, "b": 6, "c": 9}, ["abc", "ab"]),
    "a triangle": ({"a": 5, "b": 3, "c": 4}, ["ab", "bc", "ca"]),
    "two of one shape": ({"a": 3, "b": 4, "c": 5}, ["abc", "abc"]),
    "one": ({"a": 3, "b": 4}, ["ab"]),
}


class Fitted:
    """A run, and what it reported and passed to its callback, measured densely in float64."""

    def __init__(self, arrays, modes, omegas, rank, l2_reg=0.0, **options):
        self.arrays, self.modes, self.omegas, self.l2_reg = arrays, modes, omegas, l2_reg
        self.models, self.reported = [], []
        squares = [(x.astype(np.float64) ** 2).sum() for x in arrays]
        self.total = np.dot(omegas, squares)
        pairs = zip(arrays, modes, strict=True)
        more = {"block_weights": omegas, "l2_reg": l2_reg, "tol": 0, "callback": self.note}
        self.model = coupled_parafac(list(pairs), rank, **more, **options)

    def note(self, model, error):
        self.models.append(model)
        self.reported.append(error)

    def measure(self, model):
        """Return the squares of the residual, of the ridge, and of all terms of the sums."""
        squares, ridge, terms = 0.0, 0.0, 0.0
        for x, modes, omega, cp in zip(
            self.arrays, self.modes, self.omegas, model.cp_tensors, strict=True
        ):
            x, cells = x.astype(np.float64), read_cells(cp)
            if isinstance(modes, dict):
                known = [np.isin(model.labels[name], of) for name, of in modes.items()]
                cells = cells[np.ix_(*known)]
            norms = [np.linalg.norm(factor.astype(np.float64), axis=0) for factor in cp.factors]
            sizes = abs(cp.weights.astype(np.float64)) * np.prod(norms, axis=0)
            squares += omega * ((x - cells) ** 2).sum()
            ridge += self.l2_reg * omega * (sizes**2).sum()
            terms += omega * ((x**2).sum() + sizes.sum() ** 2)
        return squares, ridge, terms

    def check(self):
        """Check that nothing rises, and that errors are those of the models."""
        squares, ridge, terms = np.array([self.measure(model) for model in self.models]).T
        assert (np.diff(squares + ridge) <= RISE * terms[1:]).all()
        off = np.array(self.reported) ** 2 * self.total - squares
        assert (abs(off) <= OFF * terms).all()
        assert self.reported[1:] == self.model.errors
        # The components are sorted at the end, and their signs chosen.
        square, _, size = self.measure(self.model)
        assert abs(self.model.errors[-1] ** 2 * self.total - square) <= OFF * size


def draw_case(name, seed, dtype):
    """Draw integers, which float32 holds even times 1000, and options of all kinds."""
    rng, (sizes, blocks) = np.random.RandomState(seed), SMALL[name]
    options = {
        "rank": int(rng.randint(1, 7)),
        "l2_reg": [0, 0, 0.1, 1e-3][rng.randint(4)],
        "nn_modes": [None, "all", ["a"]][rng.randint(3)],
        "missing": ["zero", "unknown"][rng.randint(2)],
    }
    arrays, modes = [], []
    for n, own in enumerate(blocks):
        labels = {mode: np.arange(sizes[mode]) for mode in own}
        if options["missing"] == "unknown" and n == 1 and "a" in own:
            labels["a"] = np.sort(rng.permutation(sizes["a"])[:-1])
        least = 0 if options["nn_modes"] == "all" else -64
        arrays.append(rng.randint(least, 65, [of.size for of in labels.values()]).astype(dtype))
        modes.append(labels)
    return arrays, modes, [1 / float((x.astype(float) ** 2).sum()) for x in arrays], options


def try_seeds(count):
    """Try few seeds by default, and the others with --slow."""
    few, others = range(9), range(9, count)
    return pytest.mark.parametrize(
        "seeds",
        [
            pytest.param(few, id="few"),
            pytest.param(others, id="others", marks=pytest.mark.slow),
        ],
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@try_seeds(30)
@pytest.mark.parametrize("name", SMALL)
def test_sweeps_never_raise_what_they_minimise_and_have_no_unit(name, seeds, dtype):
    for seed in seeds:
        arrays, modes, omegas, options = draw_case(name, seed, dtype)
        options |= {"n_iter_max": 15, "random_state": seed}
        found = Fitted(arrays, modes, omegas, **options)
        found.check()
        unit = (2.0, 2.0**40, 1e3)[seed % 3]
        scaled = Fitted(
            [x * dtype(unit) for x in arrays], modes, [w / unit**2 for w in omegas], **options
        )
        if unit != 1e3:
            assert scaled.reported == found.reported
            for key, factor in found.model.factors.items():
                np.testing.assert_array_equal(scaled.model.factors[key], factor)
            for one, other in zip(found.model.cp_tensors, scaled.model.cp_tensors, strict=True):
                np.testing.assert_array_equal(dtype(unit) * one.weights, other.weights)
            continue
        scaled.check()
        # One rounding, of the dtype in which factors are kept, is another; sweeps carry it on.
        pairs = list(zip(scaled.reported, found.reported, strict=False))
        first, second = np.array(pairs).T
        assert abs(first**2 - second**2).max() < 1000 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@try_seeds(150)
def test_a_rank_above_the_sizes_of_shared_modes(seeds, dtype):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        arrays = [rng.random(shape).astype(dtype) for shape in ((2, 7, 7), (2, 4))]
        omegas = [1 / float((x.astype(float) ** 2).sum()) for x in arrays]
        modes = [tuple("abc"), tuple("ad")]
        found = Fitted(arrays, modes, omegas, 4, n_iter_max=25, random_state=seed)
        found.check()
        assert len(found.model.errors) == 25
        assert found.model.errors[-1] < 0.27  # where either dtype ends: .25 at most


@pytest.mark.parametrize("unit", [2, 1e3])
def test_weights_of_a_block_that_shares_all_modes_begin_in_its_unit(unit):
    rng = np.random.default_rng(0)
    arrays = [rng.random((9, 6, 9)), rng.random((9, 6))]
    options = {"rank": 3, "tol": 0, "n_iter_max": 25, "random_state": 0}
    modes = [tuple("abc"), tuple("ab")]
    found, scaled = (
        coupled_parafac([(c * x, of) for x, of in zip(arrays, modes, strict=True)], **options)
        for c in (1, unit)
    )
    np.testing.assert_allclose(scaled.errors, found.errors, rtol=1e-12)


@pytest.mark.parametrize("l2_reg", [0, 0.1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sweep_that_raises_what_is_minimised_is_taken_back(dtype, l2_reg, monkeypatch):
    module, calls = sys.modules["tensorly_flycoo.decomposition.coupled_parafac"], []
    solve = module._solve

    def solve_wrongly(*args):
        calls.append(None)
        return solve(*args) * (3 if len(calls) > 20 else 1)

    arrays = [x.astype(dtype) for x in make_arrays("a matrix")]
    options = {"rank": RANK, "n_iter_max": 9, "random_state": 0, "l2_reg": l2_reg}
    right = Fitted(arrays, CASES["a matrix"], [1.0, 1.0], **options)
    monkeypatch.setattr(module, "_solve", solve_wrongly)
    found = Fitted(arrays, CASES["a matrix"], [1.0, 1.0], **options)
    found.check()
    kept = len(found.model.errors) - 1
    assert 2 <= kept < 8
    assert found.model.errors == [*right.model.errors[:kept], right.model.errors[kept - 1]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("nn_modes", [None, "all"])
def test_momentum_takes_fewer_iterations(case, nn_modes):
    """Errors never rise: what is minimised is the same as what is measured."""
    arrays = make_arrays(case, non_negative=nn_modes is not None)
    blocks = list(zip(arrays, CASES[case], strict=True))
    options = {"rank": RANK, "random_state": 0, "tol": 0, "nn_modes": nn_modes}
    plain = coupled_parafac(blocks, n_iter_max=60, **options)
    model = coupled_parafac(blocks, n_iter_max=40, linesearch="nesterov", **options)
    assert (np.diff(np.square(model.errors)) <= 1e-13).all()
    assert model.errors[-1] <= plain.errors[-1] + 1e-3
    if nn_modes:
        assert all((factor >= 0).all() for factor in model.factors.values())


def test_momentum_with_a_ridge_lowers_what_is_minimised():
    arrays, l2_reg = make_arrays("a chain"), 0.05
    blocks = list(zip(arrays, CASES["a chain"], strict=True))
    objectives = []

    def record(model, error):
        square = error**2 * sum(np.sum(x**2) for x in arrays)
        weights = [cp_tensor.weights for cp_tensor in model.cp_tensors]
        objectives.append(square + l2_reg * np.sum(np.square(weights)))

    options = {"rank": RANK, "random_state": 0, "n_iter_max": 30, "tol": 0, "l2_reg": l2_reg}
    coupled_parafac(blocks, linesearch="nesterov", callback=record, **options)
    assert (np.diff(objectives[1:]) <= 1e-10).all()


def test_an_unknown_linesearch_is_refused():
    blocks = list(zip(make_arrays("a matrix"), CASES["a matrix"], strict=True))
    with pytest.raises(ValueError, match="linesearch is True, expected one of"):
        coupled_parafac(blocks, RANK, linesearch=True)


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_errors_of_components_that_cancel(seed):
    """Of a tensor of border rank 2, and a matrix, in float32: no model is lost to rounding."""
    a, b = np.random.RandomState(seed).random_sample((2, 3, 12))
    triples = [(a[0], a[1], b[2]), (a[0], b[1], a[2]), (b[0], a[1], a[2])]
    cube = sum(np.einsum("i,j,k->ijk", *triple) for triple in triples).astype(np.float32)
    arrays = [cube, np.outer(a[0], b[2]).astype(np.float32)]
    options = {"random_state": 0, "n_iter_max": 200}
    Fitted(arrays, [tuple("abc"), tuple("ad")], [1.0, 1.0], 3, **options).check()


# Unknown rows


def planted_with_unknown_rows(seed=0):
    """A tensor and a side table, both exact, whose rows of users are not the same ones."""
    rng = np.random.RandomState(seed)
    factors = {name: rng.random_sample((size, 2)) for name, size in
               {"user": 30, "item": 12, "day": 10, "tag": 8}.items()}  # fmt: skip
    x = evaluate(np.ones(2), [factors[name] for name in EVENTS])
    tags = evaluate(np.ones(2), [factors[name] for name in TAGS])
    users = np.arange(30)
    rows, known = users[:24], np.append([27, 24, 29, 28, 26, 25], rng.permutation(24)[:9])
    labels = {"user": users[rows], "item": np.arange(12), "day": np.arange(10)}
    side = {"user": users[known], "tag": np.arange(8)}
    return x, tags, [(x[rows], labels), (tags[known], side)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_that_a_side_table_lacks_are_unknown(kind):
    """Least squares on what is known finds all of it."""
    x, tags, blocks = planted_with_unknown_rows()
    blocks = [(kind(data), labels) for data, labels in blocks]
    options = {"n_iter_max": 2000, "tol": 1e-12, "random_state": 0}
    model = coupled_parafac(blocks, 2, missing="unknown", **options)
    assert model.errors[-1] < 1e-4
    order = np.argsort(model.labels["user"])
    for cp, expected in zip(model.cp_tensors, (x, tags), strict=True):
        factors = [cp.factors[0][order], *cp.factors[1:]]
        found = evaluate(cp.weights, factors)
        known = np.linalg.norm(expected)
        assert np.linalg.norm(found - expected) < 1e-3 * known


def test_rows_that_a_side_table_lacks_are_zero_unless_they_are_unknown():
    _, _, blocks = planted_with_unknown_rows()
    model = coupled_parafac(blocks, 2, n_iter_max=2000, tol=1e-12, random_state=0)
    assert model.errors[-1] > 0.1


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_a_ridge_keeps_predictions_of_unknown_rows_from_running_away(seed):
    """Noise has components too, which are large in rows that it does not restrain."""
    _, tags, blocks = planted_with_unknown_rows()
    rng, errors = np.random.RandomState(1), []
    blocks = [(data + 0.3 * rng.standard_normal(data.shape), own) for data, own in blocks]
    options = {"missing": "unknown", "random_state": seed, "n_iter_max": 300}
    for l2_reg in (0, 0.1):
        model = coupled_parafac(blocks, 6, l2_reg=l2_reg, **options)
        weights, (users, columns) = model.cp_tensors[1]
        predicted = evaluate(weights, [users[np.argsort(model.labels["user"])], columns])
        unknown = np.setdiff1d(np.arange(30), blocks[1][1]["user"])
        residual = np.linalg.norm((predicted - tags)[unknown])
        errors.append(residual / np.linalg.norm(tags[unknown]))
    assert errors[1] < 0.6 < 5 < errors[0]


def test_a_sweep_with_unknown_rows_is_that_of_dense_least_squares():
    _, _, blocks = planted_with_unknown_rows()
    rng = np.random.RandomState(1)
    blocks = [(data + 0.3 * rng.standard_normal(data.shape), own) for data, own in blocks]
    start = coupled_parafac(blocks, 2, missing="unknown", n_iter_max=1, tol=0, random_state=0)
    model = coupled_parafac(blocks, 2, missing="unknown", n_iter_max=2, tol=0, init=start)
    (x, own), (tags, side) = blocks
    users = model.labels["user"].tolist()
    places = [[users.index(label) for label in labels["user"].tolist()] for labels in (own, side)]
    factors = {name: np.array(factor) for name, factor in start.factors.items()}
    weights = [np.array(cp.weights) for cp in start.cp_tensors]

    def loss(of, scales):
        first, second = (of["user"][rows] for rows in places)
        residuals = x - evaluate(scales[0], [first, of["item"], of["day"]])
        return np.sum(residuals**2) + np.sum((tags - evaluate(scales[1], [second, of["tag"]])) ** 2)

    for _ in range(2):
        for name in ("item", "day", "tag", "user"):
            # A quadratic function of this factor: solved by its values at unit vectors.
            size, count = factors[name].shape, factors[name].size

            def at(vector, name=name, size=size):
                return loss(factors | {name: vector.reshape(size)}, weights)

            unit = np.eye(count)
            zero = at(np.zeros(count))
            singles = np.array([at(row) for row in unit])
            minus = np.array([at(-row) for row in unit])
            hessian = np.array([[at(a + b) for b in unit] for a in unit])
            hessian = hessian - singles[:, None] - singles + zero
            factors[name] = np.linalg.solve(hessian, (minus - singles) / 2).reshape(size)
    total = np.sum(x**2) + np.sum(tags**2)
    np.testing.assert_allclose(model.errors[-1], np.sqrt(loss(factors, weights) / total), rtol=1e-8)


def test_a_guess_with_labels_is_matched_by_label():
    """The rows of a guess go to their labels; other labels, and other blocks, are refused."""
    rng = np.random.default_rng(0)
    x, m = rng.random((5, 4)), rng.random((5, 3))
    users = np.array(list("abcde"))
    blocks = [(x, {"user": users, "item": range(4)}), (m, {"user": users, "tag": range(3)})]
    start = coupled_parafac(blocks, 2, n_iter_max=3, tol=0, random_state=0)
    expected = coupled_parafac(blocks, 2, n_iter_max=2, tol=0, init=start)
    order = rng.permutation(5)
    moved = [(data[order], {**modes, "user": users[order]}) for data, modes in blocks]
    found = coupled_parafac(moved, 2, n_iter_max=2, tol=0, init=start)
    np.testing.assert_allclose(found.factors["user"], expected.factors["user"][order], rtol=1e-9)
    others = [(data, {**modes, "user": list("vwxyz")}) for data, modes in blocks]
    with pytest.raises(ValueError, match="init has 5 labels of mode 'user', such as a"):
        coupled_parafac(others, 2, init=start)
    with pytest.raises(ValueError, match=r"init has the blocks .* in this sequence"):
        coupled_parafac(blocks[::-1], 2, init=start)

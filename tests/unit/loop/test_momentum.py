"""`linesearch="nesterov"`: steps that are taken or taken back, resumed runs, what is refused."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from momentum_runs import begin

from tensorly_flycoo import FlycooCP, Progress, best_of, decomposition
from tensorly_flycoo.decomposition import (
    non_negative_parafac_hals,
    non_negative_tucker_hals,
    parafac,
)
from tensorly_flycoo.loop.momentum import Pace, extrapolate
from tensorly_flycoo.testing import planted_tensor, random_tensor

RANK, STOP, END = 4, 7, 16


pytestmark = pytest.mark.usefixtures("flycoo_backend")


def run(update, start, num_iterations):
    """Iterate, and return the factors and errors after each iteration."""
    sweep, momentum = begin(update, start)
    models, errors = [], []
    for iteration in range(num_iterations):
        errors.append(momentum.step(iteration))
        models.append([float(factor[0]) for factor in sweep.model.factors])
    return models, errors


def shrink(factors):
    """Halve the distance to 0; the error is what is left."""
    factors = [factor / 2 for factor in factors]
    return factors, sum(float(np.abs(factor).sum()) for factor in factors)


def test_a_step_that_is_taken_back_halves_the_pace():
    pace = Pace(6.0)
    pace.take_back()
    assert (pace.t, pace.step) == (3.0, 0.0)
    pace.take_back()
    pace.take_back()
    assert pace.t == 1.0  # at least
    pace.advance()
    assert pace.step > 0


def test_steps_follow_the_pace():
    models, _ = run(shrink, [np.array([64.0])], 4)
    expected, pace = [64.0, 32.0], Pace()  # the first iteration has no change to extrapolate
    for _ in range(3):
        expected.append(extrapolate(expected[-1], expected[-2], pace.step) / 2)
        pace.advance()
    assert models == [[x] for x in expected[1:]]


def test_a_step_that_raises_the_error_is_taken_back():
    """The iteration is then that of the other update, from the same factors."""
    calls = []

    def update(factors):
        calls.append(float(factors[0][0]))
        value = calls[-1]
        error = 9.0 if len(calls) == 3 else 1 / len(calls)  # the third call begins at a step
        return [np.array([value + 1])], error

    models, errors = run(update, [np.array([0.0])], 4)
    assert calls[:2] == [0, 1]
    assert calls[2] > 2  # extrapolated
    assert calls[3] == 2  # taken back
    assert models[2] == [3]
    assert 9.0 not in errors
    assert calls[4] > 3  # the next step


@pytest.mark.parametrize(("dtype", "takes_steps"), [("float32", False), ("float64", True)])
def test_no_step_where_rounding_would_decide(dtype, takes_steps):
    """Two large components nearly cancel: float32 has too few digits to tell errors apart."""
    x, rng = random_tensor((8, 9, 10), 400, random_state=0, dtype=dtype), np.random.default_rng(0)
    columns = [rng.standard_normal((size, 1)) for size in x.shape]
    factors = [np.hstack([c, c + rng.standard_normal(c.shape) / 300]) for c in columns]
    init = np.array([-300, 300], dtype), [factor.astype(dtype) for factor in factors]
    options = {"init": init, "n_iter_max": 9, "tol": -1, "return_errors": True}
    _, plain = parafac(x, 2, **options)
    _, found = parafac(x, 2, linesearch="nesterov", **options)
    assert (found != plain) == takes_steps


def test_an_error_that_is_no_number_is_taken_back():
    calls = []

    def update(factors):
        calls.append(1)
        return [factors[0] / 2], np.nan if len(calls) == 3 else 1 / len(calls)

    assert np.isfinite(run(update, [np.array([1.0])], 5)[1]).all()


def test_missing_entries_are_imputed_from_what_is_updated():
    seen = []

    def update(factors):
        seen.append((sweep.values, [factor.tolist() for factor in factors]))
        return [factors[0] / 2], 9.0 if len(seen) == 3 else 1 / len(seen)

    sweep, momentum = begin(update, [np.array([1.0])])
    sweep.impute()
    for iteration in range(4):
        momentum.step(iteration)
        sweep.impute()
    assert len(seen) == 5
    assert all(values == start for values, start in seen)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("decompose", "options"),
    [
        (parafac, {}),
        (parafac, {"normalize_factors": True}),
        (parafac, {"init": "svd", "fixed_modes": [0]}),
        (parafac, {"fixed_modes": [1], "l2_reg": 0.1}),
        (non_negative_parafac_hals, {}),
        (non_negative_parafac_hals, {"normalize_factors": True}),
        (non_negative_parafac_hals, {"nn_modes": [1], "fixed_modes": [2]}),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
@pytest.mark.filterwarnings("ignore:init is taken")
def test_resumed_is_the_same_to_the_bit(tmp_path, decompose, options, dtype):
    x = random_tensor((9, 40, 100), 2000, random_state=0, dtype=dtype)
    options = {
        "init": "random",
        "random_state": 0,
        "tol": 1e-300,
        "linesearch": "nesterov",
    } | options

    def go(n_iter_max, progress, **changes):
        return decompose(x, RANK, n_iter_max=n_iter_max, callback=progress, **options | changes)

    with Progress(END, show=None) as whole:
        expected = go(END, whole)
    path = tmp_path / "run.npz"
    with Progress(STOP, show=None, checkpoint=path) as progress:
        go(STOP, progress)
    with Progress(END, show=None, checkpoint=path) as progress:
        init = progress.resume()
        found = go(progress.n_iter_left, progress, init=init)
    assert progress.errors == whole.errors
    for a, b in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    with Progress(END, show=None) as plain:
        go(END, plain, linesearch=False)
    assert plain.errors[1:3] == whole.errors[1:3]
    assert plain.errors != whole.errors


def test_a_plain_run_goes_on_with_momentum_and_back(tmp_path):
    x, path = random_tensor((9, 40, 100), 2000, random_state=0), tmp_path / "run.npz"
    options = {"init": "random", "random_state": 0, "tol": 0}
    errors = []
    for count, linesearch in enumerate([False, "nesterov", False], 1):
        with Progress(6 * count, show=None, checkpoint=path) as progress:
            init = progress.resume(default="random")
            changes = {"init": init, "linesearch": linesearch, "callback": progress}
            parafac(x, RANK, n_iter_max=6, **options | changes)
        errors = progress.errors
    assert len(errors) == 19
    assert (np.diff(errors) < 0).all()


def test_fewer_iterations_where_components_are_alike():
    """The factors of collinear components are found in long, bent valleys."""
    rng = np.random.default_rng(0)
    bases = [rng.standard_normal((20, 1)) for _ in range(3)]
    factors = [base + 0.3 * rng.standard_normal((20, 4)) for base in bases]
    dense = np.einsum("ir,jr,kr->ijk", *factors)
    x = sparse.COO(dense + 0.01 * dense.std() * rng.standard_normal(dense.shape))
    counts = []
    for linesearch in (False, "nesterov"):
        options = {"init": "random", "random_state": 0, "n_iter_max": 300, "tol": 0}
        _, errors = parafac(x, 4, linesearch=linesearch, return_errors=True, **options)
        counts.append(int(np.argmax(np.array(errors) < 0.02)))
    assert 0 < 2 * counts[1] < counts[0]


def test_a_mask():
    """The residual at the observed entries falls, by fewer iterations."""
    x, _ = planted_tensor((10, 12, 14), 3, 300, noise=0.2, random_state=0)
    coords, _ = x.nonzeros()
    mask = sparse.COO(coords[:, ::5], np.zeros(coords[:, ::5].shape[1]), x.shape, fill_value=1.0)
    dense, observed = x.to_coo().todense(), mask.todense()
    residuals = {False: [], "nesterov": []}
    for linesearch, found in residuals.items():
        parafac(
            x, 3, mask=mask, init="random", random_state=1, n_iter_max=20, tol=0,
            linesearch=linesearch, callback=lambda model, error, found=found: found.append(
                np.linalg.norm((dense - tl.cp_to_tensor(model)) * observed)
            ),
        )  # fmt: skip
    # The residual is a difference of squares: rounding in it is about 1e-16 of the tensor's.
    rises = np.diff(np.square(residuals["nesterov"]))
    assert (rises <= 1e-14 * np.linalg.norm(dense) ** 2).all()
    assert residuals["nesterov"][10] < residuals[False][10]


def test_hals_stays_non_negative():
    x = abs(random_tensor((20, 30, 40), 2000, random_state=0))
    options = {"init": "random", "random_state": 0, "n_iter_max": 25, "tol": 1e-300}
    model, errors = non_negative_parafac_hals(
        x, RANK, linesearch="nesterov", return_errors=True, **options
    )
    assert all((factor >= 0).all() for factor in model.factors)
    assert (np.diff(errors) <= 0).all()


def make_blocks(seed=0):
    """Make a non-negative tensor of blocks with some noise."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((size, 4)) * (rng.random((size, 4)) < 0.4) for size in (20, 30, 25)]
    dense = np.einsum("ir,jr,kr->ijk", *factors)
    return sparse.COO(dense + 0.3 * rng.random(dense.shape) * (rng.random(dense.shape) < 0.05))


@pytest.mark.parametrize("algorithm", ["fista", "active_set"])
def test_a_tucker_model_stays_non_negative_and_its_errors_never_rise(algorithm):
    options = {"init": "random", "random_state": 0, "n_iter_max": 25, "tol": 0}
    (core, factors), errors = non_negative_tucker_hals(
        make_blocks(), [3, 3, 3], algorithm=algorithm, linesearch="nesterov",
        return_errors=True, **options,
    )  # fmt: skip
    assert all((array >= 0).all() for array in (core, *factors))
    # Each error is the root of a difference of squares.
    assert (np.diff(np.square(errors)) <= 1e-14).all()


@pytest.mark.parametrize("options", [{}, {"normalize_factors": True}], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_resumed_tucker_model_is_the_same_to_the_bit(tmp_path, options, dtype):
    """The first run ends by its callback: updates of the core take up to `n_iter_max` steps."""
    x, path = make_blocks().astype(dtype), tmp_path / "run.npz"
    options = {"tol": 0, "linesearch": "nesterov", "return_errors": True} | options
    start = {"init": "random", "random_state": 0, "n_iter_max": END}
    expected, errors = non_negative_tucker_hals(x, [3, 4, 3], **start, **options)
    with Progress(STOP, show=None, checkpoint=path) as first:

        def stop(model, error):
            first(model, error)
            return first.iteration == STOP

        non_negative_tucker_hals(x, [3, 4, 3], **start, **options, callback=stop)
    with Progress(END, show=None, checkpoint=path) as second:
        start = {"init": second.resume(), "n_iter_max": END - STOP}
        found, others = non_negative_tucker_hals(x, [3, 4, 3], **start, **options)
    assert others == errors[STOP:]
    np.testing.assert_array_equal(found.core, expected.core, strict=True)
    for a, b in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fewer_iterations_of_a_tucker_model(seed):
    x = make_blocks(seed)
    options = {"init": "random", "random_state": seed, "tol": 0, "return_errors": True}
    _, plain = non_negative_tucker_hals(x, [3, 3, 3], n_iter_max=60, **options)
    _, found = non_negative_tucker_hals(
        x, [3, 3, 3], n_iter_max=40, linesearch="nesterov", **options
    )
    assert found[-1] <= plain[-1] + 1e-6


def test_unknown_values_are_refused():
    x = random_tensor((5, 6, 7), 50, random_state=0)
    with pytest.raises(ValueError, match="linesearch is 'bro', expected one of"):
        parafac(x, 2, linesearch="bro")
    with pytest.raises(ValueError, match="linesearch is True, expected one of"):
        non_negative_parafac_hals(x, 2, linesearch=True)
    with pytest.raises(ValueError, match="linesearch is 'auto', expected one of"):
        non_negative_tucker_hals(x, 2, linesearch="auto")


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac_hals"])
def test_it_is_on_where_the_loop_is_ours_to_choose(name):
    x = random_tensor((20, 30, 40), 2000, random_state=0)
    options, decompose = {"n_iter_max": 12, "tol": 1e-300}, getattr(decomposition, name)
    starts = best_of(decompose, x, RANK, 2, random_state=0, **options)
    plain = best_of(decompose, x, RANK, 2, random_state=0, linesearch=False, **options)
    estimator = FlycooCP(RANK, method=name, n_starts=1, random_state=3, **options).fit(x)
    for seed, linesearch, found in [
        (starts.seeds[0], "nesterov", starts.errors[0]),
        (plain.seeds[0], False, plain.errors[0]),
        (3, "nesterov", estimator.errors_),
    ]:
        options |= {"init": "random", "random_state": seed, "linesearch": linesearch}
        assert decompose(x, RANK, return_errors=True, **options)[1] == found
    assert starts.errors != plain.errors


def test_tensorly_s_parafac_has_it_too():
    x = random_tensor((20, 30, 40), 2000, random_state=0)
    options = {"n_iter_max": 12, "tol": 0}
    ours, tensorly_s = (
        best_of(decompose, x, RANK, 2, random_state=0, **options)
        for decompose in (parafac, tl.decomposition.parafac)
    )
    assert ours.errors == tensorly_s.errors

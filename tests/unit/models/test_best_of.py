"""The best of several starts."""

import importlib
import signal

import numpy as np
import pytest
import sparse
import tensorly as tl
from tensorly.decomposition import (
    constrained_parafac,
    non_negative_parafac_hals,
    parafac,
    tucker,
)

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    Progress,
    best_of,
    cp_fit,
    decomposition,
    replicability,
    select_rank,
)
from tensorly_flycoo.base.fit_record import find_record
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.decomposition.methods import METHODS
from tensorly_flycoo.io.checkpoint import load_checkpoint
from tensorly_flycoo.models import many_starts
from tensorly_flycoo.models.best_of import go_on, run_once
from tensorly_flycoo.models.match import factor_match_score
from tensorly_flycoo.testing import planted_tensor

observed_parafac = importlib.import_module("tensorly_flycoo.decomposition.observed_parafac")

pytestmark = pytest.mark.usefixtures("flycoo_backend")


def run_without_a_seed(tensor, rank):
    raise AssertionError("this is not called")


def count_batches(monkeypatch):
    """Return a list that gets an item for each batch of runs."""
    batches, original = [], many_starts._run_batch

    def run_batch(batch, *arguments):
        batches.append(batch.num_models)
        return original(batch, *arguments)

    monkeypatch.setattr(many_starts, "_run_batch", run_batch)
    return batches


@pytest.mark.parametrize("function", [parafac, decomposition.parafac])
def test_each_run_equals_the_lone_run(x, function, monkeypatch):
    batches = count_batches(monkeypatch)
    options = {"n_iter_max": 20, "tol": 1e-4}
    starts = best_of(function, x, 3, 5, random_state=1, keep_all=True, **options)
    assert batches == [5]
    assert starts.dropped == []
    assert len(set(starts.seeds)) == 5
    for seed, run, errors in zip(starts.seeds, starts.runs, starts.errors, strict=True):
        alone = {"init": "random", "random_state": seed, "return_errors": True, **options}
        (_, factors), expected = decomposition.parafac(x, 3, linesearch="nesterov", **alone)
        assert [float(e) for e in errors] == [float(e) for e in expected]
        for found, factor in zip(run.factors, factors, strict=True):
            np.testing.assert_array_equal(found, factor)


def make_square(x):
    """Return the part of a tensor whose first and last modes have one size."""
    size = min(x.shape[0], x.shape[-1])
    return x[:size, :, :size]


#: What the solvers take besides a tensor and a rank, and the options of a run.
SOLVERS = {
    "parafac2": {"x": lambda x: [x[n] for n in range(x.shape[0])]},
    "coupled_parafac": {"x": lambda x: [(x, list("abc")), (np.ones((x.shape[0], 4)), ["a", "d"])]},
    "constrained_parafac": {"options": {"non_negative": True}},
    "shared_parafac": {"options": {"modes": []}},
    "shared_tucker": {"x": make_square},
    "tucker": {"rank": [2, 2, 2]},
    "non_negative_tucker": {"rank": [2, 2, 2]},
    "non_negative_tucker_hals": {"rank": [2, 2, 2]},
}


def test_a_function_without_errors_or_a_cp_model_is_refused(x):
    def solve(x, rank, random_state=None):
        return [np.ones((size, rank)) for size in x.shape]

    with pytest.raises(TypeError, match="solve returns neither errors, to compare runs by"):
        best_of(solve, x, 2, 2, random_state=0)


@pytest.mark.parametrize("name", decomposition.__all__)
def test_each_solver_has_a_best_run(name, x):
    x = abs(x)
    own = SOLVERS.get(name, {})
    solve, options = getattr(decomposition, name), {"n_iter_max": 3, **own.get("options", {})}
    data, rank = own.get("x", lambda x: x)(x), own.get("rank", 2)
    starts = best_of(name, data, rank, 3, random_state=0, keep_all=True, **options)
    assert len(starts.runs) == 3
    assert (starts.matches is not None) == (METHODS[name].model in ("CP", "coupled"))
    alone = METHODS[name].prefer_momentum(x, {"init": "random", **options})
    for seed, errors in zip(starts.seeds, starts.errors, strict=True):
        if name == "coupled_parafac":
            expected = solve(data, rank, random_state=seed, **alone).errors
        else:
            expected = solve(data, rank, random_state=seed, return_errors=True, **alone)[1]
        np.testing.assert_allclose(errors, expected, rtol=1e-9)
    assert starts.final_errors[starts.best_number] == starts.final_errors.min()


def test_coupled_models_are_matched_by_their_factors(x):
    blocks = [(x, list("abc")), (np.ones((x.shape[0], 4)), ["a", "d"])]
    starts = best_of("coupled_parafac", blocks, 3, 4, random_state=0, n_iter_max=5)
    models = [(None, [run.factors[mode] for mode in "abcd"]) for run in starts.runs]
    best = models[starts.best_number]
    np.testing.assert_allclose(starts.matches, [factor_match_score(best, own) for own in models])


def test_the_best_run_is_the_one_with_the_least_error(x):
    starts = best_of(parafac, x, 3, 6, random_state=0, n_iter_max=10)
    least = min(range(6), key=lambda n: starts.errors[n][-1])
    assert starts.best is starts.runs[least]
    assert starts.best_number == least
    assert cp_fit(x, starts.best).relative_error == pytest.approx(starts.errors[least][-1])
    scores = [factor_match_score(starts.best, run) for run in starts.runs]
    np.testing.assert_array_equal(starts.matches, scores)
    assert starts.match == pytest.approx((sum(scores) - scores[least]) / 5)
    assert repr(starts).startswith("<Starts: 6 runs, least error 0.")


def test_a_method_by_name_and_its_loss(x):
    counts = FlycooTensor(*x.nonzeros(), x.shape).map(lambda v: np.ceil(abs(v)))
    options = {"random_state": 0, "n_iter_max": 5}
    starts = best_of("generalized_parafac", counts, 2, 2, **options)
    expected = best_of(generalized_parafac, counts, 2, 2, **options)
    assert starts.errors == expected.errors
    assert repr(starts).startswith("<Starts: 2 runs, least loss ")


def test_a_low_match_is_shown(x):
    starts = best_of(parafac, x, 6, 3, random_state=0, n_iter_max=3)
    assert starts.match < 0.5
    found = ": the runs found different components, and none was at its end after 3 iterations "
    assert repr(starts).endswith(found + "(n_iter_max)>")
    ended = best_of(parafac, x, 6, 3, random_state=0, n_iter_max=300, tol=1e-3)
    assert ended.match < 0.9
    assert "none was at its end" not in repr(ended)


def test_the_same_random_state_gives_the_same_runs(x):
    first, second = (best_of(parafac, x, 2, 3, np.random.RandomState(5)) for _ in range(2))
    third = best_of(parafac, x, 2, 3, 5)
    assert first.seeds == second.seeds == third.seeds
    assert first.errors == second.errors == third.errors


def test_a_run_with_a_singular_system_equals_the_lone_run(monkeypatch):
    batches = count_batches(monkeypatch)
    x = FlycooTensor([[0], [2], [1]], [2.0], (29, 30, 31))
    starts = best_of(parafac, x, 2, 3, random_state=0, n_iter_max=5)
    assert batches == [3]
    for seed, run in zip(starts.seeds, starts.runs, strict=True):
        options = {"init": "random", "random_state": seed, "linesearch": "nesterov"}
        expected = decomposition.parafac(x, 2, 5, **options)
        np.testing.assert_array_equal(run.factors[0], expected.factors[0])


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (decomposition.parafac, {"normalize_factors": True, "linesearch": "nesterov"}),
        (parafac, {"linesearch": True}),
        (non_negative_parafac_hals, {}),
        (constrained_parafac, {"non_negative": True}),
        (decomposition.observed_parafac, {"l2_reg": 0.1}),
    ],
)
def test_other_decompositions_run_one_by_one(x, function, options, monkeypatch):
    batches = count_batches(monkeypatch)
    starts = best_of(function, x, 2, 2, random_state=0, n_iter_max=3, **options)
    assert batches == []
    for seed, run in zip(starts.seeds, starts.runs, strict=True):
        expected = function(x, 2, init="random", random_state=seed, n_iter_max=3, **options)
        np.testing.assert_array_equal(run.factors[1], expected.factors[1])
    assert starts.matches.max() == pytest.approx(1)


@pytest.mark.parametrize(
    ("scale", "options"),
    [
        (1e9, {}),
        (1.0, {"biases": True}),
        (1.0, {"cg_steps": 2}),
        pytest.param(1.0, {}, marks=pytest.mark.slow),
        pytest.param(1e9, {"biases": True}, marks=pytest.mark.slow),
        pytest.param(1e9, {"cg_steps": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_ridge_is_chosen_once_for_all_starts(x, options, scale, monkeypatch):
    """It depends on no start, so each run gives the bits of the lone run."""
    x, searches = x * scale, []
    search = observed_parafac.choose_ridge
    lone = {"init": "random", "return_errors": True, "n_iter_max": 5, **options}
    monkeypatch.setattr(
        observed_parafac, "choose_ridge", lambda *args: searches.append(1) or search(*args)
    )
    starts = best_of("observed_parafac", x, 2, 3, random_state=0, n_iter_max=5, **options)
    assert len(searches) == 1
    for seed, run, errors in zip(starts.seeds, starts.runs, starts.errors, strict=True):
        expected, of_lone = decomposition.observed_parafac(x, 2, random_state=seed, **lone)
        assert errors == of_lone
        assert run.flycoo.l2_reg == expected.flycoo.l2_reg
        for found, factor in zip(run.factors, expected.factors, strict=True):
            np.testing.assert_array_equal(found, factor)


def test_models_that_are_no_cp_tensors_are_not_matched(x):
    starts = best_of(tucker, x, [2, 2, 2], 2, random_state=0, n_iter_max=3)
    assert starts.matches is None
    assert np.isnan(starts.match)
    assert starts.best.core.shape == (2, 2, 2)
    assert "match" not in repr(starts)


def test_dense_tensors():
    dense = np.random.RandomState(0).random_sample((5, 6, 7))
    with tl.backend_context("numpy"):
        starts = best_of(parafac, dense, 2, 3, random_state=0, n_iter_max=10)
    assert len(starts.runs) == 3


def test_labels_stay(x):
    labels = {name: np.arange(size) for name, size in zip("abc", x.shape, strict=True)}
    starts = best_of(parafac, LabelledTensor(x, labels), 2, 2, random_state=0, n_iter_max=5)
    plain = best_of(parafac, x, 2, 2, random_state=0, n_iter_max=5)
    assert isinstance(starts.best, LabelledCP)
    assert starts.errors == plain.errors
    np.testing.assert_array_equal(starts.matches, plain.matches)


class PressCtrlC(Progress):
    """A Progress that is interrupted in an iteration."""

    at = 3

    def __call__(self, model, error=np.nan):
        if self.iteration == self.at - 1 and self.errors:
            signal.raise_signal(signal.SIGINT)
        return super().__call__(model, error)


def test_a_progress_of_runs_together_gets_the_best_model(x, tmp_path, caplog):
    caplog.set_level("INFO", "tensorly_flycoo")
    options = {"random_state": 0, "n_iter_max": 12}
    expected = best_of(parafac, x, 3, 4, **options)
    path = tmp_path / "run.npz"
    with Progress(12, show="log", checkpoint=path, every=1) as progress:
        starts = best_of(parafac, x, 3, 4, progress=progress, **options)
    assert starts.errors == expected.errors
    assert starts.dropped == expected.dropped
    np.testing.assert_array_equal(starts.best.factors[0], expected.best.factors[0])
    assert np.isnan(progress.errors[0])
    assert 5 < progress.iteration <= 12
    assert progress.errors[-1] == starts.final_errors.min()
    assert progress.errors[1:] == sorted(progress.errors[1:], reverse=True)
    np.testing.assert_array_equal(progress.best.factors[1], starts.best.factors[1])
    assert "runs 1 to 4 of 4 together" in caplog.text
    assert find_record(starts.best).run is None
    saved = load_checkpoint(path)
    assert saved.solver == "parafac"
    np.testing.assert_array_equal(saved.factors[1], starts.best.factors[1])
    options = {"init": saved, "n_iter_max": 2, "tol": 0, "return_errors": True}
    _, errors = decomposition.parafac(x, 3, **options)
    assert errors[-1] <= saved.errors[-1]


def test_a_progress_shows_one_run_after_another(x, caplog):
    caplog.set_level("INFO", "tensorly_flycoo")
    options = {"random_state": 0, "n_iter_max": 5, "tol": 0}
    expected = best_of("non_negative_parafac_hals", abs(x), 2, 2, **options)
    caplog.clear()
    with Progress(5, show="log", log_every=5) as progress:
        starts = best_of("non_negative_parafac_hals", abs(x), 2, 2, progress=progress, **options)
    assert starts.errors == expected.errors
    np.testing.assert_array_equal(progress.last.factors[0], starts.runs[-1].factors[0])
    np.testing.assert_array_equal(progress.best.factors[0], starts.best.factors[0])
    lines = [line.partition(",")[0] for line in caplog.messages if line.startswith(("run", "iter"))]
    of_run = ["iteration 1 of 5", "iteration 5 of 5"]
    assert lines == ["run 1 of 2", *of_run, "run 2 of 2", *of_run]


@pytest.mark.parametrize("function", ["parafac", "non_negative_parafac_hals"])
def test_the_time_limit_is_that_of_all_runs(function, x, monkeypatch):
    monkeypatch.setattr(many_starts, "choose_batch_size", lambda *_: 2)
    with Progress(50, show=None, time_limit_s=1e-9) as progress:
        starts = best_of(function, abs(x), 2, 4, 0, progress=progress, n_iter_max=50, tol=0)
    assert progress.is_stopped
    assert [len(errors) for errors in starts.errors] == [1] * (2 if function == "parafac" else 1)


@pytest.mark.parametrize("function", ["parafac", "non_negative_parafac_hals"])
@pytest.mark.parametrize("size", [4, 2])
def test_ctrl_c_leaves_the_runs_that_have_begun(function, size, x, monkeypatch):
    monkeypatch.setattr(many_starts, "choose_batch_size", lambda *_: size)
    with PressCtrlC(50, show=None) as progress:
        starts = best_of(function, abs(x), 2, 4, 0, progress=progress, n_iter_max=50, tol=0)
    assert progress.is_interrupted
    expected = size if function == "parafac" else 1
    assert [len(errors) <= 3 for errors in starts.errors] == [True] * expected
    assert max(map(len, starts.errors)) == 3 or function == "parafac"  # a step may be taken back
    assert len(starts.runs) == len(starts.seeds) == len(starts.matches) == expected


def test_a_decomposition_without_a_callback_shows_runs(x, caplog):
    def solve(x, rank, random_state=None):
        return decomposition.parafac(x, rank, n_iter_max=2, init="random", random_state=0)

    caplog.set_level("INFO", "tensorly_flycoo")
    with Progress(5, show="log") as progress:
        best_of(solve, x, 2, 2, progress=progress)
    assert progress.errors == []
    assert "run 2 of 2" in caplog.messages


@pytest.mark.parametrize(
    "search", [lambda x, p: select_rank(x, [1], progress=p),
               lambda x, p: replicability(x, 1, 0, progress=p)]
)  # fmt: skip
def test_searches_of_several_calls_take_no_progress(search, x):
    with pytest.raises(TypeError, match="has no option 'progress'"):
        search(x, Progress(3, show=None))


def test_errors_end_with_that_of_the_model(x):
    """Held-out entries choose the iteration: later ones predict them worse."""
    coords, values = abs(x).nonzeros()
    is_held_out = np.arange(values.size) % 5 == 0
    known, held_out = (
        FlycooTensor(coords[:, part], values[part], x.shape) for part in (~is_held_out, is_held_out)
    )
    options = {"l2_reg": 1e-3, "validation": held_out, "n_iter_max": 30, "random_state": 0}
    starts = best_of("observed_parafac", known, 4, 3, **options)
    for run, errors in zip(starts.runs, starts.errors, strict=True):
        assert errors[-1] == min(errors)
        assert cp_fit(held_out, run).relative_error == pytest.approx(errors[-1])
    assert min(map(len, starts.errors)) < 30


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_starts": 0}, ValueError, "n_starts is 0, expected at least 1"),
        ({"callback": Progress(3, show=None)}, ValueError, "callback is a Progress, which is for"),
        (
            {"callback": print, "progress": Progress(3, show=None)},
            ValueError,
            "callback comes with progress",
        ),
        ({"decomposition": "hosvd"}, ValueError, "decomposition is 'hosvd', expected one of"),
        ({"decomposition": 3}, ValueError, "decomposition is 3, .*, or a function"),
        ({"decomposition": tl.decomposition.CP}, TypeError, "CP'>, expected a function"),
        ({"n_starts": 2.5}, TypeError, "n_starts is 2.5, expected an integer"),
        ({"n_starts": True}, TypeError, "n_starts is True"),
        ({"init": "svd"}, ValueError, "init is 'svd', expected 'random'"),
        ({"init": (None, [])}, ValueError, "expected 'random'"),
        ({"rang": 3}, TypeError, "parafac has no option 'rang'"),
        ({"decomposition": run_without_a_seed}, ValueError, "seed has no random_state, expected"),
        ({"cvg_criterion": "rec"}, TypeError, "cvg_criterion is 'rec'"),
        ({"random_state": "a"}, ValueError, "random"),
    ],
)
def test_errors(x, changes, error, message):
    arguments = {"decomposition": parafac, "x": x, "rank": 2, "n_starts": 2, **changes}
    with pytest.raises(error, match=message):
        best_of(**arguments)


def test_another_backend_is_refused(x):
    with tl.backend_context("numpy"), pytest.raises(RuntimeError, match="backend is 'numpy'"):
        best_of(parafac, x, 2, 2)


def test_a_dropped_run_has_the_match_of_the_one_that_it_matched(x):
    starts = best_of(parafac, x, 2, 8, random_state=0, tol=1e-12)
    assert len(starts.dropped) == 7
    assert starts.best_number not in starts.dropped
    # All find one solution. Compared as they were when they were dropped, they differ more.
    assert starts.match > 1 - 1e-12
    scores = [factor_match_score(starts.best, run) for run in starts.runs]
    assert 1e-12 < 1 - min(scores) < 0.05


def test_a_mask_runs_together_on_the_cpu(x, monkeypatch):
    batches = count_batches(monkeypatch)
    cells = np.unique(x.nonzeros()[0][:, ::7], axis=1)
    mask = sparse.COO(cells, np.zeros(cells.shape[1]), x.shape, fill_value=1.0)
    starts = best_of(parafac, x, 2, 3, random_state=0, n_iter_max=8, mask=mask)
    assert batches == [3]
    for seed, errors in zip(starts.seeds, starts.errors, strict=True):
        alone = {"init": "random", "random_state": seed, "n_iter_max": 8, "return_errors": True}
        _, expected = decomposition.parafac(x, 2, mask=mask, **alone)
        np.testing.assert_allclose(errors, expected, rtol=1e-10)
    with pytest.raises(TypeError, match="mask is a"):
        best_of(parafac, x, 2, 2, mask=[1, 0])


def test_a_run_with_a_mask_goes_on_where_it_stopped():
    x, _ = planted_tensor((12, 15, 18), 2, 400, noise=0.3, random_state=0)
    mask = sparse.COO([[0, 3], [1, 2], [4, 5]], np.zeros(2), x.shape, fill_value=1.0)
    method = METHODS["parafac"]
    options = {"mask": mask, "tol": 0}
    whole = best_of("parafac", x, 2, 2, 0, keep_all=True, n_iter_max=9, **options)
    first = best_of("parafac", x, 2, 2, 0, keep_all=True, n_iter_max=4, **options)
    settings = (first.seeds[1], first.runs[1], {**options, "n_iter_max": 5})
    model, errors = go_on(method, x, 2, *settings)
    # Runs with a mask are the same up to rounding errors, which iterations amplify: see `best_of`.
    assert [*first.errors[1], *errors] == pytest.approx(whole.errors[1], rel=1e-10)
    assert model.flycoo.method == "parafac"


def test_a_run_without_a_mask_goes_on_from_its_model():
    x, _ = planted_tensor((12, 15, 18), 2, 400, noise=0.3, random_state=0)
    options = {"n_iter_max": 4, "tol": 0, "init": "random"}
    model, first = run_once(METHODS["parafac"], x, 2, 0, options)
    _, errors = go_on(METHODS["parafac"], x, 2, 0, model, options)
    _, all_errors = run_once(METHODS["parafac"], x, 2, 0, options | {"n_iter_max": 8})
    assert [*first, *errors] == all_errors

"""Choosing a rank."""

import logging
import re
import sys

import numpy as np
import pytest
import sparse
import tensorly as tl
import threadpoolctl
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    RaggedTensor,
    best_of,
    core_consistency,
    cp_fit,
    decomposition,
    select_rank,
)
from tensorly_flycoo.decomposition.methods import METHODS
from tensorly_flycoo.loop.holding_out import count_share, hold_out
from tensorly_flycoo.loop.masks import drop_missing, find_missing
from tensorly_flycoo.models import RankScore, RankSelection, rank_search
from tensorly_flycoo.models.heldout_loss import HeldOutLoss
from tensorly_flycoo.models.match import factor_match_score
from tensorly_flycoo.models.suggest_rank import list_doubts, suggest
from tensorly_flycoo.testing import planted_tensor, random_tensor


def draw_cells(x, share, random, **options):
    """Return the cells that `select_rank` holds out."""
    return hold_out(x, count_share(x.nnz, share), random, **options)


pytestmark = pytest.mark.usefixtures("flycoo_backend")


@pytest.fixture(scope="module")
def x():
    return planted_tensor((20, 30, 40), 2, 300, noise=0.1, random_state=0)[0]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_planted_rank_is_found(seed):
    x, _ = planted_tensor((30, 40, 50), 3, 300, noise=0.2, random_state=seed)
    selection = select_rank(x, range(1, 6), n_runs=4, random_state=seed)
    assert selection.rank == 3
    assert selection.best.rank == 3


def weigh(dense, coords, share):
    """Return one over the probability of holding out each of these entries."""
    chances, nnz = np.ones(coords.shape[1]), np.count_nonzero(dense)
    for mode, rows in enumerate(coords):
        others = tuple({*range(dense.ndim)} - {mode})
        chances *= (dense != 0).sum(axis=others)[rows] / nnz
    number = round(share * nnz)
    missed = (1 - chances) ** number
    missed[dense[tuple(coords)] != 0] *= 1 - number / nnz
    return 1 / (1 - missed)


def make_counts(rank, mean, seed, shape=(60, 50, 40)):
    """Draw sparse counts of a planted rank; return them and their means."""
    random = np.random.default_rng(seed)
    means = np.einsum("ir,jr,kr->ijk", *(random.gamma(0.5, 1, (n, rank)) for n in shape))
    means *= mean / means.mean()
    return FlycooTensor.from_dense(random.poisson(means).astype(float)), means


@pytest.mark.parametrize(
    ("rank", "mean", "seed", "doubts"),
    [
        pytest.param(3, 0.03, 0, [], marks=pytest.mark.slow),
        (2, 0.01, 0, ["the held-out entries are too few to t"]),
    ],
)
def test_the_rank_of_sparse_counts_is_found(rank, mean, seed, doubts):
    x, _ = make_counts(rank, mean, seed)
    selection = select_rank(x, range(1, 5), 4, "generalized_parafac", random_state=0)
    assert selection.rank == rank
    assert [text[:37] for text in selection.warnings] == doubts


def test_counts_too_few_to_tell_are_said_to_be():
    x, _ = make_counts(4, 0.003, 0)
    error = r"the least loss is \d\.\d{4} with a standard error of \d\.\d{4}, so"
    with pytest.warns(UserWarning, match=f"held-out entries are too few to tell: {error}"):
        select_rank(x, [1, 2], 4, "generalized_parafac", random_state=0)


def deviance(counts, means):
    return 2 * (means - counts + counts * np.log(np.where(counts > 0, counts, 1) / means)).sum()


@pytest.mark.parametrize("loss", ["gaussian", "poisson_count"])
def test_the_loss_of_a_sample_is_that_of_all_cells(loss):
    """Half of the held-out entries are nonzeros, as 3 % of the cells are."""
    x, _ = make_counts(2, 0.03, 0, (12, 14, 16))
    counts = x.to_coo().todense()
    factors = [np.random.RandomState(n).random_sample((size, 2)) for n, size in enumerate(x.shape)]
    model = CPTensor((np.full(2, 0.02), factors))
    found = []
    for seed in range(60):
        random = np.random.RandomState(seed)
        options = {"loss": loss}
        draws = (x, 0.2, METHODS["generalized_parafac"], options, random)
        held_out = HeldOutLoss.draw(*draws)
        found.append([held_out.whole, held_out.whole * held_out.list_terms(model).sum()])
    predicted = model.to_tensor()
    if loss == "gaussian":
        expected = [(counts**2).sum(), ((counts - predicted) ** 2).sum()]
    else:
        sums = [(counts != 0).sum(axis=tuple({0, 1, 2} - {mode})) for mode in range(3)]
        independent = np.einsum("i,j,k->ijk", *sums) * (counts.sum() / x.nnz**3)
        mixed = predicted + 0.1 * np.clip(independent - predicted, -1, 1)
        # No zero is held out of a row without nonzeros.
        mixed[independent == 0] = 1e-300
        expected = [deviance(counts, counts.mean()), deviance(counts, mixed)]
    error = np.std(found, axis=0) / np.sqrt(len(found))
    np.testing.assert_array_less(abs(np.mean(found, axis=0) - expected), 4 * error)


def test_the_scores(x):
    options = {"n_iter_max": 30}
    selection = select_rank(x, [3, 1, 2, 2], n_runs=3, random_state=5, **options)
    assert [score.rank for score in selection.scores] == [1, 2, 3]
    random = np.random.RandomState(5)
    seed = random.randint(2**31 - 1)
    coords = draw_cells(x, 0.2, random)
    mask = sparse.COO(coords, np.zeros(coords.shape[1]), x.shape, fill_value=1.0)
    known = drop_missing(x, mask)
    for score, errors, model in zip(
        selection.scores, selection.errors, selection.models, strict=True
    ):
        starts = best_of(decomposition.parafac, known, score.rank, 3, seed, mask=mask, **options)
        np.testing.assert_array_equal(errors, starts.final_errors)
        assert score.match == starts.match
        cells = tuple(coords)
        values, weights = x.to_coo().todense()[cells], weigh(x.to_coo().todense(), coords, 0.2)
        residual = values - starts.best.to_tensor()[cells]
        expected = np.sqrt(weights @ residual**2 / (weights @ values**2))
        assert score.heldout_loss == pytest.approx(expected)
        refit = {"init": starts.best, "linesearch": "nesterov", **options}
        whole = decomposition.parafac(x, score.rank, **refit)
        np.testing.assert_array_equal(model.factors[0], whole.factors[0])
        assert score.error == pytest.approx(cp_fit(x, whole).relative_error)
        assert score.core_consistency == core_consistency(x, model)
        assert 0 < score.heldout_se < score.heldout_loss < 1


@pytest.mark.parametrize("loss", ["gaussian", "poisson_count"])
def test_the_loss_does_not_depend_on_the_threads_of_the_blas(loss):
    x = random_tensor((300, 300, 300), 100_000, random_state=0).map(abs)
    found = []
    for num_threads in (1, 2):
        random = np.random.RandomState(0)
        with threadpoolctl.threadpool_limits(num_threads):
            draws = (x, 0.4, METHODS["generalized_parafac"], {"loss": loss}, random)
            found.append(HeldOutLoss.draw(*draws).whole)
    assert found[0] == found[1]


def test_the_standard_error_is_that_of_the_difference(x):
    random = np.random.RandomState(0)
    held_out = HeldOutLoss.draw(x, 0.3, METHODS["parafac"], {}, random)
    starts = {"init": "random", "random_state": 0}
    terms = [held_out.list_terms(decomposition.parafac(x, rank, **starts)) for rank in (1, 2)]
    worse, better = held_out.judge([score(1, np.nan), score(2, np.nan)], terms)
    assert better.difference_se == 0
    assert worse.heldout_loss == pytest.approx(np.sqrt(terms[0].sum()))
    entries = random.randint(terms[0].size, size=(2000, terms[0].size))
    spread = (terms[0] - terms[1])[entries].sum(axis=1).std()  # by the bootstrap
    below = np.sqrt(terms[0].sum() - spread)
    assert worse.difference_se == pytest.approx(worse.heldout_loss - below, rel=0.1)


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].can_hold_out])
def test_held_out_values_are_unknown_to_starts_and_updates(method, x):
    """Other values at the held-out entries change no run."""
    x = FlycooTensor(x.nonzeros()[0], abs(x.nonzeros()[1]), x.shape)
    random = np.random.RandomState(3)
    random.randint(2**31 - 1)
    if method == "parafac2":
        rows, columns = draw_cells(RaggedTensor(x).matrix, 0.2, random)
        cells = np.stack([*np.divmod(rows, x.shape[1]), columns])
    else:
        cells = hold_out(
            x, count_share(x.nnz, 0.2), random, with_zeros=method != "observed_parafac"
        )
    coords, values = x.nonzeros()
    is_held_out = np.isin(*[np.ravel_multi_index(of, x.shape) for of in (coords, cells)])
    other = FlycooTensor(coords, np.where(is_held_out, 100 * values, values), x.shape)
    first, second = (
        select_rank(of, [4], 2, method, random_state=3, n_iter_max=10) for of in (x, other)
    )
    np.testing.assert_array_equal(first.errors[0], second.errors[0])
    np.testing.assert_equal(first.scores[0].match, second.scores[0].match)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "generalized_parafac"))
        for name in METHODS
        if METHODS[name].takes_mask and METHODS[name].model == "CP"
    ],
)
def test_a_diagonal_tensor_cannot_be_predicted(method):
    x = FlycooTensor([np.arange(20)] * 3, np.linspace(10, 5, 20), (20, 20, 20))
    with pytest.warns(UserWarning, match="no rank predicts the held-out entries"):
        selection = select_rank(x, [1, 8, 20], 3, method, holdout=0.2, random_state=0)
    assert all(score.heldout_loss >= 1 - 1e-12 for score in selection.scores)
    assert selection.rank == 1


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        pytest.param("parafac", "float32", marks=pytest.mark.slow),
        ("non_negative_parafac", "float64"),
        pytest.param("parafac", "float64", marks=pytest.mark.slow),
        pytest.param("non_negative_parafac", "float32", marks=pytest.mark.slow),
    ],
)
def test_the_rank_without_noise_is_found(method, dtype):
    x, _ = planted_tensor((25, 30, 35), 3, 300, random_state=0, dtype=dtype)
    selection = select_rank(x, range(2, 6), 6, method, random_state=0)
    assert selection.rank == 3
    assert "rank 3 is the lowest with a held-out loss within" in repr(selection)


def test_the_rank_of_ratings_is_found():
    random = np.random.RandomState(0)
    factors = [random.random_sample((20, 2)) for _ in range(3)]
    coords = np.unique(random.randint(0, 20, (3, 1500)), axis=1)
    values = np.prod([f[c] for f, c in zip(factors, coords, strict=True)], axis=0).sum(axis=1)
    x = FlycooTensor(coords, values, (20, 20, 20))
    selection = select_rank(x, range(1, 4), 3, "observed_parafac", random_state=0)
    assert selection.rank == 2
    assert selection.scores[1].heldout_loss < 1e-3
    assert all(np.isnan(score.core_consistency) for score in selection.scores)


def make_ratings(seed):
    """Draw ratings of rank 2 with biases, and give them with those of the components alone."""
    random, shape = np.random.RandomState(seed), (30, 25, 20)
    factors = [random.normal(size=(size, 2)) for size in shape]
    coords = np.unique(np.stack([random.randint(size, size=3000) for size in shape]), axis=1)
    pairs = list(zip(factors, coords, strict=True))
    values = np.prod([factor[rows] for factor, rows in pairs], axis=0).sum(axis=1)
    values += random.normal(scale=0.2, size=values.size)
    biases = [random.normal(scale=0.7, size=size) for size in shape]
    whole = values + 3.5 + sum(bias[rows] for bias, rows in zip(biases, coords, strict=True))
    return FlycooTensor(coords, whole, shape), FlycooTensor(coords, values, shape)


@pytest.mark.parametrize(
    "options",
    [
        {"l2_reg": 0.1},
        {"biases": True, "cg_steps": 3, "l2_reg": 0.1},
        pytest.param({"biases": True, "cg_steps": 3}, marks=pytest.mark.slow),
        pytest.param({"biases": True}, marks=pytest.mark.slow),
        pytest.param({"cg_steps": 3}, marks=pytest.mark.slow),
    ],
)
def test_the_rank_of_ratings_is_found_with_each_option(options):
    with_biases, without = make_ratings(0)
    x = with_biases if "biases" in options else without
    method = "observed_parafac"
    selection = select_rank(x, [1, 2, 3], 3, method, random_state=0, n_iter_max=30, **options)
    assert selection.rank == 2
    random = np.random.RandomState(0)
    seed = random.randint(2**31 - 1)
    cells = tuple(draw_cells(x, 0.2, random, with_zeros=False))
    known = x.to_coo().todense()
    values, known[cells] = known[cells].copy(), 0
    starts = best_of(method, FlycooTensor.from_dense(known), 2, 3, seed, n_iter_max=30, **options)
    residual = values - starts.best.to_tensor()[cells]
    expected = np.linalg.norm(residual) / np.linalg.norm(values - values.mean())
    found = selection.scores[1]
    assert found.heldout_loss == pytest.approx(expected)
    components = [(None, [factor[:, :2] for factor in run.factors]) for run in starts.runs]
    others = np.delete(np.arange(3), starts.best_number)
    matches = [factor_match_score(components[starts.best_number], components[n]) for n in others]
    assert found.match == pytest.approx(np.mean(matches))  # biases do not count


def test_the_rank_of_non_negative_ratings(recwarn):
    x = make_ratings(0)[1].map(abs)
    options = {"random_state": 0, "n_iter_max": 5, "non_negative": True}
    selection = select_rank(x, [1, 2], 2, "observed_parafac", **options)
    assert all(factor.min() >= 0 for factor in selection.best.factors)


def score(rank, loss, of_difference=0.01, match=1.0, se=0.02):
    return RankScore(rank, 0.1, loss, se, of_difference, 100.0, match)


@pytest.mark.parametrize(
    ("scores", "tolerance", "rank", "text"),
    [
        ([score(1, 0.5), score(2, 0.209), score(3, 0.2)], 0, 2, "one standard error"),
        ([score(1, 0.5), score(2, 0.211), score(3, 0.2)], 0, 3, "one standard error"),
        ([score(2, 1e-5, 0, 1, 0), score(3, 0, 0, 1, 0)], 1e-4, 2, "rounding and unfinished fits"),
        ([score(2, 0.2, match=0.7), score(3, 0.2)], 0, 3, "runs that agree .those of rank 2 do"),
        ([score(2, 0.2, match=0.76), score(3, 0.2)], 0, 2, "one standard error"),
        ([score(2, 0.2, match=0.7), score(3, 0.2, match=0.8)], 0, 2, "one standard error"),
        ([score(2, 0.219), score(3, 0.2, match=0.8)], 0, 2, "whose runs agree"),
        ([score(2, 0.221), score(3, 0.2, match=0.8)], 0, 3, "one standard error"),
        ([score(2, 0.207, 0, 1, 0), score(3, 0.2, 0, 0.8, 0)], 0, 2, "a hundredth of what is expl"),
        ([score(2, 0.209, 0, 1, 0), score(3, 0.2, 0, 0.8, 0)], 0, 3, "one standard error"),
        ([score(1, 1.2), score(2, 1.0)], 0, 1, "no rank predicts"),
    ],
)
def test_the_rule(scores, tolerance, rank, text):
    chosen, rule = suggest(scores, [tolerance] * len(scores))
    assert chosen.rank == rank
    assert re.search(text, rule)


@pytest.mark.parametrize(
    ("method", "options", "errors", "expected"),
    [
        ("parafac", {}, [0.3, 0.2, 0.2], 1e-4),  # the root of tol
        ("parafac", {"tol": 0}, [0.2, 0.2], np.finfo(float).eps ** 0.5),
        ("parafac", {}, [0.3, 0.21, 0.2], 0.03),
        ("generalized_parafac", {"loss": "gaussian"}, [3e6, 2e6], 1e-3),  # no relative errors
    ],
)
def test_how_near_fits_end(method, options, errors, expected):
    found = rank_search.find_tolerance(np.dtype(float), METHODS[method], options, errors)
    assert found == pytest.approx(expected)


def test_doubts_are_warned_of_and_shown(x):
    with pytest.warns(UserWarning, match="rank 2 is the highest one tried"):
        selection = select_rank(x, [1, 2], 2, random_state=0, n_iter_max=20)
    assert selection.warnings == ["the suggested rank 2 is the highest one tried: try higher ones"]
    assert "; see .warnings for what speaks against it" in repr(selection)  # they were shown once
    doubts = list_doubts([score(1, 0.2, match=0.4), score(2, 0.2)], score(1, 0.2, match=0.4))
    assert len(doubts) == 1
    assert "found different components (match 0.40)" in doubts[0]


def test_a_search_that_is_stopped_keeps_the_finished_ranks(x, monkeypatch, caplog):
    original = rank_search.best_of

    def stop(function, tensor, rank, *args, **options):
        if rank == 3:
            raise KeyboardInterrupt
        return original(function, tensor, rank, *args, **options)

    monkeypatch.setattr(rank_search, "best_of", stop)
    options = {"n_runs": 2, "random_state": 0, "n_iter_max": 20}
    with (
        caplog.at_level(logging.INFO, "tensorly_flycoo"),
        pytest.warns(UserWarning, match="Ctrl-C stopped the search before rank 3"),
    ):
        selection = select_rank(x, [1, 2, 3, 4], **options)
    assert "rank 2 (2 of 4): 2 runs" in caplog.text
    assert "runs 1 to 2 of 2 together" in caplog.text
    assert len(selection.models) == 2
    assert selection.scores == select_rank(x, [1, 2], **options).scores
    with pytest.raises(KeyboardInterrupt):
        select_rank(x, [3], **options)


@pytest.fixture
def begun(monkeypatch):
    """List the rank, number of runs and iterations of each call of `best_of` in a search."""
    calls = []
    original = rank_search.best_of

    def begin(function, data, rank, num_runs, *args, **options):
        calls.append((rank, num_runs, options.get("n_iter_max")))
        return original(function, data, rank, num_runs, *args, **options)

    monkeypatch.setattr(rank_search, "best_of", begin)
    return calls


def test_only_the_suggested_rank_gets_all_runs(x, begun):
    options = {"n_runs": 8, "random_state": 0}
    selection = select_rank(x, [1, 2, 3], n_iter_max=40, **options)
    assert begun == [(1, 5, 10), (2, 5, 10), (3, 5, 10), (2, 8, 40)]
    assert selection.rank == 2
    assert [errors.size for errors in selection.errors] == [5, 8, 6]
    lines = repr(selection).splitlines()
    assert lines[2].split()[-3:] == ["8", "<-", "suggested"]
    begun.clear()
    whole = select_rank(x, [1, 2, 3], keep_all=True, n_iter_max=40, **options)
    assert begun == [(1, 8, 40), (2, 8, 40), (3, 8, 40)]
    assert whole.rank == 2


@pytest.mark.parametrize(
    ("num_runs", "options", "first"),
    [
        (5, {}, [(1, 5, None), (2, 5, None)]),
        (6, {"n_iter_max": 10}, [(1, 5, 10), (2, 5, 10), (2, 6, 10)]),
        (6, {"n_iter_max": 300}, [(1, 5, 30), (2, 5, 30), (2, 6, 300)]),
        (6, {"holdout": 0, "n_iter_max": 12}, [(1, 6, 12), (2, 6, 12)]),
    ],
)
def test_how_runs_begin(x, begun, num_runs, options, first):
    select_rank(x, [1, 2], num_runs, random_state=0, **options)
    assert begun == first


def test_the_rank_with_all_runs_is_as_in_a_search_by_them_alone(x):
    options = {"n_runs": 7, "random_state": 3, "n_iter_max": 30}
    found = select_rank(x, [1, 2, 3], **options)
    (alone,) = select_rank(x, [2], holdout=0.2, **options).scores
    assert found.scores[1]._replace(difference_se=0) == alone
    np.testing.assert_array_equal(found.errors[1].size, 7)


def make_fits(matches, losses, num_complete, num_empty=0):
    """Make fits of ranks from 1 on with known losses.

    The first ones are of all runs, the last ones have no components.
    """
    fits = []
    for place, (match, loss) in enumerate(zip(matches, losses, strict=True)):
        fits.append(
            rank_search.RankFit(
                score=score(place + 1, loss, match=match),
                model=None,
                fitted=None,
                errors=np.zeros(5),
                terms=None,
                tolerance=0.0,
                is_complete=place < num_complete,
                has_components=place < len(matches) - num_empty,
            )
        )
    return fits


@pytest.mark.parametrize(
    ("matches", "num_complete", "num_empty", "rank"),
    [
        ([0.5, 0.7, 0.7], 0, 0, 2),  # few runs count as ones that agree
        ([0.5, 0.7, 0.7], 2, 0, 3),  # until there are all
        ([0.5, 0.7, 0.7], 3, 0, 2),
        ([0.5, 0.0, 0.0], 2, 1, 2),  # or if there is nothing to agree on
        ([np.nan, np.nan, np.nan], 2, 0, 2),  # other models have no match
    ],
)
def test_a_rank_with_few_runs_counts_as_stable(
    monkeypatch, x, matches, num_complete, num_empty, rank
):
    monkeypatch.setattr(
        rank_search.RankSearch, "judge", lambda self, fits: [fit.score for fit in fits]
    )
    ranks = [1, 2, 3]
    search = rank_search.RankSearch(x, METHODS["parafac"], {}, None, ranks, 20, 0, False, True)
    fits = make_fits(matches, [0.5, 0.2, 0.2], num_complete, num_empty)
    chosen, _ = search.suggest(fits)
    assert chosen.rank == rank
    assert chosen is fits[rank - 1].score  # with its own match


def test_a_run_begins_from_the_rank_below():
    """Where random starts of planted components end elsewhere, as those of this seed do."""
    random = np.random.default_rng(15)
    factors = [random.normal(size=(size, 5)) for size in (15, 20, 25)]
    dense = np.einsum("ir,jr,kr->ijk", *factors)
    dense += 0.5 * dense.std() * random.normal(size=dense.shape)
    x = FlycooTensor.from_dense(dense)
    selection = select_rank(x, range(3, 7), random_state=15)
    assert selection.rank == 5


def test_components_are_added(x):
    below = make_fits([1.0, 1.0], [0.5, 0.4], 0)[1]
    random = np.random.RandomState(0)
    factors = [random.random_sample((size, 4)) for size in x.shape]
    weights = np.array([3.0, 1.0, 9.0, 9.0])  # the last two are biases
    fitted = CPTensor((weights, factors))
    model = rank_search._add_components(x, below._replace(fitted=fitted), 4, seed=0)
    old = CPTensor((weights[:2], [factor[:, :2] for factor in factors]))
    found = CPTensor((None, [factor[:, :2] for factor in model.factors]))
    np.testing.assert_allclose(found.to_tensor(), old.to_tensor())
    sizes = np.prod([np.linalg.norm(factor, axis=0) for factor in model.factors], axis=0)
    np.testing.assert_allclose(sizes[2:], sizes[:2].mean())


@pytest.mark.parametrize(("num_runs", "num_lines"), [(2, 2), (7, 3)])
def test_a_line_for_each_rank_goes_to_standard_error(x, capsys, num_runs, num_lines):
    options = {"random_state": 0, "n_iter_max": 20}

    def list_lines():
        out, err = capsys.readouterr()
        assert out == ""
        return [line for line in err.splitlines() if line.startswith("rank ")]

    selection = select_rank(x, [1, 2], num_runs, **options)
    lines = list_lines()
    assert len(lines) == num_lines
    loss = selection.scores[1].heldout_loss
    assert lines[-1].startswith(f"rank 2 (2 of 2): {num_runs} runs, held-out loss {loss:.4f} (")
    select_rank(x, [1, 2], num_runs, holdout=0, **options)
    assert list_lines()[0].startswith(f"rank 1 (1 of 2): {num_runs} runs, error 0.")
    select_rank(x, [1, 2], num_runs, quiet=True, **options)
    assert list_lines() == []


def test_a_rank_chooses_its_ridge_once(caplog, begun):
    x = make_ratings(0)[0]
    options = {"random_state": 0, "n_iter_max": 12, "method": "observed_parafac", "biases": True}
    with caplog.at_level(logging.INFO, "tensorly_flycoo"):
        select_rank(x, [1, 2], 6, **options)
    assert begun == [(1, 5, 10), (2, 5, 10), (2, 6, 12)]
    assert caplog.text.count("trying l2_reg 100") == 2  # the largest ridge is tried first


def test_where_no_rank_has_components_the_lowest_alone_gets_all_runs(begun):
    """Of ratings of biases alone the ridge leaves no components, whatever the rank."""
    random = np.random.default_rng(0)
    shape = (60, 40, 12)
    coords = np.unique(np.stack([random.integers(size, size=2500) for size in shape]), axis=1)
    biases = [random.normal(size=size) for size in shape]
    values = sum(bias[rows] for bias, rows in zip(biases, coords, strict=True))
    x = FlycooTensor(coords, values + random.normal(size=values.size), shape)
    options = {"method": "observed_parafac", "biases": True, "n_iter_max": 20}
    selection = select_rank(x, [1, 2, 3], 6, random_state=0, **options)
    assert selection.rank == 1
    assert begun == [(1, 5, 10), (2, 5, 10), (3, 5, 10), (1, 6, 20)]


def test_a_stopped_search_keeps_ranks_with_few_runs(x, monkeypatch):
    original = rank_search.best_of

    def stop(function, tensor, rank, num_runs, *args, **options):
        if num_runs == 6:
            raise KeyboardInterrupt
        return original(function, tensor, rank, num_runs, *args, **options)

    monkeypatch.setattr(rank_search, "best_of", stop)
    with pytest.warns(UserWarning, match="Ctrl-C stopped the search before all runs of rank 2"):
        selection = select_rank(x, [1, 2, 3], 6, random_state=0)
    assert selection.rank == 2
    assert len(selection.models) == 3


def test_held_out_entries_are_nonzeros_and_zeros():
    shape = (2**22, 2**22, 2**22)  # more cells than 64 bits count
    coords = np.random.RandomState(0).randint(2**22, size=(3, 200))
    x = FlycooTensor(coords, np.ones(200), shape)
    drawn = draw_cells(x, 0.1, np.random.RandomState(0))
    stored = {tuple(cell) for cell in x.nonzeros()[0].T.tolist()}
    cells = {tuple(cell) for cell in drawn.T.tolist()}
    assert len(cells & stored) == 20
    assert len(cells - stored) == 20
    for rows, known in zip(drawn, x.nonzeros()[0], strict=True):
        assert np.isin(rows, known).all()


@pytest.mark.parametrize("method", ["non_negative_parafac", decomposition.parafac])
def test_methods(x, method):
    selection = select_rank(x, [1, 2], 2, method, random_state=0, n_iter_max=20)
    assert selection.rank == 2


def test_nothing_held_out_suggests_nothing(x):
    options = {"n_iter_max": 3, "random_state": 0}
    selection = select_rank(x, [2], 2, "non_negative_parafac_hals", holdout=0, **options)
    assert selection.rank is None
    assert np.isnan(selection.scores[0].heldout_loss)
    with pytest.raises(ValueError, match=r"choose from \.models"):
        selection.best  # noqa: B018


def test_the_table(x):
    selection = select_rank(x, [1, 2], 2, random_state=0, n_iter_max=20)
    table = selection.table
    assert list(table.index) == [1, 2]
    assert list(table.columns) == list(RankScore._fields[1:])
    assert repr(selection).splitlines()[2].endswith("<- suggested")


def test_scores_that_were_not_computed_are_shown():
    scores = [
        RankScore(1, 0.5, 0.25, 0.01, 0.0, 100.0, 1.0),
        RankScore(2, 0.4, np.inf, np.nan, np.nan, -1e6, 0.5),
        RankScore(3, 0.4, np.nan, np.nan, np.nan, np.nan, np.nan),
    ]
    errors = [np.zeros(20), np.zeros(6), np.zeros(6)]
    lines = repr(RankSelection(scores, errors, [], 1, "the best", ["few"])).splitlines()
    assert lines[1].split() == [
        "1",
        "0.5000",
        "0.2500",
        "(0.0100)",
        "100",
        "1.00",
        "20",
        "<-",
        "suggested",
    ]
    assert lines[2].split()[2:] == ["inf", "(nan)", "<", "-999", "0.50", "6"]
    assert lines[-1] == "rank 1 is the best; see .warnings for what speaks against it"


def test_losses_are_headed_loss(x):
    """Also large ones stay in their column."""
    counts = FlycooTensor(*x.nonzeros(), x.shape).map(lambda v: np.ceil(1e3 * abs(v)))
    options = {"random_state": 0, "n_iter_max": 5, "method": "generalized_parafac"}
    selection = select_rank(counts, [1, 2], 2, **options)
    head, *rows = repr(selection).splitlines()[:3]
    assert head.split()[:2] == ["rank", "loss"]
    assert {row[head.index("loss") + 4] for row in rows} == {" "}


def test_labels_stay(x):
    labels = {name: np.arange(size) for name, size in zip("abc", x.shape, strict=True)}
    options = {"n_runs": 2, "random_state": 0, "n_iter_max": 20}
    selection = select_rank(LabelledTensor(x, labels), [1, 2], **options)
    assert isinstance(selection.best, LabelledCP)
    assert selection.scores == select_rank(x, [1, 2], **options).scores


def test_core_consistency_is_left_out_where_it_costs_too_much(x, monkeypatch):
    monkeypatch.setattr(rank_search, "_MAX_CORE_OPERATIONS", x.nnz)
    scores = select_rank(x, [1, 2], 2, random_state=0, n_iter_max=5).scores
    assert [np.isnan(score.core_consistency) for score in scores] == [False, True]


def test_errors_are_not_returned_twice(x):
    options = {"n_runs": 2, "random_state": 0, "n_iter_max": 3}
    selection = select_rank(x, [1], return_errors=True, **options)
    assert selection.scores[0].heldout_loss == select_rank(x, [1], **options).scores[0].heldout_loss


def _return_no_cp(x, rank, init="random", random_state=None, return_errors=False):
    return (x, rank), [0.5]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"ranks": []}, ValueError, "ranks is empty"),
        ({"ranks": [1, 0]}, ValueError, "rank"),
        ({"ranks": [2.5]}, TypeError, "rank"),
        ({"holdout": 1}, ValueError, "holdout is 1, expected a number from 0 to below 1"),
        ({"holdout": "some"}, TypeError, "holdout is 'some'"),
        ({"method": "parafax"}, ValueError, "method is 'parafax', expected one of .*'parafac'"),
        ({"method": "non_negative_parafac_hals"}, ValueError, "has no mask.* pass holdout=0"),
        ({"x": np.ones((2, 3))}, TypeError, "expected a FlycooTensor"),
        ({"x": FlycooTensor([[], []], [], (2, 3))}, ValueError, "x has 0 nonzeros, expected two"),
        ({"n_runs": 0}, ValueError, "n_runs is 0"),
        ({"ranks": 3}, TypeError, r"ranks is 3, expected several integers, such as range\(1, 11"),
        ({"method": "coupled_parafac"}, ValueError, "method is 'coupled_parafac', expected one of"),
        ({"method": "non_negative_tucker_hals"}, ValueError, "has no mask.* pass holdout=0"),
        ({"method": "tucker", "ranks": [(2, 2)]}, ValueError, "rank has 2 numbers, expected 3"),
        ({"method": "tucker", "ranks": [(2, 0, 2)]}, ValueError, r"rank\[1\] is 0, expected at l"),
        ({"method": "tucker", "ranks": [2.5]}, TypeError, r"rank\[0\] is 2.5, expected an int"),
        ({"method": "tucker", "ranks": []}, ValueError, "ranks is empty"),
        ({"method": "parafac2", "ranks": [41]}, ValueError, "rank is 41, expected at most 40"),
        (
            {"method": _return_no_cp, "holdout": 0},
            TypeError,
            "_return_no_cp returns a tuple, expected a CP model",
        ),
        ({"mask": "any"}, TypeError, "mask is a str, expected a sparse.COO"),
        (
            {"method": "observed_parafac", "confidence": "any"},
            ValueError,
            "confidence is given, but .* pass holdout=0",
        ),
    ],
)
def test_errors(x, changes, error, message):
    arguments = {"x": x, "ranks": [1, 2], "n_runs": 2, **changes}
    with pytest.raises(error, match=message):
        select_rank(**arguments)


@pytest.mark.parametrize("method", ["parafac", "observed_parafac", "tucker", "parafac2"])
def test_entries_that_a_mask_marks_are_unknown(method):
    """Whatever is stored there: nonsense in a tenth of the rows' cells."""
    x, _ = planted_tensor((20, 20, 20), 2, 400, random_state=0)
    mask = np.ones((20, 1, 20))
    mask[3:5, 0, ::2] = 0
    hidden = np.argwhere(np.broadcast_to(mask, x.shape) == 0).T
    changed = x + 50 * FlycooTensor(hidden, np.ones(hidden.shape[1]), x.shape)
    if method == "parafac2":
        mask = np.broadcast_to(mask, x.shape)
    options = {"n_runs": 3, "random_state": 0, "n_iter_max": 10, "method": method}
    if method == "observed_parafac":
        options["l2_reg"] = 0.1  # a chosen one takes ten times as long
    found, expected = (select_rank(own, [1, 2, 3], mask=mask, **options) for own in (changed, x))
    assert found.rank == expected.rank
    for score, other in zip(found.scores, expected.scores, strict=True):
        assert score.heldout_loss == other.heldout_loss


def test_cells_that_a_mask_marks_are_not_held_out():
    x, _ = planted_tensor((20, 20, 20), 2, 400, random_state=0)
    mask = np.ones((20, 1, 20))
    mask[:10, 0, ::2] = 0
    unknown = find_missing(x, mask, lists=True)
    known = unknown.observed
    cells = draw_cells(known, 0.2, np.random.RandomState(0))
    is_unknown = np.broadcast_to(mask, x.shape)[tuple(cells)] == 0
    assert is_unknown.any()  # among those that are drawn
    options = {"mask": unknown.of(known)}
    random = np.random.RandomState(0)
    heldout = HeldOutLoss.draw(known, 0.2, METHODS["parafac"], options, random)
    np.testing.assert_array_equal(heldout.entries.coords, cells[:, ~is_unknown])


# Other models


CORES = [1, 2, (2, 3, 2), (2, 2, 3), (3, 3, 2), (3, 2, 2), 3]


def make_tucker(seed, noise=0.1):
    """Make a tensor of a core (2, 3, 2), none of whose parts is small, and of sparse factors."""
    random, shape = np.random.RandomState(seed), (20, 22, 24)
    draw = [random.standard_normal((size, r)) for size, r in zip(shape, (2, 3, 2), strict=True)]
    factors = [np.where(random.random_sample(of.shape) < 0.5, 0, of) for of in draw]
    core = np.linalg.qr(random.standard_normal((4, 3)))[0].reshape(2, 2, 3)
    dense = np.einsum("acb,ia,jb,kc->ijk", core, *factors)
    dense += noise * dense.std() * random.standard_normal(shape) * (dense != 0)
    return FlycooTensor.from_dense(dense)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_a_planted_core_is_found(seed):
    x = make_tucker(seed)
    selection = select_rank(x, CORES, 3, "tucker", random_state=seed, n_iter_max=50)
    assert [score.rank for score in selection.scores[:2]] == [(1, 1, 1), (2, 2, 2)]
    assert selection.scores[-1].rank == (3, 3, 3)
    assert selection.rank == (2, 3, 2)
    assert selection.best.core.shape == (2, 3, 2)
    by_rank = {score.rank: score for score in selection.scores}
    for too_low in [(1, 1, 1), (2, 2, 2), (2, 2, 3), (3, 2, 2)]:
        assert by_rank[too_low].heldout_loss > 1.5 * by_rank[2, 3, 2].heldout_loss
    assert "<- suggested" in repr(selection)
    assert all(np.isnan([score.match, score.core_consistency]).all() for score in by_rank.values())


@pytest.mark.parametrize("seed", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_planted_non_negative_core_is_found(seed):
    """Which takes many iterations: they end at a smaller `tol`."""
    random, shape = np.random.RandomState(seed), (20, 22, 24)
    factors = [random.gamma(0.3, size=pair) for pair in zip(shape, (2, 3, 2), strict=True)]
    core = np.zeros((2, 3, 2))
    core[[0, 1, 0], [0, 1, 2], [0, 1, 1]] = 1
    dense = np.einsum("abc,ia,jb,kc->ijk", core, *factors)
    dense *= 1 + 0.05 * random.standard_normal(shape)
    dense[dense < 0.05 * dense.std()] = 0
    options = {"n_iter_max": 120, "tol": 1e-7, "random_state": seed, "n_runs": 3}
    x, cores = FlycooTensor.from_dense(abs(dense)), [(2, 2, 2), (2, 3, 2), (3, 3, 2)]
    selection = select_rank(x, cores, method="non_negative_tucker", **options)
    assert selection.rank == (2, 3, 2)
    assert selection.best.core.min() >= 0
    assert selection.scores[0].heldout_loss > 1.5 * selection.scores[1].heldout_loss


def make_slices(seed):
    """Make sparse slices with 8 to 19 rows of a PARAFAC2 model of rank 2."""
    random = np.random.RandomState(seed)
    columns = random.standard_normal((20, 2)) * (random.random_sample((20, 2)) < 0.6)
    blueprint, slices = np.array([[1.0, 0.3], [-0.2, 1.0]]), []
    for scales in random.random_sample((15, 2)) + 0.2:
        rows = np.linalg.qr(random.standard_normal((random.randint(8, 20), 2)))[0]
        dense = rows @ (blueprint * scales) @ columns.T
        dense += 0.1 * dense.std() * random.standard_normal(dense.shape) * (dense != 0)
        slices.append(sparse.COO.from_numpy(dense))
    return slices


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 2, 3))])
def test_the_rank_of_slices_is_found(seed):
    options = {"n_runs": 3, "random_state": seed, "n_iter_max": 60}
    selection = select_rank(make_slices(seed), [1, 2, 3], method="parafac2", **options)
    assert selection.rank == 2
    assert selection.best.rank == 2
    assert selection.scores[0].heldout_loss > 1.3 * selection.scores[1].heldout_loss


@pytest.mark.parametrize("method", ["tucker", "non_negative_tucker", "parafac2"])
def test_the_held_out_loss_is_that_of_dense_models(method):
    """Of the best run without the entries; the slices here have one number of rows."""
    x = make_tucker(0).map(abs)
    options = {"random_state": 5, "n_iter_max": 10}
    selection = select_rank(x, [2], 3, method, **options)
    random, matrix = np.random.RandomState(5), x
    seed = random.randint(2**31 - 1)
    if method == "parafac2":
        matrix = RaggedTensor(x).matrix
    coords = draw_cells(matrix, 0.2, random)
    cells = coords
    if method == "parafac2":
        cells = np.stack([*np.divmod(coords[0], x.shape[1]), coords[1]])
    dense, mask = x.to_coo().todense(), np.ones(x.shape)
    mask[tuple(cells)] = 0
    known = FlycooTensor.from_dense(dense * mask)
    rank = 2 if method == "parafac2" else (2, 2, 2)
    starts = best_of(method, known, rank, 3, seed, mask=mask, n_iter_max=10)
    np.testing.assert_allclose(selection.errors[0], starts.final_errors)
    to_tensor = tl.parafac2_tensor.parafac2_to_tensor if rank == 2 else tl.tucker_to_tensor
    residual = (dense - to_tensor(starts.best))[tuple(cells)]
    weights = weigh(matrix.to_coo().todense(), coords, 0.2)
    whole = weights @ dense[tuple(cells)] ** 2
    expected = np.sqrt(weights @ residual**2 / whole)
    assert selection.scores[0].heldout_loss == pytest.approx(expected)


@pytest.mark.parametrize("method", ["tucker", "parafac2"])
def test_labels_of_other_models_stay(method):
    x = make_tucker(0)
    labels = {name: np.arange(size) for name, size in zip("abc", x.shape, strict=True)}
    options = {"n_runs": 2, "random_state": 0, "n_iter_max": 5, "method": method}
    labelled, plain = (select_rank(of, [1, 2], **options) for of in (LabelledTensor(x, labels), x))
    assert labelled.best.names == ("a", "b", "c")
    assert repr(labelled) == repr(plain)
    assert len(labelled.table) == 2


def make_selection(ranks, rank, cores=(100.0, 90.0)):
    scores = [
        RankScore(of_score, 0.5, 0.25, 0.01, 0.0, core, 1.0)
        for of_score, core in zip(ranks, cores, strict=True)
    ]
    errors = [np.array([0.5, 0.6])] * len(ranks)
    return RankSelection(scores, errors, [], rank, "the <best>", ["few"])


@pytest.fixture
def _pyplot(monkeypatch):
    from matplotlib import pyplot

    monkeypatch.setenv("MPLBACKEND", "agg")
    yield
    pyplot.close("all")


@pytest.mark.usefixtures("_pyplot")
@pytest.mark.parametrize("rank", [2, None])
def test_the_picture(rank):
    panels = make_selection([1, 2], rank, (100.0, -60.0)).plot()
    assert len(panels) == 4
    runs = "all runs" if rank is None else "runs without the held-out entries"
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"error (gray: {runs})",
        "held-out loss, with standard errors",
        "core consistency, % (cut at -50)",
        "match of the runs",
    ]
    np.testing.assert_array_equal(panels[2].lines[0].get_xdata(), [1, 2])
    np.testing.assert_array_equal(panels[2].lines[0].get_ydata(), [100, -50])
    assert [len(axes.lines) for axes in panels[2:]] == [1 if rank is None else 2] * 2
    assert len(panels[0].lines) == (3 if rank is None else 4)
    ticks = panels[3].get_xticks()
    assert np.isin([1, 2], ticks).all()
    panels[0].figure.canvas.draw()


@pytest.mark.usefixtures("_pyplot")
def test_the_picture_of_tuples_names_them():
    panels = make_selection([(2, 2, 1), (2, 2, 2)], (2, 2, 2)).plot()
    labels = [label.get_text() for label in panels[2].get_xticklabels()]
    assert labels == ["(2, 2, 1)", "(2, 2, 2)"]
    assert panels[0].lines[-1].get_xdata()[0] == 1
    assert panels[0].figure.get_suptitle() == "Suggested rank: (2, 2, 2) (dashed)"
    assert panels[2].get_title(loc="left") == "core consistency, %"


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        make_selection([1, 2], 2).plot()


def test_notebooks_show_the_table_and_the_rule():
    html = make_selection([1, 2], 2)._repr_html_()
    assert html.count("<tr>") == 3
    assert "<td>0.2500 (0.0100)</td>" in html
    assert "<p>rank 2 is the &lt;best&gt;; see .warnings for what speaks against it</p>" in html
    assert "<p>" not in make_selection([1, 2], None)._repr_html_()

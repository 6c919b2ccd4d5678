"""The table of functions, kinds of model and data: each cell is right, or refused by name.

A cell is compared with a dense computation in NumPy or SciPy of what the function says that it
computes, or it is a ValueError that names the wrong argument. `EXPECTED` has every function that
takes a model, `model_table.KINDS` every way in which one is made, `model_table.DATA` every way in
which data may differ: a new one without an expectation fails here.
"""

import functools
import inspect
import itertools

import numpy as np
import pytest
import scipy.stats
from dense_tangents import make_terracini
from model_table import (
    DATA,
    KINDS,
    LABELS,
    RANK,
    SHAPE,
    Refusal,
    check_rows,
    find_cells,
    find_known,
    find_ridges,
    find_unit,
    judge,
    label,
    list_arrays,
    make_beside,
    make_design,
    make_model,
    make_values,
    refuse_fold_in,
    report,
    solve_row,
    take_modes,
    takes,
    to_sparse,
    unfold,
    weigh,
)

import tensorly_flycoo
from tensorly_flycoo import models
from tensorly_flycoo.base.fit_record import ABSENT
from tensorly_flycoo.decomposition.methods import METHODS
from tensorly_flycoo.loop.constraints import CONSTRAINTS
from tensorly_flycoo.loop.losses import LOSSES
from tensorly_flycoo.loop.model_uses import MODEL_USES

EPS = np.finfo(float).eps

#: Losses whose models are means, by function.
COUNTS, MEANS = ("gaussian", "poisson_count"), ("gaussian", "poisson_count", "gamma", "custom")


def refuse(kind, beside, data, losses=None, absent=("zero", "unknown", "weighted")):
    """Return the refusal of a model or of data by a function of CP models; None if none."""
    if kind.model != "CP":
        return Refusal("cp_tensor is a ")
    words = []
    if not takes(kind, beside):
        words.append(f"{data} has ")
        words.append(f"{data} and ")  # labels differ "in x and ... in cp_tensor"
    if losses is not None and kind.loss not in losses and not kind.rebuilt:
        words += ["loss is ", "loss="]
    if kind.absent not in absent and not kind.rebuilt:
        words.append("cp_tensor is a model of ")
    return Refusal(*words) if words else None


def expect_cp_fit(kind, beside):
    refusal = refuse(kind, beside, "x", COUNTS)
    cells = None if refusal else find_cells(make_model(kind.id))

    def check(found):
        is_known = find_known(kind, beside)
        if kind.absent == "unknown":
            is_known = is_known & (beside.dense != 0)
        values, model = beside.dense[is_known], cells[is_known]
        assert found.num_entries == values.size
        if kind.loss == "poisson_count":
            log_likelihood = scipy.stats.poisson.logpmf(values, model).sum()
            saturated = scipy.stats.poisson.logpmf(values, values).sum()
            constant = scipy.stats.poisson.logpmf(values, values.mean()).sum()
            deviance, of_mean = 2 * (saturated - log_likelihood), 2 * (saturated - constant)
            expected = log_likelihood, deviance, 1 - deviance / of_mean
            # Sums of some hundred terms.
            found = found.log_likelihood, found.deviance, found.explained
            assert found == pytest.approx(expected, rel=1e-11)
            return
        error = np.linalg.norm(values - model) / np.linalg.norm(values)
        # Squares of the data and the model cancel: some hundred roundings of each.
        square = np.linalg.norm(model) ** 2 / np.linalg.norm(values) ** 2 + 1
        assert abs(found.relative_error - error) <= 1000 * EPS * square / error
        assert found.fit == 1 - found.relative_error
        rmse = np.sqrt(np.mean((values - model) ** 2))
        assert found.rmse == pytest.approx(rmse, rel=1000 * EPS * square / error**2)

    call = functools.partial(tensorly_flycoo.cp_fit, beside.x, make_model(kind.id))
    return call, refusal or check


def expect_core_consistency(kind, beside):
    refusal = refuse(kind, beside, "x", MEANS, ("zero",))

    def check(found):
        model = make_model(kind.id)
        core = np.where(find_known(kind, beside), beside.dense, find_cells(model))
        weights, factors = list_arrays(model)
        factors[0] = factors[0] * weights
        condition = 1.0
        for mode, factor in enumerate(factors):
            core = np.moveaxis(np.tensordot(np.linalg.pinv(factor), core, (1, mode)), 0, mode)
            singular = np.linalg.svd(factor, compute_uv=False)
            condition *= singular[0] / min(s for s in singular if s > 1e-12 * singular[0])
        ideal = np.zeros_like(core)
        ideal[(range(RANK),) * core.ndim] = 1
        expected = 100 - 100 * ((core - ideal) ** 2).sum() / RANK
        # Each pseudo-inverse multiplies rounding by its condition.
        bound = 1000 * EPS * condition * (100 * (core**2).sum() + 100)
        assert abs(found - expected) <= bound

    call = functools.partial(tensorly_flycoo.core_consistency, beside.x, make_model(kind.id))
    return call, refusal or check


def expect_anomaly_scores(kind, beside):
    refusal = refuse(kind, beside, "x_new", ("gaussian", "poisson_count", "custom"))
    if refusal is None:
        coords = beside.dense.nonzero()
        counts, means = beside.dense[coords], find_cells(make_model(kind.id))[coords]
        if (means < 0).any():
            refusal = Refusal("the model's values")

    def check(found):
        expected = -scipy.stats.poisson.logsf(np.ceil(counts) - 1, means) / np.log(10)
        expected = np.where(means == 0, np.inf, expected)
        scores = found["score"] if hasattr(found, "columns") else found
        # Those above 300 would be less accurate than SciPy's; an impossible count has inf.
        assert np.max(expected[np.isfinite(expected)]) < 300
        np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-12)

    call = functools.partial(tensorly_flycoo.anomaly_scores, beside.x, make_model(kind.id))
    return call, refusal or check


def predict_pairs(kind):
    """Return the predictions of items for users, averages over further modes."""
    cells = find_cells(make_model(kind.id))
    return cells.mean(axis=tuple(range(2, cells.ndim)))


def check_best(best, predicted, excluded, n):
    """Check that each row's recommendations are the highest predictions, with their values."""
    for of_row, values, is_out in zip(best, predicted, excluded, strict=True):
        left = np.sort(values[~is_out])[::-1][:n]
        np.testing.assert_allclose([*of_row.values()], left, rtol=1e-12, atol=1e-12)


def expect_recommend(kind, beside):
    refusal = refuse(kind, beside, "exclude")

    def check(found):
        excluded = (beside.dense != 0).any(axis=tuple(range(2, kind.ndim)))
        predicted = predict_pairs(kind)
        labels = getattr(make_model(kind.id), "labels", {"item": np.arange(predicted.shape[1])})
        for of_row, values in zip(found, predicted, strict=True):
            rows = [[*labels["item"].tolist()].index(label) for label in of_row]
            np.testing.assert_allclose([*of_row.values()], values[rows], rtol=1e-12, atol=1e-12)
        check_best(found, predicted, excluded, 2)

    call = functools.partial(
        tensorly_flycoo.recommend, make_model(kind.id), 0, n=2, exclude=beside.x
    )
    return call, refusal or check


def expect_evaluate(kind, beside):
    refusal = refuse(kind, beside, "x", MEANS)

    def check(found):
        held_out, cells = beside.dense != 0, find_cells(make_model(kind.id))
        assert found["rmse"] == pytest.approx(
            np.sqrt(np.mean((beside.dense - cells)[held_out] ** 2)), rel=1e-12
        )
        pairs = held_out.any(axis=tuple(range(2, kind.ndim)))
        best = np.argsort(-np.round(predict_pairs(kind), 12), axis=1, kind="stable")[:, :2]
        hits = np.take_along_axis(pairs, best, axis=1).sum(axis=1)[pairs.any(axis=1)]
        assert found["precision"] == pytest.approx(hits.sum() / (2 * hits.size))
        assert found["recall"] == pytest.approx(
            np.mean(hits / pairs.sum(axis=1)[pairs.any(axis=1)])
        )

    call = functools.partial(tensorly_flycoo.evaluate, make_model(kind.id), beside.x, n=2)
    return call, refusal or check


def expect_coupled_rows(kind, beside):
    """Return the call that finds new users of a block, joined by label, and what it gives."""
    is_labelled = hasattr(beside.x, "labels")
    block = beside.x if is_labelled else (beside.x, [*LABELS][: beside.x.ndim])
    call = functools.partial(tensorly_flycoo.fold_in, make_model(kind.id), [block], "user")
    if beside.id in ("unknown", "more", "renamed", "shape", "modes"):
        return call, Refusal("blocks[0] has ")
    model = make_model(kind.id)
    items, given = LABELS["item"].tolist(), [*LABELS["item"]]
    if is_labelled:
        given = beside.x.labels["item"].tolist()
    values, is_known = np.zeros(SHAPE), np.full(SHAPE, kind.absent == "zero")
    places = [items.index(label) for label in given]
    values[:, places], is_known[:, places] = beside.dense, True
    if beside.id == "all_unknown":
        is_known[:] = False
        is_known[:, places] = beside.known

    def check(found):
        design = make_design(model.cp_tensors[0], 0)
        for row, of_row, known in zip(found, unfold(values, 0), unfold(is_known, 0), strict=True):
            expected, bound = solve_row(design, of_row, known * 1.0, np.zeros(RANK), False)
            assert (np.abs(row - expected) <= bound + 1e-14).all(), (row, expected)

    return call, check


def expect_slices(kind, beside, has_confidence):
    """Return the refusal of new slices of a PARAFAC2 model, or their check; rows may be any."""
    words = []
    if has_confidence:
        words.append("confidence is ")
    if beside.id == "renamed":
        words.append("x_new has ")
    if beside.id == "modes":
        words.append(" has shape (6, 5), expected three modes")
    if kind.mask and beside.known is None:
        words.append("mask is ")
    if 0 in kind.constrained:
        words.append("cp_tensor has the constraint or penalty ")
    if words:
        return Refusal(*words)

    def check(found):
        known = np.ones(beside.dense.shape, bool) if beside.known is None else beside.known
        for row, of_slice, is_known in zip(found, beside.dense, known, strict=True):
            before, after = improve_slice(make_model(kind.id), row, of_slice, is_known)
            # Updates end where a row no longer changes, or after 1000, which imputing may take.
            tolerance = 1e-6 if is_known.all() else 1e-3
            assert after >= before - tolerance * (of_slice[is_known] ** 2).sum()

    return check


def improve_slice(model, row, of_slice, is_known):
    """Return the squared errors of a row of a PARAFAC2 model, and of that after an update more.

    The projection is that of the smallest error; unknown cells are imputed until they settle.
    """
    weights, (_, b, c) = list_arrays(model)
    errors = []
    for _ in range(2):
        cells = b @ np.diag(weights * row) @ c.T
        filled = np.where(is_known, of_slice, of_slice[is_known].mean() if is_known.any() else 0)
        for _ in range(1 if is_known.all() else 2000):
            left, _, right = np.linalg.svd(filled @ cells.T, full_matrices=False)
            filled = np.where(is_known, of_slice, left @ right @ cells)
        errors.append((((of_slice - left @ right @ cells) ** 2)[is_known]).sum())
        design = make_design((weights, [np.zeros((1, RANK)), b, c]), 0)
        row = np.linalg.lstsq(design, ((left @ right).T @ filled).reshape(-1), rcond=None)[0]
    return errors


def expect_fold_in(kind, beside, has_confidence=False, mode=0):
    options = {}
    if kind.model == "coupled" and not has_confidence:
        return expect_coupled_rows(kind, beside)
    confidence = weigh(kind, beside) if has_confidence else None
    if has_confidence:
        options["confidence"] = to_sparse(confidence)
    call = functools.partial(
        tensorly_flycoo.fold_in, make_model(kind.id), beside.x, mode, **options
    )
    if kind.model == "PARAFAC2":
        return call, expect_slices(kind, beside, has_confidence)
    if kind.model == "coupled":
        return call, Refusal("confidence is ")
    refusal = refuse_fold_in(kind, beside, mode, has_confidence)
    return call, refusal or functools.partial(check_rows, kind, beside, mode, confidence)


def expect_uncertainty(kind, beside):
    """Return the call with resampled users, and its check: the intervals are those of the samples.

    The samples themselves are compared with dense fits in `test_uncertainty.py`.
    """
    options = {"mode": 0, "n": 3, "n_iter_max": 2, "random_state": 0}
    call = functools.partial(tensorly_flycoo.uncertainty, beside.x, make_model(kind.id), **options)
    refusal = refuse(kind, beside, "x", ("gaussian", "poisson_count"))
    words = [*(refusal or ())]
    if kind.confidence or (kind.constrained and kind.id != "smooth"):
        words.append("cp_tensor ")
    if beside.known is not None and kind.id == "smooth":
        words.append("cp_tensor is a model of parafac with smoothness")
    if beside.id == "all_unknown" and kind.loss == "poisson_count":
        words.append("cp_tensor is a model of generalized_parafac ")
    if words:
        return call, Refusal(*words)

    def check(found):
        model, cells = make_model(kind.id), find_cells(make_model(kind.id))
        tolerance = 1e-12 * abs(cells).max()
        np.testing.assert_allclose(find_cells(found.cp_tensor), cells, rtol=0, atol=tolerance)
        if not kind.rebuilt:
            for own, other in zip(found.cp_tensor.factors, model.factors, strict=True):
                np.testing.assert_allclose(own, other, rtol=0, atol=1e-12)
        margin = scipy.stats.t(2).ppf(0.95)
        for n, (low, high) in enumerate(found.cp_tensor.intervals):
            own = np.asarray(found.cp_tensor.factors[n])
            deviation = found.samples[n].std(axis=0, ddof=1)
            assert np.isnan(deviation).all() == (n == 0)
            np.testing.assert_allclose(high, own + margin * deviation, rtol=0, atol=1e-12)
            is_clipped = n in kind.non_negative and not kind.rebuilt
            least = np.maximum(own - margin * deviation, 0 if is_clipped else -np.inf)
            np.testing.assert_allclose(low, least, rtol=0, atol=1e-12)

    return call, check


def expect_diagnose(kind, beside):
    """Return the call and its check: dense computations of error, gradient and condition."""
    call = functools.partial(tensorly_flycoo.diagnose, beside.x, make_model(kind.id))
    words = [*(refuse(kind, beside, "x", COUNTS) or ())]
    if kind.confidence or kind.unobserved or kind.constrained or kind.loss not in COUNTS:
        words.append("cp_tensor ")
    if words:
        return call, Refusal(*words)

    def check(found):
        is_known = find_known(kind, beside)
        is_observed = beside.id == "all_unknown" or (kind.absent == "unknown" and not kind.rebuilt)
        if is_observed:
            is_known = is_known & (beside.dense != 0)
        values, model = beside.dense[is_known], find_cells(make_model(kind.id))[is_known]
        if kind.loss == "poisson_count":
            deviances = [
                (scipy.special.xlogy(values, values / means) - values + means).sum()
                for means in (model, values.mean())
            ]
            assert found.error == pytest.approx(deviances[0] / deviances[1], rel=1e-11)
        else:
            error = np.linalg.norm(values - model) / np.linalg.norm(values)
            # The dense norms have some roundings themselves.
            assert abs(found.error - error) <= found.error_rounding + 10 * EPS
            assert found.error_rounding < 1e-12
        gradient = measure_gradient(kind, beside.dense, is_known)
        # A hundred roundings of each term: of 120 cells, added twice.
        assert abs(found.gradient - gradient) <= 100 * EPS + 1e-9 * gradient
        if not kind.biases:
            assert found.condition == pytest.approx(find_condition(kind), rel=1e-6)
        has_digits = kind.loss == "gaussian" and is_known.all() and not kind.l2_reg
        assert (found.reason == "") == has_digits
        assert np.isnan(found.digits).all() == np.isnan(found.noise).all() == (not has_digits)

    return call, check


def measure_gradient(kind, dense, is_known):
    """Return the norm of a loss's gradient relative to that of its terms, from dense arrays."""
    model, cells = make_model(kind.id), find_cells(make_model(kind.id))
    _, factors = list_arrays(model)
    names = getattr(model, "components", range(RANK))
    ridge = 0.0 if kind.rebuilt else kind.l2_reg
    unit = ridge * find_unit(make_values(kind.data, kind.ndim), kind)
    square = square_of_terms = 0.0
    for mode, factor in enumerate(factors):
        design = make_design(model, mode)
        lengths = np.linalg.norm(design, axis=0)
        own = np.array([name == f"{[*LABELS][mode]} bias" for name in names])
        is_free = own | np.array([not isinstance(name, str) for name in names])
        known, values, means = (unfold(table, mode) for table in (is_known, dense, cells))
        elements = factor * lengths
        if kind.loss == "poisson_count":
            ratios = np.divide(values, means, out=np.zeros_like(values), where=values > 0)
            terms = [(known * ratios) @ design, known @ design]
            terms = [term / lengths * is_free for term in terms]
            scales = elements.mean(axis=0) / (design.sum(axis=0) / lengths)
            terms = [term * scales for term in terms]
        else:
            terms = [(known * values) @ design, (known * means) @ design]
            terms.append(find_ridges(model, mode, unit, ridge, own) * factor)
            terms = [term / lengths * is_free for term in terms]
        step = terms[0] - sum(terms[1:])
        if mode in kind.non_negative and not kind.rebuilt:
            step = np.maximum(step, -elements)
        square += (step**2).sum()
        square_of_terms += sum(map(np.linalg.norm, terms)) ** 2
    return (square / square_of_terms) ** 0.5


def find_condition(kind):
    """Return one over the least singular value of Terracini's matrix."""
    _, factors = list_arrays(make_model(kind.id))
    least = np.linalg.svd(make_terracini(factors), compute_uv=False)[-1]
    return 1 / least if least > 1e-7 else np.inf


#: What each function of a model and data gives, as the call and its check or refusal.
EXPECTED = {
    "anomaly_scores": expect_anomaly_scores,
    "core_consistency": expect_core_consistency,
    "cp_fit": expect_cp_fit,
    "diagnose": expect_diagnose,
    "evaluate": expect_evaluate,
    "fold_in": expect_fold_in,
    "fold_in with a confidence": functools.partial(expect_fold_in, has_confidence=True),
    "recommend": expect_recommend,
    "uncertainty": expect_uncertainty,
}


#: Cells that are known to be wrong, and for what reason.
LEFT: dict[str, str] = {}

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
@pytest.mark.parametrize("function", EXPECTED)
def test_functions_of_models_and_data(function, kind):
    wrong = []
    for data in DATA:
        beside = make_beside(data, kind.data, kind.ndim)
        found, name = judge(*EXPECTED[function](kind, beside)), f"{function}-{kind.id}-{data}"
        if name in LEFT and not found:
            wrong.append(f"{name} is right now: take it out of LEFT")
        elif found and name not in LEFT:
            wrong.append(f"{name}: {found}")
    report(wrong)


def find_model_parameters(function):
    """Return the names of the parameters of a function that take a model."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in names if name.startswith(("cp_tensor", "model"))]


def test_each_function_of_models_is_in_the_table():
    public = {name: getattr(tensorly_flycoo, name) for name in tensorly_flycoo.__all__}
    public |= {name: getattr(models, name) for name in models.__all__}
    functions = {name: of for name, of in public.items() if not inspect.isclass(of)}
    found = {name for name, of in functions.items() if find_model_parameters(of)}
    assert found == {*MODEL_USES}
    for name in found:
        use = MODEL_USES[name]
        parameters = inspect.signature(functions[name]).parameters
        assert use.model in parameters
        assert use.data == "" or use.data in parameters


def test_each_way_to_make_a_model_is_in_the_table():
    kinds = [kind for kind in KINDS.values() if not kind.rebuilt]
    # The shape of the table has no two modes of one size, which RESCAL needs.
    assert {kind.method for kind in kinds} == {*METHODS} - {"shared_tucker"}
    assert {kind.loss for kind in kinds} == {*LOSSES, "custom"}
    constrained = {name for kind in kinds for name in kind.options if name in CONSTRAINTS}
    assert constrained >= CONSTRAINTS
    assert {kind.absent for kind in kinds} == {*ABSENT}
    masked = {kind.method for kind in kinds if kind.mask}
    assert masked == {name for name, method in METHODS.items() if method.takes_mask}


def score_densely(one, other):
    """Return the factor match score of two CP models, by trying all matchings."""
    sides = []
    for weights, factors in map(list_arrays, (one, other)):
        norms = [np.linalg.norm(factor, axis=0) for factor in factors]
        units = [f / np.where(norm > 0, norm, 1) for f, norm in zip(factors, norms, strict=True)]
        sides.append((np.abs(weights) * np.prod(norms, axis=0), units))
    (sizes, own), (other_sizes, others) = sorted(sides, key=lambda side: len(side[0]))
    cosines = np.prod([np.abs(a.T @ b) for a, b in zip(own, others, strict=True)], axis=0)
    largest = np.maximum(sizes[:, None], other_sizes)
    ratios = np.abs(sizes[:, None] - other_sizes) / np.where(largest > 0, largest, 1)
    scores = cosines * (1 - ratios)
    matchings = itertools.permutations(range(len(other_sizes)), len(sizes))
    return max(np.mean(scores[range(len(sizes)), list(found)]) for found in matchings)


@each_kind
def test_match_scores(kind):
    """Of each kind with a plain model, in either order, and with itself."""
    plain, model = make_model("plain"), make_model(kind.id)
    score = tensorly_flycoo.models.factor_match_score
    if kind.model != "CP" or kind.ndim != 3:
        words = Refusal("cp_tensor1 ", "cp_tensor2 ", "cp_tensor is a ")
        calls = [functools.partial(score, *pair) for pair in ((plain, model), (model, plain))]
        report([found for found in (judge(call, words) for call in calls) if found])
        return
    for pair in (plain, model), (model, plain), (model, model):
        assert abs(score(*pair) - score_densely(*pair)) < 1e-12


@each_kind
def test_entries(kind):
    call = functools.partial(tensorly_flycoo.cp_to_entries, make_model(kind.id))
    if kind.model != "CP":
        assert judge(functools.partial(call, [[0], [0], [0]]), Refusal("cp_tensor is a ")) == ""
        return
    cells = find_cells(make_model(kind.id))
    coords = np.indices(cells.shape).reshape(cells.ndim, -1)
    tolerance = 1e-13 * abs(cells).max()
    np.testing.assert_allclose(call(coords), cells[tuple(coords)], rtol=0, atol=tolerance)
    for odd in coords[:-1], np.concatenate([coords, coords[:1]]), coords + 1:
        assert judge(functools.partial(call, odd), Refusal("coords")) == ""


@pytest.mark.parametrize(("mode", "other"), [(0, 2), (2, 0)])
def test_slices_go_with_the_labels_of_the_model(mode, other):
    """New slices have the model's columns, and new columns the model's slices."""
    dense, labels = make_values("values"), take_modes(3)
    name = [*labels][other]
    x = label(np.flip(dense, other), labels | {name: labels[name][::-1]})
    with pytest.raises(ValueError, match=f"label 0 of mode '{name}' is .* in x_new"):
        tensorly_flycoo.fold_in(make_model("parafac2"), x, mode)


def test_each_function_of_the_table_is_tried():
    elsewhere = {"cp_to_entries", "factor_match_score"}  # in tests of their own, above
    tried = {name.partition(" ")[0] for name in EXPECTED}
    assert tried | elsewhere == {*MODEL_USES}

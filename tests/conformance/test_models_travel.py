"""Models of each kind in tables, files, copies and checkpoints, and beside tables of new rows.

Their records go with them: how a model was made, with its mask, its constraints and its intervals.
"""

import copy
import dataclasses
import functools
import inspect
import pickle

import numpy as np
import pytest
import sparse
from model_table import (
    DATA,
    KINDS,
    LABELS,
    SHAPE,
    Beside,
    Refusal,
    check_rows,
    find_cells,
    fit,
    judge,
    label,
    make_beside,
    make_mask,
    make_model,
    make_tags,
    make_values,
    refuse_fold_in,
    report,
    spread_mask,
    take_modes,
    to_sparse,
    weigh,
)

from tensorly_flycoo import LabelledCP, Progress, fold_in
from tensorly_flycoo.base.fit_record import FitRecord
from tensorly_flycoo.loop.masks import is_same_mask
from tensorly_flycoo.models import LabelledCoupledCP, LabelledParafac2, LabelledTucker

CLASSES = {
    "CP": LabelledCP,
    "Tucker": LabelledTucker,
    "PARAFAC2": LabelledParafac2,
    "coupled": LabelledCoupledCP,
}
LABELLED = {name: kind for name, kind in KINDS.items() if not kind.rebuilt}
OF_ROWS = {name: kind for name, kind in LABELLED.items() if kind.model in ("CP", "Tucker")}

each_kind = pytest.mark.parametrize("kind", LABELLED.values(), ids=LABELLED)


def list_arrays(model):
    """Return the head of a model, weights or core, and its lists of arrays."""
    arrays = [getattr(model, model._head)]
    for name in model._lists:
        given = getattr(model, f"{name}s")
        arrays += given.values() if isinstance(given, dict) else given
    return [*map(np.asarray, arrays)]


def read_mask(mask):
    """Return what a mask marks, for comparison."""
    if isinstance(mask, list):
        return [read_mask(of_slice) for of_slice in mask]
    return None if mask is None else (mask.shape, mask.todense().tolist())


def check_same(found, model):
    """Check that a model is the same, to the bit, with its labels and its record."""
    for array, other in zip(list_arrays(found), list_arrays(model), strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_array_equal(array, other)
    assert found.names == model.names
    assert found.ordered == model.ordered
    for own, others in zip(found.labels.values(), model.labels.values(), strict=True):
        np.testing.assert_array_equal(own, others)
    check_same_record(found.flycoo, model.flycoo)
    assert found.components == model.components


def check_same_record(found, record):
    for fact in dataclasses.fields(FitRecord):
        own, other = getattr(found, fact.name), getattr(record, fact.name)
        if fact.name == "mask":
            assert is_same_mask(own, other)  # that of PARAFAC2 may have three modes, or be a list
        elif fact.name == "intervals":
            assert len(own) == len(other)
            for pair, others in zip(own, other, strict=True):
                np.testing.assert_array_equal(pair, others)
        else:
            assert own == other, fact.name


def give_intervals(model):
    """Return a model with intervals, as `uncertainty` makes one."""
    model = copy.copy(model)
    pairs = [(array - 1, array + 1) for array in map(np.asarray, model._list_factors())]
    model.flycoo = model.flycoo.replace(intervals=pairs)
    return model


@each_kind
def test_files_and_copies_keep_models(kind, tmp_path):
    for model in make_model(kind.id), give_intervals(make_model(kind.id)):
        model.save(tmp_path / "model.npz")
        check_same(CLASSES[kind.model].load(tmp_path / "model.npz"), model)
        check_same(pickle.loads(pickle.dumps(model)), model)
        check_same(copy.copy(model), model)
        check_same(copy.deepcopy(model), model)


@each_kind
def test_records_say_how_models_were_made(kind):
    model = make_model(kind.id)
    record = model.flycoo
    assert record.method == kind.method
    assert record.loss == kind.loss
    assert record.absent == kind.absent
    assert record.unobserved == kind.unobserved
    assert record.is_weighted == bool(kind.confidence)
    assert record.l2_reg == kind.l2_reg
    assert record.non_negative == kind.non_negative
    assert tuple(record.constraints) == kind.constrained
    assert sum(name == "mean" for name in model.components) == kind.biases
    if kind.mask and kind.model != "PARAFAC2":
        assert read_mask(record.mask) == read_mask(make_mask(kind.mask, kind.ndim))
    elif not kind.mask:
        assert record.mask is None


@each_kind
def test_new_labels_keep_records(kind):
    """A model that gets labels anew has its record, with biases where its components go."""
    if kind.model == "coupled":
        return  # its labels are those of its blocks
    plain = fit(
        kind,
        to_sparse(make_values(kind.data, kind.ndim)),
        make_mask(kind.mask, kind.ndim) if kind.mask else None,
    )
    labels = take_modes(kind.ndim)
    if kind.model == "PARAFAC2":
        labels["item"] = [LABELS["item"]] * SHAPE[0]
    found, model = CLASSES[kind.model](plain, labels), make_model(kind.id)
    for array, other in zip(list_arrays(found), list_arrays(model), strict=True):
        np.testing.assert_array_equal(array, other)
    check_same_record(
        found.flycoo.replace(value_column="value"), model.flycoo.replace(value_column="value")
    )


@each_kind
def test_tables_of_factors(kind):
    model = make_model(kind.id)
    factors = [*map(np.asarray, model._list_factors())]
    head, frames = model.to_frames()
    np.testing.assert_array_equal(head, getattr(model, model._head))
    long = model.to_tidy()
    start = 0
    for n, (name, factor, frame) in enumerate(zip(model.names, factors, frames, strict=True)):
        labels = model.labels[name]
        np.testing.assert_array_equal(frame, factor)
        np.testing.assert_array_equal(np.asarray(frame.index).astype(labels.dtype), labels)
        part = long[start : start + factor.size]
        assert {*part["mode"]} == {name}
        np.testing.assert_array_equal(part["value"], factor.T.reshape(-1))
        start += factor.size
        for column, found in zip(factor.T, model.top(n, 2), strict=True):
            places = np.argsort(-np.abs(column), kind="stable")[:2]
            assert [*found.values()] == column[places].tolist()
            assert [str(of) for of in found] == [str(of) for of in labels[places]]
    assert start == len(long)


@pytest.mark.parametrize(
    "kind", {(k.model, k.biases): k for k in LABELLED.values()}.values(), ids=lambda kind: kind.id
)
def test_pictures_show_the_largest_elements(kind):
    """Of one kind for each class of model, and with biases: all that a picture asks for."""
    model = make_model(kind.id)
    figure = model.plot(2, lines=[])
    panels = np.array(figure.axes).reshape(len(model.components), len(model.names))
    for n, column in enumerate(panels.T):
        for title, axes, top in zip(model.components, column, model.top(n, 2), strict=False):
            widths = [element for element in top.values() if element != 0]
            if title not in (f"{model.names[n]} bias", *range(99)):  # a bias of another mode
                widths = []
            assert [bar.get_width() for bar in axes.patches] == widths


def make_frame(kind, dense):
    """Return a table of the nonzeros of new users, with a column of weights."""
    frame = label(dense, take_modes(kind.ndim)).to_frame("value")
    frame["weight"] = weigh_stored(kind, dense)[dense.nonzero()]
    return frame.assign(user="new " + frame["user"])


def weigh_stored(kind, dense):
    """Return the weights of the nonzeros, dense."""
    beside = make_beside("same", kind.data, kind.ndim)
    return np.where(dense != 0, weigh(kind, beside), 0)


def drop_blocks(dense):
    """Return values of which two blocks of user and item are not there, and which are known."""
    dense = np.array(dense)
    dense[0, 1] = dense[2, 3] = 0
    if dense.ndim == 2:
        return dense, dense != 0
    return dense, np.broadcast_to((dense != 0).any(axis=2, keepdims=True), dense.shape)


def list_tables(kind):
    """Yield the cells of `transform` of new users: a name, a table, options, and what it is."""
    dense = make_values(kind.data, kind.ndim)
    frame = make_frame(kind, dense)
    beside = Beside("new users", None, dense, None, True)
    yield "same", frame, {}, beside
    yield "shuffled", frame.sample(frac=1, random_state=0), {}, beside
    yield "weighted", frame, {"confidence": "weight"}, beside
    part, known = drop_blocks(dense)
    frame = make_frame(kind, part)
    yield "absent blocks", frame, {}, Beside("new users", None, part, None, True)
    id = "unknown" if kind.ndim == 3 else "all_unknown"
    options = {"missing": ["user", "item"]}
    yield "unknown blocks", frame, options, Beside(id, None, part, known, True)
    unknown = Beside("all_unknown", None, part, part != 0, True)
    yield "all unknown", frame, {"missing": "unknown"}, unknown


def list_odd_tables(kind):
    """Yield tables that no function takes, by name."""
    frame = make_frame(kind, make_values(kind.data, kind.ndim))
    yield "unknown item", frame.assign(item=99)
    yield "item of another type", frame.assign(item="tea")
    yield "no item", frame.assign(item=None)
    yield "renamed", frame.rename(columns={"item": "thing"})
    yield "fewer modes", frame.drop(columns="item")
    yield "no rows", frame[:0]


@pytest.mark.parametrize("kind", OF_ROWS.values(), ids=OF_ROWS)
def test_tables_of_new_rows(kind):
    model, wrong = make_model(kind.id), []
    for name, frame, options, beside in list_tables(kind):
        has_weights = "confidence" in options
        refusal = refuse_fold_in(kind, beside, 0, has_weights)
        weights = weigh_stored(kind, beside.dense) if has_weights else None

        def check(found, beside=beside, weights=weights, frame=frame, options=options):
            assert found.index.tolist() == sorted({*frame["user"]})
            check_rows(kind, beside, 0, weights, found.to_numpy())
            check_extended(kind, beside, model.extend(frame, "user", **options), found.to_numpy())

        call = functools.partial(model.transform, frame, "user", **options)
        if found := judge(call, refusal or check):
            wrong.append(f"transform-{kind.id}-{name}: {found}")
        if refusal and (
            found := judge(functools.partial(model.extend, frame, "user", **options), refusal)
        ):
            wrong.append(f"extend-{kind.id}-{name}: {found}")
    words = Refusal("column 'item' ", "df has no ", "confidence is ", "cp_tensor has ", "loss is ")
    for name, frame in list_odd_tables(kind):
        if found := judge(functools.partial(model.transform, frame, "user"), words):
            wrong.append(f"transform-{kind.id}-{name}: {found}")
        if found := judge(functools.partial(model.extend, frame, "user"), words):
            wrong.append(f"extend-{kind.id}-{name}: {found}")
    old = make_frame(kind, make_values(kind.data, kind.ndim))
    old["user"] = old["user"].str.removeprefix("new ")
    known = Refusal("frame has ", *refuse_all(kind))
    if found := judge(functools.partial(model.extend, old, "user"), known):
        wrong.append(f"extend-{kind.id}-known users: {found}")
    report(wrong)


def refuse_all(kind):
    """Return the words of refusals that come before a look at the labels."""
    beside = make_beside("same", kind.data, kind.ndim)
    return refuse_fold_in(kind, beside, 0, False) or ()


def check_extended(kind, beside, longer, rows):
    """Check a model with new rows: old numbers have their bits, and its mask knows the new rows."""
    model = make_model(kind.id)
    first, others = np.asarray(longer.factors[0]), longer.factors[1:]
    np.testing.assert_array_equal(first[: SHAPE[0]], model.factors[0])
    np.testing.assert_array_equal(first[SHAPE[0] :], rows)
    for own, old in zip(others, model.factors[1:], strict=True):
        np.testing.assert_array_equal(own, old)
    assert longer.labels["user"].tolist() == [
        *LABELS["user"],
        *(f"new {u}" for u in LABELS["user"]),
    ]
    assert longer.flycoo.replace(mask=None) != model.flycoo  # records are compared by identity
    for name in ("method", "loss", "absent", "l2_reg", "non_negative", "bias_modes", "scale"):
        assert getattr(longer.flycoo, name) == getattr(model.flycoo, name)
    shape = SHAPE[: kind.ndim]
    known = spread_mask(make_mask(kind.mask, kind.ndim) if kind.mask else None, shape)
    added = beside.known if beside.id == "unknown" else np.ones(shape, bool)
    if kind.absent == "zero" and beside.id != "all_unknown":
        whole = np.concatenate([known, added])
        np.testing.assert_array_equal(spread_mask(longer.flycoo.mask, whole.shape), whole)


@pytest.mark.parametrize(
    "kind", [k for k in LABELLED.values() if k.model == "CP"], ids=lambda k: k.id
)
def test_predictions_of_tables(kind):
    model, wrong = make_model(kind.id), []
    cells = find_cells(model)
    frame = make_frame(kind, make_values(kind.data, kind.ndim)).sample(frac=1, random_state=1)
    frame["user"] = frame["user"].str.removeprefix("new ")
    places = [[*LABELS[name].astype(str)].index for name in model.names]
    texts = [frame[name].astype(str) for name in model.names]
    coords = [[place(text) for text in column] for place, column in zip(places, texts, strict=True)]
    # Products of ndim + 1 numbers, and sums of up to six of them.
    np.testing.assert_allclose(
        model.predict(frame), cells[tuple(coords)], rtol=0, atol=1e-13 * abs(cells).max()
    )
    for name, odd in list_odd_tables(kind):
        if name != "no rows":
            odd = odd.assign(user="ann")
            if found := judge(
                functools.partial(model.predict, odd), Refusal("column 'item' ", "df has no ")
            ):
                wrong.append(f"predict-{kind.id}-{name}: {found}")
    new = make_frame(kind, make_values(kind.data, kind.ndim))
    if found := judge(functools.partial(model.predict, new), Refusal("column 'user' ")):
        wrong.append(f"predict-{kind.id}-new users: {found}")
    report(wrong)


def run(kind, beside, path, mask, stop=4):
    """Run a decomposition for four iterations, from its checkpoint if there is one."""
    options = {"linesearch": False} if kind.method == "parafac2" else {}
    with Progress(4, show=None, checkpoint=path, every=1) as progress:

        def callback(*state):
            return progress(*state) or progress.iteration >= stop

        options |= {"init": progress.resume(default="random"), "n_iter_max": progress.n_iter_left}
        return fit(kind, beside.x, mask, **options, callback=callback)


@each_kind
def test_resumed_runs(kind, tmp_path):
    """A run that is resumed has the bits of one that is not; other data are refused."""
    mask = make_mask(kind.mask, kind.ndim) if kind.mask else None
    same, wrong = make_beside("same", kind.data, kind.ndim), []
    path = tmp_path / "run.npz"
    if kind.model == "coupled":
        with pytest.raises(TypeError, match="is a LabelledCoupledCP, expected a CPTensor"):
            run(kind, same, path, mask)
        return
    run(kind, same, path, mask, stop=2)
    state = path.read_bytes()
    for data in DATA:
        path.write_bytes(state)
        beside = make_beside(data, kind.data, kind.ndim)
        call = functools.partial(run, kind, beside, path, mask)
        expected = refuse_checkpoint(kind, beside) or functools.partial(check_resumed, kind, mask)
        if found := judge(call, expected):
            wrong.append(f"resume-{kind.id}-{data}: {found}")
    report(wrong)


def refuse_checkpoint(kind, beside):
    """Return the refusal to go on from a checkpoint beside data; None if a run resumes."""
    words = []
    if kind.mask and kind.method == "parafac":
        words.append("mask= cannot resume")
    if not beside.fits and beside.id != "renamed":
        words += ["checkpoint ", "confidence ", "mask[0] has ", "tensor_slices has ", " expected "]
    fits_rows = kind.method == "observed_parafac" or kind.loss == "zero_truncated_poisson"
    # Cells that the run's own mask marks too are missing once: the run is the same.
    is_united = kind.mask == "cells"
    is_same = (fits_rows and beside.id == "all_unknown") or (is_united and beside.id == "unknown")
    if beside.known is not None and not is_same:
        words += ["mask is given", "mask= cannot resume", "tensor has unknown", "tensor knows "]
        words.append("checkpoint is of a run in which other cells were missing")
        words.append("checkpoint is of another tensor")  # of PARAFAC2, without its missing cells
    if kind.unobserved and beside.id == "all_unknown":
        words.append("unobserved is ")
    if beside.id == "renamed" and kind.confidence:
        words.append("confidence has the modes")
    return Refusal(*words) if words else None


def check_resumed(kind, mask, found):
    same = make_beside("same", kind.data, kind.ndim)
    options = {"linesearch": False} if kind.method == "parafac2" else {}
    whole = fit(kind, same.x, mask, n_iter_max=4, callback=lambda *state: False, **options)
    if not hasattr(found, "labels"):
        assert np.abs(find_cells(found) - find_cells(whole)).max() < 1e-12
        return
    for array, other in zip(list_arrays(found), list_arrays(whole), strict=True):
        np.testing.assert_array_equal(array, other)
    check_same_record(found.flycoo, whole.flycoo)


@each_kind
def test_models_of_a_part(kind):
    """A model of a part of labelled data is that of the part of the dense arrays."""
    rows = [4, 1, 5, 3, 0]
    dense, labels = make_values(kind.data, kind.ndim), take_modes(kind.ndim)
    mask = make_mask(kind.mask, kind.ndim) if kind.mask else None
    part = label(dense, labels, mask).take("user", LABELS["user"][rows])
    np.testing.assert_array_equal(part.labels["user"], LABELS["user"][rows])
    known = spread_mask(mask, dense.shape)[rows]
    np.testing.assert_array_equal(spread_mask(part.unknown, known.shape), known)
    if kind.model == "coupled" or kind.confidence:
        return  # a block beside it, and its confidence, have all users
    own = None
    if mask is not None:
        marks = mask.todense()[rows]
        cells = np.array((marks == 0).nonzero())
        own = sparse.COO(cells, np.zeros(cells.shape[1]), marks.shape, fill_value=1.0)
    found = find_cells(fit(kind, part, n_iter_max=2))
    expected = find_cells(fit(kind, to_sparse(dense[rows]), own, n_iter_max=2))
    # The models have one form with labels, and another without: a rounding of each element.
    assert abs(found - expected).max() <= 1e-12 * abs(expected).max()


CONVERGED = [
    "plain", "matrix", "masked", "blocks", "l2_reg", "masked_l2_reg", "hals", "mu",
    "loss_poisson_count", "counts_masked", "observed", "observed_biases", "observed_non_negative",
    "observed_weighted", "observed_all", "coupled", "coupled_unknown",
]  # fmt: skip


@pytest.mark.parametrize("id", CONVERGED)
def test_rows_of_the_data_of_the_fit_come_back(id):
    """Folding in what a model was fitted to gives its rows: a fixed point, up to convergence.

    Of slow updates, of MU and with missing cells, the last iterations change them by 1e-5.
    """
    kind, model = KINDS[id], make_model(id)
    beside = make_beside("same", kind.data, kind.ndim)
    options, x = {}, beside.x
    if kind.confidence:
        options["confidence"] = to_sparse(weigh(kind, beside))
    if kind.model == "coupled":
        x = [x, make_tags()]
    for mode, name in enumerate(model.names[: kind.ndim]):
        if kind.model == "coupled" and name != "user":
            continue  # which all blocks have
        old = np.asarray(model._list_factors()[mode])
        found = fold_in(model, x, name if kind.model == "coupled" else mode, **options)
        assert np.abs(found - old).max() <= 1e-3 * np.abs(old).max()


@pytest.mark.parametrize(
    "kind", {k.model: k for k in LABELLED.values()}.values(), ids=lambda k: k.id
)
def test_texts_name_the_largest_elements(kind):
    model = make_model(kind.id)
    text = str(model)
    assert text.startswith(repr(model))
    for n, name in enumerate(model.names):
        assert f"{name}" in text
        for top in model.top(n, 1):
            for entry, element in top.items():
                assert element == 0 or f"{entry} {element:.2g}" in text


def test_each_method_of_models_is_tried():
    tried = {
        "describe",
        "extend",
        "load",
        "plot",
        "predict",
        "save",
        "to_frames",
        "to_tidy",
        "top",
        "transform",
    }
    found = set()
    for kind in CLASSES.values():
        for name, method in inspect.getmembers(kind, callable):
            is_ours = "tensorly_flycoo" in (getattr(method, "__module__", None) or "")
            found |= {name} if is_ours and not name.startswith("_") else set()
    assert found == tried

"""Labelled models: their form, tables, pictures, and TensorLy and tlviz with them."""

import copy
import json
import pickle
import sys

import numpy as np
import pandas as pd
import polars
import pytest
import tensorly as tl
import tlviz
from damaged_files import pack, unpack
from hypothesis import given
from hypothesis import strategies as st
from labelled_problem import LABELS, NAMES, SHAPE, make_labelled
from strategies import quick
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import (
    LabelledCP,
    decomposition,
    from_dataframe,
    observed_parafac,
)
from tensorly_flycoo.loop.guarding import tensorly_loop

pytestmark = pytest.mark.usefixtures("flycoo_backend")


@pytest.fixture
def x():
    return make_labelled()


def make_cp(rank=3, seed=0, labels=LABELS):
    rng = np.random.RandomState(seed)
    factors = [rng.standard_normal((len(of), rank)) for of in labels.values()]
    return LabelledCP((rng.standard_normal(rank), factors), labels)


FEW = {"n_iter_max": 3, "random_state": 0, "init": "random"}
DECOMPOSITIONS = {
    "parafac": {},
    "non_negative_parafac": {},
    "non_negative_parafac_hals": {},
    "constrained_parafac": {"non_negative": True},
    "observed_parafac": {},
}


@pytest.mark.parametrize("home", [tl.decomposition, decomposition], ids=["TensorLy", "ours"])
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_a_labelled_tensor_makes_a_labelled_model(name, home, x):
    """It is the model of the plain tensor."""
    function = getattr(home, name, decomposition.observed_parafac)
    options = DECOMPOSITIONS[name] | FEW
    found, expected = function(x, 3, **options), function(x.tensor, 3, **options)
    assert isinstance(found, LabelledCP)
    assert type(expected) is CPTensor
    assert found.names == NAMES
    assert found.labels["user"] is LABELS["user"]
    assert np.allclose(tl.cp_to_tensor(found), tl.cp_to_tensor(expected), rtol=1e-10, atol=1e-12)


def test_with_errors_and_by_name_and_by_class(x):
    found, errors = tl.decomposition.parafac(tensor=x, rank=2, return_errors=True, **FEW)
    assert isinstance(found, LabelledCP)
    assert len(errors) == 3
    assert isinstance(tl.decomposition.CP(2, n_iter_max=3).fit_transform(x), LabelledCP)


def test_what_a_callback_has_kept_stays_as_it_was(x):
    kept, options = [], FEW | {"callback": lambda cp, error: kept.append(cp)}
    tl.decomposition.parafac(x, 3, tol=1e-9, **options)
    tl.decomposition.parafac(x.tensor, 3, tol=1e-9, **options)
    labelled, plain = kept[3], kept[-1]
    assert all(map(np.array_equal, labelled.factors, plain.factors))
    assert np.array_equal(labelled.weights, plain.weights)


@quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.sampled_from(["float32", "float64"]))
def test_the_form(seed, rank, dtype):
    rng = np.random.RandomState(seed)
    factors = [rng.standard_normal((size, rank)).astype(dtype) for size in SHAPE]
    weights = rng.standard_normal(rank).astype(dtype)
    factors[0][:, 0] *= rng.randint(2)  # perhaps a component of zeros
    cp, eps = LabelledCP((weights, factors), LABELS), np.finfo(dtype).eps
    assert (np.diff(cp.weights) <= 0).all()
    assert cp.weights.dtype == dtype
    for factor in cp.factors:
        assert factor.dtype == dtype
        assert factor.flags.c_contiguous
        norms = np.linalg.norm(factor, axis=0)
        assert (np.abs(norms - 1) <= 20 * eps)[cp.weights > 0].all()
    tops, bottoms = (np.array([of(f, axis=0) for f in cp.factors]) for of in (np.max, np.min))
    is_negative = tops < -bottoms
    assert (is_negative.sum(axis=0) <= 1).all()
    is_mixed = (tops > 0) & (bottoms < 0)
    assert not is_negative[:-1, is_mixed[-1]].any()
    assert not is_negative[-1, ~is_mixed[-1] & is_mixed.any(axis=0)].any()
    model = tl.cp_to_tensor((weights, factors))
    assert np.abs(tl.cp_to_tensor(cp) - model).max() <= 100 * eps * max(1, np.abs(model).max())
    again = LabelledCP(cp, cp.labels)
    assert np.abs(again.factors[2] - cp.factors[2]).max() <= 20 * eps


def test_a_last_mode_of_one_sign_is_positive():
    mixed, milder = np.array([[1.0], [-2.0]]), np.array([[1.0], [-9.0]])
    ones, labels = np.ones((2, 1)), [["a", "b"]] * 3
    for weight in ([1.0], [-1.0]):
        cp = LabelledCP((np.array(weight), [mixed, milder, -ones]), labels)
        assert (cp.factors[2] > 0).all()
        assert cp.factors[1][1] > 0
        assert np.allclose(
            tl.cp_to_tensor(cp),
            -weight[0] * np.einsum("i,j,k", mixed[:, 0], milder[:, 0], ones[:, 0]),
        )
    negative = LabelledCP((None, [ones, ones, -ones]), labels)
    assert (negative.factors[2] < 0).all()


@pytest.mark.parametrize(
    ("dtype", "scales"),
    [
        ("float32", (1e20, 1, 1)), ("float32", (1e-30, 1e20, 1)), ("float32", (1e-40, 1e30, 1e20)),
        ("float64", (1e170, 1, 1)), ("float64", (1e-170, 1, 1)),
        ("float64", (1e200, 1e200, 1e-300)), ("float64", (1e307, 1e-307, 1e-8)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_ordinary", [False, True], ids=["all", "beside an ordinary one"])
def test_the_form_of_very_large_and_small_columns(dtype, scales, has_ordinary):
    """Each element of each component stays, within rounding."""
    rng = np.random.RandomState(0)
    factors = [rng.standard_normal((len(of), 2)) for of in LABELS.values()]
    scaled = [
        (factor * [scale, 1 if has_ordinary else scale]).astype(dtype)
        for factor, scale in zip(factors, scales, strict=True)
    ]
    cp = LabelledCP((None, scaled), LABELS)

    def expand(weights, factors):
        exact = [f.astype(np.longdouble) for f in (weights, *factors)]
        return np.einsum("r,ir,jr,kr->rijk", *exact)

    expected, found = expand(np.ones(2, dtype), scaled), expand(*cp)
    order = np.argsort(-np.abs(expected).max(axis=(1, 2, 3)))
    for one, other in zip(expected[order], found, strict=True):
        assert np.abs(one - other).max() <= 100 * np.finfo(dtype).eps * np.abs(one).max()
    assert np.allclose([np.linalg.norm(f, axis=0) for f in cp.factors], 1, atol=1e-5)


def test_dollars_are_no_formulas(tmp_path):
    """In names and labels of bars and of ordered categories."""
    texts = ["ca$h_$", "US$ 10 to US$ 20", "$_$"]
    labels = {"a $_$": texts, "b": pd.Categorical(texts, texts, ordered=True)}
    figure = make_cp(1, labels=labels).plot()
    figure.savefig(tmp_path / "picture.png")
    bars, line = figure.axes
    assert not bars.title.get_parse_math()
    for ticks in (bars.get_yticklabels(), line.get_xticklabels()):
        assert {tick.get_text() for tick in ticks} == set(texts)
        assert not any(tick.get_parse_math() for tick in ticks)


def test_it_is_a_cp_tensor():
    cp = make_cp()
    weights, factors = cp
    dense = tl.cp_to_tensor((weights, factors))
    assert isinstance(cp, CPTensor)
    assert (cp.shape, cp.rank, len(cp)) == (SHAPE, 3, 2)
    assert cp[0] is weights
    assert np.array_equal(cp.to_tensor(), dense)
    assert tl.cp_norm(cp) == pytest.approx(np.linalg.norm(dense))
    assert cp.mode_dot(np.ones(5), 0).shape == (6, 7)
    for other in (copy.deepcopy(cp), pickle.loads(pickle.dumps(cp))):
        assert isinstance(other, LabelledCP)
        assert np.array_equal(other.to_tensor(), dense)
        assert other.names == NAMES
    assert repr(cp) == "<LabelledCP of rank 3: user (5), item (6), day (7)>"


def test_tlviz_takes_it():
    cp, other = make_cp(), make_cp(seed=1)
    frames = cp.to_frames()
    assert tlviz.factor_tools.factor_match_score(cp, cp) == pytest.approx(1)
    score = tlviz.factor_tools.factor_match_score(cp, other)
    assert tlviz.factor_tools.factor_match_score(frames, other.to_frames()) == pytest.approx(score)
    assert tlviz.utils.is_labelled_cp(frames)
    dense = tlviz.utils.cp_to_tensor(frames)
    assert dense.dims == NAMES
    assert np.allclose(dense.to_numpy(), tl.cp_to_tensor(cp))
    tidy = tlviz.postprocessing.factor_matrix_to_tidy(frames[1][0])
    assert tidy.shape == (15, 3)
    # What it has brought into form, tlviz leaves as it is.
    normalised = tlviz.factor_tools.normalise_cp_tensor(cp)
    assert np.allclose(normalised[1][0], cp.factors[0])


def test_top():
    factor = np.array([[0.1, -3.0], [-2.0, 1.0], [0.3, 2.0]])
    labels = {"user": ["ann", "bob", "cy"], "size": [10, 20]}
    cp = LabelledCP((None, [factor, np.array([[1.0, 3.0], [0.0, 1.0]])]), labels)
    first, second = cp.top("user", 2)
    assert list(first) == ["ann", "cy"]
    assert list(second) == ["bob", "cy"]
    assert first["ann"] == pytest.approx(-3 / np.sqrt(14))
    assert first["cy"] == pytest.approx(2 / np.sqrt(14))
    assert cp.top(0, 2) == cp.top("user", 2)
    assert len(cp.top("user")[0]) == 3
    assert [type(label) for label in cp.top("size", 1)[0]] == [int]
    assert all(isinstance(day, np.datetime64) for day in make_cp().top("day", 2)[0])


def test_tables():
    cp = make_cp()
    weights, frames = cp.to_frames()
    assert np.array_equal(weights, cp.weights)
    for frame, factor, name in zip(frames, cp.factors, NAMES, strict=True):
        assert frame.index.name == name
        assert np.array_equal(frame.to_numpy(), factor)
        assert list(frame.columns) == [0, 1, 2]
    tidy = cp.to_tidy()
    assert list(tidy.columns) == ["mode", "label", "component", "value"]
    for name, frame in zip(NAMES, frames, strict=True):
        wide = tidy[tidy["mode"] == name].pivot(index="label", columns="component", values="value")
        assert np.array_equal(wide.to_numpy(), frame.sort_index().to_numpy())


def test_names_and_labels():
    arrays = list(LABELS.values())
    factors = make_cp().factors
    assert LabelledCP((None, factors), arrays).names == ("mode 0", "mode 1", "mode 2")
    assert LabelledCP((None, factors), LABELS).names == NAMES
    ordered = pd.Categorical(["S", "M"], categories=["S", "M"], ordered=True)
    labels = {"size": ordered, "same": pd.Series(ordered), "name": pd.Categorical(["S", "M"])}
    cp = LabelledCP((None, [np.ones((2, 1))] * 4), labels | {"flag": [True, False]})
    assert cp.ordered == ("size", "same")
    assert cp.labels["size"].tolist() == ["S", "M"]


def make_sizes(library):
    """Make a table with a column of ordered categories, "size", and one of names, "shop"."""
    sizes, names = ["S", "M", "L"], {"shop": ["a", "b", "a"], "size": ["M", "S", "L"]}
    if library == "pandas":
        ordered = pd.CategoricalDtype(sizes, ordered=True)
        return pd.DataFrame(names).astype({"shop": "category", "size": ordered})
    return polars.DataFrame(names, schema={"shop": polars.String, "size": polars.Enum(sizes)})


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_ordered_categories_of_a_table(library):
    x = from_dataframe(make_sizes(library), ["shop", "size"])
    cp = decomposition.non_negative_parafac_hals(x, 1, **FEW)
    assert cp.ordered == ("size",)
    assert cp.labels["size"].tolist() == ["S", "M", "L"]
    assert len(cp.plot().axes[1].lines[0].get_xdata()) == 3
    assert pickle.loads(pickle.dumps(x)).labels.ordered == x.labels.ordered == ("size",)
    texts = pd.DataFrame({"shop": ["a"], "size": ["L"]})
    new = from_dataframe(texts, ["shop", "size"], labels=x.labels)
    assert new.labels.ordered == ("size",)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda cp: cp.top("shop"), ValueError, r"mode is 'shop', expected one of \['user', "),
        (lambda cp: cp.top(3), ValueError, "mode is 3, expected 0 to 2"),
        (lambda cp: cp.top(None), TypeError, "mode is None, expected an integer"),
        (lambda cp: cp.top(0, 0), ValueError, "n is 0, expected at least 1"),
        (lambda cp: cp.top(0, 2.5), TypeError, "n is 2.5, expected an integer"),
        (lambda cp: cp.plot(lines=["shop"]), ValueError, "mode is 'shop'"),
        (lambda cp: cp.plot(lines="day"), TypeError, r"lines is 'day', .*, like \['day'\]"),
        (lambda cp: cp.plot(top=0), ValueError, "top is 0, expected at least 1"),
        (
            lambda cp: LabelledCP((None, [np.ones((2, 1))]), [["a", "a"]]),
            ValueError,
            r"labels\['mode 0'\] holds 'a' twice, expected distinct ones",
        ),
        (lambda cp: LabelledCP(cp, {"a": [1]}), ValueError, r"names the modes \['a'\], expected 3"),
        (
            lambda cp: LabelledCP(cp, {name: [1] for name in "abc"}),
            ValueError,
            r"labels\['a'\] has shape \(1,\)",
        ),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call(make_cp())


def test_plot(tmp_path):
    cp = make_cp(rank=2)
    figure = cp.plot(top=3)
    panels = np.reshape(figure.axes, (2, 3))
    assert [axes.get_title() for axes in panels[0]] == list(NAMES)
    assert [len(axes.patches) for axes in panels[0]] == [3, 3, 0]  # bars
    ticks = [tick.get_text() for tick in panels[0, 0].get_yticklabels()]
    assert ticks == list(cp.top("user", 3)[0])
    (line, _) = panels[1, 2].lines  # the other one is at 0
    assert np.array_equal(line.get_ydata(), cp.factors[2][:, 1])
    assert panels[0, 2].get_ylim() == panels[1, 2].get_ylim()
    assert panels[0, 0].get_xlim() == panels[1, 0].get_xlim()
    figure.savefig(tmp_path / "components.png", dpi=20)
    assert [len(axes.patches) for axes in cp.plot(lines=[0]).axes[:3]] == [0, 6, 7]


def test_notebooks_show_a_plot(monkeypatch):
    """With "%matplotlib inline" or without."""
    figure = make_cp().plot()
    for own in (figure, pickle.loads(pickle.dumps(figure))):
        assert own._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        make_cp().plot()


def test_a_plot_orders_numbers_and_shortens_names():
    labels = {"n": [3, 1, 2], "name": ["x" * 60, "y"], "span": np.arange(4).astype("m8[h]")}
    cp = make_cp(1, labels=labels)
    numbers, names, spans = cp.plot().axes
    assert numbers.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert np.array_equal(numbers.lines[0].get_ydata(), cp.factors[0][[1, 2, 0], 0])
    assert max(len(tick.get_text()) for tick in names.get_yticklabels()) == 28
    assert spans.get_xticklabels()[0].get_text() == "0:00:00"


FRAME = pd.DataFrame(
    {
        "user": ["zoe", "zoe", "ann", "yan"],
        "item": ["item 1", "item 2", "item 0", "item 5"],
        "day": LABELS["day"][[0, 6, 3, 1]],
        "n": [2.0, 3.0, 1.0, 4.0],
    }
)


@pytest.mark.parametrize("non_negative", [False, True])
def test_transform(non_negative):
    cp = make_cp()
    rows = cp.transform(FRAME, "user", "n", non_negative=non_negative)
    assert rows.index.tolist() == ["ann", "yan", "zoe"]
    assert rows.index.name == "user"
    assert list(rows.columns) == [0, 1, 2]
    dense = np.zeros((3, 6, 7))
    dense[[2, 2, 0, 1], [1, 2, 0, 5], [0, 6, 3, 1]] = FRAME["n"]
    khatri_rao = np.einsum("r,jr,kr->jkr", cp.weights, *cp.factors[1:]).reshape(-1, 3)
    if non_negative:
        assert (rows.to_numpy() >= 0).all()
    else:
        expected = np.linalg.lstsq(khatri_rao, dense.reshape(3, -1).T, rcond=None)[0].T
        assert np.abs(rows.to_numpy() - expected).max() <= 1e-12
    by_number = cp.transform(FRAME, 0, "n", non_negative=non_negative)
    assert by_number.equals(rows)


def test_predict():
    """For each row, in its place, whatever the library and the sequence of columns."""
    cp = make_cp()
    rows = np.random.RandomState(0).randint(0, SHAPE, (20, 3))
    rows[1] = rows[0]
    columns = {name: LABELS[name][rows[:, n]] for n, name in enumerate(NAMES)}
    expected = tl.cp_to_tensor(cp)[tuple(rows.T)]
    reversed_columns = dict(reversed(columns.items()))
    for table in (pd.DataFrame(reversed_columns), polars.DataFrame(columns)):
        found = cp.predict(table)
        assert np.abs(found - expected).max() <= 20 * np.finfo(float).eps * np.abs(expected).max()
    with pytest.raises(ValueError, match="column 'item' is 'nothing' in row 3"):
        cp.predict(FRAME.assign(user="ann", item=["item 1"] * 3 + ["nothing"]))
    with pytest.raises(ValueError, match="no column 'day'"):
        cp.predict(FRAME.drop(columns="day"))


def test_equal_models(tmp_path):
    cp = make_cp()
    cp.save(tmp_path / "model.npz")
    assert cp == LabelledCP.load(tmp_path / "model.npz")
    assert cp != make_cp(seed=1)
    assert cp != make_cp(rank=2)
    assert cp != LabelledCP(cp, list(LABELS.values()))
    assert cp != CPTensor((cp.weights, cp.factors))
    assert cp != 3


def test_transforming_the_data_of_the_model_gives_its_factor():
    """The last factor of parafac solves the least squares that fold_in solves."""
    rng = np.random.RandomState(0)
    frame = pd.DataFrame(rng.randint(0, 6, (300, 3)), columns=["a", "b", "c"])
    cp = tl.decomposition.parafac(from_dataframe(frame, ["a", "b", "c"]), 2, **FEW)
    rows = cp.transform(frame, "c").to_numpy()
    assert np.abs(rows - cp.factors[2]).max() <= 1e-12


def test_a_model_of_observed_parafac_takes_unrated_cells_as_unknown(tmp_path):
    """The model is exact, and so are the rows of new users, from a third of their cells."""
    rng = np.random.default_rng(0)
    users, items, days = (rng.random((size, 2)) + 0.1 for size in (40, 12, 10))
    whole = np.einsum("ur,ir,dr->uid", users, items, days)
    cells = np.argwhere(rng.random(whole.shape) < 0.3)
    table = pd.DataFrame(cells, columns=["user", "item", "day"])
    table["stars"] = whole[tuple(cells.T)]
    x = from_dataframe(table[table.user < 30], ["user", "item", "day"], "stars")
    cp = observed_parafac(x, 2, n_iter_max=500, tol=0, random_state=0)
    cp.save(tmp_path / "model.npz")
    loaded = LabelledCP.load(tmp_path / "model.npz")
    assert loaded.flycoo.l2_reg == LabelledCP(cp, cp.labels).flycoo.l2_reg == 1e-6
    new = table[table.user >= 30]
    rows = loaded.transform(new, "user", "stars")
    expected = whole[30:]
    found = np.einsum("r,ur,ir,dr->uid", cp.weights, rows, *cp.factors[1:])
    assert np.abs(found - expected).max() < 1e-2 * expected.max()
    as_zeros = loaded.transform(new, "user", "stars", observed=False)
    assert (as_zeros.abs().sum(axis=1) < 0.6 * rows.abs().sum(axis=1)).all()


def make_biased():
    rng = np.random.RandomState(0)
    frame = pd.DataFrame(rng.randint(0, 6, (90, 3)), columns=["user", "item", "day"])
    frame["stars"] = 3 + frame["item"] % 3 - 0.1 * frame["user"] + 0.1 * rng.random_sample(90)
    x = from_dataframe(frame, ["user", "item", "day"], "stars", aggregate="mean")
    return observed_parafac(x, 2, biases=True, l2_reg=0.001, random_state=0), frame


def test_biases_are_named_everywhere(tmp_path):
    cp, frame = make_biased()
    biases = {"mean", "user bias", "item bias", "day bias"}
    assert {*cp.components} == biases | {0, 1}
    for component, mode in zip(cp.components, cp.flycoo.bias_modes, strict=True):
        constant = [
            np.ptp(factor[:, cp.components.index(component)]) < 1e-12 for factor in cp.factors
        ]
        assert constant == [mode >= 0 and n != mode for n in range(3)]
    _, frames = cp.to_frames()
    rows = cp.transform(frame, "item", "stars", aggregate="mean")
    for table in (*frames, rows):
        assert tuple(table.columns) == cp.components
    assert {*cp.to_tidy()["component"]} == {*cp.components}
    headings = [axes.get_ylabel() for axes in cp.plot().axes]
    assert any(heading.startswith("item bias\n") for heading in headings)
    assert any(heading.startswith("component 1\n") for heading in headings)
    assert ">item bias<" in cp._repr_html_()
    cp.save(tmp_path / "model.npz")
    loaded = LabelledCP.load(tmp_path / "model.npz")
    for name in ("bias_modes", "scale", "l2_reg", "absent", "value_column", "method", "dtype"):
        assert getattr(loaded.flycoo, name) == getattr(cp.flycoo, name)
    assert loaded.components == cp.components
    found = loaded.predict(frame)
    np.testing.assert_array_equal(found, cp.predict(frame))


@pytest.mark.parametrize(
    "wrong",
    [
        {"bias_modes": [0]},
        {"bias_modes": 3},
        {"bias_modes": [9] * 6},
        {"bias_modes": [True] * 6},
        {"l2_reg": "1"},
        {"scale": -1.0},
        {"scale": float("nan")},
        {"absent": "gone"},
        {"non_negative": [3]},
        {"method": 1},
    ],
    ids=str,
)
def test_a_wrong_record_in_a_file_is_refused(wrong, tmp_path):
    cp, _ = make_biased()
    cp.flycoo = cp.flycoo.replace(**wrong)
    cp.save(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="its header has a record with wrong"):
        LabelledCP.load(tmp_path / "model.npz")


def change_header(path, change):
    """Write a file's header anew."""
    parts = unpack("x.npz", path.read_bytes())
    header = change(json.loads(parts["header.npy"]))
    path.write_bytes(pack("x.npz", parts | {"header.npy": json.dumps(header).encode()}))


@pytest.mark.parametrize("has_biases", [True, False])
def test_a_file_of_an_older_release_is_read_and_says_what_it_lacks(has_biases, tmp_path):
    cp, _ = make_biased()
    path, modes = tmp_path / "model.npz", cp.flycoo.bias_modes
    cp.save(path)

    def make_older(header):
        header.pop("flycoo")
        marks = {"bias_modes": list(modes), "observed_scale": 2.0} if has_biases else {}
        return header | {"observed_l2_reg": 0.001} | marks

    change_header(path, make_older)
    with pytest.warns(UserWarning, match=r"lacks the weights of confidence="):
        loaded = LabelledCP.load(path)
    assert loaded.components == (cp.components if has_biases else (0, 1, 2, 3, 4, 5))
    assert (loaded.flycoo.l2_reg, loaded.flycoo.absent) == (0.001, "unknown")


def test_a_plain_file_of_an_older_release_has_no_record(tmp_path):
    path = tmp_path / "model.npz"
    make_cp().save(path)
    change_header(path, lambda header: header.pop("flycoo") or header)
    with pytest.warns(UserWarning, match="kept no record of how a model was made"):
        assert LabelledCP.load(path).flycoo is None


def test_transform_refuses_labels_that_the_model_does_not_have():
    with pytest.raises(ValueError, match="item"):
        make_cp().transform(FRAME.assign(item="unknown"), "user", "n")
    with pytest.raises(ValueError, match="mode is 'shop', expected one of"):
        make_cp().transform(FRAME, "shop", "n")


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac_hals"])
def test_a_decomposition_imported_before_the_package_warns_of_lost_labels(name, x):
    """It starts from the guess that the plain tensor gives."""
    function, options = tensorly_loop(name), {"n_iter_max": 2, "random_state": 0}
    with pytest.warns(UserWarning, match=r"no labels.*tl\.decomposition\.NAME"):
        found = function(x, 2, **options)
    expected = function(x.tensor, 2, **options)
    assert type(found) is CPTensor
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


def test_labels_that_do_not_matter_have_no_bar():
    factors = [np.array([[3.0], [4.0], [0.01], [0.0]]), np.array([[1.0]])]
    cp = LabelledCP((None, factors), {"shop": list("abcd"), "item": ["tea"]})
    first, _ = cp.plot().axes
    assert [text.get_text() for text in first.get_yticklabels()] == ["b", "a"]
    assert cp.describe() == "\ncomponent 1, weight 5 (100%)\n  shop  b 0.8, a 0.6\n  item  tea 1"


@pytest.mark.parametrize(
    ("ids", "is_line"),
    [
        (range(2000, 2030), True),
        ([*range(5, 24), 1], True),  # hours, of which four have no row
        ([3, 17, 4711, 20_000], False),
        (["a", "b"], False),
        (np.array(["2024-01-01", "2024-03-07", "2024-03-08"], "M8[D]"), True),
    ],
)
def test_numbers_with_uneven_steps_are_names(ids, is_line):
    cp = LabelledCP((None, [np.ones((len(ids), 1))]), {"id": ids})
    (axes,) = cp.plot().axes
    assert bool(axes.lines and not axes.patches) == is_line
    assert ("<svg" in cp._repr_html_()) == is_line

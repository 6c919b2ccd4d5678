"""A LabelledTensor in the place of a tensor: computed with, or refused with a hint at `.tensor`."""

import copy
import datetime
import inspect
import operator
import pickle

import numpy as np
import pandas as pd
import pytest
import tensorly as tl
from tensorly.cp_tensor import CPTensor

import tensorly_flycoo
from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    core_consistency,
    cp_fit,
    decomposition,
    evaluate,
    fold_in,
    from_dataframe,
    load,
    mttkrp,
    recommend,
    replicability,
    save,
    stats,
    uncertainty,
)
from tensorly_flycoo.tensor.labelled import _MODE_OPTIONS, Labels
from tensorly_flycoo.testing import random_tensor

SHAPE = (5, 6, 7)
FACTORS = [np.random.RandomState(n).random_sample((size, 2)) for n, size in enumerate(SHAPE)]
LABELS = {name: np.arange(size) for name, size in zip("abc", SHAPE, strict=True)}
MODEL = LabelledCP((None, FACTORS), LABELS)


pytestmark = pytest.mark.usefixtures("flycoo_backend")


@pytest.fixture
def labelled():
    return LabelledTensor(random_tensor(SHAPE, 100, random_state=0), LABELS)


TAKES_IT = {
    "mttkrp": lambda x: mttkrp(x, FACTORS, 1),
    "stats": lambda x: str(stats(x)),
    "norm": tl.norm,
    "norm, a method": lambda x: x.norm(),
    "shape": tl.shape,
    "ndim": tl.ndim,
    "numpy's shape": np.shape,
    "numpy's ndim": np.ndim,
    "context": tl.context,
    "is_tensor": tl.is_tensor,
    "tensor": lambda x: tl.tensor(x).nonzeros()[0],
    "copy": lambda x: tl.copy(x).nonzeros()[1],
    "abs": lambda x: tl.abs(x).nonzeros()[1],
    "sum": tl.sum,
    "sum over two modes": lambda x: tl.sum(x, (0, 2)),
    "mean": tl.mean,
    "unfold": lambda x: tl.dot(tl.unfold(x, 1), np.ones((35, 2))),
    "reshape": lambda x: tl.reshape(x, (30, 7)).shape,
    "transpose": lambda x: tl.tensor(tl.transpose(x)).nonzeros()[0],
    "svd": lambda x: abs(tl.svd_interface(tl.unfold(x, 0), n_eigenvecs=2)[1]),
    "mode_dot": lambda x: tl.tenalg.mode_dot(x, np.ones((2, 6)), 1),
    "multi_mode_dot": lambda x: tl.tenalg.multi_mode_dot(x, [f.T for f in FACTORS]),
    "inner": lambda x: tl.tenalg.inner(x, x),
    "tucker": lambda x: tl.decomposition.tucker(x, [2, 2, 2], n_iter_max=3).core,
}  # fmt: skip


@pytest.mark.parametrize("use", TAKES_IT.values(), ids=TAKES_IT)
def test_computed_with(use, labelled):
    found, expected = use(labelled), use(labelled.tensor)
    assert np.array_equal(found, expected)


def test_refused(labelled):
    with pytest.raises(TypeError, match=r"LabelledTensor.*\.tensor"):
        np.concatenate([labelled, labelled])


OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.matmul, operator.lt, operator.le, operator.gt, operator.ge, operator.eq,
    operator.ne, divmod, np.add, np.subtract, np.multiply, np.divide, np.power, np.minimum,
    np.greater, np.equal,
]  # fmt: skip
OTHERS = {
    "2": lambda x: 2,
    "0": lambda x: 0,
    "-0.5": lambda x: -0.5,
    "float64": lambda x: np.float64(3),
    "float32": lambda x: np.float32(0.5),
    "array()": lambda x: np.array(2.0),
    "its double": lambda x: 2 * x,
    "itself": lambda x: x,
    "a tensor": lambda x: 3 * getattr(x, "tensor", x),
    "a COO": lambda x: x if isinstance(x, np.ndarray) else x.to_coo(),
    "an array": lambda x: np.ones(SHAPE),
    "an object": lambda x: int,
    "None": lambda x: None,
}


def attempt(use, x):
    """Return the result, or that it is refused."""
    try:
        return use(x)
    except (TypeError, ValueError, AttributeError, ZeroDivisionError):
        return "refused"


@pytest.mark.parametrize("step", [1, -1], ids=["left", "right"])
@pytest.mark.parametrize("operate", OPERATORS, ids=lambda f: f.__name__)
def test_operators_are_those_of_its_tensor_and_of_numpy(operate, step, labelled):
    for name, other in OTHERS.items():

        def use(x):
            return operate(*(x, other(x))[::step])  # noqa: B023

        found, expected = attempt(use, labelled), attempt(use, labelled.tensor)
        if isinstance(expected, FlycooTensor):
            assert list(found.labels) == ["a", "b", "c"], name
            dense = found.to_coo().todense()
            np.testing.assert_array_equal(dense, expected.to_coo().todense())
            np.testing.assert_allclose(dense, use(labelled.to_coo().todense()), rtol=1e-15)
        else:
            assert found == expected, name


def test_no_operator_is_left_out():
    own = {name for name, of in vars(FlycooTensor).items() if name[:2] == "__" and callable(of)}
    kept = {"__init__", "__repr__", "__reduce__", "__copy__", "__deepcopy__", "__len__"}
    assert own - kept - {"__getitem__", "__iter__", "__getattr__"} <= {*vars(LabelledTensor)}


@pytest.mark.parametrize(
    "use", [operator.neg, operator.pos, abs, bool, np.sqrt, np.exp, np.asarray, operator.invert]
)
def test_what_takes_it_alone(use, labelled):
    found, expected = attempt(use, labelled), attempt(use, labelled.tensor)
    if isinstance(expected, FlycooTensor):
        assert list(found.labels) == ["a", "b", "c"]
        dense = use(labelled.to_coo().todense())
        np.testing.assert_array_equal(found.to_coo().todense(), dense)
    else:
        assert found is expected


def test_labelled_tensors_are_compared_by_identity(labelled):
    other = LabelledTensor(labelled.tensor, labelled.labels)
    assert labelled == labelled
    assert labelled != other
    assert labelled in [other, labelled]
    assert {labelled: 1}[labelled] == 1


def test_tensors_of_other_labels_are_not_added(labelled):
    other = LabelledTensor(labelled.tensor, labelled.labels | {"b": list("uvwxyz")})
    with pytest.raises(ValueError, match="label 0 of mode 'b' is u in one tensor and 0 in"):
        labelled + other
    renamed = dict(zip("abd", labelled.labels.values(), strict=True))
    with pytest.raises(ValueError, match=r"the modes are \['a', 'b', 'c'\] and \['a', 'b', 'd'\]"):
        labelled - LabelledTensor(labelled.tensor, renamed)
    with pytest.raises(ValueError, match="label 0 of mode 'b'"):
        np.add(labelled, other)


#: Functions that take a mode, or several: called with numbers or names.
BY_MODE = {
    "sum": lambda x, mode: x.sum(mode),
    "mean": lambda x, mode: x.mean(axis=[mode]),
    "transpose": lambda x, mode: x.transpose(mode, 0, 2),
    "mttkrp": lambda x, mode: mttkrp(x, FACTORS, mode),
    "fold_in": lambda x, mode: fold_in((None, FACTORS), x, mode),
    "recommend": lambda x, mode: [[*best.values()] for best in recommend(MODEL, mode)],
    "evaluate": lambda x, mode: [*evaluate(MODEL, x, mode, 2).values()],
    "uncertainty": lambda x, mode: uncertainty(x, MODEL, mode, 3, random_state=0).samples[0],
    "center": lambda x, mode: tensorly_flycoo.center(x, [0, mode]).entries([[0], [1], [2]]),
    "replicability": lambda x, mode: replicability(x, 1, mode, 2, 1, random_state=0).scores,
}
#: They take blocks or slices, or modes that need the same labels: tests of their own have these.
LEFT_OUT = ("parafac2", "coupled_parafac", "shared_parafac", "shared_tucker")
#: Of decompositions, by the name of the parameter.
SOLVERS_BY_MODE = [
    (solver, name)
    for solver in decomposition.__all__
    for name in inspect.signature(getattr(decomposition, solver)).parameters
    if name.endswith(("modes", "fixed_factors")) and solver not in LEFT_OUT
]


def as_arrays(found):
    names = [*getattr(found, "labels", {})]
    return [*found.nonzeros(), names] if hasattr(found, "nonzeros") else [np.asarray(found)]


@pytest.mark.parametrize("use", BY_MODE.values(), ids=BY_MODE)
def test_a_mode_goes_by_name_too(use, labelled):
    by_name, by_number = (as_arrays(use(labelled, mode)) for mode in ("b", 1))
    for found, expected in zip(by_name, by_number, strict=True):
        np.testing.assert_array_equal(found, expected)
    plain = as_arrays(use(labelled.tensor, 1))
    np.testing.assert_allclose(by_name[0], plain[0], rtol=1e-12)
    with pytest.raises(ValueError, match=r"mode is 'd', expected one of \['a', 'b', 'c'\]"):
        use(labelled, "d")


def test_no_function_of_modes_is_left_out():
    known = {*BY_MODE, *(solver for solver, _ in SOLVERS_BY_MODE)}
    known |= {*LEFT_OUT, "from_dataframe", "save_slabs"}  # a table has only names
    for home in (tensorly_flycoo, decomposition):
        for name in home.__all__:
            if inspect.isfunction(getattr(home, name)):
                parameters = {*inspect.signature(getattr(home, name)).parameters}
                assert name in known or not parameters & {"axis", "mode", "modes", *_MODE_OPTIONS}


@pytest.mark.parametrize(("solver", "name"), SOLVERS_BY_MODE)
def test_solvers_take_modes_by_name(solver, name, labelled):
    x = abs(labelled)
    if "tucker" in solver:
        guess = decomposition.tucker(x.tensor, [2, 2, 2], n_iter_max=0)
        options = {"rank": [2, 2, 2], "init": guess}
    else:
        weights = None if solver == "constrained_parafac" else np.ones(2)
        options = {"rank": 2, "init": CPTensor((weights, FACTORS)), "random_state": 0}
    if solver == "constrained_parafac":
        options["non_negative"] = True
    solve = getattr(decomposition, solver)
    by_name, by_number = (
        solve(x, n_iter_max=2, **options, **{name: modes}) for modes in (["b"], [1])
    )
    for found, expected in zip(by_name.factors, by_number.factors, strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="mode is 'd'"):
        solve(x, **options, **{name: ["a", "d"]})


def test_reductions_keep_the_other_labels(labelled):
    dense = labelled.to_coo().todense()
    found = labelled.sum("b")
    assert {name: of.tolist() for name, of in found.labels.items()} == {
        "a": [*range(5)],
        "c": [*range(7)],
    }
    np.testing.assert_allclose(found.to_coo().todense(), dense.sum(axis=1))
    np.testing.assert_allclose(labelled.sum(["a", "c"]), dense.sum(axis=(0, 2)))
    assert labelled.sum() == pytest.approx(dense.sum())
    assert list(labelled.T.labels) == ["c", "b", "a"]
    turned = labelled.transpose(["b", "c", "a"])
    np.testing.assert_array_equal(turned.to_coo().todense(), dense.transpose(1, 2, 0))
    assert [len(of) for of in turned.labels.values()] == [6, 7, 5]


def test_take():
    days = np.arange("2020-01-01", "2020-01-08", dtype="datetime64[D]")
    labels = {"user": list("edbca"), "item": pd.Categorical([*"uvwxyz"], ordered=True), "day": days}
    x = LabelledTensor(random_tensor(SHAPE, 100, random_state=0), labels)
    dense = x.tensor.to_coo().todense()
    for index, given, rows in [
        (0, ["a", "e"], [4, 0]),
        (0, "d", [1]),
        (1, slice("w", "y"), [2, 3, 4]),
        (1, slice(None, "v"), [0, 1]),
        (2, slice(days[5], None), [5, 6]),
        (2, slice("2020-01-06", "2021"), [5, 6]),
        (2, pd.to_datetime(["2020-01-03"]), [2]),
    ]:
        part = x.take([*labels][index], given)
        np.testing.assert_array_equal(part.tensor.to_coo().todense(), dense.take(rows, index))
        for n, (of, own) in enumerate(zip(part.labels.values(), x.labels.values(), strict=True)):
            assert of.tolist() == (own[rows] if n == index else own).tolist()
        assert part.labels.ordered == ("item", "day")
    for given in (["a", "f"], "f", slice("f", None)):
        with pytest.raises(ValueError, match=r"labels holds some that mode 'user' has not: .*f"):
            x.take("user", given)
    with pytest.raises(ValueError, match="selects nothing from mode 0"):
        x.take("user", slice("a", "e"))


def test_an_array_of_numbers_takes_rows_of_the_first_mode():
    """As scikit-learn divides samples; of a tuple, so numbers and names still take its items."""
    labels = {"user": list("edbca"), "item": range(6), "day": range(7)}
    x = LabelledTensor(random_tensor(SHAPE, 100, random_state=0), labels)
    rows = np.array([3, 0])
    for part in (x[rows], x[rows, ...]):
        assert part.labels["user"].tolist() == ["c", "e"]
        assert part.take("user", ["e"]).sum() == x.take("user", ["e"]).sum()
    assert x[0] is x.tensor
    with pytest.raises(TypeError, match=r"expected 0 for .*, or an array of rows .*: call"):
        x["user"]


def test_times_with_a_zone_are_local_times():
    hours = pd.date_range("2026-01-01", periods=5, freq="h", tz="Asia/Tokyo")
    labels = {"t": hours, "item": range(6), "day": range(7)}
    x = LabelledTensor(random_tensor(SHAPE, 100, random_state=0), labels)
    naive = hours.tz_localize(None)
    assert x.labels["t"].tolist() == naive.to_numpy().astype("M8[us]").tolist()
    cp = LabelledCP((None, FACTORS), x.labels)
    by_series = recommend(cp, "t", pd.Series(naive[1:3]))
    for zone in (hours, naive):
        times = list(zone[1:3])
        for ids in (times, [time.to_pydatetime() for time in times], zone[1:3], pd.Series(times)):
            assert recommend(cp, "t", ids) == by_series
            assert x.take("t", ids).labels["t"].tolist() == x.labels["t"][1:3].tolist()
        assert [*recommend(cp, "t", zone[1])[0]] == [*by_series[0]]
        for part, rows in [
            (slice(zone[2], None), slice(2, None)), (slice(None, zone[2]), slice(3)),
            (slice(zone[1], zone[3]), slice(1, 4)), (zone[4], [4]),
        ]:  # fmt: skip
            assert x.take("t", part).labels["t"].tolist() == x.labels["t"][rows].tolist()
    exact = pd.DatetimeIndex(["2026-01-01 00:00:00.000000001"], tz="Asia/Tokyo")
    assert Labels([exact])["mode 0"] == exact.tz_localize(None).to_numpy()


def test_take_refuses_labels_of_another_kind():
    labels = {"t": pd.date_range("2026-01-01", periods=5), "item": list("uvwxyz"), "n": range(7)}
    x = LabelledTensor(random_tensor(SHAPE, 100, random_state=0), labels)
    for mode, given in [
        ("t", slice(3, None)), ("t", slice("soon", None)), ("t", (1, 2)), ("t", {1}),
        ("t", np.array([True])), ("item", slice(1, 2)), ("t", pd.DataFrame()),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=f"labels of mode '{mode}': .*expected labels such as"):
            x.take(mode, given)


def test_products_with_it_have_no_labels(labelled):
    found = tl.tenalg.multi_mode_dot(labelled, [np.ones((2, 5))], modes=["a"])
    assert not hasattr(found, "labels")


KEEPS_LABELS = [
    np.log1p, lambda x: np.minimum(x, 2), lambda x: x.map(np.sqrt), lambda x: x * 2,
    lambda x: np.float64(2) * x, lambda x: x / 2, lambda x: x**2, lambda x: -x, abs,
]  # fmt: skip


@pytest.mark.parametrize("use", KEEPS_LABELS)
def test_functions_that_keep_zero_keep_the_labels(use, labelled):
    found = use(labelled)
    assert isinstance(found, LabelledTensor)
    assert found.labels == labelled.labels
    assert np.array_equal(found.nonzeros()[1], use(labelled.tensor).nonzeros()[1])


def test_it_stays_a_pair(labelled):
    tensor, labels = labelled
    assert isinstance(tensor, FlycooTensor)
    assert len(labelled) == 2
    for other in (copy.deepcopy(labelled), pickle.loads(pickle.dumps(labelled))):
        assert isinstance(other, LabelledTensor)
        assert list(other.labels) == list(labels)
        assert np.array_equal(other.tensor.nonzeros()[1], tensor.nonzeros()[1])
    with pytest.raises(AttributeError):
        labelled.nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"\.tensor"):
        labelled._engine  # noqa: B018


def test_labels_that_do_not_match(labelled):
    for labels in ({"a": range(5)}, {"a": range(5), "b": range(6), "c": range(8)}):
        with pytest.raises(ValueError, match="labels"):
            LabelledTensor(labelled.tensor, labels)


def test_what_it_shows(labelled):
    assert {"tensor", "labels", "shape", "nnz", "norm", "to_frame"} <= {*dir(labelled)}
    assert not {"count", "index"} & {*dir(labelled)}
    arrays = labelled.labels.values()
    named = LabelledTensor(labelled.tensor, dict(zip(["a", "<b>", "c"], arrays, strict=True)))
    assert "a (5), <b> (6), c (7)" in repr(named)


def test_its_table_makes_it_again(labelled):
    labels = labelled.labels | {"b": list("zyxwvu"), "c": pd.date_range("2026-01-01", periods=7)}
    x = LabelledTensor(labelled.tensor, labels)
    frame = x.to_frame("v")
    assert list(frame.columns) == ["a", "b", "c", "v"]
    again = from_dataframe(frame, ["a", "b", "c"], "v", labels=x.labels)
    for found, expected in zip(again.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="values is 'a', expected another name"):
        x.to_frame("a")


@pytest.mark.parametrize("layout", ["remap", "indexed"])
def test_a_file_keeps_it(labelled, layout, tmp_path):
    tensor = FlycooTensor(*labelled.nonzeros(), SHAPE, layout=layout)
    sizes = pd.Categorical([*"SMLXY"], categories=[*"SMLXY"], ordered=True)
    days = pd.date_range("2026-01-01", periods=7)
    x = LabelledTensor(tensor, {"size": sizes, "who": ["é", "", "b", "c", "d", "e"], "day": days})
    save(tmp_path / "x.npz", x)
    found = load(tmp_path / "x.npz")
    assert isinstance(found, LabelledTensor)
    assert found.labels.ordered == x.labels.ordered == ("size", "day")
    assert all(map(np.array_equal, found.labels.values(), x.labels.values()))
    assert list(found.labels) == list(x.labels)
    assert found.layout == layout
    assert all(map(np.array_equal, found.nonzeros(), x.nonzeros()))
    with np.load(tmp_path / "x.npz") as arrays:
        arrays = dict(arrays)
    others = LabelledTensor(FlycooTensor([[0]], [1.0], (2,)), {"a": np.array([(1,), 2], object)})
    for damage, match in [
        ({"labels_2": arrays["labels_2"][:3]}, r"damaged.*labels\['day'\] has shape \(3,\)"),
        ({"text_ends_1": arrays["text_ends_1"][::-1]}, "damaged.*text_ends_1"),
    ]:
        np.savez(tmp_path / "bad.npz", **(arrays | damage))
        with pytest.raises(ValueError, match=match):
            load(tmp_path / "bad.npz")
    with pytest.raises(TypeError, match="holds a tuple, expected text, numbers or dates"):
        save(tmp_path / "x.npz", others)
    assert load(tmp_path / "x.npz").nnz == x.nnz


def test_a_label_occurs_once(labelled):
    for labels in (list("vwxyv"), [1, 2, 3, 2, 4]):
        with pytest.raises(ValueError, match=r"labels\['a'\] holds .* twice, expected distinct"):
            LabelledTensor(labelled.tensor, labelled.labels | {"a": labels})


def test_only_of_a_tensor_of_this_package(labelled):
    with pytest.raises(TypeError, match="tensor is a COO, expected a FlycooTensor"):
        LabelledTensor(labelled.tensor.to_coo(), labelled.labels)


@pytest.mark.parametrize("function", [cp_fit, core_consistency])
def test_a_model_with_other_labels_is_refused(function):
    x = FlycooTensor([[0, 1], [0, 1]], [3.0, 4.0], (2, 2))
    shops, days = np.array(["a", "b"]), np.array(["2024-01-01", "2024-01-02"], "M8[D]")
    labelled = LabelledTensor(x, {"shop": shops, "day": days})
    factors = (None, [np.eye(2), np.eye(2)])
    same = LabelledCP(factors, [shops.astype(object), days.astype("M8[s]")])
    assert function(labelled, same) == function(x, same) == function(labelled, factors)
    for other in ([shops[::-1], days], [shops, [1, 2]], [shops, ["x", "y"]]):
        with pytest.raises(ValueError, match=r"label 0 of mode .* in x and .* in cp_tensor"):
            function(labelled, LabelledCP(factors, other))


def test_rows_of_new_labels_are_folded_in_if_the_others_agree():
    x = LabelledTensor(FlycooTensor([[0], [1]], [3.0], (2, 2)), [["c", "d"], [7, 8]])
    cp = LabelledCP((None, [np.eye(2), np.eye(2)]), [["a", "b"], [7, 8]])
    assert fold_in(cp, x, 0).shape == (2, 2)
    with pytest.raises(ValueError, match="label 0 of mode 'mode 0' is c in x_new and a"):
        fold_in(cp, x, 1)


def test_dates_of_python():
    """NumPy's can be drawn and saved; a table with either lines up with them."""
    days = np.array([datetime.date(2020, 1, 2), datetime.date(2020, 1, 1)])
    labels = Labels({"day": days, "who": np.array(["ann", "bob"], object)})
    assert labels["day"].dtype == "datetime64[D]"
    assert labels.ordered == ("day",)
    frame = pd.DataFrame({"day": days[::-1], "who": ["ann", "ann"]})
    for same in (frame, frame.astype({"day": "datetime64[ns]"})):
        x = from_dataframe(same, ["day", "who"], labels=labels)
        assert x.labels["day"].tolist() == days.tolist()
        assert x.nonzeros()[0].tolist() == [[0, 1], [0, 0]]


def test_under_another_backend_the_error_names_flycoo(labelled):
    with tl.backend_context("numpy"), pytest.raises(RuntimeError, match=r'set_backend\("flycoo"\)'):
        tl.decomposition.parafac(labelled, 2)


def test_its_home_is_the_package():
    assert tensorly_flycoo.LabelledTensor is LabelledTensor

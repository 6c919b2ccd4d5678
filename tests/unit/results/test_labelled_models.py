"""Models with labels that are no CP models: the numbers of plain ones, with tables and files."""

import numpy as np
import pytest
import scipy.sparse
import tensorly as tl
from labelled_problem import LABELS, make_labelled

from tensorly_flycoo import LabelledCP, RaggedTensor, best_of, decomposition
from tensorly_flycoo.models import CoupledCP, LabelledCoupledCP, LabelledParafac2, LabelledTucker

pytestmark = pytest.mark.usefixtures("flycoo_backend")


@pytest.fixture
def x():
    return make_labelled()


def check_tables(model, factors):
    """Compare tops and tables of a model with the factor of each of its modes."""
    for name, factor, frame in zip(model.names, factors, model.to_frames()[1], strict=True):
        labels = [*model.labels[name]]
        np.testing.assert_array_equal(frame.to_numpy(), factor)
        assert ([*frame.index], frame.index.name) == ([*model.labels[name]], name)
        for r, component in enumerate(model.top(name, 3)):
            order = np.argsort(-np.abs(factor[:, r]), kind="stable")[:3]
            assert component == {labels[row]: factor[row, r] for row in order}
    tidy = model.to_tidy()
    assert len(tidy) == sum(factor.size for factor in factors)
    assert set(tidy["mode"]) == {*model.names}
    figure = model.plot(top=3)
    assert [axes.get_title() for axes in figure.axes[: len(model.names)]] == [*model.names]
    assert model._repr_html_().count("<tr>") == 1 + len(model.components)


@pytest.mark.parametrize("name", ["tucker", "non_negative_tucker", "non_negative_tucker_hals"])
def test_tucker(name, x, tmp_path):
    x, function = abs(x), getattr(decomposition, name)
    options = {"n_iter_max": 2, "random_state": 0}
    model, plain = (function(of, [1, 2, 3], **options) for of in (x, x.tensor))
    assert isinstance(model, LabelledTucker)
    assert model.labels == x.labels
    assert "rank (1, 2, 3): user (5), item (6), day (7)" in repr(model)
    np.testing.assert_array_equal(model.core, plain.core)
    check_tables(model, plain.factors)
    np.testing.assert_array_equal(model.to_frames()[0], plain.core)
    np.testing.assert_array_equal(tl.tucker_to_tensor(model), tl.tucker_to_tensor(plain))
    model.save(tmp_path / "model.npz")
    found = LabelledTucker.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(found.core, model.core)
    assert all(map(np.array_equal, found.factors, model.factors))
    assert all(map(np.array_equal, found.labels.values(), model.labels.values()))
    assert (found.names, found.ordered) == (model.names, ("day",))
    with pytest.raises(ValueError, match=r"a saved LabelledTucker.*LabelledTucker\.load"):
        LabelledCP.load(tmp_path / "model.npz")


def test_a_panel_for_each_component_of_a_mode(x):
    model = decomposition.tucker(x, [1, 2, 3])
    panels = np.reshape(model.plot().axes, (3, 3))
    drawn = [[bool(axes.patches or axes.lines) for axes in row] for row in panels]
    assert drawn == [[True, True, True], [False, True, True], [False, False, True]]
    assert [row[0].get_ylabel() for row in panels] == [f"component {r}" for r in (1, 2, 3)]


def make_ragged(kind, x):
    """Return slices for parafac2, and what the labels of the rows are to be."""
    if kind == "whole":
        names = [f"{user}: {item}" for user in LABELS["user"] for item in LABELS["item"]]
        return x, x.tensor, names
    if kind == "without empty rows":
        slices = RaggedTensor(x, drop_empty=True)
        pairs = zip(LABELS["user"], slices.labels["item"], strict=True)
        return (
            slices,
            RaggedTensor(x.tensor, drop_empty=True),
            [f"{u}: {i}" for u, of in pairs for i in of],
        )
    cells = scipy.sparse.random_array((30, 9), density=0.4, rng=0)
    by = [f"c{n}" for n in np.arange(30) % 3]
    parts = [cells.tocsr()[n::3] for n in range(3)]
    return RaggedTensor(cells, by=by), parts, [n for k in range(3) for n in range(k, 30, 3)]


@pytest.mark.parametrize("kind", ["whole", "without empty rows", "divided"])
def test_parafac2(kind, x, tmp_path):
    slices, unnamed, rows = make_ragged(kind, x)
    options = {"n_iter_max": 3, "random_state": 0}
    model, plain = (decomposition.parafac2(of, 2, **options) for of in (slices, unnamed))
    assert isinstance(model, LabelledParafac2)
    assert not isinstance(plain, LabelledParafac2)
    assert model.names == (("slice", "row", "column") if kind == "divided" else tuple(LABELS))
    assert model.labels[model.names[1]].tolist() == rows
    a, b, c = plain.factors
    check_tables(model, [a, np.concatenate([p @ b for p in plain.projections]), c])
    model.save(tmp_path / "model.npz")
    found = LabelledParafac2.load(tmp_path / "model.npz")
    for one, other in ((found, model), (model, plain)):
        assert all(map(np.array_equal, one.factors, other.factors))
        assert all(map(np.array_equal, one.projections, other.projections))
        np.testing.assert_array_equal(one.weights, other.weights)
    assert all(map(np.array_equal, found.labels.values(), model.labels.values()))


def make_blocks(x):
    """Return blocks with labels, of which the second knows some users and one more."""
    tags = np.random.RandomState(0).random_sample((3, 4))
    return [x, (tags, {"user": [*LABELS["user"][1:3], "new"], "tag": list("stuv")})]


def test_coupled(x, tmp_path):
    options = {"n_iter_max": 3, "random_state": 0, "missing": "unknown"}
    model = decomposition.coupled_parafac(make_blocks(x), 2, **options)
    assert isinstance(model, LabelledCoupledCP)
    assert model.names == (*LABELS, "tag")
    assert model.ordered == ("day",)
    assert model.labels["user"].tolist() == [*LABELS["user"], "new"]
    check_tables(model, [*model.factors.values()])
    both = np.stack([cp.weights for cp in model.cp_tensors])
    np.testing.assert_array_equal(model.to_frames()[0], both)
    shares = both[:, 1] / both.sum(axis=1)
    shown = (
        f"{weight:.3g} ({share:.0%})" for weight, share in zip(both[:, 1], shares, strict=True)
    )
    heading = f"component 2\nweight {', '.join(shown)}"
    assert heading in {axes.get_ylabel() for axes in model.plot().axes}
    model.save(tmp_path / "model.npz")
    found = LabelledCoupledCP.load(tmp_path / "model.npz")
    assert repr(found) == repr(model)
    assert [of.tolist() for of in found.labels.values()] == [
        of.tolist() for of in model.labels.values()
    ]
    assert (found.errors, found.block_errors) == (model.errors, model.block_errors)
    assert (found.names, found.ordered) == (model.names, model.ordered)
    for name, factor in model.factors.items():
        np.testing.assert_array_equal(found.factors[name], factor)
    for cp, other in zip(found.cp_tensors, model.cp_tensors, strict=True):
        assert isinstance(cp, LabelledCP)
        assert (cp.names, cp.ordered) == (other.names, other.ordered)
        assert cp == other
        assert all(cp.factors[n] is found.factors[name] for n, name in enumerate(cp.names))
    again = decomposition.coupled_parafac(make_blocks(x), 2, init=found, **options)
    assert again.errors[0] < found.errors[0]


def test_coupled_models_of_blocks_without_labels_are_plain(x):
    blocks = [(x.tensor, [*LABELS]), (np.ones((5, 4)), ["user", "tag"])]
    model = decomposition.coupled_parafac(blocks, 2, n_iter_max=1, random_state=0)
    assert type(model) is CoupledCP


def test_wrong_labels(x):
    tucker = decomposition.tucker(x.tensor, [2, 2, 2])
    with pytest.raises(ValueError, match=r"labels\['b'\] has shape \(5,\), expected \(6,\)"):
        LabelledTucker(tucker, {"a": range(5), "b": range(5), "c": range(7)})
    parafac2 = decomposition.parafac2(x.tensor, 2, random_state=0, n_iter_max=1)
    labels = {"a": range(5), "b": list("uvwxyz"), "c": range(7)}
    with pytest.raises(ValueError, match=r"labels\['b'\] has shape \(29,\), expected \(30,\)"):
        LabelledParafac2(parafac2, labels | {"b": [range(6)] * 4 + [range(5)]})
    model = LabelledParafac2(parafac2, labels)
    assert model.labels["b"].tolist() == [f"{k}: {i}" for k in range(5) for i in "uvwxyz"]


@pytest.mark.parametrize("name", ["tucker", "parafac2", "coupled_parafac"])
def test_the_best_of_several_starts_has_labels(name, x):
    rank = [2, 2, 2] if name == "tucker" else 2
    data = make_blocks(x) if name == "coupled_parafac" else x
    starts = best_of(name, data, rank, 2, random_state=0, n_iter_max=2)
    assert starts.best.labels.keys() >= LABELS.keys()
    assert len(starts.best.top("user", 2)) == 2

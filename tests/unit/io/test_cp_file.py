"""Files of labelled models: every bit comes back, and damage is refused by name."""

import datetime
import re

import numpy as np
import pytest
from damaged_files import damage, edit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorly_flycoo import LabelledCP, coupled_parafac, save
from tensorly_flycoo.models import LabelledParafac2, LabelledTucker
from tensorly_flycoo.testing import random_tensor

LABELS = {
    "text": np.array(["", "naïve", "日本", "a\x00b", "\ud800"], object),
    "fixed text": np.array(["b", "abc"]),
    "numbers": np.array([3, 1, 2]),
    "floats": np.array([0.5, -1.0]),
    "dates": np.array(["2020-01-01", "2021-06-01"], "datetime64[ns]"),
    "spans": np.array([1, 5], "timedelta64[h]"),
    "flags": np.array([False, True]),
}


def make_model(dtype="float64", labels=LABELS):
    rng = np.random.RandomState(0)
    factors = [rng.standard_normal((len(of), 3)).astype(dtype) for of in labels.values()]
    return LabelledCP((None, factors), labels)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_bit_comes_back(dtype, tmp_path):
    cp = make_model(dtype)
    cp.save(tmp_path / "cp.npz")
    other = LabelledCP.load(tmp_path / "cp.npz")
    assert isinstance(other, LabelledCP)
    assert (other.shape, other.rank, other.names) == (cp.shape, cp.rank, cp.names)
    assert other.ordered == cp.ordered == ("numbers", "floats", "dates", "spans")
    for one, two in zip((cp.weights, *cp.factors), (other.weights, *other.factors), strict=True):
        assert one.dtype == two.dtype
        assert np.array_equal(one, two)
    for name in cp.names:
        assert cp.labels[name].tolist() == other.labels[name].tolist()
    assert other.labels["dates"].dtype == "datetime64[ns]"


def test_without_pickles(tmp_path):
    make_model().save(tmp_path / "cp.npz")
    with np.load(tmp_path / "cp.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays)


@pytest.mark.parametrize("label", [datetime.datetime(2020, 1, 1), 3, b"b"])
def test_labels_that_a_file_cannot_hold(label, tmp_path):
    """The old file stays."""
    path = tmp_path / "cp.npz"
    make_model().save(path)
    before = path.read_bytes()
    cp = make_model(labels={"when": np.array(["a", label], object)})
    with pytest.raises(TypeError, match=rf"labels\['when'\] holds a {type(label).__name__}, exp"):
        cp.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_names_of_modes_that_are_not_text(tmp_path):
    cp = LabelledCP((None, [np.ones((2, 1))]), {0: ["a", "b"]})
    with pytest.raises(TypeError, match="the name of a mode is 0, expected text"):
        cp.save(tmp_path / "x.npz")
    LabelledCP(cp, {"0": cp.labels[0]}).save(tmp_path / "x.npz")
    assert LabelledCP.load(tmp_path / "x.npz").names == ("0",)


@pytest.mark.usual_limits("slabs")
def test_other_files_are_refused_by_name(tmp_path):
    path = tmp_path / "x.npz"
    save(path, random_tensor((3, 4), 5))
    text = r"x\.npz is a saved tensor, expected a saved LabelledCP: call tensorly_flycoo\.load"
    with pytest.raises(ValueError, match=text):
        LabelledCP.load(path)
    path.write_text("text")
    with pytest.raises(ValueError, match=r"x\.npz is damaged, or not a saved Lab"):
        LabelledCP.load(path)
    with pytest.raises(FileNotFoundError):
        LabelledCP.load(tmp_path / "none.npz")


def load_or_error(kind, path):
    try:
        return kind.load(path)
    except Exception as error:
        return error


def make_tucker():
    labels = {name: LABELS[name] for name in ("text", "numbers")}
    return LabelledTucker((np.ones((2, 3)), [np.ones((5, 2)), np.ones((3, 3))]), labels)


def make_parafac2():
    projections = [np.eye(2)[:, :1], np.eye(3)[:, 1:2], np.ones((1, 1))]
    parts = None, [np.ones((3, 1)), np.ones((1, 1)), np.ones((4, 1))], projections
    return LabelledParafac2(parts, {"k": [3, 1, 2], "i": [[1, 2], [1, 2, 3], [1]], "j": range(4)})


def make_cp():
    return make_model(labels={name: LABELS[name] for name in ("text", "numbers")})


def make_coupled():
    labels = {name: LABELS[name] for name in ("text", "numbers")}
    blocks = [(np.ones((5, 3)), labels), (np.ones((3, 2)), {"numbers": [2, 3, 5], "new": [8, 9]})]
    return coupled_parafac(blocks, 2, n_iter_max=2, random_state=0)


@pytest.mark.parametrize("make", [make_cp, make_tucker, make_parafac2, make_coupled])
def test_damaged_files(make, tmp_path):
    path, model = tmp_path / "x.npz", make()
    kind = type(model)
    model.save(path)
    good, outcomes = path.read_bytes(), []
    name = kind.__name__
    refusal = re.compile(f" is damaged, or not a saved {name}: .| has format version .*, expe")

    @settings(max_examples=120, deadline=None, database=None, suppress_health_check=HealthCheck)
    @given(st.integers(1, 3), st.randoms(use_true_random=False))
    def read_one(num_changes, random):
        data = good
        for _ in range(num_changes):
            data = damage("x.npz", data, random, lambda data: edit(data, random))
        path.write_bytes(data)
        outcomes.append(load_or_error(kind, path))
        if isinstance(outcomes[-1], Exception):
            text = str(outcomes[-1]).removeprefix(str(path))
            assert type(outcomes[-1]) is ValueError
            assert refusal.match(text)
            assert text.isprintable()

    read_one()
    # It accepts some files and refuses others; otherwise this would test nothing.
    read = [outcome for outcome in outcomes if isinstance(outcome, kind)]
    assert 0 < len(read) < len(outcomes)
    for outcome in read:
        factors = outcome._list_factors()
        assert [len(of) for of in outcome.labels.values()] == [len(factor) for factor in factors]

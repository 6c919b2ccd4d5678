"""Recommendations, and how good they are, against plain loops over the dense model."""

import numpy as np
import pandas as pd
import pytest
import tensorly as tl

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    evaluate,
    from_dataframe,
    recommend,
)
from tensorly_flycoo.results import recommend as recommend_module
from tensorly_flycoo.testing import random_tensor

SHAPE, RANK = (8, 32, 4), 3


def make_model(dtype="float64"):
    """Make a model whose predictions and their means are exact, with many that are equal."""
    rng = np.random.RandomState(0)
    factors = [rng.randint(-2, 3, (size, RANK)).astype(dtype) for size in SHAPE]
    return np.array([1, 2, 1], dtype), factors


def list_best(model, modes, n, known=()):
    """For each row of the first mode, sort all predictions that are not known."""
    (rest,) = {0, 1, 2} - {*modes}
    means = tl.cp_to_tensor(model).mean(axis=rest)
    means = means if modes[0] < modes[1] else means.T
    found = []
    for row, values in enumerate(means.tolist()):
        left = [c for c in range(len(values)) if (row, c) not in known]
        found.append({c: values[c] for c in sorted(left, key=lambda c: (-values[c], c))[:n]})
    return found


def list_pairs(x, modes):
    return {*zip(*x.nonzeros()[0][list(modes)].tolist(), strict=True)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block", [1, 64, 2**22])
@pytest.mark.parametrize("modes", [(0, 1), (1, 0), (2, 1)])
def test_the_best_without_what_is_known(modes, block, dtype, monkeypatch):
    monkeypatch.setattr(recommend_module, "_BLOCK_NUMBERS", block)
    model, x = make_model(dtype), random_tensor(SHAPE, 150, random_state=0, dtype=dtype)
    for n in (1, 5, 40):
        found = recommend(model, modes[0], n=n, of=modes[1])
        expected = list_best(model, modes, n)
        assert [list(of.items()) for of in found] == [list(of.items()) for of in expected]
        found = recommend(model, modes[0], n=n, of=modes[1], exclude=x)
        expected = list_best(model, modes, n, list_pairs(x, modes))
        assert [list(of.items()) for of in found] == [list(of.items()) for of in expected]
    assert recommend(model, modes[0], [2, 0, 2], of=modes[1]) == [
        list_best(model, modes, 10)[row] for row in (2, 0, 2)
    ]


def test_all_may_be_known():
    x = FlycooTensor.from_dense(np.ones((2, 3)))
    model = (None, [np.ones((2, 1)), np.ones((3, 1))])
    assert recommend(model, 0, exclude=x) == [{}, {}]
    assert recommend(model, 0, []) == []
    assert evaluate(model, x, exclude=x) == {
        "rmse": 0,
        "precision": 0,
        "recall": 0,
        "popular_recall": 0,
    }


def test_names_and_labels():
    model, x = make_model(), random_tensor(SHAPE, 150, random_state=0)
    labels = {
        "user": [f"user {n}" for n in range(8)],
        "day": np.arange("2020-01-01", "2020-02-02", dtype="datetime64[D]"),
        "shop": np.arange(4) + 7,
    }
    cp = LabelledCP(model, labels)
    plain = recommend((cp.weights, cp.factors), 0, exclude=x)
    labelled = LabelledTensor(x, labels)
    found = recommend(cp, "user", exclude=labelled)
    for own, numbered in zip(found, plain, strict=True):
        assert own == dict(zip(labels["day"][[*numbered]], numbered.values(), strict=True))
    assert recommend(cp, "user", "user 3", exclude=labelled) == found[3:4]
    (best,) = recommend(cp, "day", labels["day"][4:5], 1, of="shop")
    assert [*best] == [7 + number for number in list_best(cp, (1, 2), 1)[4]]


def test_an_evaluation():
    model = make_model()
    known, held_out = (random_tensor(SHAPE, 150, random_state=seed) for seed in (0, 1))
    coords, values = held_out.nonzeros()
    found = evaluate(model, held_out, n=5, exclude=known)
    residual = tl.cp_to_tensor(model)[tuple(coords)] - values
    assert found["rmse"] == pytest.approx(np.sqrt((residual**2).mean()), rel=1e-14)
    wanted = {*zip(*coords[:2].tolist(), strict=True)}
    best = list_best(model, (0, 1), 5, list_pairs(known, (0, 1)))
    hits, count, recalls, popular_recalls = 0, 0, [], []
    pairs = list_pairs(known, (0, 1))
    counts = np.bincount(known.nonzeros()[0][1], minlength=SHAPE[1])
    for row in sorted({row for row, _ in wanted}):
        own = {column for other, column in wanted if other == row}
        hits, count = hits + len(own & {*best[row]}), count + len(best[row])
        recalls.append(len(own & {*best[row]}) / len(own))
        popular = sorted(range(SHAPE[1]), key=lambda column: (-counts[column], column))
        popular = [column for column in popular if (row, column) not in pairs][:5]
        popular_recalls.append(len(own & {*popular}) / len(own))
    assert hits
    assert (found["precision"], found["recall"]) == (hits / count, pytest.approx(np.mean(recalls)))
    assert found["popular_recall"] == pytest.approx(np.mean(popular_recalls))
    assert "popular_recall" not in evaluate(model, held_out, n=5)


def test_predictions_stay_on_the_scale():
    model = make_model()
    plain, clipped = recommend(model, 0, n=7), recommend(model, 0, n=7, clip=(-1, 2))
    for one, other in zip(plain, clipped, strict=True):
        assert other == {label: min(max(value, -1), 2) for label, value in one.items()}
        assert [*other] == [*one]


def test_users_of_two_groups_get_what_their_group_likes():
    """What was held out of the half that a user rates 5 is recommended."""
    users, items = np.mgrid[:30, :40].reshape(2, -1)
    table = pd.DataFrame({"user": users, "item": items, "stars": 1 + 4 * ((users + items) % 2)})
    is_out = np.random.RandomState(0).random_sample(len(table)) < 0.3
    x = from_dataframe(table[~is_out], ["user", "item"], "stars")
    liked = table[is_out & (table["stars"] == 5)]
    held_out = from_dataframe(liked, ["user", "item"], "stars", labels=x.labels)
    with tl.backend_context("flycoo"):
        cp = tl.decomposition.parafac(x, 2, init="random", random_state=0)
    found = evaluate(cp, held_out, "user", 3, exclude=x)
    assert found["precision"] > 0.95


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda cp, x: recommend(cp, "shop"), ValueError, "mode is 'shop', expected one of"),
        (lambda cp, x: recommend(cp, 0, of="a"), ValueError, "of is 'a', expected another mode"),
        (lambda cp, x: recommend(cp, 0, of=3), ValueError, "of is 3, expected 0 to 2"),
        (lambda cp, x: recommend(cp, "a", [4, 9]), ValueError, "'ids' is 9 in row 1, expected"),
        (lambda cp, x: recommend(cp, "a", n=0), ValueError, "n is 0, expected at least 1"),
        (lambda cp, x: recommend(cp, "a", n=1.5), TypeError, "n is 1.5, expected an integer"),
        (lambda cp, x: recommend(cp, "a", exclude=x[:3]), ValueError, r"exclude has shape \(3, 32"),
        (lambda cp, x: evaluate(cp, x[:3]), ValueError, r"x has shape \(3, .* labels=cp_t"),
        (lambda cp, x: evaluate(cp, 0 * x), ValueError, "expected at least one"),
        (
            lambda cp, x: evaluate(cp, LabelledTensor(x, [np.arange(s) + 1 for s in SHAPE])),
            ValueError,
            "label 0 of mode 'mode 0' is 1 in x and 0 in cp_tensor",
        ),
        (lambda cp, x: recommend((None, [f * np.nan for f in cp[1]]), 0), ValueError, "finite"),
    ],
)  # fmt: skip
def test_refusals(call, error, match):
    cp = LabelledCP(make_model(), dict(zip("abc", map(np.arange, SHAPE), strict=True)))
    with pytest.raises(error, match=match):
        call(cp, random_tensor(SHAPE, 150, random_state=0))

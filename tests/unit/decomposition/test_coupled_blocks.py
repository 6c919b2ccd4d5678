"""Blocks of a coupled decomposition: joined by label, of every kind, and refused."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sparse

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    coupled_parafac,
    from_dataframe,
)
from tensorly_flycoo.testing import random_tensor

EVENTS, TAGS = ("user", "item", "day"), ("user", "tag")
USERS = np.array([f"user {n}" for n in range(20)], object)
DAYS = np.datetime64("2024-01-01") + np.arange(6)
MATRICES = {
    "dense": lambda x: x,
    "SciPy": scipy.sparse.csr_array,
    "FlycooTensor": FlycooTensor.from_dense,
    "COO": sparse.COO.from_numpy,
    "list": lambda x: x.tolist(),
}
OPTIONS = {"rank": 3, "random_state": 0, "n_iter_max": 8, "tol": 0}


@pytest.fixture(scope="module")
def events():
    return random_tensor((20, 10, 6), 400, random_state=0)


@pytest.fixture(scope="module")
def tags():
    rng = np.random.RandomState(1)
    return np.where(rng.random_sample((20, 8)) < 0.5, rng.random_sample((20, 8)), 0)


def label(x, names=EVENTS, users=USERS):
    known = {"user": users, "item": list("abcdefghij"), "day": DAYS}
    return LabelledTensor(x, {name: known[old] for name, old in zip(names, EVENTS, strict=True)})


@pytest.mark.parametrize("kind", MATRICES)
def test_rows_are_joined_by_label(events, tags, kind):
    """Users 0 to 19 have events; the matrix has users 24 down to 8, of which 20 to 24 are new."""
    rows, rng = np.arange(24, 7, -1), np.random.RandomState(2)
    users = np.array([f"user {n}" for n in rows])
    matrix = rng.random_sample((rows.size, 8)) + 0.1
    block = (MATRICES[kind](matrix), {"user": users, "tag": np.arange(8)})
    found = coupled_parafac([label(events), block], **OPTIONS)

    # By hand: the events' users come first, then the new ones in the order of the matrix.
    order = [*range(20), *range(24, 19, -1)]
    assert found.labels["user"].tolist() == [f"user {n}" for n in order]
    coords, values = events.nonzeros()
    x = FlycooTensor(coords, values, (25, 10, 6))
    y = np.zeros((25, 8))
    y[[order.index(row) for row in rows]] = matrix
    expected = coupled_parafac([(x, EVENTS), (y, TAGS)], **OPTIONS)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-9)
    for name, factor in expected.factors.items():
        np.testing.assert_allclose(found.factors[name], factor, atol=1e-9)


def test_models_of_labelled_blocks_are_labelled(events, tags):
    block = (tags, {"user": USERS[::-1], "tag": list("ABCDEFGH")})
    found = coupled_parafac([label(events), block], **OPTIONS)
    assert list(found.labels) == [*EVENTS, "tag"]
    first, second = found.cp_tensors
    assert isinstance(first, LabelledCP)
    assert isinstance(second, LabelledCP)
    assert first.names == EVENTS
    assert second.names == TAGS
    assert first.labels["user"] is second.labels["user"] is found.labels["user"]
    assert first.ordered == ("day",)
    assert len(second.top("tag", 3)[0]) == 3
    # Component r is the same in both, so its users are.
    assert first.top("user", 5) == second.top("user", 5)
    table = pd.DataFrame({"user": USERS[:2], "tag": ["A", "B"]})
    expected = np.einsum("r,ir,ir->i", second.weights, second.factors[0][:2], second.factors[1][:2])
    np.testing.assert_allclose(second.predict(table), expected)


def test_a_block_without_labels_stays_so(events):
    other = np.random.RandomState(0).random_sample((6, 4))
    chain = [(other, ("hour", "day")), (np.ones((4, 20)), ("day", "user"))]
    found = coupled_parafac(
        [
            label(events, ("user", "item", "date")),
            (np.ones((20, 3)), {"user": USERS, "tag": range(3)}),
        ],
        **OPTIONS,
    )
    assert all(isinstance(cp, LabelledCP) for cp in found.cp_tensors)
    found = coupled_parafac(chain, **OPTIONS)
    assert found.labels == {}
    assert not any(isinstance(cp, LabelledCP) for cp in found.cp_tensors)


def test_tables_join_by_their_entries():
    log = pd.DataFrame(
        {
            "user": ["ann", "bob", "ann", "cy"],
            "item": ["tea", "milk", "milk", "tea"],
            "day": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-02", "2024-01-03"]),
        }
    )
    profile = pd.DataFrame({"who": ["dee", "ann", "bob"], "tag": ["old", "new", "old"]})
    x, y = from_dataframe(log, list(EVENTS)), from_dataframe(profile, ["who", "tag"])
    found = coupled_parafac([x, (y, TAGS)], 2, random_state=0, n_iter_max=3)
    assert sorted(found.labels["user"]) == ["ann", "bob", "cy", "dee"]
    assert found.cp_tensors[1].names == TAGS
    assert found.cp_tensors[0].ordered == ("day",)
    row = list(found.labels["user"]).index("dee")
    assert np.count_nonzero(found.factors["user"][row])  # from the profile alone


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (np.arange(20), np.arange(20.0)[::-1]),
        (np.arange(20), np.arange(20).astype(object)[::-1]),
        (2**62 + np.arange(20), (2**62 + np.arange(20, dtype=np.uint64))[::-1]),
        (USERS, USERS.astype("U9")[::-1]),
        (
            np.datetime64("2024-01-01") + np.arange(20),
            pd.date_range("2024-01-01", periods=20)[::-1],
        ),
    ],
    ids=["numbers", "objects", "large numbers", "text", "dates"],
)
def test_labels_of_different_dtypes_may_be_equal(events, tags, own, others):
    found = coupled_parafac(
        [label(events, users=own), (tags, {"user": others, "tag": range(8)})], **OPTIONS
    )
    expected = coupled_parafac([(events, EVENTS), (tags[::-1], TAGS)], **OPTIONS)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-9)
    assert len(found.labels["user"]) == 20


def test_blocks_in_place_are_not_copied(events, tags):
    """Labels in one order move no rows."""
    from tensorly_flycoo.loop.coupled_blocks import read_blocks

    x = label(events)
    read = read_blocks([x, (tags, {"user": USERS.copy(), "tag": range(8)})], None)
    assert read.blocks[0].data.tensor is x.tensor
    assert np.shares_memory(read.blocks[1].data, tags)


def test_a_coo_is_converted_once(events, tags):
    coo = events.to_coo()
    first, second = (coupled_parafac([(coo, EVENTS), (tags, TAGS)], **OPTIONS) for _ in range(2))
    expected = coupled_parafac([(events, EVENTS), (tags, TAGS)], **OPTIONS)
    assert first.errors == second.errors == expected.errors


X, Y = random_tensor((5, 4, 3), 20, random_state=0), np.ones((5, 2))
LABELS = {"user": list("abcde"), "tag": [1, 2]}
BAD_BLOCKS = [
    ([], ValueError, "blocks is empty, expected at least one"),
    ([X], TypeError, r"blocks\[0\] is a FlycooTensor, expected \(data, names of its modes\)"),
    ([(X, EVENTS), (Y, "user")], TypeError, r"blocks\[1\] is a tuple, expected \(data, names"),
    ([(X, TAGS)], ValueError, r"blocks\[0\] has shape \(5, 4, 3\) and the modes \['user', 'tag'\]"),
    ([(X, ("a", "b", "a"))], ValueError, "expected a distinct name for each of two or more axes"),
    ([(np.ones(5), ("user",))], ValueError, r"blocks\[0\] has shape \(5,\) and the modes"),
    ([(X, EVENTS), (Y, ("shop", "tag"))], ValueError, r"expected one that another block has too"),
    ([(X, EVENTS), (Y[:4], TAGS)], ValueError, r"blocks\[1\] has size 4 in mode 'user', expe"),
    ([(X, EVENTS), (Y, LABELS)], ValueError, r"blocks\[0\] has no labels of mode 'user'.*\[1\]"),
    ([(Y, LABELS), (Y[:, :1], TAGS)], ValueError, r"blocks\[1\] has no labels of mode 'user'"),
    ([(Y, LABELS | {"tag": [1]})], ValueError, r"labels\['tag'\] has shape \(1,\), expected \(2"),
    ([(Y, LABELS | {"tag": [1, 1]})], ValueError, r"labels\['tag'\] holds 1 twice"),
    (
        [(Y, LABELS), (Y, {"user": range(5), "item": range(2)})],
        ValueError, r"blocks\[1\] has labels of mode 'user' such as 0, expected one that another",
    ),
    ([(X, EVENTS), (0 * Y, TAGS)], ValueError, r"blocks\[1\] has no nonzeros"),
    ([(X, EVENTS), (X * 0, ("user", "a", "b"))], ValueError, r"blocks\[1\] has no nonzeros"),
    ([(X, EVENTS), (Y * np.nan, TAGS)], ValueError, r"blocks\[1\].reshape\(-1\)\[0\] is nan"),
    ([(X, EVENTS), (Y * 1j, TAGS)], TypeError, r"the dtype of blocks\[1\] is complex128"),
    ([(X, EVENTS), (pd.DataFrame(Y), TAGS)], TypeError, r"\[1\] is a DataFrame.*from_dataframe"),
]  # fmt: skip


@pytest.mark.parametrize(("blocks", "kind", "message"), BAD_BLOCKS)
def test_bad_blocks(blocks, kind, message):
    with pytest.raises(kind, match=message):
        coupled_parafac(blocks, 2)

"""What notebooks show of tensors and their statistics is well-formed, and escapes labels."""

import xml.etree.ElementTree as ElementTree

import pytest
import sparse
import tensorly as tl

from tensorly_flycoo import FlycooTensor, LabelledTensor, profile, stats
from tensorly_flycoo.base.notebooks import make_facts, make_paragraphs, make_text_table
from tensorly_flycoo.testing import random_tensor


def read(html):
    """Return the texts of headings, of other cells and of paragraphs."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    return [["".join(cell.itertext()) for cell in root.iter(kind)] for kind in ("th", "td", "p")]


def read_facts(html):
    """Return what a table of facts says, by name."""
    names, facts, _ = read(html)
    return dict(zip(names, facts, strict=True))


def test_texts_are_escaped():
    table = make_text_table([["<i>", "b"], ["a & b", 1]], "x > y")
    assert read(table) == [["<i>", "b"], ["a & b", "1"], []]
    assert "x &gt; y" in table
    assert read_facts(make_facts({"<a>": "&"})) == {"<a>": "&"}
    assert read(make_paragraphs(["1 < 2", "b"]))[2] == ["1 < 2", "b"]


def test_a_tensor():
    x = FlycooTensor([[0, 1], [1, 0]], [3.0, 4.0], (2, 2), device="cpu")
    assert read_facts(x._repr_html_()) == {
        "shape": "2 x 2",
        "dtype": "float64",
        "nonzeros": "2",
        "density": "0.5",
        "memory": "0.0 MB",
        "layout": x.layout,
        "device": "cpu",
    }


def test_slabs_and_groups_of_a_tensor():
    x = random_tensor((30, 4, 5), 500, random_state=0, slabs=2, groups=((0,), (1, 2)), device="cpu")
    facts = read_facts(x._repr_html_())
    assert facts["slabs"] == "2"
    assert facts["groups of modes"] == "((0,), (1, 2))"


@pytest.mark.parametrize("unknown", [None, "all"])
def test_a_labelled_tensor(unknown):
    x = FlycooTensor([[0, 1], [1, 0]], [3.0, 4.0], (2, 2))
    labelled = LabelledTensor(x, {"<shop>": ["a", "b"], "day": [7, 9]}, unknown)
    facts = read_facts(labelled._repr_html_())
    assert facts["modes"] == "<shop> (2), day (2)"
    assert facts["nonzeros"] == "2"
    assert ("unknown" in facts) == (unknown is not None)


def test_statistics():
    x = random_tensor((30, 40, 50), 300, random_state=0)
    heads, cells, _ = read(stats(x)._repr_html_())
    assert heads[0] == "shape"
    of_modes = ["mode", "size", "empty rows", "min", "median", "max nonzeros per row", "Gini"]
    assert heads[-7:] == of_modes
    assert cells[0] == "30 x 40 x 50"
    assert cells[-7:-5] == ["2", "50"]


def test_a_profile():
    with profile() as empty:
        pass
    assert read(empty._repr_html_())[2] == [
        'no decomposition took a sparse tensor under the backend "flycoo"'
    ]
    x = sparse.random((8, 9, 10), density=0.1, random_state=0)
    with tl.backend_context("flycoo"), profile() as p:
        tl.decomposition.parafac(x, 2, n_iter_max=1, init="random", random_state=0)
    p.refusals += ["<x> is sparse"] * 2
    heads, cells, remarks = read(p._repr_html_())
    assert heads[:2] == ["calls", "function"]
    assert cells[:2] == ["1", "parafac"]
    assert remarks == ["refused, 2 x: <x> is sparse"]

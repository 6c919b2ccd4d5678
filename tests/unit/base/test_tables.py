"""What notebooks show is well-formed, and escapes what users wrote."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from tensorly_flycoo import LabelledCP
from tensorly_flycoo.base.tables import make_bars, make_line, make_table


def read(text):
    """Return the texts of headings and of other cells."""
    root = ElementTree.fromstring(f"<div>{text}</div>")
    return [["".join(cell.itertext()) for cell in root.iter(kind)] for kind in ("th", "td")]


def test_a_table_escapes_names_and_labels():
    bars = make_bars([2.0, -1.0], ["<a>", "b & c"], 2.0)
    heads, cells = read(make_table([["<i>", bars, "3"]], ["", "x", "<y>"], "a > b"))
    assert heads == ["", "x", "<y>", "<i>"]
    assert cells == [" <a> b & c", "3"]


def test_bars_are_as_long_as_their_shares():
    bars = make_bars([2.0, -1.0, np.inf], "abc", 2.0)
    assert [f"width:{n}px" in bars for n in (60, 30)] == [True, True]
    assert bars.count("width:60px") == 2
    assert "width:0px" in make_bars([0.0], "a", 0.0)


@pytest.mark.parametrize("values", [np.zeros(1), np.linspace(-1, 1, 3), np.ones(10_000)])
def test_a_line_is_inside_its_scale(values):
    root = ElementTree.fromstring(make_line(values, min(values.min(), 0), max(values.max(), 0)))
    points = [point.split(",") for point in root.find("polyline").get("points").split()]
    assert 1 <= len(points) <= 320
    assert all(0 <= float(x) <= 160 and 0 <= float(y) <= 40 for x, y in points)


def test_a_model_shows_bars_for_names_and_lines_for_an_order():
    names = {"<user>": list("abcdefg"), "day": np.arange("2026-01-01", "2026-01-05", dtype="M8[D]")}
    cp = LabelledCP((None, [np.eye(7, 3), np.ones((4, 3))]), names)
    heads, cells = read(cp._repr_html_())
    assert heads == ["", "weight", "<user>", "day", *(f"component {r}" for r in (1, 2, 3))]
    assert [text.split() for text in cells[1::3]] == [[*"abcde"], [*"bacde"], [*"cabde"]]
    assert cp._repr_html_().count("<svg") == 3
    many = LabelledCP((None, [np.eye(30), np.ones((4, 30))]), [range(30), range(4)])
    assert read(many._repr_html_())[1][-1] == "10 more"

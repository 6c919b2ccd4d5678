"""Examples on a GPU: the tutorial, and a small copy of the large tensor."""

import answers
import large
import numpy as np


def test_the_tutorial_finds_the_habits(tmp_path):
    result = answers.main(tmp_path)
    assert result["x"].device == "cuda"
    cp = result["starts"].best
    assert isinstance(cp.factors[0], np.ndarray)  # as the table is
    found = {frozenset(component) for component in cp.top("item", 4)}
    assert found == {frozenset(items) for items, _ in answers.HABITS.values()}
    assert result["rows"].shape == (2, 4)


def test_large_finds_all_components():
    result = large.main(["--scale", "0.001", "--rank", "4", "--iterations", "10"])
    assert result["x"].device == "cuda"
    assert result["found"] == 4

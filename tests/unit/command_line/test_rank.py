"""The command "rank": a table of ranks, a picture, and a suggestion."""

import numpy as np
import pandas
import pytest
import tensorly as tl
from matplotlib import image

from tensorly_flycoo import from_dataframe, select_rank
from tensorly_flycoo.command_line import main
from tensorly_flycoo.decomposition.methods import METHODS


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


@pytest.fixture
def table(folder):
    """Two groups of users, each with its own items."""
    random = np.random.RandomState(0)
    group = np.repeat([0, 1], 300)
    table = pandas.DataFrame({
        "user": random.randint(0, 10, 600) + 10 * group,
        "item": random.randint(0, 6, 600) + 6 * group,
        "day": random.randint(0, 5, 600),
        "stars": random.randint(1, 6, 600),
    })  # fmt: skip
    table.to_csv("events.csv", index=False)
    return table


COMMAND = ["rank", "events.csv", "--modes", "user,item,day", "--device", "cpu"]


def test_a_planted_rank(folder, table, capsys):
    """The numbers are those of select_rank."""
    options = ["--ranks", "1-3", "--starts", "3", "--seed", "4", "--iterations", "30"]
    assert main([*COMMAND, *options]) == 0
    x = from_dataframe(table, ["user", "item", "day"], device="cpu")
    with tl.backend_context("flycoo"):
        expected = select_rank(
            x, [1, 2, 3], 3, "generalized_parafac", random_state=4, n_iter_max=30, tol=1e-6
        )
    found = pandas.read_csv("events_ranks/ranks.csv", index_col="rank")
    assert found.pop("suggested").tolist() == [False, True, False]
    pandas.testing.assert_frame_equal(found, expected.table, check_exact=True)
    assert np.ptp(image.imread("events_ranks/ranks.png")[..., :3]) > 0.5
    page = capsys.readouterr().out
    assert repr(expected) in page
    assert "suggested rank: 2\nwrote events_ranks/ranks.csv\nwrote events_ranks/ranks.png\n" in page


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "generalized_parafac"),
        (["--loss", "gaussian"], "parafac"),
        (["--loss", "gaussian", "--non-negative"], "non_negative_parafac"),
        (["--values", "stars", "--aggregate", "mean", "--observed"], "observed_parafac"),
    ],
)
def test_methods(options, name, table, monkeypatch, capsys):
    """Options are those of `fit`; what they choose is what is asked."""
    asked = []

    def search(x, ranks, n_runs, method, **options):
        asked.append((method, list(ranks), n_runs, options.get("biases")))
        raise ValueError("enough")

    monkeypatch.setattr("tensorly_flycoo.command_line.rank.select_rank", search)
    assert main([*COMMAND, *options]) == 1
    assert asked == [(name, [*range(1, 9)], 20, False if "--observed" in options else None)]
    assert METHODS[name].can_hold_out
    assert capsys.readouterr().err == "error: enough\n"


def test_doubts_are_warnings(table, capsys):
    """Quiet, only the suggestion and the files are named; what speaks against it still is."""
    options = ["--ranks", "1", "--starts", "1", "--quiet", "--output", "out/here"]
    assert main([*COMMAND, *options]) == 0
    out, error = capsys.readouterr()
    assert "suggested rank: 1\n" in out
    assert "held-out" not in out
    assert "wrote out/here/ranks.csv\n" in out
    assert error.startswith("warning: ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.csv", "--modes", "user"], 1, "none.csv does not exist"),
        (["events.csv", "--modes", "user,film"], 1, "has no column 'film'"),
        (["events.csv", "--modes", "user,item", "--output", "events.csv"], 1, "can be written"),
        (["events.csv"], 2, "--modes is missing"),
        (["events.csv", "--modes", "user,item", "--biases"], 2, "are for --observed"),
        (["events.csv", "--modes", "user,item", "--observed"], 2, "--observed is for --values"),
        (["events.csv", "--modes", "user", "--ranks", "3-1"], 2, "is no list of ranks like 1-8"),
        (["events.csv", "--modes", "user", "--ranks", "1,,2"], 2, "is no list of ranks like 1-8"),
        (["events.csv", "--modes", "user", "--ranks", "0-2"], 2, "is no list of ranks like 1-8"),
    ],
)
def test_what_fails(arguments, code, message, table, capsys):
    try:
        found = main(["rank", *arguments])
    except SystemExit as error:
        found = error.code
    assert found == code
    assert message in capsys.readouterr().err

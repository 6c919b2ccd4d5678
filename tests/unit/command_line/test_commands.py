"""What all commands have in common: how they print, and what they show while they work."""

import io
import os
import sys

import numpy as np
import pandas
import pytest

from tensorly_flycoo import LabelledCP
from tensorly_flycoo.command_line import main


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Commands that make results, by the first of these, of names that few encodings have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    table = pandas.DataFrame({"user": ["ann", "łukasz"], "item": ["tea", "żur"]})
    table.to_csv("events.csv", index=False)
    labels = {name: table[name].to_numpy() for name in table}
    LabelledCP((None, [np.eye(2), np.eye(2)]), labels).save("model.npz")
    options = ["--modes", "user,item", "--device", "cpu", "--starts", "1", "--loss", "gaussian"]
    return {
        "events_rank1/components.png": ["fit", "events.csv", *options, "--rank", "1"],
        "events_ranks/ranks.png": ["rank", "events.csv", *options, "--ranks", "1"],
        "events_predictions.csv": ["predict", "model.npz", "events.csv"],
    }


def test_names_that_a_terminal_cannot_print(results, tmp_path, monkeypatch):
    for path, command in results.items():
        terminal = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(command) == 0
        assert (tmp_path / path).exists()
        page = terminal.buffer.getvalue()
        assert (rb"\u0142ukasz" in page) == (command[0] != "rank")
        assert b"wrote" in page


def test_a_pipe_that_is_closed_early(results, tmp_path, monkeypatch, capsys):
    for path, command in results.items():
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            assert main(command) == 0
            assert (tmp_path / path).exists()
    assert "rror" not in capsys.readouterr().err


def watch(monkeypatch):
    """Make standard error a terminal."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.mark.parametrize(
    ("number", "line"), [(0, "iteration 1 of 100"), (1, "rank 1 (1 of 1): 1 runs")]
)
def test_progress_is_shown_in_a_terminal_only(number, line, results, monkeypatch, capsys, caplog):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # log lines, no bar
    command = list(results.values())[number]
    assert main(command) == 0
    watch(monkeypatch)
    assert main([*command, "--quiet"]) == 0
    assert line not in capsys.readouterr().err + caplog.text
    assert main(command) == 0
    assert line in capsys.readouterr().err + caplog.text

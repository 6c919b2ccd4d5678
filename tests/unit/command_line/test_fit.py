"""The command "fit": files in, tables and a picture out, and its exit codes."""

import os
import signal
import time

import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import FlycooTensor, LabelledCP, write_tns
from tensorly_flycoo.command_line import main
from tensorly_flycoo.command_line.fit import LOSSES

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
image = pytest.importorskip("matplotlib.image")


@pytest.fixture
def table():
    """Two groups of users, each with its own items, on ten days."""
    random, start = np.random.RandomState(0), pandas.Timestamp("2026-01-01")
    group = np.repeat([0, 1], 300)
    items = np.array([["beer", "wine"], ["tea", "cake"]])
    return pandas.DataFrame({
        "user": [f"u{n}" for n in random.randint(0, 10, 600) + 10 * group],
        "item": items[group, random.randint(0, 2, 600)],
        "day": start + pandas.to_timedelta(random.randint(0, 10, 600), "D"),
        "stars": random.randint(1, 6, 600),
    })  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


def write(table, path):
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)


@pytest.mark.parametrize("name", ["events.parquet", "events.csv", "events.csv.gz"])
def test_tables_and_a_picture(name, folder, table, capsys):
    write(table, folder / name)
    backend = tl.get_backend()
    assert main(["fit", name, "--modes", "user,item,day", "--rank", "2", "--non-negative"]) == 0
    assert tl.get_backend() == backend
    out = folder / "events_rank2"
    names = ["components.png", "mode0_user.csv", "mode1_item.csv", "mode2_day.csv", "model.npz"]
    assert sorted(path.name for path in out.iterdir()) == [*names, "weights.csv"]
    items = pandas.read_csv(out / "mode1_item.csv", index_col="item")
    groups = {frozenset(items.index[items[column] > 0.3]) for column in items}
    assert groups == {frozenset({"beer", "wine"}), frozenset({"tea", "cake"})}
    days = pandas.read_csv(out / "mode2_day.csv")["day"]
    assert days.iloc[0] == "2026-01-01"
    cp = LabelledCP.load(out / "model.npz")
    weights = np.loadtxt(out / "weights.csv", delimiter=",", skiprows=1)[:, 1]
    np.testing.assert_array_equal(weights, cp.weights)
    assert cp.ordered == ("day",)
    assert np.ptp(image.imread(out / "components.png")[..., :3]) > 0.5
    page = capsys.readouterr().out
    assert "component 1, weight" in page
    assert "2026-01-0" in page
    assert "T00" not in page
    assert f"wrote {out.name}/weights.csv" in page


def test_values_are_merged(folder, table, capsys):
    write(table, folder / "ratings.csv")
    options = ["--values", "stars", "--aggregate", "mean", "--dtype", "float32", "--quiet"]
    command = ["fit", "ratings.csv", "--modes", "user,item", "--rank", "1", "--output", "out"]
    assert main([*command, *options, "--device", "cpu"]) == 0
    cp = LabelledCP.load(folder / "out" / "model.npz")
    assert cp.weights.dtype == np.float32
    means = table.groupby(["user", "item"])["stars"].mean().unstack(fill_value=0)
    expected = np.linalg.svd(means.to_numpy(), compute_uv=False)[0]
    assert cp.weights[0] == pytest.approx(expected, rel=1e-3)
    assert "component 0" not in capsys.readouterr().out


def test_indices_of_a_tns_are_labels(folder):
    x = FlycooTensor([[0, 1, 1], [2, 0, 2]], [5.0, 1.0, 2.0], (2, 3))
    write_tns(folder / "small.tns", x)
    start = ["--init", "random", "--seed", "3"]
    assert main(["fit", "small.tns", "--rank", "1", "--modes", "a b,c/d", "--quiet", *start]) == 0
    cp = LabelledCP.load(folder / "small_rank1" / "model.npz")
    assert cp.labels["c/d"].tolist() == [1, 2, 3]
    assert (folder / "small_rank1" / "mode1_c_d.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", "--modes", "user"], "none.csv"),
        (
            ["events.csv", "--modes", "user,film"],
            "has no column 'film', expected one of user, item",
        ),
        (["events.csv", "--modes", "user,item", "--values", "day"], "day"),
        (["events.csv", "--modes", "user,item", "--lines", "day"], "--lines has 'day'"),
        (["bad.parquet", "--modes", "user"], "parquet"),
        (["bad.tns"], "line 1"),
    ],
)
def test_what_fails_has_exit_code_1(arguments, message, folder, table, capsys):
    write(table, folder / "events.csv")
    for name in ("bad.parquet", "bad.tns"):
        (folder / name).write_text("nothing of this kind\n")
    assert main(["fit", *arguments, "--rank", "2"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert not list(folder.glob("*_rank2"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fit"],
        ["fit", "events.csv", "--rank", "2"],  # without --modes
        ["fit", "events.xlsx", "--rank", "2", "--modes", "user,item"],
        ["fit", "events.csv", "--rank", "0", "--modes", "user,item"],
        ["fit", "events.csv", "--rank", "2", "--modes", "user,user"],
        ["fit", "events.csv", "--rank", "2", "--modes", "user,item", "--loss", "unknown"],
    ],
)
def test_a_wrong_command_line_has_exit_code_2(arguments, folder):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_counts(folder, table, capsys):
    write(table, folder / "events.parquet")
    line = "fit events.parquet --modes user,item,day --rank 2 --loss poisson --init random"
    assert main(line.split()) == 0
    items = pandas.read_csv(folder / "events_rank2" / "mode1_item.csv", index_col="item")
    groups = {frozenset(items.index[items[column] > 0.3]) for column in items}
    assert groups == {frozenset({"beer", "wine"}), frozenset({"tea", "cake"})}
    assert "loss " in capsys.readouterr().out


def test_help_lists_every_loss(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--help"])
    page = capsys.readouterr().out
    assert all(name in page for name in LOSSES)


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 130)])
def test_ctrl_c(count, code, folder, table, monkeypatch):
    """The first one ends the run and keeps the results, the second one ends everything."""
    write(table, folder / "events.parquet")

    def stop(x, rank, callback, **options):
        left = [signal.SIGINT] * count

        def interrupt(model, error):
            while left:
                os.kill(os.getpid(), left.pop())
                time.sleep(0.05)  # a second signal at once would be the same as one
            return callback(model, error)

        return gaussian.solver(x, rank, callback=interrupt, **options)

    gaussian = LOSSES["gaussian"]
    monkeypatch.setitem(LOSSES, "gaussian", gaussian._replace(solver=stop))
    command = ["fit", "events.parquet", "--modes", "user,item,day", "--rank", "2", "--tol", "0"]
    assert main(command) == code
    assert (folder / "events_rank2").exists() == (code == 0)


def test_without_pyarrow_it_says_what_to_install(folder, table, monkeypatch, capsys):
    write(table, folder / "events.csv")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert main(["fit", "events.csv", "--modes", "user,item", "--rank", "2"]) == 1
    assert 'pip install "tensorly-flycoo[tables]"' in capsys.readouterr().err

"""The command "fit": files in, tables and a picture out, and its exit codes."""

import functools
import os
import re
import signal
import time

import numpy as np
import pandas
import pytest
import tensorly as tl
from matplotlib import image

import tensorly_flycoo
from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    best_of,
    decomposition,
    from_dataframe,
    write_tns,
)
from tensorly_flycoo.command_line import main
from tensorly_flycoo.decomposition import generalized_parafac, parafac
from tensorly_flycoo.decomposition.methods import METHODS, Method
from tensorly_flycoo.loop.losses import EXACT_LOSSES


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
    assert "\ndiagnosis: no digits, since the model is not of least squares; condition " in page


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
    assert "component 1" not in capsys.readouterr().out


def test_added_values_are_named(folder, capsys):
    (folder / "stars.csv").write_text("user,film,stars\n1,1,4\n1,1,4\n1,2,3\n2,1,5\n")
    command = ["fit", "stars.csv", "--modes", "user,film", "--rank", "1", "--quiet"]
    assert main([*command, "--values", "stars"]) == 0
    message = (
        "warning: 1 of 4 rows fall into the cell of an earlier one, and the values are added: pass "
        "--aggregate sum"
    )
    assert message in capsys.readouterr().err
    for options in (["--values", "stars", "--aggregate", "sum"], []):
        assert main([*command, *options]) == 0
        assert "warning" not in capsys.readouterr().err
    (folder / "gap.csv").write_text("user,film,stars\n1,1,\n")
    assert main(["fit", "gap.csv", *command[2:], "--values", "stars"]) == 1
    assert capsys.readouterr().err.endswith("or pass --missing drop\n")


def test_absent_blocks_are_named(folder, capsys):
    """Pairs without a row are zeros: one is told, unless one says so, or all such are unknown."""
    cells = pandas.MultiIndex.from_product([range(9), range(6), range(4)], names=["a", "b", "c"])
    table = cells.to_frame(index=False).query("b != 2 or c != 1").assign(value=2.5)
    write(table, folder / "events.csv")
    command = ["fit", "events.csv", "--modes", "a,b,c", "--values", "value", "--rank", "1"]
    options = ["--starts", "1", "--quiet", "--device", "cpu"]
    assert main([*command, *options]) == 0
    message = 'read it in Python with missing=["b", "c"] if they were not measured, or --missing'
    assert message in capsys.readouterr().err
    for settled in ("--missing=raise", "--observed"):
        assert main([*command, *options, settled]) == 0
        assert "1 of 24 pairs" not in capsys.readouterr().err


def test_files_of_matrix_market(folder):
    header = "%%MatrixMarket tensor coordinate real general\n3 3 2\n"
    (folder / "small.ttx").write_text(header.replace("3 3 2", "3 3 3 2") + "1 1 1 5\n2 3 3 4\n")
    assert main(["fit", "small.ttx", "--rank", "1", "--quiet", "--output", "out"]) == 0
    assert len(LabelledCP.load(folder / "out" / "model.npz").factors) == 3


def test_indices_of_a_tns_are_labels(folder):
    x = FlycooTensor([[0, 1, 1], [2, 0, 2]], [5.0, 1.0, 2.0], (2, 3))
    write_tns(folder / "small.tns", x)
    start = ["--starts", "1", "--seed", "3"]
    assert main(["fit", "small.tns", "--rank", "1", "--modes", "a b,c/d", "--quiet", *start]) == 0
    cp = LabelledCP.load(folder / "small_rank1" / "model.npz")
    assert cp.labels["c/d"].tolist() == [1, 2, 3]
    assert (folder / "small_rank1" / "mode1_c_d.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", "--modes", "user"], "error: none.csv does not exist\n"),
        (["none.tns"], "error: none.tns does not exist\n"),
        (
            ["events.csv", "--modes", "user,film"],
            "has no column 'film', expected one of ['user', 'item'",
        ),
        (["events.csv", "--modes", "user,item", "--values", "day"], "day"),
        (["events.csv", "--modes", "user,item", "--lines", "day"], "--lines has 'day'"),
        (
            ["events.csv", "--modes", "user,item", "--values", "item"],
            "holds text, such as 'beer', expected numbers (or",
        ),
        (
            ["events.csv", "--modes", "user,item:day"],
            "'item' is text such as 'beer', expected times to round to days",
        ),
        (
            ["events.csv", "--modes", "user,day:hours"],
            "times can be rounded to second, minute, hour",
        ),
        (["gaps.csv", "--modes", "a,b"], "or pass --missing drop"),
        (["gaps.csv", "--modes", "a;b"], "has no column 'a;b'"),
        (["gaps.csv", "--modes", "a,b", "--no-header"], "has no column 'a', expected one of ['1'"),
        (["unrated.csv", "--modes", "a", "--values", "b"], "numbers (or empty: --missing-text NA)"),
        (["semicolons.csv", "--modes", "a,b"], "has no column 'a', expected one of ['a;b']; if"),
        (["semicolons.csv", "--modes", "a,b"], "give --sep, as in --sep ';'"),
        (["commas.csv", "--modes", "a,b"], "expected 1 column (or give --sep ';'), got 2"),
        (["twice.csv", "--modes", "a,b"], "has 2 columns 'a', expected one"),
        (["latin.csv", "--modes", "a,b"], "latin.csv is not UTF-8 text"),
        (["empty.csv", "--modes", "a,b"], "error: the file has no rows"),
        (["bad.parquet", "--modes", "user"], "parquet"),
        (["bad.tns"], "line 1"),
    ],
)
def test_what_fails_has_exit_code_1(arguments, message, folder, table, capsys):
    write(table, folder / "events.csv")
    for name in ("bad.parquet", "bad.tns"):
        (folder / name).write_text("nothing of this kind\n")
    (folder / "gaps.csv").write_text("a,b\nx,y\n,z\n")
    (folder / "unrated.csv").write_text("a,b\nx,5\ny,NA\n")
    (folder / "semicolons.csv").write_text("a;b\nx;y\n")
    (folder / "commas.csv").write_text("a;b;v\nx;y;1,5\n")
    (folder / "twice.csv").write_text("a,a,b\nx,y,z\n")
    (folder / "latin.csv").write_bytes("a,b\nGrün,y\n".encode("latin-1"))
    (folder / "empty.csv").write_text("a,b\n")
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
        ["fit", "events.csv", "--rank", "2", "--modes", "user,item", "--sep", "::"],
        ["fit", "events.csv", "--rank", "2", "--modes", "user,item", "--sep", "§"],
        ["fit", "events.csv", "--rank", "2", "--modes", "user,item", "--missing-text", "NA,NA"],
        ["fit", "events.csv", "--rank", "2", "--modes", "user,user"],
        ["fit", "events.csv", "--rank", "2", "--modes", "user,item", "--loss", "unknown"],
        ["fit", "x.csv", "--rank", "2", "--modes", "a,b", "--init", "svd", "--starts", "2"],
    ],
)
def test_a_wrong_command_line_has_exit_code_2(arguments, folder):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_counts(folder, table, capsys):
    write(table, folder / "events.parquet")
    assert main(["fit", "events.parquet", "--modes", "user,item,day", "--rank", "2"]) == 0
    items = pandas.read_csv(folder / "events_rank2" / "mode1_item.csv", index_col="item")
    groups = {frozenset(items.index[items[column] > 0.3]) for column in items}
    assert groups == {frozenset({"beer", "wine"}), frozenset({"tea", "cake"})}
    page = capsys.readouterr().out
    assert "loss poisson_count" in page
    assert "the best of 5 starts" in page


@pytest.mark.parametrize(
    ("options", "method"),
    [
        (["--loss", "gaussian"], "parafac"),
        (["--loss", "gaussian", "--non-negative"], "non_negative_parafac_hals"),
    ],
)
def test_the_winner_of_several_starts_is_that_of_best_of(options, method, folder, table, capsys):
    write(table, folder / "events.csv")
    command = ["fit", "events.csv", "--modes", "user,item,day", "--rank", "2", "--device", "cpu"]
    assert main([*command, *options, "--starts", "3", "--seed", "7"]) == 0
    cp = LabelledCP.load(folder / "events_rank2" / "model.npz")
    x = from_dataframe(table, ["user", "item", "day"], device="cpu")
    with tl.backend_context("flycoo"):
        starts = best_of(method, x, 2, 3, random_state=7, tol=1e-8)
    assert starts.best == cp
    seed = starts.seeds[starts.best_number]
    assert f"the best of 3 starts, with --seed {seed}" in capsys.readouterr().out


def test_one_start_is_a_run_of_its_seed(folder, table):
    write(table, folder / "events.csv")
    command = ["fit", "events.csv", "--modes", "user,item,day", "--rank", "2", "--device", "cpu"]
    assert main([*command, "--loss", "gaussian", "--starts", "1", "--seed", "3"]) == 0
    x = from_dataframe(table, ["user", "item", "day"], device="cpu")
    with tl.backend_context("flycoo"):
        cp = decomposition.parafac(x, 2, init="random", random_state=3, linesearch="auto")
    assert LabelledCP.load(folder / "events_rank2" / "model.npz") == cp


def test_help_lists_every_loss(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--help"])
    page = capsys.readouterr().out
    assert all(name in page for name in EXACT_LOSSES)


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 130)])
def test_ctrl_c(count, code, folder, table, monkeypatch):
    """The first one ends the run and keeps the results, the second one ends everything."""
    write(table, folder / "events.parquet")

    @functools.wraps(parafac)
    def stop(x, rank, callback, **options):
        left = [signal.SIGINT] * count

        def interrupt(model, error):
            is_over = callback(model, error)
            while left:
                os.kill(os.getpid(), left.pop())
                time.sleep(0.05)  # a second signal at once would be the same as one
            return is_over

        return parafac(x, rank, callback=interrupt, **options)

    monkeypatch.setitem(METHODS, "parafac", Method(stop))
    command = "fit events.parquet --modes user,item,day --rank 2 --tol 0 --loss gaussian"
    assert main(command.split()) == code
    assert (folder / "events_rank2").exists() == (code == 0)


def test_without_pyarrow_it_says_what_to_install(folder, table, monkeypatch, capsys):
    write(table, folder / "events.csv")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert main(["fit", "events.csv", "--modes", "user,item", "--rank", "2"]) == 1
    assert 'pip install "tensorly-flycoo[tables]"' in capsys.readouterr().err


@pytest.mark.parametrize("output", ["a file", "a file/below"])
def test_what_cannot_be_written_is_found_before_the_fit(output, folder, table, capsys, monkeypatch):
    write(table, folder / "events.csv")
    (folder / "a file").write_text("kept")
    monkeypatch.setitem(METHODS, "generalized_parafac", None)
    command = ["fit", "events.csv", "--modes", "user,item", "--rank", "2", "--output", output]
    assert main(command) == 1
    assert f"--output is {output}, where nothing can be written" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main([*command[:-1], "new"]) == 1
    assert "results need pandas and Matplotlib" in capsys.readouterr().err
    assert (folder / "a file").read_text() == "kept"
    assert not (folder / "new").exists()


def test_a_picture_that_fails_leaves_the_other_files(folder, table, capsys, monkeypatch):
    write(table, folder / "events.csv")

    def fail(*arguments):
        raise ValueError("no fonts")

    monkeypatch.setattr(LabelledCP, "plot", fail)
    assert main(["fit", "events.csv", "--modes", "user,item", "--rank", "2"]) == 1
    error = capsys.readouterr().err
    assert "the picture could not be drawn, the other files are complete: no fonts" in error
    written = sorted(path.name for path in (folder / "events_rank2").iterdir())
    assert written == ["mode0_user.csv", "mode1_item.csv", "model.npz", "weights.csv"]


@pytest.mark.parametrize("name", ["ratings.parquet", "ratings.csv"])
def test_ratings(name, folder, capsys):
    """Biases explain them: the error at held-out entries is that of the noise, 0.3."""
    rng = np.random.default_rng(0)
    ratings = pandas.DataFrame(rng.integers(0, [40, 30], (700, 2)), columns=["user", "film"])
    ratings["stars"] = 3.5 + rng.normal(0, 0.6, 40)[ratings["user"]] + 0.3 * rng.normal(0, 1, 700)
    write(ratings.drop_duplicates(["user", "film"]), folder / name)
    command = ["fit", name, "--modes", "user,film", "--values", "stars", "--rank", "1"]
    options = ["--observed", "--biases", "--starts", "2", "--iterations", "20"]
    assert main([*command, *options]) == 0
    page = capsys.readouterr().out
    numbers = re.search(r"error of ([\d.]+) at held-out entries \(([\d.]+) by their mean\)", page)
    found, of_mean = map(float, numbers.groups())
    assert found < 0.4 < 0.6 < of_mean
    assert "user bias, weight" in page
    films = pandas.read_csv(folder / "ratings_rank1" / "mode1_film.csv", index_col="film")
    assert {*films.columns} >= {"mean", "user bias", "film bias"}
    assert "mean," in (folder / "ratings_rank1" / "weights.csv").read_text()
    cp = LabelledCP.load(folder / "ratings_rank1" / "model.npz")
    assert sum(mode >= 0 for mode in cp.flycoo.bias_modes) == 3
    assert np.sqrt(((cp.predict(ratings) - ratings["stars"]) ** 2).mean()) < 0.4
    assert main([*command, "--observed", "--l2-reg", "1e9", "--starts", "1"]) == 1
    assert "the model is zero, and nothing is written: try a smaller --l2-reg" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--biases"], "--biases and --l2-reg are for --observed"),
        (["--l2-reg", "1"], "--biases and --l2-reg are for --observed"),
        (["--observed"], "--observed is for --values"),
        (["--observed", "--values", "stars", "--init", "svd"], "--init random"),
        (["--observed", "--values", "stars", "--loss", "poisson_count"], "--loss gaussian"),
    ],
)
def test_options_that_exclude_each_other(options, text, folder, table, capsys):
    write(table, folder / "events.csv")
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "events.csv", "--modes", "user,item", "--rank", "1", *options])
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(("scale", "code"), [([0, 0], 1), ([0, 1], 0)])
def test_a_zero_model_is_an_error_and_zero_components_a_warning(
    scale, code, folder, table, capsys, monkeypatch
):
    write(table, folder / "events.csv")

    @functools.wraps(generalized_parafac)
    def solve(x, rank, callback, **options):
        cp, losses = generalized_parafac(x, rank, callback=callback, **options)
        return tl.cp_tensor.CPTensor((np.array(scale), cp.factors)), losses

    monkeypatch.setitem(METHODS, "generalized_parafac", Method(solve))
    assert main(["fit", "events.csv", "--modes", "user,item", "--rank", "2"]) == code
    out, error = capsys.readouterr()
    assert ("the model is zero, and nothing is written" in error) == (code == 1)
    assert ("1 of 2 components is zero: try --init random" in out) == (code == 0)


def test_an_svd_start_that_fails_names_the_option(folder, capsys):
    """Each row has entries of its own, so singular vectors of different modes do not meet."""
    events = pandas.DataFrame({"a": range(50), "b": range(50, 0, -1), "c": np.arange(50) * 7 % 50})
    write(events, folder / "events.parquet")
    command = "fit events.parquet --modes a,b,c --rank 2 --init svd --loss gaussian"
    assert main(command.split()) == 1
    assert "is very sparse: pass --init random\n" in capsys.readouterr().err


def test_starts_find_planted_groups_that_the_svd_start_misses(folder, capsys):
    """Few events: singular vectors have disjoint supports, and the first MTTKRP is zero."""
    random = np.random.RandomState(0)
    sizes = {"product": 827, "w": 7, "day": 119, "hour": 24}
    events = pandas.DataFrame({name: random.randint(0, size, 1000) for name, size in sizes.items()})
    write(events, folder / "events.parquet")
    for loss in EXACT_LOSSES:
        command = f"fit events.parquet --modes product,w,day,hour --rank 3 --loss {loss}"
        assert main([*command.split(), "--iterations", "20"]) == 0
        assert (LabelledCP.load(folder / "events_rank3" / "model.npz").weights > 0).all()
        assert "the others match it by" in capsys.readouterr().out


def test_small_fits_go_on(folder, capsys):
    """The default tolerance is small even beside a fit below 0.01."""
    random = np.random.RandomState(0)
    events = pandas.DataFrame(random.randint(0, 200, (3000, 3)), columns=["a", "b", "c"])
    write(events, folder / "events.parquet")
    command = "fit events.parquet --modes a,b,c --rank 2 --loss gaussian --starts 1"
    assert main(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("diagnosis: all components: 0 digits; condition 1.")
    line = next(of for of in lines if of.startswith("fit "))
    fit, count = float(line.split()[1]), int(line.split()[3])
    cp = LabelledCP.load(folder / "events_rank2" / "model.npz")
    assert fit < 0.01
    assert count > 5
    assert len(line.split()[1]) >= 6
    assert cp.rank == 2


@pytest.mark.parametrize(
    ("unit", "expected"), [("day", "2026-01-01"), ("month", "2026-01-01"), ("hour", "2026-01-01")]
)
def test_times_are_rounded(unit, expected, folder, table):
    times = table["day"] + pandas.to_timedelta(np.arange(600) % 60, "s")
    write(table.assign(time=times), folder / "events.csv")
    command = ["fit", "events.csv", "--modes", f"user,time:{unit}", "--rank", "1", "--quiet"]
    assert main(command) == 0
    cp = LabelledCP.load(folder / "events_rank1" / "model.npz")
    labels = cp.labels[f"time:{unit}"]
    assert labels.size == {"day": 10, "hour": 10, "month": 1}[unit]
    assert str(labels[0]) == expected
    assert (folder / "events_rank1" / f"mode1_time_{unit}.csv").exists()


def test_separators(folder, table):
    table.to_csv(folder / "events.tsv", sep="\t", index=False)
    table.to_csv(folder / "events.csv", sep=";", index=False)
    for name, options in (("events.tsv", []), ("events.csv", ["--sep", ";"])):
        command = ["fit", name, "--modes", "user,item", "--rank", "1", "--quiet", *options]
        assert main(command) == 0
        assert LabelledCP.load(folder / "events_rank1" / "model.npz").shape == (20, 4)


def test_texts_stay_apart_and_the_first_line_may_be_a_row(folder):
    rows = ["007;NA;2024-07-01 00:00:00+02:00", "7;x;2024-07-01 23:59:59+02:00", "010;-;"]
    (folder / "events.csv").write_text("\n".join(rows * 3))
    options = "--sep ; --no-header --missing-text - --missing drop --rank 1 --quiet --device cpu"
    assert main(["fit", "events.csv", "--modes", "1,2,3:day", *options.split()]) == 0
    labels = LabelledCP.load(folder / "events_rank1" / "model.npz").labels
    assert {name: of.astype(str).tolist() for name, of in labels.items()} == {
        "1": ["007", "7"], "2": ["NA", "x"], "3:day": ["2024-07-01"],
    }  # fmt: skip


def test_long_names_of_columns(folder, table):
    write(table.rename(columns={"user": "u" * 300}), folder / "events.csv")
    assert main(["fit", "events.csv", "--modes", "u" * 300 + ",item", "--rank", "1"]) == 0
    assert (folder / "events_rank1" / "components.png").exists()


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"tensorly-flycoo {tensorly_flycoo.__version__}\n"

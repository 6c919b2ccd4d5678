"""The GPU benchmark on small tensors: every requested figure is present and a number."""

import json
import math
import subprocess
import sys
from pathlib import Path

import cupy
import pytest
from plain_library import write_program

PROGRAM = Path(__file__).parents[2] / "examples" / "benchmark_gpu"
TENSORS = ("uber", "vast", "nell-1", "nell-2, real pairs")
RANKS, ODD_RANKS = (16, 32, 64), (10, 25, 31, 50)
LAYOUTS = ("replicated", "indexed", "remap")
TABLES = (
    "speed", "remapping", "building", "bytes", "balance", "ranks", "als", "float64", "tiles",
    "whole", "groups",
)  # fmt: skip


def run(*arguments):
    process = subprocess.run(
        [sys.executable, PROGRAM, "--repeats", "3", "--scale", "1e-3", *arguments],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def benchmark_run(tmp_path_factory):
    """Run all tables except ncu's; return the output, the figures and the picture."""
    folder = tmp_path_factory.mktemp("benchmark")
    page = run(
        "--tensors", *TENSORS, "--tables", *TABLES, "--ranks", *map(str, RANKS),
        "--json", str(folder / "results.json"), "--figure", str(folder / "figure.png"),
    )  # fmt: skip
    return page, json.loads((folder / "results.json").read_text()), folder / "figure.png"


def assert_positive(figures):
    """Assert that all numbers in a nested dictionary or list are finite and positive."""
    if isinstance(figures, dict | list):
        assert len(figures) > 0
        for figure in figures.values() if isinstance(figures, dict) else figures:
            assert_positive(figure)
    else:
        assert math.isfinite(figures)
        assert figures > 0


def assert_whole_calls(row):
    assert [call["way"] for call in row["whole"]] == [
        "COO, random",
        "COO, svd",
        "FlycooTensor, random",
    ]
    for call in row["whole"]:
        assert 0 < call["nnz"] <= row["nnz"]
        assert len(call["fits"]) == 50
        stages = [call[f"{stage}_s"] for stage in ("build", "check", "iterations", "back")]
        assert_positive(stages)
        stages.append(call["start_s"])  # 0 if the check took longer when it was timed alone
        assert math.isclose(sum(stages), call["total_s"])
        # The pool holds at least the tensor and the factors.
        assert call["peak_nbytes"] > call["tensor_nbytes"] + call["factors_nbytes"]
        assert call["build_peak_nbytes"] > 0


def test_every_figure_is_there(benchmark_run):
    rows = benchmark_run[1]["rows"]
    assert [row["tensor"] for row in rows] == list(TENSORS)
    for row in rows:
        assert row["skipped"] == row["failed"] == []
        sweeps, ndim = row["sweeps_s"], len(row["shape"])
        ranks = {str(rank) for rank in RANKS}
        for name in (*LAYOUTS, "gather only", "write", "remap off"):
            assert ranks <= sweeps[name].keys()
        assert {str(rank) for rank in ODD_RANKS} <= sweeps["remap"].keys()
        assert {str(rank) for rank in ODD_RANKS} == sweeps["remap, aligned rows"].keys()
        assert sweeps["remap, float64"].keys() == {"32"}
        assert all(len(modes) == ndim for times in sweeps.values() for modes in times.values())
        assert len(row["tiles"]) == 8
        assert len(row["balance"]) == ndim
        assert set(LAYOUTS) <= row["build_s"].keys()
        assert row["bytes_per_nonzero"].keys() == set(LAYOUTS)
        assert row["als"]["parts_s"].keys() == {"mttkrp", "solve", "fit"}
        for key in (
            "nnz", "distinct_nnz", "sweeps_s", "build_s", "bytes_per_nonzero", "paper", "tiles",
            "balance", "gather_setting",
        ):  # fmt: skip
            assert_positive(row[key])
        # A difference of two times of small tensors, which other processes disturb.
        assert math.isfinite(row["als"]["kernels_s"])
        assert_positive([figure for key, figure in row["als"].items() if key != "kernels_s"])
        assert row["distinct_nnz"] <= row["nnz"]
        assert [run["layout"] for run in row["groups"]] == [x for x in LAYOUTS for _ in range(2)]
        assert [run["is_default"] for run in row["groups"]] == [False, True] * len(LAYOUTS)
        for run in row["groups"]:
            assert_positive([run[k] for k in ("sweep_s", "iteration_s", "bytes_per_nonzero")])
        assert_whole_calls(row)
        # The fullest partition and the busiest worker have at least the mean load.
        assert all(load >= 1 - 1e-9 for mode in row["balance"] for load in mode.values())


def test_the_page_compares_with_the_bars(benchmark_run):
    page, _, figure = benchmark_run
    assert page.count(" met ") + page.count(" MISSED ") == 9
    for picture in (figure, figure.with_stem("figure-whole")):
        assert picture.stat().st_size > 10_000


def test_the_papers_experiments(tmp_path):
    names = ["vast", "nell-1, real pairs"]
    program = write_program(tmp_path / "plain")
    page = run(
        "--tensors", *names, "--alphas", "3", "--library", f"plain={program}", "--paper",
        "--json", str(tmp_path / "paper.json"), "--figure", str(tmp_path / "paper.png"),
    )  # fmt: skip
    result = json.loads((tmp_path / "paper.json").read_text())
    assert [row["tensor"] for row in result["rows"]] == names
    for row in result["rows"]:
        assert row["skipped"] == row["failed"] == []
        published, ndim = row["published"], len(row["shape"])
        for name in ("compute_s", "zero_s", "remap_s", "balance"):
            assert len(published[name]) == ndim
        assert {*LAYOUTS, "remap off"} == row["sweeps_s"].keys()
        assert row["default"]["sweep_s"] > 0
        assert row["libraries"][0]["difference"] < 1e-3
    published = result["rows"][0]["published"]
    assert published["error"] < 1e-3
    assert published["our_error"] < 1e-4
    assert [len(times) for times in published["settings_s"].values()] == [9, 3, 3]
    assert len(published["readings_s"]) == 4
    assert {"128", "256", "512"} <= result["rows"][0]["tiles_s"].keys()
    for row in result["spmm"]:
        for product in row["products"]:
            assert product["difference"] < 1e-4
            assert_positive(product["seconds"])
    for part in (
        "total", "breakdown", "readings", "accuracy", "settings", "tiles", "balance", "libraries",
    ):  # fmt: skip
        assert f"\n{part}\n" in page
    for part in ("breakdown", "columns", "tiles", "total", "balance", "memory", "building"):
        assert (tmp_path / f"paper-{part}-3.png").stat().st_size > 10_000


def test_what_does_not_fit_in_time_is_skipped_and_named(tmp_path):
    path = tmp_path / "results.json"
    page = run("--tensors", "uber", "--time-limit", "0", "--json", str(path))
    assert "uber: skipped all: the time is over" in page
    assert json.loads(path.read_text())["rows"][0]["skipped"]


def run_scaling(tmp_path, *options):
    """Return what `scaling.py` prints, and the run that it keeps."""
    options += ("--commit", "0a1b2c3d", "2026-11-26T1200", "--results", str(tmp_path))
    command = [sys.executable, PROGRAM / "scaling.py", *options]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    (path,) = tmp_path.glob("*/2026-11-26T1200-0a1b2c3d-*.json")
    return process.stdout, json.loads(path.read_text())


def test_scaling(tmp_path):
    """Tensors in one piece, on one GPU and, if there are two, on both; one is drawn by slab."""
    gpus = list(range(1, 1 + min(2, cupy.cuda.runtime.getDeviceCount())))
    options = ["--tensors", "tiny", "nell-2", "amazon-reviews", "--gpus", *map(str, gpus)]
    _, found = run_scaling(tmp_path, *options, "--share", "1e-4", "--iterations", "4")
    assert ("link_gb_per_s" in found) == (len(gpus) > 1)
    assert [row["tensor"] for row in found["rows"]] == ["tiny", "nell-2", "amazon-reviews"]
    for row in found["rows"]:
        assert row["same bits"]
        assert ("one" in row) == (row["tensor"] != "amazon-reviews")
        for count in gpus:
            times = row[f"{count} gpus"]
            assert_positive([times[part] for part in ("build_s", "iteration_ms", "kernels_ms")])
            assert math.isfinite(times["exchange_ms"] + times["rest_ms"])


def test_whole_calls(tmp_path):
    """From host memory, a Parquet file and a folder, on one GPU and, if there are two, on both."""
    gpus = list(range(1, 1 + min(2, cupy.cuda.runtime.getDeviceCount())))
    options = ["--whole", "memory", "parquet", "folder", "--tensors", "nell-2, real pairs"]
    options += ["--share", "1e-3", "--gpus", *map(str, gpus)]
    page, found = run_scaling(tmp_path, *options)
    (row,) = found["rows"]
    assert len(row["whole"]) == 3 * len(gpus)
    for call in row["whole"]:
        assert_positive([call[f"{stage}_s"] for stage in ("build", "iterations", "back", "total")])
        assert f"| {call['way']} | " in page


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ([], "mode 2: all "),
        (["--iterations", "3", "--gpus", "1", "2"], "digests: "),
    ],
)
def test_a_tensor_that_is_drawn_by_slab(options, last):
    if "2" in options and cupy.cuda.runtime.getDeviceCount() < 2:
        options = options[:-1]
    path = Path(__file__).with_name("reddit_run.py")
    command = [sys.executable, path, "--share", "1e-4", "--slabs", "4", *options]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines()[-1].startswith(last)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("streaming", ["--tensor", "nell-2", "--share", "1e-3", "--slabs", "4"]),
        ("streaming", ["--tensor", "nell-2", "--share", "1e-3", "--folder", "nell-2.flycoo"]),
        ("poisson", ["uber"]),
    ],
)
def test_other_programs_run(name, options, tmp_path):
    command = [sys.executable, PROGRAM / f"{name}.py", *options]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "sweep" in process.stdout

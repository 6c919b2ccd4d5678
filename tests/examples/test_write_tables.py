"""The tables of the pages are those of the kept runs: nobody writes them by hand."""

import json
import re
import shutil

import pytest
import runs
import speed_history
import write_tables

RESULTS = runs.ROOT / "examples" / "results"


def copy_pages(folder):
    """Copy all pages, and return the folder as an option."""
    (folder / "docs").mkdir()
    for page in write_tables.PAGES:
        shutil.copy(runs.ROOT / page, folder / page)
    return ["--root", str(folder)]


def test_pages_are_of_the_kept_runs(tmp_path):
    write_tables.main(copy_pages(tmp_path))
    for page in write_tables.PAGES:
        assert (tmp_path / page).read_text() == (runs.ROOT / page).read_text()
    drawn, kept = (root / "docs" / "history.svg" for root in (tmp_path, runs.ROOT))
    assert drawn.stat().st_size == pytest.approx(kept.stat().st_size, rel=0.5)


@pytest.mark.parametrize("page", write_tables.PAGES)
def test_each_page_has_a_table_that_is_written(page):
    assert "<!-- written by write_tables.py: " in (runs.ROOT / page).read_text()


def test_no_table_of_performance_is_written_by_hand():
    text = (runs.ROOT / "docs" / "performance.md").read_text()
    by_hand = re.sub("<!-- written by.*?<!-- end -->", "", text, flags=re.DOTALL)
    assert re.findall(r"^(\|.*)\n\|[ |-]+$", by_hand, re.MULTILINE) == ["| choice | what it does |"]


def test_runs_say_what_they_are_of():
    paths = sorted(RESULTS.glob("*/*.json"))
    assert paths
    for path in paths:
        run = json.loads(path.read_text())
        assert all(run[key] for key in ("commit", "committed", "date", "machine", "rows")), path
        assert path.name.startswith(f"{run['committed']}-{run['commit']}-")


def test_a_page_is_filled_between_its_marks():
    begin = "<!-- written by write_tables.py: a, b -->\n"
    page = f"Above\n{begin}old\n<!-- end -->\nBelow\n"
    filled = write_tables.fill_page(2 * page, {"a, b": "| new |\n", "other": "no"})
    assert filled == 2 * f"Above\n{begin}| new |\n<!-- end -->\nBelow\n"
    with pytest.raises(KeyError, match="a, b"):
        write_tables.fill_page(page, {"other": "no"})


@pytest.fixture(params=["warm", pytest.param("cold", marks=pytest.mark.slow)])
def caches(request, monkeypatch):
    """Leave the caches of cold cases as they are: without them all kernels are compiled."""
    run_case = speed_history.run_case

    def run_warm(case, device, threads, is_cold):
        return run_case(case, device, threads, False) | {"is_cold": is_cold}

    if request.param == "warm":
        monkeypatch.setattr(speed_history, "run_case", run_warm)


@pytest.mark.usefixtures("caches")
def test_runs_become_pages(tmp_path, monkeypatch):
    """Two runs of a small case: the newest and both have their tables."""
    monkeypatch.setitem(speed_history.CASES, "cpu", (("uber", 0.001, 3, "float64"),))
    commit = ["--commit", "aaaa", "2026-01-01T0000"]
    speed_history.main([*commit, "--threads", "1", "--results", str(tmp_path)])
    (path,) = (tmp_path / "speed").iterdir()
    later = path.with_name(path.name.replace("aaaa", "bbbb"))
    later.write_text(path.read_text().replace("aaaa", "bbbb"))
    found = runs.load_runs(tmp_path / "speed")
    assert [run["commit"] for run in found] == ["aaaa", "bbbb"]
    warm, cold = found[0]["rows"]
    assert (warm["is_cold"], cold["is_cold"]) == (False, True)
    assert warm["fit"] == cold["fit"]
    assert warm["total_s"] >= 50 * warm["iteration_s"] > 0
    machines = write_tables.group_by_machine(found)
    newest, history = write_tables.write_newest(machines), write_tables.write_history(machines)
    assert "commit bbbb" in newest
    assert "aaaa" not in newest
    row = next(line for line in history.splitlines() if line.startswith("| uber"))
    assert row.split(" | ")[0] == "| uber, 0.0M, 3, float64, threads: 1"
    cell = f"{1e3 * warm['iteration_s']:.3g} / {warm['total_s']:.3g}"
    assert re.split(r" \| | \|", row)[1:3] == [cell, cell]
    write_tables.draw_history(machines, tmp_path / "history.svg")
    assert (tmp_path / "history.svg").stat().st_size > 0


def test_seconds_to_a_fit_become_cells():
    run = {"starts": 5}
    row = {"num_calls": 5, "same_0.99_s": 0.1234, "same_0.99_iterations": 17.0}
    assert write_tables.write_seconds(row, 0.99, run) == "0.12 (17)"
    assert write_tables.write_seconds(row | {"num_calls": 3}, 0.99, run) == "0.12 (17)*"
    assert write_tables.write_seconds(row | {"same_0.99_s": None}, 0.99, run) == "never"
    assert write_tables.write_seconds(row | {"num_calls": 0}, 0.99, run) == "stopped"
    assert write_tables.write_seconds(None, 0.99, run) == ""

"""Runs of the benchmark over commits, and the pages made of them."""

import json
import shutil
from pathlib import Path

import pytest
import speed_history

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("performance.md", "history.md")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Keep results and pages in folders of their own; measure one small case."""
    monkeypatch.setitem(speed_history.CASES, "cpu", (("uber", 0.001, 3, "float64"),))
    docs, results = tmp_path / "docs", tmp_path / "results"
    docs.mkdir()
    for page in PAGES:
        shutil.copy(DOCS / page, docs)
    return ["--docs", str(docs), "--results", str(results)], docs, results


def test_runs_become_pages(folders):
    options, docs, results = folders
    speed_history.main(
        ["measure", "--commit", "aaaa", "2026-01-01T0000", "--threads", "1", *options]
    )
    (path,) = results.iterdir()
    later = path.with_name(path.name.replace("aaaa", "bbbb"))
    later.write_text(path.read_text().replace("aaaa", "bbbb"))
    runs = [json.loads(path.read_text()) for path in sorted(results.iterdir())]
    assert [run["commit"] for run in runs] == ["aaaa", "bbbb"]
    for run in runs:
        warm, cold = run["rows"]
        assert (warm["is_cold"], cold["is_cold"]) == (False, True)
        assert warm["fit"] == cold["fit"]
        assert warm["total_s"] >= 50 * warm["iteration_s"] > 0
    speed_history.main(["write", *options])
    newest, history = ((docs / page).read_text() for page in PAGES)
    assert "commit bbbb" in newest
    assert "aaaa" not in newest
    cells = [f"{1e3 * run['rows'][0]['iteration_s']:.3g}" for run in runs]
    row = next(
        line for line in history.splitlines() if line.startswith("| uber, 0.0M, 3, float64, 1")
    )
    assert [cell.split(" / ")[0].strip() for cell in row.split("|")[2:4]] == cells
    assert (docs / "history.svg").stat().st_size > 0


def test_pages_are_of_the_results(tmp_path):
    """Nobody edits the tables by hand."""
    for page in PAGES:
        shutil.copy(DOCS / page, tmp_path)
    speed_history.main(["write", "--docs", str(tmp_path)])
    for page in PAGES:
        assert (tmp_path / page).read_text() == (DOCS / page).read_text()

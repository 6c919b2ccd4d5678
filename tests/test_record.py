"""What `tests/gpu/record.py` writes into RESULTS.md, without a GPU."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parent / "gpu" / "record.py"


@pytest.fixture
def record(tmp_path):
    """Return the program's names, with a page and commands of its own."""
    names = runpy.run_path(str(SCRIPT))
    record = SimpleNamespace(**names)
    page = tmp_path / "RESULTS.md"
    page.write_text(
        f"Above\n{record.BEGIN}| cold start | H200 | 1 | 2026 | 4 | old |\n{record.END}Below\n"
    )
    python = f'"{sys.executable}" -c'
    commands = {
        "suite": f"{python} \"print('.....\\n12 passed, 3 skipped in 4.56s')\"",
        "cold start": f"{python} \"print('1 failed in 2s'); raise SystemExit(1)\"",
        "huge": f"{python} \"print('begins', flush=True); import time; time.sleep(60)\"",
    }
    settings = record.main.__globals__
    settings |= {"RESULTS": page, "COMMANDS": commands, "describe_gpus": lambda: "H100"}
    record.read = lambda: page.read_text().partition(record.BEGIN)[2].splitlines()
    return record


def test_rows_are_added_in_the_order_of_the_commands(record):
    assert not record.main(["--commit", "abc", "cold start", "suite"])
    first, second, third, *below = record.read()
    assert first.startswith("| suite | H100 | abc | 20")
    assert first.endswith(" | 12 passed, 3 skipped |")
    assert second == "| cold start | H200 | 1 | 2026 | 4 | old |"
    assert third.startswith("| cold start | H100 | abc | 20")
    assert third.endswith(" | FAILED (1): 1 failed |")
    assert below == ["<!-- end -->", "Below"]


def test_a_row_replaces_that_of_its_command_and_gpu(record):
    for commit in ("abc", "def"):
        assert record.main(["--commit", commit, "suite"])
    assert [row.split(" | ")[2] for row in record.read()[:2]] == ["def", "1"]


def test_a_command_that_takes_too_long_is_cut_off(record):
    assert not record.main(["--commit", "abc", "--limit-s", "2", "huge"])
    assert record.read()[1].endswith(" | CUT OFF: begins |")


def test_commands_run_at_the_same_time(record, tmp_path):
    names, wait = ["debug build", "lowered index"], "until [ -e {other} ]; do sleep 0.01; done"
    commands = record.main.__globals__["COMMANDS"]
    for own, other in (names, reversed(names)):
        files = {"own": f"'{tmp_path / own}'", "other": f"'{tmp_path / other}'"}
        commands[own] = f"touch {{own}}; {wait}; echo met".format(**files)
    assert record.main(["--commit", "abc", "--jobs", "2", "--limit-s", "30", "suite", *names])
    first, _, *others, _, _ = record.read()
    assert first.endswith(" | 12 passed, 3 skipped |")
    assert [row.split(" | ")[-1] for row in others] == ["met |", "met |"]


def test_the_page_has_a_place_for_the_rows():
    names = runpy.run_path(str(SCRIPT))
    text = (SCRIPT.parent / "RESULTS.md").read_text()
    rows = text.partition(names["BEGIN"])[2].partition(names["END"])[0].splitlines()
    assert rows
    assert {row.split("|")[1].strip() for row in rows} <= set(names["COMMANDS"])

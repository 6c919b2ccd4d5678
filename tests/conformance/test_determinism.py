"""Each "yes" of the table in tests/README.md, repeated: every function gives the same bits."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import determinism
import lowered_limits
import numba
import pytest
from determinism import compute_digests

NUM_REPEATS = 20
SCRIPT = Path(determinism.__file__)


@pytest.fixture(scope="module")
def expected():
    return compute_digests("cpu", "remap")


def test_in_the_same_process(expected):
    for _ in range(NUM_REPEATS):
        assert compute_digests("cpu", "remap") == expected


def test_in_another_layout(expected):
    for layout in itertools.islice(itertools.cycle(["replicated", "indexed"]), NUM_REPEATS):
        assert compute_digests("cpu", layout) == expected


def test_with_another_number_of_threads(expected, monkeypatch):
    """Also with more threads than cores."""
    for count in itertools.islice(itertools.cycle([1, 2, 3, 16]), NUM_REPEATS):
        monkeypatch.setattr(numba, "get_num_threads", lambda count=count: count)
        assert compute_digests("cpu", "remap") == expected


@pytest.mark.usefixtures("modes_in_groups")
def test_with_groups(monkeypatch):
    expected = compute_digests("cpu", "remap")
    for layout, count in [("replicated", 1), ("indexed", 3), ("remap", 16)]:
        monkeypatch.setattr(numba, "get_num_threads", lambda count=count: count)
        assert compute_digests("cpu", layout) == expected


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["index", "record"])
def test_with_wider_ids_and_records(expected, limit, monkeypatch):
    chosen = ("FlycooTensor, nonzeros", "norm", "mttkrp")  # the others take longer to compile
    functions = {name: determinism.FUNCTIONS[name] for name in chosen}
    monkeypatch.setattr(determinism, "FUNCTIONS", functions)
    lowered_limits.lower_limit(limit, monkeypatch)
    for layout in ("remap", "replicated", "indexed"):
        assert compute_digests("cpu", layout) == {name: expected[name] for name in chosen}


@pytest.mark.usual_limits(
    "groups", "prefixes", "slabs", "grid", "tiles"
)  # new processes have the usual limits
@pytest.mark.parametrize("number", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_in_a_new_process(expected, number):
    """With another hash seed and number of threads; tests/README.md says how to start more."""
    settings = {"NUMBA_NUM_THREADS": str(number), "PYTHONHASHSEED": str(number)}
    command = [sys.executable, str(SCRIPT), "cpu", "remap"]
    output = subprocess.check_output(command, env=os.environ | settings, text=True)
    assert output.splitlines() == [f"{name}: {digest}" for name, digest in expected.items()]


def test_other_values_have_other_digests(expected, monkeypatch):
    """The tests above can fail: a relative change of 2**-23 in one value changes the digests."""
    coords, values = determinism.draw_nonzeros()
    values[17] *= 1 + 2.0**-23
    monkeypatch.setattr(determinism, "draw_nonzeros", lambda: (coords, values))
    found = compute_digests("cpu", "remap")
    assert found.keys() == expected.keys()
    same = {name for name in found if found[name] == expected[name]}
    assert "mttkrp" not in same
    assert "FlycooTensor, nonzeros" not in same

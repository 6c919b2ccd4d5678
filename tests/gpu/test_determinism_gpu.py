"""Each "yes" of the GPU's table in tests/README.md, repeated: the same bits."""

import itertools
import subprocess
import sys
from pathlib import Path

import cupy
import determinism
import pytest
from determinism import compute_digests

NUM_REPEATS = 20


@pytest.fixture(scope="module")
def expected():
    return compute_digests("cuda", "remap")


def check(found, expected):
    for name in expected:
        assert found[name] == expected[name], name


def test_in_the_same_process(expected):
    for _ in range(NUM_REPEATS):
        check(compute_digests("cuda", "remap"), expected)


def test_in_another_layout(expected):
    for layout in itertools.islice(itertools.cycle(["replicated", "indexed"]), NUM_REPEATS):
        check(compute_digests("cuda", layout), expected)


def test_in_other_streams(expected):
    for _ in range(NUM_REPEATS):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            found = compute_digests("cuda", "remap")
            stream.synchronize()
        check(found, expected)


@pytest.mark.usual_limits(
    "groups", "prefixes", "slabs", "grid", "tiles"
)  # new processes have the usual limits
def test_in_new_processes(expected):
    command = [sys.executable, str(Path(determinism.__file__)), "cuda", "remap"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        lines = process.communicate(timeout=200)[0].splitlines()
        check(dict(line.rsplit(": ", 1) for line in lines), expected)


def test_other_values_have_other_digests(expected, monkeypatch):
    """The tests above can fail: a relative change of 2**-23 in one value changes the digests."""
    coords, values = determinism.draw_nonzeros()
    values[17] *= 1 + 2.0**-23
    monkeypatch.setattr(determinism, "draw_nonzeros", lambda: (coords, values))
    found = compute_digests("cuda", "remap")
    assert found["mttkrp"] != expected["mttkrp"]
    assert found["FlycooTensor, nonzeros"] != expected["FlycooTensor, nonzeros"]

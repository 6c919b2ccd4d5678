"""Lowered limits take effect, and so does the option that lowers one for all tests."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from lowered_limits import lower_limit

from tensorly_flycoo import FlycooTensor, cp_to_entries
from tensorly_flycoo.base import checks

ROOT = Path(__file__).parent.parent


def make_tensor(dtype=np.int64, layout="remap"):
    coords = np.random.default_rng(0).integers(0, 9, (3, 40)).astype(dtype)
    return FlycooTensor(coords, np.ones(40), (9, 9, 9), device="cpu", layout=layout)


def test_the_option():
    """A new process deselects the tests that need the usual limit; the others pass."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
    command += ["--lowered", "record", "tests/unit/format/test_packing.py"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-1000:]
    assert re.search(r"\b\d+ deselected", process.stdout)


def test_a_low_index_takes_effect(monkeypatch):
    lower_limit("index", monkeypatch)
    layout = make_tensor()._layout
    arrays = [layout.plans[0].pull_ids, layout.plans[0].remap_ids, layout.tilings[0].empty_rows]
    assert {array.dtype for array in arrays} == {np.dtype(np.uint64)}


def test_a_low_grid_takes_effect(monkeypatch):
    lower_limit("grid", monkeypatch)
    starts, check_block = [], checks._check_block
    monkeypatch.setattr(
        checks, "_check_block", lambda *block: starts.append(block[-1]) or check_block(*block)
    )
    cp_to_entries((None, [np.ones((9, 2))] * 3), np.zeros((3, 40), int))
    assert starts == list(range(0, 40, 5))


def test_low_tiles_take_effect(monkeypatch):
    lower_limit("tiles", monkeypatch)
    x = make_tensor()
    assert x._layout.tilings[0].carry_rows.size == -(-x.nnz // 3)


def test_a_low_record_takes_effect(monkeypatch):
    usual = make_tensor()._layout.record_format
    lower_limit("record", monkeypatch)
    assert make_tensor()._layout.record_format.record_nbytes == usual.record_nbytes + 8


def test_three_slabs_take_effect(monkeypatch):
    lower_limit("slabs", monkeypatch)
    assert make_tensor().slabs == 3


def test_remapping_by_default_takes_effect(monkeypatch):
    lower_limit("remap", monkeypatch)
    assert make_tensor(layout=None).layout == "remap"
    assert make_tensor(layout="indexed").layout == "indexed"


def test_low_groups_take_effect(monkeypatch):
    lower_limit("groups", monkeypatch)
    assert make_tensor().groups == ((0,), (1, 2))

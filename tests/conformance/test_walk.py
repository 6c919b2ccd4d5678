"""What happens before parafac, and one MTTKRP of its loop, are short walks: few files and calls."""

import numpy as np
import pytest
from walks import check_walk, check_walks, list_reception

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.testing import random_tensor

pytestmark = pytest.mark.usual_limits("groups", "prefixes", "slabs", "tiles")

SHAPE = (30, 40, 50)


def make(**options):
    x = random_tensor(SHAPE, 3000, random_state=0)
    return FlycooTensor(*x.nonzeros(), SHAPE, device="cpu", **options)


def test_a_coo():
    check_walks(make().to_coo(), num_files=10, num_calls=32)


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_each_layout(layout):
    check_walks(make(layout=layout), num_files=10, num_calls=32)


def test_merged_groups():
    x = make(groups=[(0,), (1, 2)])
    assert len(x.groups) == 2
    assert x._layout.prefixes is None
    check_walks(x, num_files=10, num_calls=32)


def test_numbered_groups():
    """The rows of a group are multiplied by an MTTKRP of their own: a second turn of the walk."""
    x = make(groups=[(0, 1), (2,)])
    assert x._layout.prefixes is not None
    check_walks(x, num_files=10, num_calls=32)


def test_two_devices(monkeypatch):
    monkeypatch.setattr(CPU, "devices", OneDevice(np, 2))
    x = make()
    assert x.slabs == 2
    check_walks(x, num_files=16, num_calls=90)


@pytest.mark.parametrize("kind", ["COO", "FlycooTensor"])
def test_the_reception(kind):
    """The tensor is looked for once, converted once and moved once."""
    x = make().to_coo() if kind == "COO" else make()
    calls = list_reception(x)
    assert calls[0][1] == "decompose"
    assert [name for _, name in calls].count("_search") == 1
    check_walk(calls, num_files=18, num_calls=56, part="before the algorithm")

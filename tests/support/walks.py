"""Walks through the package: the files and functions that a part of parafac enters."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorly as tl
from tensorly.decomposition import _cp

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.testing import random_tensor

_PACKAGE = str(Path(tensorly_flycoo.__file__).parent)

SHAPE = (30, 40, 50)


class Walk(NamedTuple):
    """A tensor, and the most files and calls that the MTTKRP of any of its modes may enter."""

    make: Callable[[], Any]
    most_files: int
    most_calls: int
    num_devices: int = 1


def make_tensor(**options):
    x = random_tensor(SHAPE, 3000, random_state=0)
    return FlycooTensor(*x.nonzeros(), SHAPE, device="cpu", **options)


#: 10 files and 32 calls are promised for a tensor in one piece without groups. The other limits are
#: about a tenth above what was measured: only a walk that grows much longer fails. `report.py`
#: prints today's counts.
WALKS = {
    "a COO": Walk(lambda: make_tensor().to_coo(), 10, 32),
    "remap": Walk(lambda: make_tensor(layout="remap"), 10, 32),
    "replicated": Walk(lambda: make_tensor(layout="replicated"), 10, 32),
    "indexed": Walk(lambda: make_tensor(layout="indexed"), 10, 32),
    "groups of modes": Walk(lambda: make_tensor(groups=[(0,), (1, 2)]), 11, 35),
    # The rows of a group are multiplied by an MTTKRP of their own: a second turn of the walk.
    "numbered groups": Walk(lambda: make_tensor(groups=[(0, 1), (2,)]), 11, 35),
    "two devices": Walk(make_tensor, 16, 90, num_devices=2),
}


def list_walks_of(name):
    """Return the calls of each mode's MTTKRP, for a row of `WALKS`."""
    walk = WALKS[name]
    with pytest.MonkeyPatch.context() as patch:
        if walk.num_devices > 1:
            patch.setattr(CPU, "devices", OneDevice(np, walk.num_devices))
        return list_walks(walk.make())


def count_walk(calls):
    """Return the numbers of files and of calls."""
    return len({file for file, _ in calls}), len(calls)


#: Where the reception of a call of parafac ends, and the road to its first MTTKRP.
RECEPTION_END = ("decomposition/parafac.py", "parafac")
ROAD_END = ("engines/cpu/engine.py", "mttkrp")

#: The most files and calls of each: about a tenth above what was measured.
MOST_OF_RECEPTION = (18, 48)
MOST_OF_ROAD = (40, 142)


def list_calls_until(end, x, rank=4):
    """Return the calls from the user's call of parafac to the one named `end`, as file and name."""
    calls = []

    def note(frame, event, argument):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_PACKAGE):
            calls.append((Path(file).relative_to(_PACKAGE).as_posix(), frame.f_code.co_name))
            if calls[-1] == end:
                sys.setprofile(None)

    with tl.backend_context("flycoo"):
        for _ in range(2):  # the first call compiles, and converts a COO
            calls.clear()
            before = sys.getprofile()
            sys.setprofile(note)
            try:
                tl.decomposition.parafac(x, rank, n_iter_max=1, init="random", random_state=0)
            finally:
                sys.setprofile(before)
    return calls


def list_walks(x, rank=4):
    """Run parafac; return the calls of each mode's MTTKRP in the last iteration, as file and name.

    The walk is what happens between TensorLy's call of `unfolding_dot_khatri_rao` and its return.
    """
    walks, original = [], _cp.unfolding_dot_khatri_rao

    def walk(*args, **kwargs):
        calls = []

        def note(frame, event, argument):
            file = frame.f_code.co_filename
            if event == "call" and file.startswith(_PACKAGE):
                calls.append((Path(file).relative_to(_PACKAGE).as_posix(), frame.f_code.co_name))

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return original(*args, **kwargs)
        finally:
            sys.setprofile(before)
            walks.append(calls)

    _cp.unfolding_dot_khatri_rao = walk
    try:
        with tl.backend_context("flycoo"):
            tl.decomposition.parafac(x, rank, n_iter_max=4, init="random", random_state=0, tol=0)
    finally:
        _cp.unfolding_dot_khatri_rao = original
    return walks[-x.ndim :]


def check_walks(walks, most_files, most_calls):
    """Fail if the MTTKRP of a mode enters more files or functions; the error lists them."""
    for mode, calls in enumerate(walks):
        num_files, num_calls = count_walk(calls)
        entered = "\n".join(f"{file}: {function}" for file, function in calls)
        text = f"mode {mode}: {num_files} files and {num_calls} calls\n{entered}"
        assert num_files <= most_files, text
        assert num_calls <= most_calls, text

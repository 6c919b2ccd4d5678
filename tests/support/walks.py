"""Walks through the package: the files and functions that a part of a call enters."""

import sys
from pathlib import Path

import tensorly as tl
from tensorly.decomposition import _cp

import tensorly_flycoo

_PACKAGE = str(Path(tensorly_flycoo.__file__).parent)


def list_reception(x, rank=4):
    """Return the calls from the user's call of parafac to the algorithm, as file and name."""
    calls = []

    def note(frame, event, argument):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_PACKAGE):
            calls.append((Path(file).relative_to(_PACKAGE).as_posix(), frame.f_code.co_name))
            if calls[-1] == ("decomposition/parafac.py", "parafac"):
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


def check_walks(x, num_files, num_calls):
    """Fail if the MTTKRP of a mode enters more files or functions; the error lists them."""
    for mode, calls in enumerate(list_walks(x)):
        check_walk(calls, num_files, num_calls, f"mode {mode}")


def check_walk(calls, num_files, num_calls, part):
    """Fail if a part of a call enters more files or functions; the error lists them."""
    files = {file for file, _ in calls}
    told = "\n".join(f"{file}: {name}" for file, name in calls)
    counts = f"{len(files)} files and {len(calls)} calls"
    assert len(files) <= num_files, f"{part}: {counts}\n{told}"
    assert len(calls) <= num_calls, f"{part}: {counts}\n{told}"

"""Tests are of the CPU engine, also where there is a GPU; those in gpu/ choose their device."""

import os
import sys
from pathlib import Path

import lowered_limits
import pytest

os.environ.setdefault("TENSORLY_FLYCOO_DEVICE", "cpu")

# Matrices are small here, and two processes run tests: a second thread of the BLAS would only wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Examples are imported as what they are: programs beside the package.
sys.path.append(str(Path(__file__).parents[1] / "examples"))

#: Doctests are not looked for in the files of this name, which are of one name, nor in a program
#: that needs what is not installed for tests.
collect_ignore_glob = ["conftest.py", "*/conftest.py", "fuzz_readers.py"]


@pytest.fixture(params=[None, *lowered_limits.LOWERED], ids=lambda name: name or "usual limits")
def each_limit_lowered(request, monkeypatch):
    """Run a test with the limits as they are, and with each of them lowered."""
    if request.param:
        lowered_limits.lower_limit(request.param, monkeypatch)


def pytest_addoption(parser):
    text = "run the tests with one of the library's limits lowered (see lowered_limits.py)"
    parser.addoption("--lowered", choices=lowered_limits.LOWERED, help=text)


def pytest_configure(config):
    text = "usual_limits(*names): tests of what is as it is with those limits as they are"
    config.addinivalue_line("markers", text)
    if config.option.lowered:
        lowered_limits.lower_limit(config.option.lowered)


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of the limit that is lowered as it is else."""
    lowered, kept, left_out = config.option.lowered, [], []
    for item in items:
        marker = item.get_closest_marker("usual_limits")
        is_kept = marker is None or lowered not in marker.args
        (kept if is_kept else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept

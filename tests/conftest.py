"""Tests use the CPU engine, even on a machine with a GPU; those in gpu/ choose their device."""

import gc
import os
import re
import sys
from pathlib import Path

import lowered_limits
import pytest

os.environ.setdefault("TENSORLY_FLYCOO_DEVICE", "cpu")

# Matrices are small here, and two processes run tests: a second thread of the BLAS would only wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Dozens of tests start processes: without bytecode each would compile the package, for 0.3 s. The
# cache of numba is written beside it in any case.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The examples are programs outside the package.
sys.path.append(str(Path(__file__).parents[1] / "examples"))

#: Not collected for doctests: several modules named conftest, and a program that needs atheris.
collect_ignore_glob = ["conftest.py", "*/conftest.py", "*/fuzz_readers.py"]


#: What no extra of the package installs: why a test may be skipped. Any other skip fails, so that
#: what an extra installs and does not work is seen.
MAY_SKIP = re.compile(
    r"could not import '(jax|jax\.experimental\.sparse|torch|pygenten|anndata|parafac2)'"
    r"|could not import '(cell2cell|nvmath\.sparse\.ust)'"
    r"|(pygenten|cell2cell|pyright) is not installed"
    r"|the patch is for cell2cell"
    r"|pip cannot (download the wheel of|install TensorLy)|git cannot clone TensorLy"
    r"|there is no C compiler|NVRTC's wheel is for Linux|tests/gpu runs this pair"
    r"|this TensorLy|TensorLy 0\.|matrices only"  # old versions of what is installed
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Fail a test that is skipped for a reason that is not listed."""
    return _refuse_unlisted_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """Fail a module that is skipped for a reason that is not listed."""
    return _refuse_unlisted_skip((yield))


def _refuse_unlisted_skip(report):
    if report.skipped and not MAY_SKIP.search(reason := report.longrepr[2]):
        report.outcome, report.longrepr = "failed", f"conftest.MAY_SKIP does not list: {reason}"
    return report


@pytest.fixture(params=[None, *lowered_limits.LOWERED], ids=lambda name: name or "usual limits")
def each_limit_lowered(request, monkeypatch):
    """Run a test with the usual limits, and with each of them lowered."""
    if request.param:
        lowered_limits.lower_limit(request.param, monkeypatch)


@pytest.fixture(scope="session")
def client():
    """One cluster of three processes, for all tests that take this one."""
    from distributed import Client
    from local_clusters import start_cluster

    options = {"direct_to_workers": True}
    with start_cluster(3, memory_limit="2GB") as address, Client(address, **options) as client:
        yield client


@pytest.fixture
def addresses(client):
    """Return the addresses of the three workers, which a test before may have killed."""
    from local_clusters import wait_for_addresses

    return wait_for_addresses(client, 3)


@pytest.fixture
def flycoo_backend():
    """Run the test under the backend "flycoo"."""
    import tensorly as tl

    import tensorly_flycoo  # noqa: F401 (registers the backend)

    with tl.backend_context("flycoo"):
        yield


@pytest.fixture
def modes_in_groups(monkeypatch):
    """Let small tensors have groups of modes."""
    lowered_limits.lower_limit("groups", monkeypatch)


def pytest_addoption(parser):
    text = "run the tests with one of the library's limits lowered (see lowered_limits.py)"
    parser.addoption("--lowered", choices=lowered_limits.LOWERED, help=text)
    text = "compile each kernel for every GPU, not only for compute capability 9.0"
    parser.addoption("--every-gpu", action="store_true", help=text)
    text = "also run what takes a minute and rarely breaks"
    parser.addoption("--slow", action="store_true", help=text)


def pytest_configure(config):
    text = "usual_limits(*names): tests that need the usual value of these limits"
    config.addinivalue_line("markers", text)
    config.addinivalue_line("markers", "other_gpus: tests left out without --every-gpu")
    config.addinivalue_line("markers", "slow: tests left out without --slow")
    if config.option.lowered:
        lowered_limits.lower_limit(config.option.lowered)


def pytest_terminal_summary(terminalreporter, config):
    """Print the report of counts after a run of all tests."""
    if config.args_source is config.ArgsSource.TESTPATHS and not config.option.collectonly:
        from report import make_report

        terminalreporter.section("counts, of which none fails a test (tests/support/report.py)")
        for line in make_report():
            terminalreporter.write_line(line)


def pytest_collection_finish():
    """Keep the tests from the garbage collector: a run over all their objects takes 0.4 s."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Deselect slow tests, of other GPUs, and that need the usual value of the lowered limit.

    Refuse a name with an address, which is another one in each process of pytest-xdist.
    """
    lowered, kept, left_out = config.option.lowered, [], []
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has an address in its name: give ids=")
        marker = item.get_closest_marker("usual_limits")
        is_kept = marker is None or lowered not in marker.args
        if item.get_closest_marker("other_gpus") and not config.option.every_gpu:
            is_kept = False
        if item.get_closest_marker("slow") and not config.option.slow:
            is_kept = False
        (kept if is_kept else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept

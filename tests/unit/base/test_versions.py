"""The table of versions: with and without a GPU, and with packages missing."""

import importlib.machinery
import platform
import sys
import types

import numba
import numpy as np
import pytest
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import show_versions

ROWS = [
    "tensorly-flycoo", "Python", "OS", "TensorLy", "numpy", "scipy", "sparse", "numba", "CuPy",
    "CUDA runtime", "CUDA driver", "GPUs", "CPUs", "numba threads",
]  # fmt: skip


@pytest.fixture
def show(capsys):
    """Return a function that calls `show_versions` and returns what it prints, by row."""

    def call():
        show_versions()
        lines = capsys.readouterr().out.splitlines()
        column = len(max(ROWS, key=len)) + 2
        return {line[:column].rstrip(): line[column:] for line in lines}

    return call


@pytest.fixture
def without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


class CudaError(RuntimeError):
    """A stand-in for CuPy's CUDARuntimeError."""


@pytest.fixture
def with_cupy(monkeypatch):
    """Return a function that installs a fake CuPy with the given GPUs, or none and no driver."""

    def install(gpus):
        def get_device_count():
            if gpus is None:
                raise CudaError("cudaErrorNoDevice: no CUDA-capable device is detected\nmore")
            return len(gpus)

        runtime = types.SimpleNamespace(
            runtimeGetVersion=lambda: 13020,
            driverGetVersion=lambda: 0 if gpus is None else 13000,
            getDeviceCount=get_device_count,
            getDeviceProperties=lambda gpu: {"name": gpus[gpu].encode()},
        )
        cupy = types.ModuleType("cupy")
        cupy.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
        cupy.__version__ = "14.2.0"
        cupy.cuda = types.SimpleNamespace(runtime=runtime)
        monkeypatch.setitem(sys.modules, "cupy", cupy)

    return install


def test_rows(show, without_cupy):
    rows = show()
    assert list(rows) == ROWS
    assert rows["tensorly-flycoo"] == tensorly_flycoo.__version__
    assert rows["Python"] == platform.python_version()
    assert rows["numpy"] == np.__version__
    assert rows["numba threads"] == str(numba.get_num_threads())
    assert rows["CuPy"] == "not installed"
    assert rows["GPUs"] == "unknown without CuPy"


@pytest.mark.parametrize("backend", ["numpy", "flycoo"])
def test_the_current_backend(show, without_cupy, backend):
    with tl.backend_context(backend):
        assert show()["TensorLy"] == f"{tl.__version__}, backend {backend!r}"


def test_gpus(show, with_cupy):
    with_cupy(["NVIDIA H200", "NVIDIA H200"])
    rows = show()
    assert [rows[name] for name in ("CuPy", "CUDA runtime", "CUDA driver", "GPUs")] == [
        "14.2.0", "13.2", "13.0", "NVIDIA H200, NVIDIA H200",
    ]  # fmt: skip


def test_cupy_without_a_gpu(show, with_cupy):
    with_cupy(None)
    rows = show()
    assert rows["CUDA driver"] == "not installed"
    assert rows["GPUs"] == "none: cudaErrorNoDevice: no CUDA-capable device is detected"
    with_cupy([])
    assert show()["GPUs"] == "none"


def test_a_cupy_that_cannot_be_imported(show, monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise ImportError('no libcuda.so\\nmore')")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert show()["CuPy"] == "cannot be imported: no libcuda.so"


def test_packages_that_are_missing(show, without_cupy, monkeypatch):
    def fail(name):
        raise importlib.metadata.PackageNotFoundError(name)

    for name in ("scipy", "sparse", "tensorly"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(importlib.metadata, "version", fail)
    monkeypatch.setitem(sys.modules, "numba", None)
    rows = show()
    missing = {name for name, text in rows.items() if text == "not installed"}
    assert missing == {"scipy", "sparse", "TensorLy", "numba", "CuPy", "numba threads"}

"""The table of versions: with and without a GPU, and with packages missing."""

import importlib.metadata
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
    "GPUs", "CPUs", "numba threads",
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
    """Return a function that installs a fake CuPy with the given GPUs, or None without a driver."""

    def install(gpus):
        def get_device_count():
            if gpus is None:
                raise CudaError("cudaErrorNoDevice: no CUDA-capable device is detected\nmore")
            return len(gpus)

        def show_config():
            for number, name in enumerate(gpus):
                print(f"Device {number} Name    : {name}")

        cupy = types.ModuleType("cupy")
        cupy.__version__, cupy.show_config = "14.2.0", show_config
        runtime = types.SimpleNamespace(getDeviceCount=get_device_count)
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
    assert rows["GPUs"].startswith("0: ")


@pytest.mark.parametrize("backend", ["numpy", "flycoo"])
def test_the_current_backend(show, without_cupy, backend):
    with tl.backend_context(backend):
        assert show()["TensorLy"] == f"{tl.__version__}, backend {backend!r}"


def test_gpus(show, with_cupy):
    with_cupy(["NVIDIA H200", "NVIDIA H200"])
    rows = show()
    assert (rows["CuPy"], rows["GPUs"]) == ("14.2.0", "2")
    assert list(rows.values())[-2:] == [": NVIDIA H200"] * 2


def test_cupy_without_a_gpu(show, with_cupy):
    with_cupy(None)
    rows = show()
    assert rows["CuPy"] == "14.2.0"
    assert rows["GPUs"] == "0: cudaErrorNoDevice: no CUDA-capable device is detected"
    with_cupy([])
    assert show()["GPUs"] == "0"


def test_a_cupy_that_cannot_be_imported(show, monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise ImportError('no libcuda.so\\nmore')")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert show()["GPUs"] == "0: no libcuda.so"


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

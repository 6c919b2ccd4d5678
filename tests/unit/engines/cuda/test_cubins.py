"""Machine code that wheels bring: it is made without a GPU, and found by what launches kernels."""

import importlib
import sys
from unittest.mock import MagicMock

import numpy as np
import pytest
from cuda_sources import ON_LINUX

from tensorly_flycoo.engines.cuda import cubins, precompile

H100 = next(gpu for gpu in precompile.GPUS if gpu.capability == (9, 0))
F32 = np.dtype(np.float32)


class DriverError(RuntimeError):
    """A stand-in for CuPy's error."""


@pytest.fixture
def cupy():
    """Install a stand-in for CuPy with one H100, for modules that the test imports."""
    cupy = MagicMock()
    cupy.cuda.driver.CUDADriverError = DriverError
    cupy.cuda.runtime.getDeviceCount.return_value = 1
    cupy.cuda.Device.return_value.compute_capability = "90"
    cupy.RawModule.return_value.get_function.return_value.max_dynamic_shared_size_bytes = 2**20
    with pytest.MonkeyPatch.context() as patch:
        for name, module in {"cupy": cupy, "cupyx": MagicMock(), "cupy.cuda": cupy.cuda}.items():
            patch.setitem(sys.modules, name, module)
        loaded = set(sys.modules)
        yield cupy
        for name in set(sys.modules) - loaded:
            del sys.modules[name]
            package, _, child = name.rpartition(".")
            delattr(sys.modules[package], child)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cubins, "FOLDER", tmp_path)
    return tmp_path


def import_module(name):
    return importlib.import_module(f"tensorly_flycoo.engines.cuda.{name}")


def list_asked(cupy):
    """Return the names of the files from which kernels were asked."""
    return [call.kwargs["path"].rpartition("/")[2] for call in cupy.RawModule.call_args_list]


@ON_LINUX
def test_some_are_made_and_found(folder):
    jobs = [job for job in precompile.list_jobs((H100,)) if "store_places" in job.text]
    nbytes = precompile.compile_jobs(jobs, folder, num_processes=1)
    (path,) = folder.iterdir()
    assert path.read_bytes().startswith(b"\x7fELF")
    assert path.stat().st_size == nbytes
    assert cubins.find_cubin(jobs[0].text, cubins.OPTIONS, major=9) == path
    assert cubins.find_cubin(jobs[0].text, cubins.OPTIONS, major=8) is None
    assert cubins.find_cubin(jobs[0].text + "\n", cubins.OPTIONS, major=9) is None
    assert cubins.find_cubin(jobs[0].text, (*cubins.OPTIONS, "-DASSERTIONS"), major=9) is None


def test_kernels_are_asked_for_by_the_names_of_the_files(cupy, folder):
    names = {job.name for job in precompile.list_jobs((H100,))}
    for name in names:
        (folder / name).touch()
    import_module("primitives")._get_sum_kernel("sum_squares", F32)
    import_module("primitives")._get_unfolding_kernel("add_signs")
    import_module("mersenne_twister")._get_kernel("draw_uniform", F32)
    import_module("tall")._get_product_kernel("invert", 16, F32, 0)
    import_module("tall")._get_updating_kernel(32, F32, 0, False)
    import_module("updates")._get_kernel("scale_rows", F32, 3, 0)
    asked = list_asked(cupy)
    assert len(set(asked)) == 6
    assert set(asked) <= names
    cupy.RawKernel.assert_not_called()


@pytest.mark.parametrize("reason", ["none", "two kinds of GPUs", "an old driver"])
def test_other_kernels_are_compiled(reason, cupy, folder):
    if reason != "none":
        for job in precompile.list_jobs((H100,)):
            (folder / job.name).touch()
    if reason == "two kinds of GPUs":
        cupy.cuda.runtime.getDeviceCount.return_value = 2
        cupy.cuda.Device = lambda number: MagicMock(compute_capability=("80", "90")[number])
    if reason == "an old driver":
        cupy.RawModule.return_value.get_function.return_value.compile.side_effect = DriverError
    kernel = import_module("primitives")._get_sum_kernel("sum_squares", F32)
    assert kernel is cupy.RawKernel.return_value
    kernel.compile.assert_called_once()

"""What the first default parafac of a process costs, with empty and with filled caches."""

import json
import os
import subprocess
import sys

import cupy
import pytest

from tensorly_flycoo.engines.cuda import precompile

_FIRST_CALL = """
import json, time
import cupy, numpy as np, sparse, tensorly as tl, tensorly_flycoo
from cupy.cuda import compiler
from tensorly.decomposition import parafac

names, compile_one = [], compiler._compile_using_nvrtc_no_warning
def compile_and_note(source, *arguments, **options):
    names.append(source)
    return compile_one(source, *arguments, **options)
compiler._compile_using_nvrtc_no_warning = compile_and_note
cupy.cuda.runtime.free(0)
shape, rng = (2000, 1500, 40_000), np.random.default_rng(0)
coords = np.stack([rng.integers(0, size, 200_000) for size in shape])
x = sparse.COO(coords, rng.random(200_000) + 0.5, shape)
tl.set_backend("flycoo")
start_s = time.perf_counter()
tensor = tl.tensor(x)
num_built, built_s = len(names), time.perf_counter() - start_s
parafac(tensor, 32, n_iter_max=5)
cupy.cuda.Device().synchronize()
num_own = sum("tensorly_flycoo" in source for source in names)
print(json.dumps([built_s, time.perf_counter() - start_s, num_built, len(names), num_own]))
"""

_USE_MACHINE_CODE = """
from pathlib import Path
from tensorly_flycoo.engines.cuda import cubins
cubins.FOLDER = Path({folder!r})
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that makes the first call in a new process, whose caches are kept."""
    caches = {"CUPY_CACHE_DIR": str(tmp_path / "cupy"), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}

    def run(prologue=""):
        environment = {**os.environ, **caches, "TENSORLY_FLYCOO_DEVICE": "cuda"}
        command = [sys.executable, "-c", prologue + _FIRST_CALL]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = done.stderr.splitlines()
        return (*json.loads(done.stdout), [line for line in lines if "compil" in line])

    return run


def test_cold_and_warm(run):
    """Kernels are counted; seconds, 5 and 0.5 of an idle H100's, are only compared."""
    built_s, cold_s, num_built, num_compiled, _, lines = run()
    print(f"cold: {built_s:.2f} s to build, {cold_s:.2f} s in all, {num_compiled} compiled")
    assert len(lines) == 1  # for the process
    assert num_built <= 16
    assert num_compiled <= 44
    built_s, warm_s, _, num_compiled, _, lines = run()
    print(f"warm: {built_s:.2f} s to build, {warm_s:.2f} s in all")
    assert num_compiled == 0
    assert lines == []
    assert warm_s <= cold_s / 4


def test_a_wheels_machine_code_leaves_little_to_compile(run, tmp_path):
    """Of 26 kernels; CuPy compiles its own."""
    capability = divmod(int(cupy.cuda.Device().compute_capability), 10)
    gpus = tuple([gpu for gpu in precompile.GPUS if gpu.capability == capability])
    if not gpus:
        pytest.skip("no machine code was made for this GPU's sizes")
    precompile.compile_jobs(precompile.list_jobs(gpus), tmp_path / "cubins")
    _, cold_s, _, _, num_own, _ = run(_USE_MACHINE_CODE.format(folder=str(tmp_path / "cubins")))
    print(f"cold: {cold_s:.2f} s in all, {num_own} of the package compiled")
    assert num_own <= 2

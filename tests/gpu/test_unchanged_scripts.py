"""Scripts that know nothing of devices run on a GPU, and give what they give on a CPU."""

import json
import os
import subprocess
import sys

import cupy
import everyday_scripts
import numpy as np
import pytest
import sparse
import tensorly as tl
from public_calls import CASES, call

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.base.array_modules import move
from tensorly_flycoo.tensor.entrance import map_arrays
from tensorly_flycoo.testing import random_tensor

PRINT = "\nimport json\nprint(json.dumps([float(number) for number in result]))\n"


def run(script, device):
    scope = {}
    with tensorly_flycoo.set_device(device):
        exec(script, scope)
    assert not any(isinstance(number, cupy.ndarray) for number in scope["result"])
    return [float(number) for number in scope["result"]]


@pytest.mark.parametrize("name", everyday_scripts.SCRIPTS)
def test_a_script_gives_the_same_numbers(name):
    script = everyday_scripts.HEAD + everyday_scripts.SCRIPTS[name]
    np.testing.assert_allclose(run(script, "cuda"), run(script, "cpu"), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["numpy", "scipy", "a guess"])
def test_the_command_run(name, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(everyday_scripts.HEAD + everyday_scripts.SCRIPTS[name] + PRINT)
    found = []
    for device in ("cuda", "cpu"):
        command = [sys.executable, "-m", "tensorly_flycoo", "run", str(path)]
        env = os.environ | {"TENSORLY_FLYCOO_DEVICE": device}
        ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found.append(json.loads(ended.stdout.splitlines()[-1]))
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_no_result_of_a_tensor_on_the_host_is_on_the_gpu(name, kind):
    arrays = []
    map_arrays(lambda array: arrays.append(array) or array, call(name, kind))
    assert not any(isinstance(array, cupy.ndarray) for array in arrays)


def test_a_tensor_on_the_gpu_keeps_its_results_there():
    x = random_tensor((6, 7, 8), 60, random_state=0)
    init = tl.random.random_cp(x.shape, 2, random_state=0)
    assert isinstance(init.factors[0], np.ndarray)
    _, factors = tl.decomposition.parafac(x, 2, init=init, n_iter_max=2)
    assert isinstance(factors[0], cupy.ndarray)
    assert isinstance(mttkrp(x, init.factors, 0), cupy.ndarray)
    out = np.zeros((6, 2))
    assert mttkrp(x, init.factors, 0, out=out) is out
    np.testing.assert_array_equal(out, mttkrp(x, init.factors, 0).get())


def test_cupy_beside_a_coo_gives_cupy():
    coo = sparse.random((6, 7, 8), 0.2, random_state=0)
    factors = [np.random.default_rng(n).random((size, 3)) for n, size in enumerate(coo.shape)]
    found = mttkrp(coo, [cupy.asarray(factor) for factor in factors], 1)
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_array_equal(mttkrp(coo, factors, 1), found.get())


def test_an_iteration_moves_no_factors():
    """A callback that does not look at the model costs no copies."""
    coo = sparse.random((40, 50, 60), 0.05, random_state=0)
    seen = []
    options = {"init": "random", "random_state": 0, "tol": 0, "n_iter_max": 3}
    tl.decomposition.parafac(coo, 2, callback=lambda cp, error: seen.append(cp), **options)
    assert len(seen) >= 3
    assert all("factors" not in vars(cp) for cp in seen)
    assert isinstance(seen[-1].factors[0], np.ndarray)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x[:, :13],
        lambda x: x.T,
        lambda x: x.reshape(-1),
        lambda x: x.reshape(500, 20, -1),
        lambda x: x.astype(np.float32)[::3],
    ],
)
def test_large_arrays_come_back_whole(make):
    array = make(cupy.random.random((100_000, 30)))
    found = move(array, np)
    np.testing.assert_array_equal(found, cupy.ascontiguousarray(array).get(), strict=True)


def test_a_large_array_that_is_being_computed_comes_back_whole():
    with cupy.cuda.Stream(non_blocking=True):
        array = cupy.ones((400, 400))
        for _ in range(50):
            array = array @ array / 400
        large = cupy.repeat(array, 20, axis=0)
        np.testing.assert_allclose(move(large, np), np.ones((8000, 400)))


def test_a_coo_is_the_hosts_for_tensorlys_functions():
    coo = sparse.random((6, 7, 8), 0.2, random_state=0)
    assert "device" not in tl.context(coo)
    assert isinstance(tl.sum(coo, axis=(0, 1)), np.ndarray)
    assert not isinstance(tl.norm(coo), cupy.ndarray)
    assert tl.context(FlycooTensor.from_coo(coo))["device"] == "cuda"

"""GPU leaks, uninitialised memory, debug builds, and what happens without a GPU."""

import gc
import os
import subprocess
import sys
import threading

import cupy
import determinism
import numpy as np
import pytest
from tensorly.decomposition import non_negative_parafac_hals, parafac, tucker

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.testing import random_tensor

LAYOUTS = ("remap", "replicated", "indexed")
NUM_DECOMPOSITIONS = 1000
#: Allowed growth of a process's host memory over the whole test.
_HOST_SLACK_NBYTES = 2**25
#: Allowed pinned memory, which CuPy keeps for copies to the host.
_MAX_PINNED_BLOCKS = 32


def read_host_nbytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def decompose(number, num_iterations=2):
    """Build a tensor in the next layout and decompose it with the next function."""
    coords, values = determinism.draw_nonzeros()
    layout = LAYOUTS[number % 3]
    x = FlycooTensor(coords, np.abs(values), determinism.SHAPE, layout=layout, device="cuda")
    options = {"n_iter_max": num_iterations, "tol": 0, "init": "random", "random_state": number}
    function = (parafac, parafac, non_negative_parafac_hals, tucker)[number % 4]
    function(x, (3, 3, 3) if function is tucker else 3, **options)


def test_memory_is_flat_over_a_thousand_decompositions():
    pool, pinned = cupy.cuda.MemoryPool(), cupy.get_default_pinned_memory_pool()

    def measure():
        gc.collect()
        cupy.cuda.Device().synchronize()
        return pool.used_bytes(), pool.total_bytes()

    with cupy.cuda.using_allocator(pool.malloc):
        # Run all twelve pairs of layout and function twice, so that all is compiled and cached.
        for number in range(24):
            decompose(number)
        before, host_nbytes = measure(), read_host_nbytes()
        num_pinned = pinned.n_free_blocks()  # other tests of this process may have left some
        for number in range(NUM_DECOMPOSITIONS):
            decompose(number)
        assert measure() == before
        assert read_host_nbytes() <= host_nbytes + _HOST_SLACK_NBYTES
        assert pinned.n_free_blocks() <= num_pinned + _MAX_PINNED_BLOCKS


@pytest.mark.parametrize("num_iterations", [2, 12], ids=["piece by piece", "recorded"])
@pytest.mark.parametrize("number", range(12))
def test_memory_is_freed_without_the_garbage_collector(number, num_iterations):
    """It knows nothing of a GPU's memory, and may come late."""
    decompose(number, num_iterations)  # compiles
    pool = cupy.cuda.MemoryPool()
    gc.collect()
    gc.disable()
    try:
        with cupy.cuda.using_allocator(pool.malloc):
            decompose(number, num_iterations)
            assert pool.used_bytes() == 0
    finally:
        gc.enable()


def make_poisoned_pool(byte):
    """Return an allocator whose memory is filled with `byte`, and its pool."""
    pool = cupy.cuda.MemoryPool()

    def malloc(nbytes):
        pointer = pool.malloc(nbytes)
        if nbytes > 0:
            pointer.memset_async(byte, nbytes)
        return pointer

    return malloc, pool


@pytest.mark.parametrize("byte", [0xFF, 0x7F], ids=["nan", "large numbers"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_depends_on_what_memory_held(layout, byte):
    expected = determinism.compute_digests("cuda", layout)
    malloc, pool = make_poisoned_pool(byte)
    with cupy.cuda.using_allocator(malloc):
        assert np.isnan(cupy.empty(7).get()).all() == (byte == 0xFF)
        found = determinism.compute_digests("cuda", layout)
    assert pool.total_bytes() > 0
    for name in expected:
        assert found[name] == expected[name], name


def run_script(script, **environment):
    """Run `script` in a new process; return the finished process."""
    own = {name: value for name, value in os.environ.items() if "TENSORLY" not in name}
    command, environment = [sys.executable, "-c", script], {**own, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


BUILD = """
import cupy, itertools, numpy as np
from tensorly_flycoo import FlycooTensor, mttkrp
rng = np.random.default_rng(0)
coords = np.stack([rng.integers(0, size, 5000) for size in (60, 50, 40)])
factors = [cupy.ones((size, 5)) for size in (60, 50, 40)]
def build(layout="remap"):
    return FlycooTensor(coords, np.ones(5000), (60, 50, 40), layout=layout, device="cuda")
for layout in ("remap", "replicated", "indexed"):
    x = build(layout)
    for mode in (0, 1, 2, 2):
        mttkrp(x, factors, mode).get()
print("all is so", flush=True)
"""

#: Ways to corrupt a plan, and the assertion that detects each.
CORRUPTIONS = [
    pytest.param("x._layout.plans[1].remap_ids.shifts[0, 0] = 2**31", "positions[m] < nnz",
                 id="remap id"),
    pytest.param("x._layout.plans[1].pull_ids.lows[7] = 65535", "sources[m] < num_records",
                 id="pull id"),
    pytest.param("x._layout.plans[1].write_order.lows[:] = 255;"
                 "x._layout.plans[1].write_order.highs[:] = 255", "places[m] < count", id="write"),
    pytest.param("x._layout.records[7] = 2**32 - 1", "operands.last_out_row", id="row"),
    pytest.param("lows = x._layout.plans[0].pull_ids.lows; lows[:] = lows[::-1].copy()",
                 "out_row() > row", id="order"),
]  # fmt: skip


@pytest.mark.parametrize(("corruption", "assertion"), CORRUPTIONS)
def test_a_debug_build_says_what_is_not_so(corruption, assertion):
    script = f"{BUILD}x = build(); {corruption}\nmttkrp(x, factors, 0), mttkrp(x, factors, 1).get()"
    done = run_script(script, TENSORLY_FLYCOO_ASSERTIONS="1")
    assert "all is so" in done.stdout, done.stderr
    assert assertion in done.stdout + done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize("devices", ["", "-1"])
def test_a_gpu_that_is_taken_away(devices):
    """If CuPy finds no GPU, "cuda" raises an error that says so, and "auto" uses the CPU."""
    script = """
import numpy as np, tensorly_flycoo as tf
print(tf.FlycooTensor([[0], [2]], [1.0], (3, 3), device="auto").device)
for ask in (lambda: tf.set_device("cuda"), lambda: tf.estimate_memory((3, 3), 1, device="cuda")):
    try:
        ask()
    except RuntimeError as error:
        print(error)
"""
    done = run_script(script, CUDA_VISIBLE_DEVICES=devices)
    assert done.returncode == 0, done.stderr
    device, *errors = done.stdout.splitlines()
    assert device == "cpu"
    assert len(errors) == 2
    for error in errors:
        assert error.startswith('device "cuda" needs a GPU')


def test_a_thread_whose_first_call_is_a_kernel():
    """A new thread has no context of the GPU before the runtime's first call."""
    x = random_tensor((30, 40, 50), 1000, random_state=0, layout="replicated", device="cuda")
    factors = [cupy.ones((size, 5), x.dtype) for size in x.shape]
    expected = mttkrp(x, factors, 0)
    found = []
    thread = threading.Thread(target=lambda: found.append(mttkrp(x, factors, 0)))
    thread.start()
    thread.join()
    assert bool((found[0] == expected).all())

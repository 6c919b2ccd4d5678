"""What happens when another process holds most of a GPU. Run it alone: other tests would fail.

python tests/gpu/crowded_run.py
"""

import subprocess
import sys

import cupy
import numpy as np
import tensorly as tl
from tensorly.decomposition import parafac

from tensorly_flycoo.testing import random_tensor

#: Memory left by the other process, besides what the driver needs for each process.
LEFT_NBYTES = 2**30
HOLD = """
import cupy, sys
free, _ = cupy.cuda.runtime.memGetInfo()
held = cupy.cuda.runtime.malloc(free - {left})
print("holds", flush=True)
sys.stdin.read()
"""


def check_too_large():
    """Build a tensor that does not fit: the error says so, and all memory is freed."""
    try:
        random_tensor((10**6,) * 3, 60_000_000, random_state=0, device="cuda")
    except MemoryError as error:
        print(f"MemoryError: {error}")
    else:
        raise AssertionError("there was room")
    cupy.get_default_memory_pool().free_all_blocks()
    assert cupy.get_default_memory_pool().total_bytes() == 0


def check_small():
    """Build a tensor that fits: it gives the same bits as before."""
    x = random_tensor((3000, 2000, 1000), 100_000, random_state=0, device="cuda")
    with tl.backend_context("flycoo"):
        _, factors = parafac(x, 8, n_iter_max=3, init="random", random_state=0)
    return [factor.get() for factor in factors]


if __name__ == "__main__":
    expected = check_small()
    cupy.get_default_memory_pool().free_all_blocks()
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(left=LEFT_NBYTES)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout.readline() == "holds\n"
        check_too_large()
        for found, factor in zip(check_small(), expected, strict=True):
            np.testing.assert_array_equal(found, factor)
    finally:
        other.communicate(timeout=60)
    print("a small tensor gave the same bits")

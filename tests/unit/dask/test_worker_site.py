"""Memory of a worker's site."""

import platform
import subprocess
import sys

import numpy as np
import pytest

from tensorly_flycoo.dask.machine import Site
from tensorly_flycoo.engines.cpu.engine import CPU

COUNT_FAULTS = """
import resource
import numpy as np
from tensorly_flycoo.dask.freed_memory import give_back_memory, keep_freed_memory

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**18)  # 512 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

give_back_memory()
count_faults()
print(count_faults())
keep_freed_memory()
count_faults()
print(count_faults())
give_back_memory()
print(count_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="options of glibc")
def test_freed_memory_is_kept_for_the_next_array():
    run = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, check=True)
    given_back, kept, again = map(int, run.stdout.split())
    assert kept < 512 < 10 * 512 < min(given_back, again)


def test_matrices_are_joined():
    site = Site(CPU, lambda: None)
    for num_rows in (3, 3000):
        x = np.random.default_rng(0).random((num_rows, 20))
        np.testing.assert_array_equal(site.join([x, x[:0], 2 * x]), np.concatenate([x, 2 * x]))

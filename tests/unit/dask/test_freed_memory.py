"""Memory that a worker uses again."""

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource
import numpy as np
from tensorly_flycoo.dask.freed_memory import keep_freed_memory

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**18)  # 512 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory(is_kept=False)
count_faults()
print(count_faults())
keep_freed_memory(is_kept=True)
count_faults()
print(count_faults())
keep_freed_memory(is_kept=False)
print(count_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="options of glibc")
def test_freed_memory_is_kept_for_the_next_array():
    run = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, check=True)
    given_back, kept, again = map(int, run.stdout.split())
    assert kept < 512 < 10 * 512 < min(given_back, again)

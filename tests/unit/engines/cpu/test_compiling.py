"""Cached machine code is reused, but never after a change to a file in the same folder.

A call logs one line about all that it compiles.
"""

import os
import subprocess
import sys

import pytest

HELPER = """
from tensorly_flycoo.engines.cpu.compiling import kernel

@kernel
def add(x):
    return x + {number}
"""

CALLER = """
import helper
from tensorly_flycoo.engines.cpu.compiling import kernel
from tensorly_flycoo.engines.cpu.threads import launch
from tensorly_flycoo.base.reporting import log_compilation

@kernel
def call(x):
    return helper.add(x)

@kernel
def loop(first, last):
    helper.add(first)

with log_compilation():
    launch(loop, 100, work_ns=1)
    print(call(1), sum(call.stats.cache_misses.values()))
"""


def run(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, str(folder / "caller.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [*done.stdout.split(), *done.stderr.splitlines()]


@pytest.mark.slow
def test_a_change_to_a_neighbouring_file_recompiles(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(number=1))
    assert run(tmp_path)[:2] == ["2", "1"]
    assert run(tmp_path) == ["2", "0"]
    (tmp_path / "helper.py").write_text(HELPER.format(number=5))
    assert run(tmp_path)[:2] == ["6", "1"]
    assert run(tmp_path) == ["6", "0"]


CONFUSED = """
import os, pathlib
from tensorly_flycoo.engines.cpu.compiling import kernel

@kernel
def count(pair):
    return len(pair)

print(count((1,)), count((1, 2)), sum(count.stats.cache_hits.values()))
if os.environ.get("SWAP"):
    one, two = pathlib.Path(count._cache._cache_path).glob("*count*.nbc")
    texts = one.read_bytes(), two.read_bytes()
    two.write_bytes(texts[0]), one.write_bytes(texts[1])
"""


@pytest.mark.slow
def test_a_cached_kernel_of_another_signature_is_not_used(tmp_path, monkeypatch):
    """Two processes that compile at the same time can write each other's files."""
    (tmp_path / "caller.py").write_text(CONFUSED)
    assert run(tmp_path)[:3] == ["1", "2", "0"]
    monkeypatch.setenv("SWAP", "1")
    assert run(tmp_path)[:3] == ["1", "2", "2"]
    assert run(tmp_path)[:2] == ["1", "2"]


NAMED = """
from typing import NamedTuple
from tensorly_flycoo.engines.cpu.compiling import kernel

class {name}(NamedTuple):
    size: int

@kernel
def double(pair):
    return 2 * pair.size

print(double({name}(3)), sum(double.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_a_cache_that_names_a_class_of_an_older_version(tmp_path):
    """numba's index then cannot be read; it is written anew."""
    (tmp_path / "named.py").write_text(NAMED.format(name="Old"))
    (tmp_path / "caller.py").write_text("import named")
    assert run(tmp_path)[:2] == ["6", "1"]
    (tmp_path / "named.py").write_text(NAMED.format(name="New"))
    assert run(tmp_path)[:2] == ["6", "1"]
    assert run(tmp_path)[:2] == ["6", "0"]


FIRST_TOGETHER = """
import sys, threading
from tensorly_flycoo.engines.cpu.compiling import kernel

@kernel
def double(x):
    return 2 * x

results, ready = [], threading.Barrier(8)
def call(number):
    ready.wait()
    results.append(double(number * 1.0))
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(*sorted(results), len(double.signatures), sum(double.stats.cache_misses.values()))
"""


def test_threads_that_call_a_kernel_first_together(tmp_path):
    (tmp_path / "caller.py").write_text(FIRST_TOGETHER)
    *results, num_signatures, num_misses = run(tmp_path)[:10]
    assert [float(result) for result in results] == [2.0 * n for n in range(8)]
    assert (num_signatures, num_misses) == ("1", "1")


UNCACHED = """
import os, sys
import numba.core.caching as caching

def refuse(*_):
    raise OSError(28, "No space left on device")

if sys.argv[1] == "no folder":
    caching._CacheLocator.ensure_cache_path = refuse  # numba then finds no place
else:
    caching.IndexDataCacheFile.save = refuse

from tensorly_flycoo import command_line
from tensorly_flycoo.base.reporting import log_compilation
from tensorly_flycoo.engines.cpu.compiling import kernel

@kernel
def double(x):
    return 2 * x

with log_compilation():
    print(double(4))
command_line.main(["info"])
"""


@pytest.mark.parametrize("cause", ["no folder", pytest.param("no space", marks=pytest.mark.slow)])
def test_without_a_place_for_the_cache_one_line_says_what_to_do(tmp_path, cause, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "caller.py").write_text(UNCACHED)
    lines = run(tmp_path, cause)
    assert lines[0] == "8"
    said = [line for line in lines if "NUMBA_CACHE_DIR" in line]
    assert len(said) == 1
    assert "so each process compiles all kernels anew" in said[0]
    assert not any("cached on disk" in line for line in lines)

"""Cached machine code is reused, but never after a change to a file in the same folder.

A call logs one line about all that it compiles.
"""

import os
import re
import subprocess
import sys

HELPER = """
from tensorly_flycoo.engines.cpu.compiling import kernel

@kernel
def add(x):
    return x + {number}
"""

CALLER = """
import helper
from tensorly_flycoo.engines.cpu.compiling import kernel
from tensorly_flycoo.engines.cpu.launch import launch
from tensorly_flycoo.reporting import log_compilation

@kernel
def call(x):
    return helper.add(x)

@kernel
def loop(first, last):
    helper.add(first)

with log_compilation():
    launch(loop, 100)
    print(call(1), sum(call.stats.cache_misses.values()))
"""


def run(folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, str(folder / "caller.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [*done.stdout.split(), *done.stderr.splitlines()]


def test_a_change_to_a_neighbouring_file_recompiles(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(number=1))
    assert run(tmp_path)[:2] == ["2", "1"]
    assert run(tmp_path) == ["2", "0"]
    (tmp_path / "helper.py").write_text(HELPER.format(number=5))
    result, num_misses, line = run(tmp_path)
    assert (result, num_misses) == ("6", "1")
    assert re.fullmatch(r"compiled 2 kernels in \d+\.\d s; cached on disk for the next time", line)
    assert run(tmp_path) == ["6", "0"]

"""The command "info", as a process of its own."""

import subprocess
import sys


def test_info():
    command = [sys.executable, "-m", "tensorly_flycoo", "info"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = process.stdout.splitlines()
    assert lines[0].startswith("tensorly-flycoo ")
    assert lines[-2].startswith("CPU kernels  ")
    assert lines[-1].startswith("GPU kernels  ")
    assert any(line.startswith("CuPy ") for line in lines)
    own = [line for line in lines if " : " not in line]  # others are CuPy's, if there is a GPU
    assert all(line[15:17] == "  " and line[17] != " " for line in own)

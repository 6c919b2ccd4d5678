"""The kernels also compile with the NVRTC of CUDA 12, which CuPy's wheel for CUDA 12 loads."""

import json
import subprocess
import sys
from importlib import metadata

import pytest
from cuda_sources import ON_LINUX
from test_kernels import specialise_all

from tensorly_flycoo.engines.cuda.source import specialise

pytestmark = ON_LINUX

#: In a process of its own: two versions of the library do not get on with each other.
_COMPILE = """
import ctypes, json, sys
path, jobs = json.load(sys.stdin)
nvrtc, logs = ctypes.CDLL(path), {}
for file, (source, options) in jobs.items():
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), file.encode(), 0, None, None
    )
    result = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    logs[file] = result, log.value.decode()
print(json.dumps(logs))
"""


@pytest.fixture(scope="module")
def logs():
    """Compile one specialisation of each kernel; return NVRTC's result and log for each file."""
    files = metadata.files("nvidia-cuda-nvrtc-cu12") or []
    (library,) = [f for f in files if f.name.startswith("libnvrtc.so") and "alt" not in f.name]
    jobs = {}
    for file, macros in specialise_all().items():
        jobs[file] = specialise(file, macros), ["-std=c++17", "-arch=sm_90"]
    job = json.dumps([str(library.locate()), jobs])
    command = [sys.executable, "-c", _COMPILE]
    done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("file", specialise_all())
def test_it_compiles(file, logs):
    result, log = logs[file]
    assert result == 0, log

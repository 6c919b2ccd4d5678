"""Compile CUDA sources without a GPU, by NVRTC."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorly_flycoo.engines.cuda.source import express, specialise
from tensorly_flycoo.format.packing import RecordFormat

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="NVRTC's wheel is for Linux")


def compile_text(text, name, architecture, macros, *options):
    """Return the log of NVRTC and the assembler; raise AssertionError if compilation fails."""
    from cuda.bindings import nvrtc

    options = ["-std=c++17", "-ftz=true", "--ptxas-options=-v", f"-arch={architecture}", *options]
    options += [f"-D{macro}={express(value)}" for macro, value in macros.items()]
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], [])
    encoded = [option.encode() for option in options]
    error, *_ = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    log = log.decode().rstrip("\0 ")
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, log
    return log


def compile_source(file, architecture, macros):
    """Compile a source as the launcher does, with headers inlined."""
    return compile_text(specialise(file, macros), file, architecture, {})


def compile_all(jobs):
    """Compile each (file, architecture, macros) once, on two threads; nothing may spill."""
    different = {
        (file, architecture, *sorted(macros.items())) for file, architecture, macros in jobs
    }
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda job: compile_source(*job[:2], dict(job[2:])), different))
    assert logs
    for log in logs:
        check_no_spills(log)


def check_no_spills(log):
    """Check that no register spills to memory, which would slow down every loop iteration."""
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    assert spills, log
    assert set(spills) == {"0"}, log


def make_format(ndim, dtype, bits=20):
    """Return the record format of a tensor with modes of 2**bits indices."""
    return RecordFormat.of((2**bits,) * ndim, dtype, "uint32")

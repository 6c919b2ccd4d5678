"""Run a CUDA kernel without a GPU: g++ compiles it, and a block's threads take turns.

`emulated_gpu.hpp` stands in for CUDA C++ and for `instructions.cuh`, whose functions are one
instruction each. What depends on the hardware may go unnoticed.
"""

import ctypes
import functools
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tensorly_flycoo.engines.cuda.source import specialise

HAS_COMPILER = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="needs g++ on Linux"
)

HEADER = Path(__file__).with_suffix(".hpp")

#: What the header and the kernels have in common, without which g++ ignores a compiled header.
_COMPILE = ["g++", "-std=c++17", "-O1", "-w", "-fPIC"]

_KERNEL = re.compile(r"__global__ void\s+(?:__launch_bounds__\([^()]*\)\s+)?(\w+)\(")

#: Runs one kernel of a source.
_RUN = """
struct {name}_arguments {{
    {members}
}};

extern "C" void run_{name}(const {name}_arguments* given, int num_blocks_x, int num_blocks_y,
                           int block_size)
{{
    static {name}_arguments arguments;
    std::memcpy(&arguments, given, sizeof arguments);
    run_blocks([] {{ {name}({values}); }}, num_blocks_x, num_blocks_y, block_size);
}}
"""


class EmulatedKernel:
    """A kernel on the host, in place of a `DirectKernel`."""

    def __init__(self, file, name, formats, macros):
        text = _drop_instructions(specialise(file, macros))
        # Dynamic shared memory is the header's; the rest of what is shared is static.
        text = re.sub(r"extern __shared__ \w+ memory\[\];", "", text)
        runs = "".join(_write_run(text, name) for name in _KERNEL.findall(text))
        library = _compile(f"#include <{HEADER.name}>\n{text}{runs}")
        self._run = getattr(ctypes.CDLL(str(library)), f"run_{name}")
        self._format = struct.Struct(formats)

    def __call__(self, grid, block_size, *values):
        arguments = self._format.pack(*values) + bytes(8)  # a structure may end with padding
        self._run(arguments, *grid, block_size)


@functools.cache
def get_direct_kernel(file, name, formats, device_id, shared_nbytes=0, **macros):
    """Stand in for `launch.get_direct_kernel`."""
    return EmulatedKernel(file, name, formats, macros)


@functools.cache
def _compile_header():
    """Compile the header for all kernels of this process; return the folder that has it."""
    folder = tempfile.TemporaryDirectory()
    compiled = f"{folder.name}/{HEADER.name}.gch"
    subprocess.run([*_COMPILE, "-x", "c++-header", HEADER, "-o", compiled], check=True)
    return folder


@functools.cache
def _compile(text):
    """Compile a source, once in this process, and return the library's path."""
    folder = Path(_compile_header().name)
    source = folder / f"{len(list(folder.iterdir()))}.cpp"
    source.write_text(text)
    library = source.with_suffix(".so")
    command = [*_COMPILE, "-shared", "-I", folder, source, "-o", library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return library


def _write_run(text, name):
    """Write the code that calls a kernel, whose arguments become members of a structure."""
    [parameters] = re.findall(rf"\b{name}\(([^()]*)\)\n{{", text)
    declarations = [" ".join(parameter.split()) for parameter in parameters.split(",")]
    # A member is written to, unlike a parameter.
    declarations = [d if "*" in d else d.removeprefix("const ") for d in declarations]
    names = [re.search(r"\w+$", declaration)[0] for declaration in declarations]
    values = ", ".join(f"arguments.{parameter}" for parameter in names)
    return _RUN.format(members=" ".join(f"{d};" for d in declarations), name=name, values=values)


def _drop_instructions(text):
    """Leave out the lines of `instructions.cuh` and `architecture.cuh`."""
    kept, is_kept = [], True
    for line in text.splitlines():
        match = re.match(r'#line \d+ "(.+)"', line)
        if match:
            is_kept = not match[1].endswith(("instructions.cuh", "architecture.cuh"))
        elif is_kept:
            kept.append(line)
    return "\n".join(kept)

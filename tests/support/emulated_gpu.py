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

#: Runs all blocks of a grid.
_RUN = """
struct Arguments {{
    {members}
}} arguments;

void run_thread()
{{
    {name}({values});
    block->is_done[threadIdx.x] = true;
    while (true) yield();
}}

extern "C" void run(const Arguments* given, int num_blocks, int block_size)
{{
    std::memcpy(&arguments, given, sizeof arguments);
    blockDim = {{unsigned(block_size), 1, 1}};
    std::srand(0);
    bool is_turn;
    for (int number = 0; number < num_blocks; ++number) {{
        blockIdx = {{unsigned(number), 0, 0}};
        std::memset(memory, 0xff, sizeof memory);  // nan
        Block own;
        block = &own;
        own.threads.resize(block_size);
        own.waits.resize(block_size);
        own.is_done.resize(block_size);
        own.warps.resize(block_size / 32);
        while (stacks.size() < block_size) stacks.emplace_back(new char[stack_nbytes]);
        for (int number = 0; number < block_size; ++number) {{
            ucontext_t& thread = own.threads[number];
            getcontext(&thread);
            thread.uc_stack = {{stacks[number].get(), 0, stack_nbytes}};
            thread.uc_link = nullptr;
            makecontext(&thread, run_thread, 0);
        }}
        // One warp is slow: what lacks a barrier goes wrong.
        const int slow = std::rand() % own.warps.size();
        for (bool is_done = false; !is_done;) {{
            is_done = true;
            for (int thread = 0; thread < block_size; ++thread) {{
                if (thread % 32 == 0) is_turn = thread / 32 != slow || std::rand() % 16 == 0;
                if (own.is_done[thread]) continue;
                is_done = false;
                if (!is_turn || !own.waits[thread].is_over()) continue;
                threadIdx = {{unsigned(thread), 0, 0}};
                swapcontext(&own.scheduler, &own.threads[thread]);
            }}
        }}
    }}
}}
"""


class EmulatedKernel:
    """A kernel on the host, in place of a `DirectKernel`."""

    def __init__(self, file, name, formats, macros):
        text = _drop_instructions(specialise(file, macros))
        # Dynamic shared memory is the header's; the rest of what is shared is static.
        text = re.sub(r"extern __shared__ \w+ memory\[\];", "", text)
        text = f"#include <{HEADER.name}>\n{text}{_write_run(text, name)}"
        self._run = ctypes.CDLL(str(_compile(text))).run
        self._format = struct.Struct(formats)

    def __call__(self, grid, block_size, *values):
        num_blocks, num_parts = grid
        assert num_parts == 1
        arguments = self._format.pack(*values) + bytes(8)  # a structure may end with padding
        self._run(arguments, num_blocks, block_size)


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

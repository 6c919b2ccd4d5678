"""The kernels also compile with the NVRTC of CUDA 12, which CuPy's wheel for CUDA 12 loads."""

import ctypes
from importlib import metadata

import pytest
from cuda_sources import ON_LINUX
from test_kernels import specialise_all

from tensorly_flycoo.engines.cuda.source import load_source

pytestmark = ON_LINUX
_WHEEL = "nvidia-cuda-nvrtc-cu12"


@pytest.fixture(scope="module")
def nvrtc():
    """Load CUDA 12's library; `cuda.bindings` loads CUDA 13's."""
    files = metadata.files(_WHEEL) or []
    (library,) = [f for f in files if f.name.startswith("libnvrtc.so") and "alt" not in f.name]
    return ctypes.CDLL(str(library.locate()))


@pytest.mark.parametrize(("file", "macros"), specialise_all().items(), ids=specialise_all())
def test_it_compiles(file, macros, nvrtc):
    options = ["-std=c++17", "-arch=sm_90", *(f"-D{name}={text}" for name, text in macros.items())]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = load_source(file).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, file.encode(), 0, None, None)
    result = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert result == 0, log.value.decode()

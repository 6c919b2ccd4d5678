"""Compile the kernels of common calls to machine code, for a wheel; needs no GPU and no CuPy.

``python -m tensorly_flycoo.engines.cuda.precompile`` fills the folder of `cubins.py`, with the
compiler (NVRTC) of the package nvidia-cuda-nvrtc-cu12: drivers for CUDA 12 and 13 run its code.
"""

import argparse
import ctypes
import itertools
import math
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from ...base.value_dtypes import VALUE_DTYPES
from ...format.packing import RecordFormat
from ..row_rules import Method
from . import cubins, structs, tuning
from .macros import (
    IdBits,
    Macros,
    Ratios,
    add_measures_macros,
    cut_tile,
    mttkrp_macros,
    pack_macros,
    products_macros,
    read_keys_macros,
    remap_macros,
    split_columns_macros,
    split_ids_macros,
    sweep_rows_macros,
    update_rows_macros,
)
from .source import specialise

#: A source file, and the macros that specialise it.
Kernel: TypeAlias = tuple[str, Macros]

#: The GPUs: one for each size of shared memory of each architecture.
GPUS = (
    tuning.Gpu((8, 0), 164 * 1024),
    tuning.Gpu((8, 6), 100 * 1024),  # and 8.9
    tuning.Gpu((9, 0), 228 * 1024),
    tuning.Gpu((10, 0), 228 * 1024),
)

_DTYPES = tuple(VALUE_DTYPES)
_NDIMS = (3, 4, 5)

#: Ranks of MTTKRP, and of models of counts.
_RANKS = (3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100)
_COUNT_RANKS = (3, 4, 5, 8, 10, 16)

_U16, _U32, _U64 = (np.dtype(f"uint{bits}") for bits in (16, 32, 64))
_BLOCK = {"BLOCK_SIZE": tuning.BLOCK_SIZE}
_ROWS = {"ROWS_PER_BLOCK": tuning.ROWS_PER_BLOCK}


def list_kernels(gpu: tuning.Gpu) -> Iterator[Kernel]:
    """Yield the kernels of common calls on a GPU; some more than once.

    They build a tensor of up to 2**32 nonzeros of 3 to 5 modes, and run `parafac`, with either
    start, non-negative `parafac`, and models of counts.
    """
    yield from _list_kernels_of_rows()
    for dtype in _DTYPES:
        for num_modes in _NDIMS:
            for bits_per_mode in (6, 12):  # records of the fewest words, and of more
                record_format = RecordFormat.of((2**bits_per_mode,) * num_modes, dtype, _U32)
                yield from _list_kernels_of_records(record_format, gpu)


def _list_kernels_of_rows() -> Iterator[Kernel]:
    """Yield the kernels that know neither records nor the GPU."""
    for row in (_U32, np.dtype(np.int64)):
        yield "list_empty_rows.cu", {"ROW": row, **_ROWS, **_BLOCK}
    yield "store_places.cu", {"PLACE": _U32}
    yield "buckets.cu", {"PLACE": _U32, "BUCKET": _U16, "OFFSET": _U32}
    yield "unfoldings.cu", {"ENTRIES_PER_BLOCK": tuning.ROWS_PER_BLOCK, **_BLOCK}
    yield "add_measures.cu", add_measures_macros(Method.HALS)
    for dtype in map(np.dtype, _DTYPES):
        value = {"VALUE": dtype}
        yield "sum_values.cu", {**value, "VALUES_PER_BLOCK": tuning.ROWS_PER_BLOCK, **_BLOCK}
        yield "inner_product.cu", {**value, **_ROWS, **_BLOCK}
        yield "mersenne_twister.cu", value
        yield "partial_rows.cu", {**value, "NUM_WARPS": 16, "OUT_BLOCKS": 1}
        for vector in {dtype, np.dtype(np.float64)}:
            yield "place_vectors.cu", {"VECTOR": vector, "PLACED": dtype, **_BLOCK}
        for rank in _RANKS:
            num_columns = min(tuning.BLOCK_SIZE, 1 << (rank - 1).bit_length())
            yield "scale_rows.cu", {**value, "NUM_COLUMNS": num_columns, **_BLOCK}
            yield "products.cu", products_macros(rank, dtype)
            yield "update_rows.cu", update_rows_macros(rank, dtype)
            cut = tuning.cut_sweep(rank, dtype.itemsize)
            if cut is not None:
                yield "sweep_rows.cu", sweep_rows_macros(cut, dtype)


def _list_kernels_of_records(record_format: RecordFormat, gpu: tuning.Gpu) -> Iterator[Kernel]:
    """Yield the kernels that build a tensor of such records, and compute with it."""
    slot_nbytes = structs.slot_nbytes(record_format)
    num_inputs = record_format.ndim - 1
    tile_size = tuning.choose_tile_size(slot_nbytes, num_inputs, gpu)
    occupancy = tuning.choose_occupancy(gpu, num_inputs)
    pull_bits = IdBits.of(tuning.BUCKET_SIZE, tile_size)
    yield "pack.cu", pack_macros(record_format, np.dtype(np.int64))
    for key, place in itertools.product((_U16, _U32), (None, _U32)):
        yield "read_keys.cu", read_keys_macros(record_format, 1, key, place)
    for num_fields in range(2, record_format.ndim + 1):
        for key, place in itertools.product((_U32, _U64), (None, _U32)):
            yield "read_keys.cu", read_keys_macros(record_format, num_fields, key, place)
    yield "split_columns.cu", split_columns_macros(record_format, None)
    yield "split_columns.cu", split_columns_macros(record_format, _U32)
    yield "scatter_records.cu", {"NUM_WORDS": record_format.num_words, "OFFSET": _U32}
    yield "order_writes.cu", {"REMAP_ID": _U32, "TILE_SIZE": tile_size, **_BLOCK}
    yield "find_runs.cu", {"REMAP_ID": _U32, **cut_tile(tile_size)}
    yield "split_ids.cu", split_ids_macros(_U32, pull_bits, tile_size)
    yield "split_ids.cu", split_ids_macros(_U16, IdBits.of(tile_size, tile_size), tile_size)
    yield "remap_only.cu", remap_macros(record_format, tile_size, pull_bits, _U32)
    common = (record_format, tile_size)
    for rank in _RANKS:
        num_loads = tuning.choose_num_loads(rank, record_format.dtype.itemsize, num_inputs)
        cut = _cut_rank(rank, record_format, num_loads)
        macros = mttkrp_macros(*common, cut, occupancy, _U32, pull_bits, remap_dtype=_U32)
        yield "mttkrp_remap.cu", macros
    for rank in _COUNT_RANKS:
        cut = _cut_rank(rank, record_format)
        # Records that stay are read for a model that is evaluated again.
        uses = ((Ratios.DIVIDE, _U32), (Ratios.DIVIDE_AND_LOG, _U32), (Ratios.DIVIDE_AND_LOG, None))
        for ratios, remap_dtype in uses:
            macros = mttkrp_macros(*common, cut, occupancy, _U32, pull_bits, remap_dtype, ratios)
            yield "mttkrp_remap.cu", macros


def _cut_rank(rank: int, record_format: RecordFormat, num_loads: int = 1) -> tuning.RankCut:
    """Return the cut of a rank for factors with aligned rows.

    They are, or are copied to such rows, unless nonzeros are few.
    """
    itemsize = record_format.dtype.itemsize
    store_alignment = math.gcd(16, rank * itemsize)
    return tuning.cut_rank(rank, itemsize, 16, store_alignment, num_loads)


class Job(NamedTuple):
    """A text to compile for an architecture, and the name of its file."""

    text: str
    architecture: str

    @property
    def name(self) -> str:
        return cubins.name_cubin(self.text, cubins.OPTIONS, self.architecture)


def list_jobs(gpus: tuple[tuning.Gpu, ...] = GPUS) -> list[Job]:
    """List what to compile for some GPUs, each once."""
    jobs: dict[Job, None] = {}
    for gpu in gpus:
        architecture = cubins.choose_architecture(gpu.capability[0])
        for file, macros in list_kernels(gpu):
            jobs[Job(specialise(file, macros), architecture)] = None
    return list(jobs)


def compile_jobs(jobs: list[Job], folder: Path, num_processes: int | None = None) -> int:
    """Compile to files in a folder; return the bytes of all."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = []
    # New processes, since one that has loaded another version of the compiler cannot load this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context) as pool:
        compiled = pool.map(_compile_cubin, jobs, chunksize=8)
        for job, cubin in zip(jobs, compiled, strict=True):
            (folder / job.name).write_bytes(cubin)
            sizes.append(len(cubin))
    return sum(sizes)


def _compile_cubin(job: Job) -> bytes:
    """Compile a text to machine code, with the options that it is compiled with by CuPy."""
    nvrtc = ctypes.CDLL(_find_library())
    options = [*cubins.OPTIONS, *cubins.CUPY_OPTIONS, f"-arch={job.architecture}"]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), job.text.encode(), b"", 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), encoded):
            raise RuntimeError(_read(nvrtc, "ProgramLog", program).decode())
        return _read(nvrtc, "CUBIN", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    """Return a text or machine code of a program."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def _find_library() -> str:
    """Return the path of the compiler's library."""
    files = metadata.files("nvidia-cuda-nvrtc-cu12") or []
    (library,) = [f for f in files if f.name.startswith("libnvrtc.so") and "alt" not in f.name]
    return str(library.locate())


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Compile common kernels, for a wheel.")
    parser.add_argument("--processes", type=int, help="how many compile at a time")
    options = parser.parse_args(arguments)
    jobs = list_jobs()
    for outdated in cubins.FOLDER.glob("*.cubin"):
        outdated.unlink()
    nbytes = compile_jobs(jobs, cubins.FOLDER, options.processes)
    sys.stdout.write(f"{len(jobs)} kernels, {nbytes / 1e6:.1f} MB in {cubins.FOLDER}\n")


if __name__ == "__main__":
    main()

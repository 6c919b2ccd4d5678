"""The CUDA sources, without a GPU: how they are put together, and that all of them compile.

NVRTC is told to report what the assembler made of a kernel. A spill is a register that went to
memory, and would be in every iteration of an inner loop.
"""

import importlib.util
import itertools
import math
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tensorly_flycoo.engines import cuda
from tensorly_flycoo.engines.cuda import tuning
from tensorly_flycoo.engines.cuda.macros import (
    gram_macros,
    inner_product_macros,
    invert_macros,
    mttkrp_macros,
    multiply_rows_macros,
    order_writes_macros,
    pack_macros,
    pad_rows_macros,
    partial_rows_macros,
    remap_macros,
    sum_groups_macros,
    sweep_nonnegative_macros,
    ttmc_macros,
)
from tensorly_flycoo.engines.cuda.source import load_source
from tensorly_flycoo.format.packing import RecordFormat

FOLDER = Path(cuda.__file__).parent / "kernels"
ENTRIES = sorted(path.name for path in FOLDER.glob("*.cu"))
HEADERS = sorted(path.name for path in FOLDER.glob("*.cuh"))
BENCHMARK = Path(__file__).parents[4] / "examples" / "benchmark_gpu"
RANKS = (1, 7, 10, 16, 25, 32, 50, 64, 100, 128, 200)
DTYPES = ("float32", "float64")
#: And the shared memory that the blocks of a multiprocessor have between them.
ARCHITECTURES = {"sm_80": 164 * 1024, "sm_90": 228 * 1024, "sm_100": 228 * 1024}
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="NVRTC's wheel is for Linux")


def compile_source(file, architecture, macros):
    """Return what NVRTC says; raise if it does not compile."""
    from cuda.bindings import nvrtc

    options = [f"-arch={architecture}", "-std=c++17", "-ftz=true", "--ptxas-options=-v"]
    options += [f"-D{macro}={value}" for macro, value in macros.items()]
    source = load_source(file).encode()
    _, program = nvrtc.nvrtcCreateProgram(source, file.encode(), 0, [], [])
    encoded = [option.encode() for option in options]
    error, *_ = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    log = log.decode().rstrip("\0 ")
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, log
    return log


def check_no_spills(log):
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    assert spills, log
    assert set(spills) == {"0"}, log


def make_format(ndim, dtype, bits=20):
    return RecordFormat.of((2**bits,) * ndim, dtype, "uint32")


def compile_all(jobs):
    """Compile (file, architecture, macros) on two threads; what is there twice only once."""
    different = {
        (file, architecture, *sorted(macros.items())) for file, architecture, macros in jobs
    }
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda job: compile_source(*job[:2], dict(job[2:])), different))
    assert logs
    for log in logs:
        check_no_spills(log)


@ON_LINUX
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ndim", [1, 2, 3, 4, 5, 8])
def test_every_cut_of_the_ranks_compiles(ndim, dtype, architecture):
    """With all that a kernel can do, pulling and remapping, and with neither."""
    record_format = make_format(ndim, dtype)
    itemsize = record_format.dtype.itemsize
    slot_nbytes = tuning.slot_nbytes(record_format.record_nbytes, ndim, itemsize)
    tile_size = tuning.choose_tile_size(slot_nbytes, ndim - 1, ARCHITECTURES[architecture])
    rows = [(rank, itemsize, math.gcd(16, rank * itemsize)) for rank in RANKS]
    cuts = {tuning.cut_rank(*row, row[-1]) for row in rows}  # factors that lie as they come
    cuts |= {tuning.cut_rank(rank, itemsize, 16, stores) for rank, itemsize, stores in rows}
    ids = [np.dtype(np.uint32)] * 3
    compile_all(
        (
            "mttkrp.cu",
            architecture,
            mttkrp_macros(record_format, tile_size, cut, *dtypes),
        )
        for cut in cuts
        for dtypes in (ids, ids[:1])
    )


@ON_LINUX
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_way_to_fetch_a_record_compiles(architecture):
    """Sorted copies, an index, remapping; also where ids take 64 bits, and tiles are small."""
    narrow, wide, short = np.dtype(np.uint32), np.dtype(np.uint64), np.dtype(np.uint16)
    layouts = [(None, None), (narrow, None), (wide, None), (narrow, narrow), (short, wide)]
    jobs = []
    for ids, tile_size, bits in itertools.product(layouts, (256, 1024), (10, 32)):
        record_format = make_format(3, "float32", bits)
        cut = tuning.cut_rank(32, 4, 16, 16)
        macros = mttkrp_macros(record_format, tile_size, cut, narrow, *ids)
        jobs.append(("mttkrp.cu", architecture, macros))
        if ids[1] is not None:
            jobs.append(("remap.cu", architecture, remap_macros(record_format, tile_size, *ids)))
            macros = order_writes_macros(tile_size, ids[1])
            jobs.append(("order_writes.cu", architecture, macros))
    formats = [make_format(ndim, dtype) for ndim in (1, 3, 8) for dtype in DTYPES]
    coord_dtypes = [np.dtype(kind + size) for kind in "iu" for size in "1248"]
    for record_format, coord_dtype in itertools.product(formats, coord_dtypes):
        if record_format.ndim == 3 or coord_dtype == "int64":
            jobs.append(("pack.cu", architecture, pack_macros(record_format, coord_dtype)))
    jobs += [("partial_rows.cu", architecture, partial_rows_macros(np.dtype(d))) for d in DTYPES]
    jobs += [("sum_groups.cu", architecture, sum_groups_macros(np.dtype(d))) for d in DTYPES]
    for dtype, num_columns in itertools.product(map(np.dtype, DTYPES), (1, 2, 3, 32, 208)):
        jobs.append(("pad_rows.cu", architecture, pad_rows_macros(dtype, num_columns)))
    for rank in (1, 2, 3, 4, 7, 10, 16, 20, 25, 32):
        jobs.append(("gram.cu", architecture, gram_macros(rank)))
        jobs.append(("invert.cu", architecture, invert_macros(rank)))
        tight, apart = multiply_rows_macros(rank, 1), multiply_rows_macros(rank, 4)
        jobs += [("multiply_rows.cu", architecture, macros) for macros in (tight, apart)]
    for dtype in map(np.dtype, DTYPES):
        jobs.append(("inner_product.cu", architecture, inner_product_macros(dtype, 25)))
        for rank in (1, 10, 25, 32, 200):
            macros = sweep_nonnegative_macros(dtype, rank)
            jobs.append(("sweep_nonnegative.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_many_modes_compile(architecture):
    """Their nonzeros leave room for so few in a tile that a lane has one at a time."""
    record_format = make_format(64, "float64")
    slot_nbytes = tuning.slot_nbytes(record_format.record_nbytes, 64, 8)
    tile_size = tuning.choose_tile_size(slot_nbytes, 63, ARCHITECTURES[architecture])
    cut, ids = tuning.cut_rank(1, 8, 16, 16), [np.dtype(np.uint32)] * 3
    macros = mttkrp_macros(record_format, tile_size, cut, *ids)
    compile_source("mttkrp.cu", architecture, macros)  # some registers do spill


@ON_LINUX
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ttmc_compiles(architecture):
    """With few columns and with many, pulling by narrow and wide ids and not at all."""
    narrow, wide = np.dtype(np.uint32), np.dtype(np.uint64)
    cases = [
        (1, "float64", 256, narrow, narrow),
        (2, "float64", 256, narrow, narrow),
        (3, "float32", 9, wide, None),
        (3, "float32", 256, narrow, narrow),
        (3, "float64", 256, wide, wide),
        (4, "float64", 256, narrow, narrow),
        (5, "float32", 256, narrow, narrow),
        (8, "float64", 256, narrow, narrow),
    ]
    jobs = []
    for ndim, dtype, num_columns, *dtypes in cases:
        record_format = make_format(ndim, dtype)
        slot_nbytes = tuning.slot_nbytes(
            record_format.record_nbytes, ndim, record_format.dtype.itemsize
        )
        tile_size = tuning.choose_tile_size(slot_nbytes, ndim - 1, ARCHITECTURES[architecture])
        cut = tuning.cut_columns(num_columns, ndim - 1)
        macros = ttmc_macros(record_format, tile_size, cut, *dtypes)
        jobs.append(("ttmc.cu", architecture, macros))
    compile_all(jobs)


@pytest.mark.parametrize("num_inputs", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_columns", [1, 2, 9, 127, 128, 255, 256, 1000, 1025, 4096, 10**6])
def test_a_cut_holds_all_columns_of_ttmc(num_columns, num_inputs):
    cut = tuning.cut_columns(num_columns, num_inputs)
    assert tuning.BLOCK_SIZE % cut.group_size == 0
    part = cut.lane_columns * cut.group_size
    assert (cut.num_parts - 1) * part < num_columns <= cut.num_parts * part


@ON_LINUX
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ndim", [3, 4, 5])
def test_the_benchmark_s_floor_compiles(ndim, dtype):
    """The kernel that only reads, in every setting that it is tried with."""
    spec = importlib.util.spec_from_file_location("benchmark_macros", BENCHMARK / "macros.py")
    macros = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    record_format = make_format(ndim, dtype)
    cuts = [tuning.cut_rank(rank, record_format.dtype.itemsize, 16, 16) for rank in (16, 32, 64)]
    compile_all(
        (macros.SOURCE, "sm_90", macros.gather_only_macros(record_format, cut, setting))
        for setting, cut in itertools.product(macros.SETTINGS, cuts)
    )


@ON_LINUX
@pytest.mark.parametrize("ndim", [1, 3])
def test_assertions_compile(ndim):
    """They are of a debug build, whose registers may spill."""
    record_format, ids = make_format(ndim, "float32"), [np.dtype(np.uint32)] * 3
    cut, columns = tuning.cut_rank(32, 4, 16, 16), tuning.cut_columns(256, ndim - 1)
    for file, macros in [
        ("mttkrp.cu", mttkrp_macros(record_format, 256, cut, *ids)),
        ("remap.cu", remap_macros(record_format, 256, *ids[1:])),
        ("ttmc.cu", ttmc_macros(record_format, 256, columns, *ids[1:])),
    ]:
        checked = load_source(file)
        assert checked.count("ASSERT(") > 1  # the macro, and what it looks at
        compile_source(file, "sm_90", {**macros, "ASSERTIONS": 1})


@ON_LINUX
def test_the_benchmark_s_delay_compiles():
    compile_all([(str(BENCHMARK / "delay.cu"), "sm_90", {})])


@ON_LINUX
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_missing_macro_is_named(entry):
    with pytest.raises(AssertionError, match=r'#error "\w+: '):
        compile_source(entry, "sm_90", {})


@pytest.mark.parametrize("entry", ENTRIES)
def test_sources_are_whole(entry):
    """No include of ours is left to the compiler, whose cache would not see it change."""
    source = load_source(entry)
    assert '#include "' not in source
    for header in HEADERS:
        assert source.count(f'#line 1 "{header}"') <= 1
    assert source.count('extern "C" __global__') == 1


def test_every_header_is_used():
    used = set().union(*(re.findall(r'#line 1 "(\w+\.cuh)"', load_source(e)) for e in ENTRIES))
    assert used == set(HEADERS)


def test_lines_keep_their_numbers():
    """An error message of the compiler names file and line as they are on disk."""
    number, file = None, None
    for line in load_source("mttkrp.cu").splitlines():
        match = re.match(r'#line (\d+) "(.+)"', line)
        if match:
            number, file = int(match[1]), match[2]
            continue
        assert (FOLDER / file).read_text().splitlines()[number - 1] == line
        number += 1


def test_a_source_elsewhere_includes_our_headers():
    source = load_source(str(BENCHMARK / "gather_only.cu"))
    assert '#include "' not in source
    assert source.count('#line 1 "mttkrp.cuh"') == 1


def test_unknown_source():
    with pytest.raises(FileNotFoundError):
        load_source("nothing.cu")


@pytest.mark.parametrize("store_alignment", [4, 8, 16])
@pytest.mark.parametrize("load_alignment", [4, 8, 16])
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("rank", [*RANKS, 2, 3, 4, 5, 33, 1000])
def test_a_cut_holds_all_columns(rank, itemsize, load_alignment, store_alignment):
    load_alignment, store_alignment = max(load_alignment, itemsize), max(store_alignment, itemsize)
    cut = tuning.cut_rank(rank, itemsize, load_alignment, store_alignment)
    assert cut.load_columns * itemsize <= load_alignment
    assert cut.store_columns * itemsize <= store_alignment
    assert cut.lane_columns % cut.load_columns == 0
    assert cut.load_columns % cut.store_columns == 0
    aligned = tuning.cut_rank(rank, itemsize, 16, 16)
    assert (cut.lane_columns, cut.group_size) == (aligned.lane_columns, aligned.group_size)
    assert cut.group_size in (1, 2, 4, 8, 16, 32)
    part = cut.lane_columns * cut.group_size
    assert (cut.num_parts - 1) * part < rank <= cut.num_parts * part


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("rank", [*RANKS, 2, 3, 4, 5, 12, 33, 1000])
def test_aligned_rows_touch_as_few_lines_as_they_can(rank, itemsize):
    row_nbytes = tuning.choose_row_nbytes(rank * itemsize)
    assert 0 <= row_nbytes - rank * itemsize < 64
    if rank * itemsize % 16:
        starts = row_nbytes * np.arange(64)
        num_lines = (starts + rank * itemsize - 1) // 64 - starts // 64 + 1
        assert set(num_lines) == {-(-rank * itemsize // 64)}


@pytest.mark.parametrize("shared_nbytes", [64 * 1024, 100 * 1024, 164 * 1024, 228 * 1024])
@pytest.mark.parametrize("slot_nbytes", [8, 16, 24, 40, 64])
@pytest.mark.parametrize("num_inputs", [0, 2, 3, 4, 7])
def test_tiles_fit(num_inputs, slot_nbytes, shared_nbytes):
    tile_size = tuning.choose_tile_size(slot_nbytes, num_inputs, shared_nbytes)
    assert tile_size % tuning.BLOCK_SIZE == 0
    is_least = tile_size == tuning.BLOCK_SIZE
    num_blocks = 1 if is_least else tuning.choose_occupancy(num_inputs).min_blocks
    assert num_blocks * (tile_size * slot_nbytes + 19 * tuning.BLOCK_SIZE) <= shared_nbytes

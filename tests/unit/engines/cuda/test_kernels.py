"""The CUDA kernels, without a GPU: all compile, and no register spills."""

import importlib.util
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from cuda_sources import ON_LINUX, compile_all, compile_source, compile_text, make_format

from tensorly_flycoo.engines.cuda import structs, tuning
from tensorly_flycoo.engines.cuda.macros import (
    IdBits,
    Ratios,
    add_measures_macros,
    cut_tile,
    mttkrp_macros,
    narrow_rows_macros,
    pack_macros,
    products_macros,
    read_keys_macros,
    remap_macros,
    split_columns_macros,
    split_ids_macros,
    step_rows_macros,
    sweep_rows_macros,
    ttmc_macros,
    update_rows_macros,
    wide_rows_macros,
)
from tensorly_flycoo.engines.cuda.source import list_files, load_source, specialise
from tensorly_flycoo.engines.row_rules import Method
from tensorly_flycoo.format.packing import RecordFormat
from tensorly_flycoo.format.tree import express

ENTRIES = sorted(name for name in list_files() if name.endswith(".cu"))
HEADERS = sorted(name for name in list_files() if name.endswith(".cuh"))
INCLUDE_PATHS = sorted({f"--include-path={path.parent}" for path in list_files().values()})
BENCHMARK = Path(__file__).parents[4] / "examples" / "benchmark_gpu"
RANKS, SLOW_RANKS = (7, 25, 100), (1, 10, 16, 32, 50, 64, 128, 200)
DTYPES = ("float32", "float64")
GPUS = {
    "sm_80": tuning.Gpu((8, 0), 164 * 1024),
    "sm_90": tuning.Gpu((9, 0), 228 * 1024),
    "sm_100": tuning.Gpu((10, 0), 228 * 1024),
}
U16, U32, U64 = (np.dtype(f"uint{bits}") for bits in (16, 32, 64))
BLOCK, ROWS = {"BLOCK_SIZE": tuning.BLOCK_SIZE}, {"ROWS_PER_BLOCK": tuning.ROWS_PER_BLOCK}
FIVE_GROUPS = ((0, 1), (2,), (3,), (4,), (5,))
PLAIN, PLAIN_64 = IdBits(U32), IdBits(U64)
RULES = ((Method.MULTIPLY, False), (Method.ADMM, False), (Method.ADMM, True))
SLOW = pytest.mark.slow
EVERY_GPU = pytest.mark.parametrize(
    "architecture",
    ["sm_90", *[pytest.param(name, marks=pytest.mark.other_gpus) for name in ("sm_80", "sm_100")]],
)


def choose_tile_size(record_format, architecture):
    slot_nbytes = structs.slot_nbytes(record_format)
    return tuning.choose_tile_size(slot_nbytes, record_format.ndim - 1, GPUS[architecture])


def choose_occupancy(record_format, architecture):
    return tuning.choose_occupancy(GPUS[architecture], record_format.ndim - 1)


def specialise_all():
    """Return macros for each kernel, by its file name."""
    record_format, dtype = make_format(3, "float32"), np.dtype(np.float32)
    occupancy = choose_occupancy(record_format, "sm_90")
    rank_cut, column_cut = tuning.cut_rank(32, 4, 16, 16), tuning.cut_columns(256, 2)
    step_cut, bits = tuning.cut_steps(8, 4, has_norms=False), IdBits.of(2**18, 256)
    return {
        "mttkrp_remap.cu": mttkrp_macros(record_format, 256, rank_cut, occupancy, U32, bits, U32),
        "remap_only.cu": remap_macros(record_format, 256, bits, U32),
        "split_ids.cu": split_ids_macros(U32, bits, 256),
        "find_runs.cu": {"REMAP_ID": U32, **cut_tile(256)},
        "ttmc.cu": ttmc_macros(record_format, 256, column_cut, occupancy, U32, bits),
        "order_writes.cu": {"REMAP_ID": U32, "TILE_SIZE": 256, **BLOCK},
        "partial_rows.cu": {"VALUE": dtype, "NUM_WARPS": 16, "OUT_BLOCKS": 1},
        "packed_records.cu": {
            **{"NUM_WORDS": 4, "NUM_FIELDS": 3, "HAS_ROWS": True, "CODE_WORDS": 1},
            **BLOCK,
        },
        "pack.cu": pack_macros(record_format, np.dtype(np.int64)),
        "read_keys.cu": read_keys_macros(record_format, 2, U64, U32),
        "list_empty_rows.cu": {"ROW": U32, **ROWS, **BLOCK},
        "store_places.cu": {"PLACE": U32},
        "buckets.cu": {"PLACE": U32, "BUCKET": U16, "OFFSET": U32},
        "scatter_records.cu": {"NUM_WORDS": record_format.num_words, "OFFSET": U32},
        "sum_values.cu": {"VALUE": dtype, "VALUES_PER_BLOCK": tuning.ROWS_PER_BLOCK, **BLOCK},
        "split_columns.cu": split_columns_macros(record_format, U32),
        "unfoldings.cu": {"ENTRIES_PER_BLOCK": tuning.ROWS_PER_BLOCK, **BLOCK},
        "place_vectors.cu": {"VECTOR": np.dtype(np.float64), "PLACED": dtype, **BLOCK},
        "groups.cu": {"VALUE": dtype, "NUM_FACTORS": 2, "NUM_WARPS": 8},
        "update_rows.cu": update_rows_macros(8, dtype),
        "narrow_rows.cu": narrow_rows_macros(8, dtype),
        "products.cu": products_macros(8, dtype),
        "copy_blocks.cu": {"MAX_COPIES": 16},
        "add_arrays.cu": {"VALUE": dtype, "NUM_PARTS": 2, "TREE": express((0, 1), "PART")},
        "inner_product.cu": {"VALUE": dtype, **ROWS, **BLOCK},
        "scale_rows.cu": {"VALUE": dtype, "NUM_COLUMNS": 8, **BLOCK},
        "sweep_rows.cu": sweep_rows_macros(tuning.cut_sweep(8, 4), dtype),
        "step_rows.cu": step_rows_macros(step_cut, Method.ADMM, False, dtype),
        "wide_rows.cu": wide_rows_macros(Method.ADMM, False, dtype),
        "add_measures.cu": add_measures_macros(Method.HALS),
        "mersenne_twister.cu": {"VALUE": dtype},
    }


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=SLOW)])
@pytest.mark.parametrize("ndim", [3, *[pytest.param(n, marks=SLOW) for n in (1, 2, 4, 5, 8)]])
@pytest.mark.parametrize("ranks", [RANKS, pytest.param(SLOW_RANKS, marks=SLOW)], ids=str)
def test_every_cut_of_the_ranks_compiles(ranks, ndim, dtype, architecture):
    """With pulling and remapping, and with neither."""
    record_format = make_format(ndim, dtype)
    itemsize = record_format.dtype.itemsize
    tile_size = choose_tile_size(record_format, architecture)
    jobs = []
    bits = IdBits.of(2**18, tile_size)
    occupancy = choose_occupancy(record_format, architecture)
    for rank in ranks:
        alignment = math.gcd(16, rank * itemsize)
        for loads in (alignment, 16):  # factors as given, and copied to aligned rows
            num_loads = tuning.choose_num_loads(rank, itemsize, ndim - 1)
            cut = tuning.cut_rank(rank, itemsize, loads, alignment, num_loads)
            for ids in ([U32, bits, U32], [U32]):
                macros = mttkrp_macros(record_format, tile_size, cut, occupancy, *ids)
                jobs.append(("mttkrp_remap.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=SLOW)])
@pytest.mark.parametrize("ndim", [3, 4, *[pytest.param(n, marks=SLOW) for n in (2, 5, 8)]])
@pytest.mark.parametrize(
    "ranks", [(25, 32), pytest.param((1, 3, 10, 33, 100, 200), marks=SLOW)], ids=str
)
def test_narrow_rows_compile(ranks, ndim, dtype, architecture):
    """With pulling and remapping, aligned and not."""
    record_format = make_format(ndim, dtype)
    itemsize = record_format.dtype.itemsize
    tile_size = choose_tile_size(record_format, architecture)
    occupancy = choose_occupancy(record_format, architecture)
    ids, jobs = (U32, IdBits.of(2**18, tile_size), U32), []
    for rank in ranks:
        alignment = math.gcd(16, rank * itemsize)
        for loads in {alignment, 16}:
            num_loads = tuning.choose_num_loads(rank, itemsize, ndim - 1)
            cut = tuning.cut_rank(rank, itemsize, loads, alignment, num_loads)
            macros = mttkrp_macros(record_format, tile_size, cut, occupancy, *ids, is_narrow=True)
            jobs.append(("mttkrp_remap.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=SLOW)])
@pytest.mark.parametrize("num_blocks", [2, pytest.param(8, marks=SLOW)])
def test_results_in_blocks_compile(num_blocks, dtype, architecture):
    """With pulling and remapping, and with a model of counts."""
    record_format = make_format(3, dtype)
    itemsize = record_format.dtype.itemsize
    tile_size = choose_tile_size(record_format, architecture)
    occupancy = choose_occupancy(record_format, architecture)
    ids, jobs = (U32, IdBits.of(2**18, tile_size), U32), []
    for rank, ratios in [(25, Ratios.NONE), (32, Ratios.NONE), (8, Ratios.DIVIDE_AND_LOG)]:
        alignment = math.gcd(16, rank * itemsize)
        cut = tuning.cut_rank(rank, itemsize, alignment, alignment)
        settings = {"ratios": ratios, "num_out_blocks": num_blocks}
        macros = mttkrp_macros(record_format, tile_size, cut, occupancy, *ids, **settings)
        jobs.append(("mttkrp_remap.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("padded_rank", [1, 8, 32, 224])
def test_kernels_that_narrow_rows_compile(padded_rank, architecture):
    compile_all(
        ("narrow_rows.cu", architecture, narrow_rows_macros(padded_rank, np.dtype(dtype)))
        for dtype in DTYPES
    )


@ON_LINUX
@pytest.mark.parametrize(
    ("groups", "bits", "dtype"),
    [
        pytest.param(((0, 1, 2),), 20, "float32", id="one-float32"),
        pytest.param(((0, 1), (2,)), 20, "float64", id="two-float64"),
        pytest.param(FIVE_GROUPS, 30, "float32", id="five-float32"),
        pytest.param(((0, 1, 2),), 20, "float64", id="one-float64", marks=SLOW),
        pytest.param(((0, 1), (2,)), 20, "float32", id="two-float32", marks=SLOW),
        pytest.param(FIVE_GROUPS, 30, "float64", id="five-float64", marks=SLOW),
    ],
)
def test_merged_modes_compile(groups, bits, dtype):
    """Their records may be longer than entries."""
    shape = (2**bits,) * sum(map(len, groups))
    record_format = RecordFormat.of(shape, dtype, "uint32", groups, 2**20).merged
    tile_size, itemsize = choose_tile_size(record_format, "sm_90"), record_format.dtype.itemsize
    occupancy = choose_occupancy(record_format, "sm_90")
    cuts = [
        tuning.cut_rank(rank, itemsize, 16, math.gcd(16, rank * itemsize)) for rank in (2, 25, 32)
    ]
    ids = (U32, IdBits.of(2**18, tile_size), U32)
    macros = [mttkrp_macros(record_format, tile_size, cut, occupancy, *ids) for cut in cuts]
    compile_all([("mttkrp_remap.cu", "sm_90", own) for own in macros])


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=SLOW)])
@pytest.mark.parametrize("ndim", [3, *[pytest.param(n, marks=SLOW) for n in (1, 4, 5)]])
@pytest.mark.parametrize("ranks", [(7, 200), pytest.param((32,), marks=SLOW)], ids=str)
def test_mttkrp_of_ratios_compiles(ranks, ndim, dtype, architecture):
    """With and without logarithms, remapping, and blocks along y."""
    jobs, record_format = [], make_format(ndim, dtype)
    for rank in ranks:
        itemsize, alignment = record_format.dtype.itemsize, math.gcd(16, rank * int(dtype[5:]) // 8)
        tile_size = choose_tile_size(record_format, architecture)
        occupancy = choose_occupancy(record_format, architecture)
        bits = IdBits.of(2**18, tile_size)
        for loads, ratios in itertools.product({alignment, 16}, list(Ratios)[1:]):
            cut = tuning.cut_rank(rank, itemsize, loads, alignment)
            remaps = ratios is Ratios.DIVIDE_AND_LOG or (ndim in (3, 4) and loads == 16)
            ids = [U32, bits, U32] if remaps else [U32, None, None]
            macros = mttkrp_macros(record_format, tile_size, cut, occupancy, *ids, ratios)
            jobs.append(("mttkrp_remap.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize(
    "sizes",
    [((256, 10), (2048, 32)), pytest.param(((256, 32), (2048, 10)), marks=SLOW)],
    ids=str,
)
def test_every_way_to_fetch_a_record_compiles(sizes, architecture):
    """Sorted copies, an index, remapping; also with 64-bit ids and small tiles."""
    layouts = [(None, None), (PLAIN, None), (PLAIN_64, None), (2**18, U32), (2**16, U64)]
    jobs, cut = [], tuning.cut_rank(32, 4, 16, 16)
    for ids, (tile_size, bits) in itertools.product(layouts, sizes):
        record_format = make_format(3, "float32", bits)
        if ids[1] is not None:
            ids = (IdBits.of(ids[0], tile_size), ids[1])
        occupancy = choose_occupancy(record_format, architecture)
        macros = mttkrp_macros(record_format, tile_size, cut, occupancy, U32, *ids)
        jobs.append(("mttkrp_remap.cu", architecture, macros))
        if ids[1] is not None:
            jobs.append(
                ("remap_only.cu", architecture, remap_macros(record_format, tile_size, *ids))
            )
            macros = {"REMAP_ID": ids[1], "TILE_SIZE": tile_size, **BLOCK}
            jobs.append(("order_writes.cu", architecture, macros))
            macros = {"REMAP_ID": ids[1], **cut_tile(tile_size)}
            jobs.append(("find_runs.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
def test_kernels_that_build_a_tensor_compile(architecture):
    jobs = []
    formats = [make_format(ndim, dtype) for ndim in (1, 3, 8) for dtype in DTYPES]
    coord_dtypes = [np.dtype(kind + size) for kind in "iu" for size in "1248"]
    for record_format, coord_dtype in itertools.product(formats, coord_dtypes):
        if record_format.ndim == 3 or coord_dtype == "int64":
            jobs.append(("pack.cu", architecture, pack_macros(record_format, coord_dtype)))
    for dtype in map(np.dtype, DTYPES):
        macros = {"VALUE": dtype, "VALUES_PER_BLOCK": tuning.ROWS_PER_BLOCK, **BLOCK}
        jobs.append(("sum_values.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("ndims", [(3,), pytest.param((1, 8), marks=SLOW)])
def test_kernels_that_sort_nonzeros_compile(ndims, architecture):
    jobs = [("list_empty_rows.cu", {"ROW": row, **ROWS, **BLOCK}) for row in (U32, U64)]
    for place in (U32, U64):
        jobs.append(("store_places.cu", {"PLACE": place}))
        for bucket, offset in itertools.product((U16, U32), (U16, U32, U64)):
            macros = {"PLACE": place, "BUCKET": bucket, "OFFSET": offset}
            jobs.append(("buckets.cu", macros))
        for record_format in (make_format(n, d) for n in ndims for d in DTYPES):
            for key, num_fields in itertools.product((U16, U32, U64), (1, 3)):
                macros = read_keys_macros(record_format, num_fields, key, place)
                jobs.append(("read_keys.cu", macros))
    jobs += [
        ("scatter_records.cu", {"NUM_WORDS": num_words, "OFFSET": offset})
        for num_words in (2, 4, 6, 10)
        for offset in (U16, U32)
    ]
    jobs += [
        ("split_ids.cu", split_ids_macros(dtype, IdBits.of(limit, tile_size), tile_size))
        for dtype in (U16, U32, U64)
        for limit in (2, 2**9, 2**11, 2**16, 2**18, 2**24, 2**32)
        for tile_size in ((128, 2048) if ndims == (3,) else (256, 512))
    ]
    compile_all([(file, architecture, macros) for file, macros in jobs])


@ON_LINUX
@EVERY_GPU
def test_kernels_on_unfoldings_compile(architecture):
    jobs = [("unfoldings.cu", specialise_all()["unfoldings.cu"])]
    jobs.append(("list_empty_rows.cu", {"ROW": np.dtype(np.int64), **ROWS, **BLOCK}))
    for vector, placed in itertools.product(map(np.dtype, DTYPES), repeat=2):
        jobs.append(("place_vectors.cu", {"VECTOR": vector, "PLACED": placed, **BLOCK}))
    for dtype, place in itertools.product(DTYPES, (U32, U64, None)):
        jobs.append(("split_columns.cu", split_columns_macros(make_format(3, dtype), place)))
    compile_all([(file, architecture, macros) for file, macros in jobs])


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=SLOW)])
def test_kernels_on_rows_compile(dtype, architecture):
    value = {"VALUE": np.dtype(dtype)}
    jobs = [
        ("inner_product.cu", {**value, **ROWS, **BLOCK}),
        ("scale_rows.cu", {**value, "NUM_COLUMNS": 32, **BLOCK}),
        ("mersenne_twister.cu", value),
        *[
            ("add_measures.cu", add_measures_macros(method))
            for method in (Method.HALS, Method.ADMM)
        ],
    ]
    for num_warps, num_blocks in [(2, 1), (16, 1), (16, 8)]:
        jobs.append(
            ("partial_rows.cu", {**value, "NUM_WARPS": num_warps, "OUT_BLOCKS": num_blocks})
        )
    for num_factors, num_warps in itertools.product((1, 4), (1, 32)):
        macros = {**value, "NUM_FACTORS": num_factors, "NUM_WARPS": num_warps}
        jobs.append(("groups.cu", macros))
    compile_all([(file, architecture, macros) for file, macros in jobs])


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize(
    "rank", [48, *[pytest.param(n, marks=SLOW) for n in (7, 16, 32, 64, 80, 96, 112, 128)]]
)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=SLOW)])
def test_kernels_of_gram_matrices_compile(dtype, rank, architecture):
    dtype = np.dtype(dtype)
    jobs = [
        ("update_rows.cu", architecture, update_rows_macros(rank, dtype, is_narrowing))
        for is_narrowing in (False, True)
    ]
    jobs.append(("products.cu", architecture, products_macros(rank, dtype)))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize(
    "rank", [32, *[pytest.param(n, marks=SLOW) for n in (8, 16, 48, 64, 80, 96, 112, 128)]]
)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=SLOW)])
def test_kernels_that_update_rows_compile(dtype, rank, architecture):
    """Each class of ranks, and what serves all."""
    jobs, dtype = [], np.dtype(dtype)
    sweep_cut = tuning.cut_sweep(rank, dtype.itemsize)
    if sweep_cut is not None:
        jobs.append(("sweep_rows.cu", sweep_rows_macros(sweep_cut, dtype)))
    for method, is_group_lasso in RULES:
        step_cut = tuning.cut_steps(rank, dtype.itemsize, has_norms=is_group_lasso)
        macros = step_rows_macros(step_cut, method, is_group_lasso, dtype)
        jobs.append(("step_rows.cu", macros))
    levelled_cut = tuning.cut_steps(rank, dtype.itemsize, has_levels=True)
    macros = step_rows_macros(levelled_cut, Method.ADMM, False, dtype, has_levels=True)
    jobs.append(("step_rows.cu", macros))
    for method, is_group_lasso in [*RULES, (Method.HALS, False)]:
        jobs.append(("wide_rows.cu", wide_rows_macros(method, is_group_lasso, dtype)))
    compile_all([(file, architecture, macros) for file, macros in jobs])


@ON_LINUX
@EVERY_GPU
def test_many_modes_compile(architecture):
    """Nonzeros of many modes are so large that tiles are small, and a lane takes one at a time."""
    record_format = make_format(64, "float64")
    tile_size = choose_tile_size(record_format, architecture)
    cut, occupancy = tuning.cut_rank(1, 8, 16, 16), choose_occupancy(record_format, architecture)
    bits = IdBits.of(2**18, tile_size)
    macros = mttkrp_macros(record_format, tile_size, cut, occupancy, U32, bits, U32)
    compile_source("mttkrp_remap.cu", architecture, macros)  # some registers do spill


@ON_LINUX
@EVERY_GPU
def test_ttmc_compiles(architecture):
    """With few and many columns, with narrow, wide and no pull ids."""
    cases = [
        (1, "float64", 256, U32, 2**18),
        (2, "float64", 256, U32, 2**18),
        (3, "float32", 9, U64, None),
        (3, "float32", 256, U32, 2**18),
        (3, "float64", 256, U64, PLAIN_64),
        (4, "float64", 256, U32, PLAIN),
        (5, "float32", 256, U32, 2**18),
        (8, "float64", 256, U32, 2**18),
    ]
    jobs = []
    for ndim, dtype, num_columns, slot_dtype, bits in cases:
        record_format = make_format(ndim, dtype)
        tile_size = choose_tile_size(record_format, architecture)
        if isinstance(bits, int):
            bits = IdBits.of(bits, tile_size)
        cut = tuning.cut_columns(num_columns, ndim - 1)
        occupancy = choose_occupancy(record_format, architecture)
        macros = ttmc_macros(record_format, tile_size, cut, occupancy, slot_dtype, bits)
        jobs.append(("ttmc.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@SLOW
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ndim", [3, 4, 5])
def test_the_benchmarks_gather_only_kernel_compiles(ndim, dtype):
    """In every setting that the benchmark tries."""
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
def test_the_benchmarks_delay_compiles():
    compile_all([(str(BENCHMARK / "delay.cu"), "sm_90", {})])


@ON_LINUX
@pytest.mark.parametrize("ndim", [1, 3])
def test_assertions_compile(ndim):
    """In a debug build, registers may spill."""
    record_format = make_format(ndim, "float32")
    occupancy = choose_occupancy(record_format, "sm_90")
    cut, columns = tuning.cut_rank(32, 4, 16, 16), tuning.cut_columns(256, ndim - 1)
    bits = IdBits.of(2**18, 256)
    for file, macros in [
        ("mttkrp_remap.cu", mttkrp_macros(record_format, 256, cut, occupancy, U32, bits, U32)),
        ("remap_only.cu", remap_macros(record_format, 256, bits, U32)),
        ("ttmc.cu", ttmc_macros(record_format, 256, columns, occupancy, U32, bits)),
    ]:
        checked = load_source(file)
        assert checked.count("ASSERT(") > 1  # the macro, and its uses
        compile_source(file, "sm_90", {**macros, "ASSERTIONS": 1})


@ON_LINUX
@pytest.mark.parametrize("header", HEADERS)
def test_each_header_compiles_alone(header):
    """Without any macro, and with includes resolved by the compiler."""
    for macros in ({}, {"ASSERTIONS": 1}):
        text = f'#include "{header}"\n'
        compile_text(text, "alone.cu", "sm_90", macros, *INCLUDE_PATHS)


@ON_LINUX
@pytest.mark.parametrize(("entry", "macros"), specialise_all().items())
def test_each_entry_compiles_as_it_is_on_disk(entry, macros):
    """The compiler resolves the includes, so nvcc and editors can read the sources too.

    For the oldest GPUs, which other tests leave to --every-gpu.
    """
    text = list_files()[entry].read_text()
    compile_text(text, entry, "sm_80", macros, *INCLUDE_PATHS)


@pytest.mark.parametrize(("entry", "macros"), specialise_all().items())
def test_a_missing_macro_is_named(entry, macros):
    assert sorted(specialise_all()) == ENTRIES
    text = specialise(entry, macros)
    assert set(macros) == set(re.findall(r"^// MACRO (\w+): ", text, re.MULTILINE))
    for missing in macros:
        assert len(re.findall(rf"^[^/]*\b{missing}\b", load_source(entry), re.MULTILINE)) > 0
        given = {macro: value for macro, value in macros.items() if macro != missing}
        with pytest.raises(TypeError, match=rf"{entry} needs a macro {missing}: \w+"):
            specialise(entry, given)


@ON_LINUX
@pytest.mark.parametrize("entry", ["mttkrp_remap.cu", "ttmc.cu", "update_rows.cu", "step_rows.cu"])
def test_old_gpus_are_refused(entry):
    """By the compiler, in addition to `tuning.check_capability`."""
    with pytest.raises(AssertionError, match=r"compute capability 8\.0 or higher"):
        compile_source(entry, "sm_75", specialise_all()[entry])

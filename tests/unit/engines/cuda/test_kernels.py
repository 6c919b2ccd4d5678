"""The CUDA kernels, without a GPU: all compile, and no register spills."""

import importlib.util
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from cuda_sources import ON_LINUX, compile_all, compile_source, compile_text, make_format

from tensorly_flycoo.engines import cuda
from tensorly_flycoo.engines.cuda import structs, tuning
from tensorly_flycoo.engines.cuda.id_bits import IdBits
from tensorly_flycoo.engines.cuda.macros import (
    add_grams_macros,
    add_parts_macros,
    carry_rows_macros,
    copies_macros,
    draw_uniform_macros,
    gram_macros,
    inner_product_macros,
    list_empty_rows_macros,
    list_shared_macros,
    mttkrp_macros,
    number_buckets_macros,
    offsets_macros,
    order_writes_macros,
    pack_macros,
    pad_rows_macros,
    partial_rows_macros,
    place_vectors_macros,
    position_macros,
    product_macros,
    read_keys_macros,
    remap_macros,
    runs_macros,
    scale_rows_macros,
    scatter_records_macros,
    solve_rows_macros,
    split_columns_macros,
    split_ids_macros,
    square_polynomial_macros,
    store_places_macros,
    sum_groups_macros,
    sum_squares_macros,
    sweep_nonnegative_macros,
    ttmc_macros,
)
from tensorly_flycoo.engines.cuda.source import load_source

FOLDER = Path(cuda.__file__).parent / "kernels"
ENTRIES = sorted(path.name for path in FOLDER.glob("*.cu"))
HEADERS = sorted(path.name for path in FOLDER.glob("*.cuh"))
BENCHMARK = Path(__file__).parents[4] / "examples" / "benchmark_gpu"
RANKS = (1, 7, 10, 16, 25, 32, 50, 64, 100, 128, 200)
DTYPES = ("float32", "float64")
GPUS = {
    "sm_80": tuning.Gpu((8, 0), 164 * 1024),
    "sm_90": tuning.Gpu((9, 0), 228 * 1024),
    "sm_100": tuning.Gpu((10, 0), 228 * 1024),
}
U16, U32, U64 = (np.dtype(f"uint{bits}") for bits in (16, 32, 64))
PLAIN, PLAIN_64 = IdBits(U32), IdBits(U64)
SLOW = pytest.mark.slow
EVERY_GPU = pytest.mark.parametrize(
    "architecture",
    ["sm_90", *[pytest.param(name, marks=pytest.mark.other_gpus) for name in ("sm_80", "sm_100")]],
)


def choose_tile_size(record_format, architecture):
    slot_nbytes = structs.slot_nbytes(record_format)
    return tuning.choose_tile_size(slot_nbytes, record_format.ndim - 1, GPUS[architecture])


def choose_occupancy(record_format, architecture, rank=32):
    return tuning.choose_occupancy(GPUS[architecture], record_format.ndim - 1, rank)


def specialise_all():
    """Return macros for each kernel, by its file name."""
    record_format, dtype = make_format(3, "float32"), np.dtype(np.float32)
    occupancy = choose_occupancy(record_format, "sm_90")
    rank_cut, column_cut = tuning.cut_rank(32, 4, 16, 16), tuning.cut_columns(256, 2)
    bits = IdBits.of(2**18, 256)
    return {
        "mttkrp.cu": mttkrp_macros(record_format, 256, rank_cut, occupancy, U32, bits, U32),
        "remap.cu": remap_macros(record_format, 256, bits, U32),
        "split_ids.cu": split_ids_macros(U32, bits, 256),
        "find_runs.cu": runs_macros(256, U32),
        "ttmc.cu": ttmc_macros(record_format, 256, column_cut, occupancy, U32, bits),
        "order_writes.cu": order_writes_macros(256, U32),
        "partial_rows.cu": partial_rows_macros(dtype, 16),
        "pack.cu": pack_macros(record_format, np.dtype(np.int64)),
        "read_keys.cu": read_keys_macros(record_format, 2, U64, U32),
        "carry_rows.cu": carry_rows_macros(record_format, U32),
        "list_empty_rows.cu": list_empty_rows_macros(U32),
        "store_places.cu": store_places_macros(U32),
        "number_buckets.cu": number_buckets_macros(U32, U16),
        "store_offsets.cu": offsets_macros(U32, U32),
        "position_in_buckets.cu": position_macros(U32, bits, 256),
        "scatter_records.cu": scatter_records_macros(record_format.num_words, U32),
        "sum_squares.cu": sum_squares_macros(dtype),
        "sum_groups.cu": sum_groups_macros(dtype),
        "split_columns.cu": split_columns_macros(record_format, U32),
        "single_squares.cu": {},
        "list_shared.cu": list_shared_macros(),
        "dense_columns.cu": {},
        "place_vectors.cu": place_vectors_macros(np.dtype(np.float64), dtype),
        "pad_rows.cu": pad_rows_macros(dtype, 32),
        "gram.cu": gram_macros(8),
        "add_grams.cu": add_grams_macros(8),
        "solve_rows.cu": solve_rows_macros(8, 4),
        "invert.cu": product_macros(8),
        "fit.cu": product_macros(8),
        "copy_blocks.cu": copies_macros(),
        "add_parts.cu": add_parts_macros(dtype, ((0, 1), (2, 3))),
        "inner_product.cu": inner_product_macros(dtype, 8),
        "scale_rows.cu": scale_rows_macros(dtype, 8),
        "sweep_nonnegative.cu": sweep_nonnegative_macros(dtype, 8),
        "draw_uniform.cu": draw_uniform_macros(dtype),
        "square_polynomial.cu": square_polynomial_macros(),
        "jump_states.cu": {},
    }


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ndim", [3, *[pytest.param(n, marks=SLOW) for n in (1, 2, 4, 5, 8)]])
def test_every_cut_of_the_ranks_compiles(ndim, dtype, architecture):
    """With pulling and remapping, and with neither."""
    record_format = make_format(ndim, dtype)
    itemsize = record_format.dtype.itemsize
    tile_size = choose_tile_size(record_format, architecture)
    jobs = []
    bits = IdBits.of(2**18, tile_size)
    for rank in RANKS:
        occupancy = choose_occupancy(record_format, architecture, rank)
        alignment = math.gcd(16, rank * itemsize)
        for loads in (alignment, 16):  # factors as given, and copied to aligned rows
            cut = tuning.cut_rank(rank, itemsize, loads, alignment)
            for ids in ([U32, bits, U32], [U32]):
                macros = mttkrp_macros(record_format, tile_size, cut, occupancy, *ids)
                jobs.append(("mttkrp.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=SLOW)])
@pytest.mark.parametrize("ndim", [3, *[pytest.param(n, marks=SLOW) for n in (1, 4, 5)]])
def test_mttkrp_of_ratios_compiles(ndim, dtype, architecture):
    """With and without logarithms, remapping, and blocks along y."""
    jobs, record_format = [], make_format(ndim, dtype)
    for rank in (7, 32, 200):
        itemsize, alignment = record_format.dtype.itemsize, math.gcd(16, rank * int(dtype[5:]) // 8)
        tile_size = choose_tile_size(record_format, architecture)
        occupancy = choose_occupancy(record_format, architecture, rank)
        bits = IdBits.of(2**18, tile_size)
        for loads, ratios in itertools.product({alignment, 16}, (1, 2)):
            cut = tuning.cut_rank(rank, itemsize, loads, alignment)
            remaps = ratios == 2 or (ndim in (3, 4) and loads == 16)
            ids = [U32, bits, U32] if remaps else [U32, None, None]
            macros = mttkrp_macros(record_format, tile_size, cut, occupancy, *ids, ratios)
            jobs.append(("mttkrp.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
def test_every_way_to_fetch_a_record_compiles(architecture):
    """Sorted copies, an index, remapping; also with 64-bit ids and small tiles."""
    layouts = [(None, None), (PLAIN, None), (PLAIN_64, None), (2**18, U32), (2**16, U64)]
    jobs, cut = [], tuning.cut_rank(32, 4, 16, 16)
    for ids, tile_size, bits in itertools.product(layouts, (256, 2048), (10, 32)):
        record_format = make_format(3, "float32", bits)
        if ids[1] is not None:
            ids = (IdBits.of(ids[0], tile_size), ids[1])
        occupancy = choose_occupancy(record_format, architecture)
        macros = mttkrp_macros(record_format, tile_size, cut, occupancy, U32, *ids)
        jobs.append(("mttkrp.cu", architecture, macros))
        if ids[1] is not None:
            jobs.append(("remap.cu", architecture, remap_macros(record_format, tile_size, *ids)))
            macros = order_writes_macros(tile_size, ids[1])
            jobs.append(("order_writes.cu", architecture, macros))
            jobs.append(("find_runs.cu", architecture, runs_macros(tile_size, ids[1])))
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
        jobs.append(("sum_groups.cu", architecture, sum_groups_macros(dtype)))
        jobs.append(("sum_squares.cu", architecture, sum_squares_macros(dtype)))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("ndims", [(3,), pytest.param((1, 8), marks=SLOW)])
def test_kernels_that_sort_nonzeros_compile(ndims, architecture):
    jobs = [("list_empty_rows.cu", list_empty_rows_macros(row)) for row in (U32, U64)]
    for place in (U32, U64):
        jobs.append(("store_places.cu", store_places_macros(place)))
        jobs += [("number_buckets.cu", number_buckets_macros(place, b)) for b in (U16, U32)]
        for offset in (U16, U32, U64):
            jobs.append(("store_offsets.cu", offsets_macros(place, offset)))
        for limit, tile_size in itertools.product((2**16, 2**18, 2**32), (128, 2048)):
            macros = position_macros(place, IdBits.of(limit, tile_size), tile_size)
            jobs.append(("position_in_buckets.cu", macros))
        for record_format in (make_format(n, d) for n in ndims for d in DTYPES):
            jobs.append(("carry_rows.cu", carry_rows_macros(record_format, place)))
            for key, num_fields in itertools.product((U16, U32, U64), (1, 3)):
                macros = read_keys_macros(record_format, num_fields, key, place)
                jobs.append(("read_keys.cu", macros))
    jobs += [
        ("scatter_records.cu", scatter_records_macros(num_words, offset))
        for num_words in (2, 4, 6, 10)
        for offset in (U16, U32)
    ]
    jobs += [
        ("split_ids.cu", split_ids_macros(dtype, IdBits.of(limit, tile_size), tile_size))
        for dtype in (U16, U32)
        for limit in (2, 2**9, 2**11, 2**16, 2**18, 2**24, 2**32)
        for tile_size in ((128, 2048) if ndims == (3,) else (256, 512))
    ]
    compile_all([(file, architecture, macros) for file, macros in jobs])


@ON_LINUX
@EVERY_GPU
def test_kernels_on_unfoldings_compile(architecture):
    jobs = [("single_squares.cu", {}), ("dense_columns.cu", {})]
    jobs.append(("list_shared.cu", list_shared_macros()))
    jobs.append(("list_empty_rows.cu", list_empty_rows_macros(np.dtype(np.int64))))
    for vector, placed in itertools.product(map(np.dtype, DTYPES), repeat=2):
        jobs.append(("place_vectors.cu", place_vectors_macros(vector, placed)))
    for dtype, place in itertools.product(DTYPES, (U32, U64, None)):
        jobs.append(("split_columns.cu", split_columns_macros(make_format(3, dtype), place)))
    compile_all([(file, architecture, macros) for file, macros in jobs])


@ON_LINUX
@EVERY_GPU
def test_kernels_on_rows_compile(architecture):
    jobs = [
        ("partial_rows.cu", architecture, partial_rows_macros(np.dtype(dtype), num_warps))
        for dtype, num_warps in itertools.product(DTYPES, (2, 16))
    ]
    jobs.append(("square_polynomial.cu", architecture, square_polynomial_macros()))
    jobs.append(("jump_states.cu", architecture, {}))
    for dtype, num_columns in itertools.product(map(np.dtype, DTYPES), (1, 2, 3, 32, 208)):
        jobs.append(("pad_rows.cu", architecture, pad_rows_macros(dtype, num_columns)))
    for dtype in map(np.dtype, DTYPES):
        jobs.append(("inner_product.cu", architecture, inner_product_macros(dtype, 25)))
        jobs.append(("scale_rows.cu", architecture, scale_rows_macros(dtype, 25)))
        jobs.append(("draw_uniform.cu", architecture, draw_uniform_macros(dtype)))
        for rank in (1, 10, 25, 32, 200):
            macros = sweep_nonnegative_macros(dtype, rank)
            jobs.append(("sweep_nonnegative.cu", architecture, macros))
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
@pytest.mark.parametrize("rank", [7, 32, *[pytest.param(n, marks=SLOW) for n in (1, 3, 16, 25)]])
def test_kernels_of_gram_matrices_compile(rank, architecture):
    files = {
        "gram.cu": gram_macros(rank),
        "add_grams.cu": add_grams_macros(rank),
        "invert.cu": product_macros(rank),
        "fit.cu": product_macros(rank),
    }
    jobs = [(file, architecture, macros) for file, macros in files.items()]
    tight, apart = solve_rows_macros(rank, 1), solve_rows_macros(rank, 4)
    jobs += [("solve_rows.cu", architecture, macros) for macros in (tight, apart)]
    compile_all(jobs)


@ON_LINUX
@EVERY_GPU
def test_many_modes_compile(architecture):
    """Nonzeros of many modes are so large that tiles are small, and a lane takes one at a time."""
    record_format = make_format(64, "float64")
    tile_size = choose_tile_size(record_format, architecture)
    cut, occupancy = tuning.cut_rank(1, 8, 16, 16), choose_occupancy(record_format, architecture)
    bits = IdBits.of(2**18, tile_size)
    macros = mttkrp_macros(record_format, tile_size, cut, occupancy, U32, bits, U32)
    compile_source("mttkrp.cu", architecture, macros)  # some registers do spill


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
        ("mttkrp.cu", mttkrp_macros(record_format, 256, cut, occupancy, U32, bits, U32)),
        ("remap.cu", remap_macros(record_format, 256, bits, U32)),
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
        compile_text(text, "alone.cu", "sm_90", macros, f"--include-path={FOLDER}")


@ON_LINUX
@pytest.mark.parametrize(("entry", "macros"), specialise_all().items())
def test_each_entry_compiles_as_it_is_on_disk(entry, macros):
    """The compiler resolves the includes, so nvcc and editors can read the sources too.

    For the oldest GPUs, which other tests leave to --every-gpu.
    """
    text = (FOLDER / entry).read_text()
    compile_text(text, entry, "sm_80", macros, f"--include-path={FOLDER}")


@ON_LINUX
@pytest.mark.parametrize(("entry", "macros"), specialise_all().items())
def test_a_missing_macro_is_named(entry, macros):
    assert sorted(specialise_all()) == ENTRIES
    for missing in macros:
        given = {macro: value for macro, value in macros.items() if macro != missing}
        with pytest.raises(AssertionError, match=f'#error "{missing}: '):
            compile_source(entry, "sm_90", given)


@ON_LINUX
@pytest.mark.parametrize("entry", ["mttkrp.cu", "remap.cu", "ttmc.cu", "gram.cu"])
def test_old_gpus_are_refused(entry):
    """By the compiler, in addition to `tuning.check_capability`."""
    with pytest.raises(AssertionError, match=r"compute capability 8\.0 or higher"):
        compile_source(entry, "sm_75", specialise_all()[entry])

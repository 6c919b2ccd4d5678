"""Narrow rows on the CPU: made as `narrow_row_statements` says, and read as the whole rows they
stand for.
"""

import numba
import numpy as np
import pytest
from narrow_row_statements import bound_rounding, draw_factor, find_scales, round_rows
from problems import make_problem, poison_spare

from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.engines.cpu import segments
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.engines.narrow_rows import NARROW_FORMATS
from tensorly_flycoo.format.primitives import MTTKRP

LAYOUTS = ("remap", "replicated", "indexed")
SIZES = (7, 5, 6, 4, 3, 5)
BOTH_DTYPES = pytest.mark.parametrize("dtype", ["float64", "float32"])
DTYPES = [np.dtype(np.float64), np.dtype(np.float32)]


# Making narrow rows


@BOTH_DTYPES
@pytest.mark.parametrize("rank", [1, 3, 16, 33])
@pytest.mark.parametrize("num_rows", [1, 1024, 3000])
def test_rows_are_as_stated(num_rows, rank, dtype):
    factor = draw_factor(num_rows, rank, dtype)
    with np.errstate(all="raise"):
        scales = CPU.find_scales(factor)
    np.testing.assert_array_equal(scales, find_scales(factor))
    expected, rounded = round_rows(factor, scales)
    with np.errstate(over="raise", divide="raise"):
        found = CPU.round_rows(factor, scales)
    assert found.scales.dtype == dtype
    assert found.rows.dtype == NARROW_FORMATS[factor.dtype].dtype
    is_certain = ~np.isnan(scales)
    assert found.rows[:, is_certain].tobytes() == expected[:, is_certain].tobytes()
    np.testing.assert_array_equal(factor, rounded)


@BOTH_DTYPES
def test_numbers_are_off_by_a_rounding(dtype):
    """The bound is nearly reached, so a scale of four times the size would exceed it."""
    factor = np.random.default_rng(0).uniform(-1.001, 1.001, (30_000, 3)).astype(dtype)
    before = factor.copy()
    bounds = bound_rounding(factor)
    CPU.round_rows(factor, CPU.find_scales(factor))
    deviations = np.abs(factor.astype(float) - before).max(axis=0)
    assert (deviations <= bounds).all()
    assert (deviations > 0.4 * bounds).all()


@BOTH_DTYPES
def test_scales_are_powers_of_two_above_the_largest(dtype):
    factor = np.random.default_rng(0).standard_normal((300, 9)).astype(dtype)
    factor *= 2.0 ** (10 * np.arange(-4, 5)).astype(dtype)
    factor[:, 4] = np.where(factor[:, 4] > 0, 2, -1)
    scales = CPU.find_scales(factor)
    assert (np.frexp(scales)[0] == 0.5).all()
    if dtype == "float64":
        assert (scales == 1).all()
        scales = CPU.find_scales(factor * 2.0**200)
        factor = factor * 2.0**200
    largest = np.abs(factor).max(axis=0)
    assert (scales > largest).all()
    assert (scales <= 2 * largest).all()


@BOTH_DTYPES
def test_special_columns(dtype):
    zeros, infinite, invalid, _, _, overflowing = range(6)
    factor = draw_factor(100, 16, dtype)
    scales = CPU.find_scales(factor)
    assert scales[zeros] == 1
    assert np.isnan(scales[[infinite, invalid, overflowing]]).all()
    CPU.round_rows(factor, scales)
    assert (factor[:, zeros] == 0).all()
    assert np.isnan(factor[:, [infinite, invalid, overflowing]]).all()
    assert np.isfinite(factor[:, 6:]).all()


@BOTH_DTYPES
def test_scales_of_more_rows(dtype):
    whole = np.random.default_rng(0).uniform(-1, 1, (500, 7)).astype(dtype)
    part = whole[100:200].copy()
    scales = CPU.find_scales(whole)
    expected = CPU.round_rows(whole, scales).rows[100:200]
    assert CPU.round_rows(part, scales).rows.tobytes() == expected.tobytes()
    assert part.tobytes() == whole[100:200].tobytes()


def test_fixed_point_is_cut_off():
    factor = np.array([[1], [-1], [0.25], [-1e-9]], np.float32)
    rows, _ = CPU.round_rows(factor, np.array([1], np.float32))
    assert rows.tolist() == [[2**16 - 1], [1], [2**15 + 2**13], [2**15]]
    assert factor.tolist() == [[1 - 2.0**-15], [2.0**-15 - 1], [0.25], [0.0]]
    assert not np.signbit(factor[3, 0])


@BOTH_DTYPES
def test_rows_depend_on_neither_threads_nor_memory(dtype):
    factor = np.random.default_rng(0).standard_normal((5000, 16)).astype(dtype)
    num_threads = numba.get_num_threads()
    found = set()
    try:
        for count in (1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(count)
            for array in (factor.copy(), np.pad(factor, ((0, 0), (2, 3)))[:, 2:-3]):
                parts = CPU.round_rows(array, CPU.find_scales(array))
                found.add((*[part.tobytes() for part in parts], array.tobytes()))
    finally:
        numba.set_num_threads(num_threads)
    assert len(found) == 1


@BOTH_DTYPES
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_store(shape, dtype):
    factor = np.empty(shape, dtype)
    scales = CPU.find_scales(factor)
    assert scales.tolist() == [1] * shape[1]
    assert CPU.round_rows(factor, scales).rows.shape == shape


# Reading narrow rows


def narrow(problem):
    """Round the factors of a problem; return their narrow rows."""
    return [CPU.round_rows(factor, CPU.find_scales(factor)) for factor in problem.factors]


def compute_all(x, factors, scales=None):
    """Compute all modes in turn, from narrow or whole rows."""
    results = []
    for mode in range(x.ndim):
        poison_spare(x)
        inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
        weights = None
        if scales is not None:
            weights = np.prod([scales[n] for n in inputs], axis=0, dtype=x.dtype)
        out = np.full((x.shape[mode], factors[0].shape[1]), np.nan, x.dtype)
        x._layout.apply(MTTKRP, CPU, inputs, mode, out, weights=weights)
        results.append(out)
    return results


def check_bits(x, problem):
    """Check that narrow rows and whole rows of the rounded factors have the same products."""
    copies = narrow(problem)
    rows = [copy.rows for copy in copies]
    found = compute_all(x, rows, [copy.scales for copy in copies])
    expected = compute_all(x, problem.factors)
    for result, whole in zip(found, expected, strict=True):
        assert result.tobytes() == whole.tobytes()


@pytest.fixture
def small_tiles(monkeypatch):
    """Cut tiles and buckets so small that tiny tensors have many of both."""
    monkeypatch.setattr(cpu, "TILE_SIZE", 16)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 64)


#: Each case compiles a kernel, so that most are slow.
FAST_NDIMS = [("float64", "remap", 1), ("float64", "remap", 3), ("float32", "replicated", 4)]
EVERY_NDIM = [
    *FAST_NDIMS,
    *[
        pytest.param(dtype, layout, ndim, marks=pytest.mark.slow)
        for dtype in ("float32", "float64")
        for layout in LAYOUTS
        for ndim in range(1, 7)
        if (dtype, layout, ndim) not in FAST_NDIMS
    ],
]

#: The ranks 33 and 70 are computed in steps that leave columns over.
FAST_RANKS = [
    ("float64", "remap", 3),
    ("float64", "remap", 16),
    ("float32", "remap", 70),
    ("float32", "indexed", 33),
]
EVERY_RANK = [
    *FAST_RANKS,
    *[
        pytest.param(dtype, layout, rank, marks=pytest.mark.slow)
        for dtype in ("float32", "float64")
        for layout in LAYOUTS
        for rank in (1, 2, 3, 7, 10, 16, 25, 32, 33, 35, 64, 70, 100)
        if (dtype, layout, rank) not in FAST_RANKS
    ],
]


@pytest.mark.usual_limits("groups", "prefixes")
@pytest.mark.parametrize(("dtype", "layout", "ndim"), EVERY_NDIM)
def test_every_ndim(small_tiles, dtype, layout, ndim):
    problem = make_problem(SIZES[:ndim], 300, dtype=dtype)
    check_bits(problem.tensor(layout=layout, groups=None), problem)


@pytest.mark.usual_limits("groups", "prefixes")
@pytest.mark.parametrize(("dtype", "layout", "rank"), EVERY_RANK)
def test_every_rank(small_tiles, dtype, layout, rank):
    problem = make_problem((30, 20, 10), 500, rank, dtype)
    check_bits(problem.tensor(layout=layout, groups=None), problem)


@pytest.mark.usual_limits("groups", "prefixes", "slabs")
@BOTH_DTYPES
def test_slabs(small_tiles, dtype):
    problem = make_problem((30, 20, 10), 500, 16, dtype)
    check_bits(problem.tensor(slabs=3, groups=None), problem)


@pytest.mark.usual_limits("groups", "prefixes")
@BOTH_DTYPES
def test_the_same_bits_for_any_number_of_threads_and_in_every_layout(dtype):
    problem = make_problem((50, 60, 70), 30_000, 4, dtype, skew=3)
    rows = [factor.rows for factor in narrow(problem)]
    num_threads = numba.get_num_threads()
    found = set()
    try:
        for count in (1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(count)
            for layout in LAYOUTS:
                results = compute_all(problem.tensor(layout=layout, groups=None), rows)
                found.add(b"".join(result.tobytes() for result in results))
    finally:
        numba.set_num_threads(num_threads)
    assert len(found) == 1


@pytest.mark.usual_limits("groups", "prefixes")
@BOTH_DTYPES
@pytest.mark.parametrize("offset", [1, 2, 5])
def test_rows_at_any_address(dtype, offset):
    problem = make_problem((5, 3, 2), 5000, 16, dtype)
    x = problem.tensor(groups=None)
    rows = [factor.rows for factor in narrow(problem)]
    expected = [result.tobytes() for result in compute_all(x, rows)]
    memory = np.empty(rows[0].size + offset, rows[0].dtype)
    moved = memory[offset:].reshape(rows[0].shape)
    moved[...] = rows[0]
    assert [result.tobytes() for result in compute_all(x, [moved, *rows[1:]])] == expected


@pytest.fixture
def small_cache(monkeypatch):
    """Let a cache of 1 KB count as one that is worth blocks, and windows hold two tiles."""
    monkeypatch.setattr(cpu, "TILE_SIZE", 64)
    monkeypatch.setattr(cpu, "LEAST_NNZ", 0)
    monkeypatch.setattr(segments, "_LEAST_CACHE_NBYTES", 2**10)
    monkeypatch.setattr(segments, "_count_cache_nbytes", lambda: 2**10)
    monkeypatch.setattr(segments, "_LEAST_NONZEROS", 0)
    monkeypatch.setattr(segments, "_WINDOW_SIZE", 128)


@pytest.mark.usual_limits("groups", "prefixes", "slabs")
@pytest.mark.parametrize(
    ("dtype", "rank", "reads_ahead"),
    [
        ("float64", 8, False),
        ("float64", 16, True),
        ("float32", 16, False),
        ("float32", 32, True),
    ],
)
def test_rows_that_are_read_ahead_need_no_blocks(small_cache, dtype, rank, reads_ahead):
    problem = make_problem((90, 100, 110), 6000, rank, dtype, skew=2)
    x = problem.tensor(layout="replicated", groups=None)
    rows = [factor.rows for factor in narrow(problem)]
    assert bool(cpu._find_reads_ahead(rows, np.dtype(dtype).itemsize, rank)) == reads_ahead
    compute_all(x, rows)
    num_blocked = sum(key[0] == "segments" for key in x._layout.prepared)
    assert num_blocked == (0 if reads_ahead else 3)
    check_bits(x, problem)


# Where they pay


@pytest.mark.parametrize(
    ("shape", "nnz", "rank", "dtype", "pays"),
    [
        pytest.param(
            (12_092, 9_184, 28_818), 7_687_942, 16, "float32", True, id="a tenth of nell-2"
        ),
        pytest.param((12_092, 9_184, 28_818), 7_687_942, 35, "float32", True, id="few left over"),
        pytest.param((9_000, 9_000, 12_000), 4 * 10**6, 24, "float32", True, id="as small as pays"),
        pytest.param((9_000, 9_000, 12_000), 4 * 10**6, 25, "float32", False, id="widened twice"),
        pytest.param((200_000, 100_000, 5_000), 4_000_000, 16, "float64", True, id="flat"),
        pytest.param((200_000, 100_000, 5_000), 2_000_000, 16, "float64", False, id="few reads"),
        pytest.param((60_000, 60_000, 60_000), 2 * 10**6, 16, "float64", True, id="a cube"),
        pytest.param((60_000, 60_000, 60_000), 10**6, 7, "float64", False, id="short rows"),
        pytest.param((183, 24, 1_140, 1_717), 3_309_490, 64, "float64", False, id="small factors"),
        pytest.param((3, 20_000, 365), 10**6, 64, "float64", False, id="read in order"),
        pytest.param((100,), 100, 64, "float64", False, id="one mode"),
        pytest.param((5, 6, 7), 0, 0, "float32", False, id="no columns"),
    ],
)
def test_narrow_pays(shape, nnz, rank, dtype, pays):
    assert CPU.narrow_pays(shape, nnz, rank, np.dtype(dtype)) == pays

"""The CUDA engine against the executable specification: every layout, rank and number of modes.

Every tolerance is `error_bounds.bound_mttkrp`, including the effect of flushing subnormals.
"""

import itertools
import threading

import cupy
import numpy as np
import pytest
import reference
from error_bounds import bound_mttkrp

from tensorly_flycoo import FlycooTensor, mttkrp, mttkrps
from tensorly_flycoo.engines.cuda import engine as cuda
from tensorly_flycoo.engines.cuda import launch, tuning
from tensorly_flycoo.format import primitives, remap

LAYOUTS = ("remap", "replicated", "indexed")
RANKS = (1, 7, 10, 16, 25, 32, 50, 64, 100, 128, 200)
DTYPES = ("float32", "float64")

#: Shapes for 1 to 8 modes, with modes of size 1 and 2, empty rows and rows over many tiles.
SHAPES = (
    (3000,),
    (2, 9000),
    (70, 1, 5000),
    (2, 300, 3, 40),
    (100, 89, 2, 7, 11),
    (5, 4, 3, 2, 6, 7),
    (3, 3, 3, 3, 3, 3, 3),
    (2**20, 2, 3, 2**20, 2, 3, 2, 2**20),
)


def make_problem(shape, nnz, rank, dtype, skew=1.0, seed=0):
    """Draw factors and nonzeros; `skew` above 1 crowds nonzeros into low rows."""
    rng = np.random.default_rng(seed)
    sizes = np.array(shape)[:, None]
    coords = (sizes * rng.random((len(shape), nnz)) ** skew).astype(np.int64)
    coords = np.unique(coords, axis=1)
    values = rng.standard_normal(coords.shape[1]).astype(dtype)
    factors = [rng.standard_normal((size, rank)).astype(dtype) for size in shape]
    return coords, values, shape, factors


def poison_spare(x):
    """Fill T_out with nan at coordinate 0, so that a record missed by remapping spoils a result."""
    if x.layout == "remap":
        spare = x._layout.spare
        spare[...] = 0
        x._layout.record_format.values(spare)[...] = np.nan


def compute(x, factors, mode):
    """Compute one mode into memory full of nan."""
    poison_spare(x)
    out = cupy.full((x.shape[mode], factors[0].shape[1]), np.nan, x.dtype)
    assert mttkrp(x, factors, mode, out=out) is out
    return out.get()


def check(result, x, coords, values, shape, factors, mode):
    expected = reference.mttkrp(coords, values, shape, factors, mode)
    bound = bound_mttkrp(x, coords, values, factors, mode)
    assert (np.abs(result - expected) <= bound).all()


def check_problem(problem, modes=None, layout_names=LAYOUTS, **options):
    """Compare all layouts with the oracle, and with each other bit by bit."""
    coords, values, shape, factors = problem
    modes = range(len(shape)) if modes is None else modes
    on_device = [cupy.asarray(factor) for factor in factors]
    tensors = [
        FlycooTensor(coords, values, shape, layout=name, device="cuda", **options)
        for name in layout_names
    ]
    for mode in modes:
        results = [compute(x, on_device, mode) for x in tensors]
        check(results[0], tensors[0], coords, values, shape, factors, mode)
        assert len({result.tobytes() for result in results}) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{len(shape)} modes")
def test_every_rank_and_number_of_modes(shape, rank, dtype):
    check_problem(make_problem(shape, 20000, rank, dtype, skew=2.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nnz", [0, 1, 2, 255, 256, 4095, 4096, 4097, 100000])
@pytest.mark.parametrize("skew", [1.0, 4.0])
def test_every_number_of_nonzeros(nnz, skew, dtype):
    """Numbers of nonzeros around the edges of tiles; also when most rows are empty."""
    check_problem(make_problem((500, 30000, 400), nnz, 16, dtype, skew))


@pytest.mark.parametrize("rank", [1, 32, 200])
@pytest.mark.parametrize("shape", [(1, 100000, 3), (1, 1, 200000), (200000,), (2, 200000)])
def test_one_row_over_all_tiles(shape, rank):
    check_problem(make_problem(shape, 150000, rank, "float32"))


def test_modes_out_of_turn():
    problem = make_problem((50, 60, 70, 80), 30000, 8, "float64")
    check_problem(problem, modes=[2, 2, 0, 3, 1, 1, 0])


def test_records_of_any_width():
    rng = np.random.default_rng(0)
    for shape in [(2**24,) * 2 + (50,), (40, 2**22, 2**23, 2**22, 2**20)]:
        coords = np.stack([rng.integers(0, size, 5000) for size in shape])
        values = rng.standard_normal(coords.shape[1])
        factors = [cupy.random.random_sample((size, 2)) for size in shape]
        small = next(n for n, size in enumerate(shape) if size < 100)
        x = [FlycooTensor(coords, values, shape, layout=n, device="cuda") for n in LAYOUTS]
        results = [compute(t, factors, small) for t in x]
        assert len({result.tobytes() for result in results}) == 1
        rows = values[:, None]
        for n, factor in enumerate(factors):
            if n != small:
                rows = rows * factor[cupy.asarray(coords[n])].get()
        expected, bound = np.zeros((2, shape[small], 2))
        np.add.at(expected, coords[small], rows)
        np.add.at(bound, coords[small], np.abs(rows))
        assert (np.abs(results[0] - expected) <= 300 * np.finfo(float).eps * bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile_size", [256, 1024])
@pytest.mark.parametrize("max_grid", [1, 3])
def test_limits_lowered(monkeypatch, tile_size, max_grid, dtype):
    """More tiles than a grid holds, many buckets, rows over many segments of tiles."""
    monkeypatch.setattr(launch, "MAX_GRID", max_grid)
    monkeypatch.setattr(tuning, "choose_tile_size", lambda *_: tile_size)
    monkeypatch.setattr(tuning, "BUCKET_SIZE", 1024)
    monkeypatch.setattr(tuning, "SEGMENT", 2)
    check_problem(make_problem((3, 4000, 50), 40000, 12, dtype, skew=2.0))


def test_64_bit_ids(monkeypatch):
    """Wide ids, as used beyond 2**32 nonzeros."""
    wide = lambda count, smallest="uint32": np.dtype(np.uint64)  # noqa: E731
    monkeypatch.setattr(remap, "index_dtype", wide)
    monkeypatch.setattr(primitives, "index_dtype", wide)
    check_problem(make_problem((30, 400, 50), 40000, 12, "float32", skew=2.0))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_factors_that_are_not_aligned_or_not_contiguous(layout):
    coords, values, shape, factors = make_problem((30, 40, 50), 5000, 16, "float32")
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda")
    plain = [cupy.asarray(factor) for factor in factors]
    shifted = []
    for factor in plain:
        memory = cupy.empty(factor.size + 1, factor.dtype)
        memory[1:] = factor.ravel()
        shifted.append(memory[1:].reshape(factor.shape))
    strided = [cupy.asfortranarray(factor) for factor in plain]
    for mode in range(3):
        check(compute(x, shifted, mode), x, coords, values, shape, factors, mode)
        check(compute(x, strided, mode), x, coords, values, shape, factors, mode)


def copy_to_rows(factor, row_nbytes):
    """Copy a factor to rows `row_nbytes` apart, with nan in between."""
    wide = cupy.full((factor.shape[0], row_nbytes // factor.itemsize), np.nan, factor.dtype)
    wide[:, : factor.shape[1]] = factor
    return wide[:, : factor.shape[1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 3, 7, 25, 31, 50])
def test_rows_that_lie_apart_give_the_same_bits(monkeypatch, rank, layout, dtype):
    """Factors with padding, like those from the backend's solve, and unaligned copies of them.

    Nothing outside the requested output is written.
    """
    problem = coords, values, shape, factors = make_problem((1, 300, 70), 9000, rank, dtype)
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda")
    factors = [cupy.asarray(factor) for factor in factors]
    itemsize = factors[0].itemsize
    tight = rank * itemsize
    rows = {tuning.choose_row_nbytes(tight), tight, tight + itemsize, -(-tight // 16) * 16}
    kinds = [[copy_to_rows(f, row_nbytes) for f in factors] for row_nbytes in rows]
    for mode in range(3):
        results = []
        for pays, kind in itertools.product([True, False], kinds):
            monkeypatch.setattr(tuning, "pays_to_align", lambda *_, pays=pays: pays)
            results.append(compute(x, kind, mode))
        check(results[0], x, *problem, mode)
        assert len({result.tobytes() for result in results}) == 1


def test_rows_are_not_copied_where_memory_is_short(monkeypatch):
    coords, values, shape, factors = make_problem((30, 300, 70), 9000, 31, "float32")
    x = FlycooTensor(coords, values, shape, device="cuda")
    factors = [cupy.asarray(factor) for factor in factors]
    expected = mttkrp(x, factors, 0)
    asked_for = []

    def fail(array, row_nbytes):
        asked_for.append(row_nbytes)
        raise cupy.cuda.memory.OutOfMemoryError(1, 0)

    monkeypatch.setattr(cuda, "pad_rows", fail)
    assert (mttkrp(x, factors, 0) == expected).all()
    assert asked_for == [128]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bits_each_time(layout):
    coords, values, shape, factors = make_problem((2, 3000, 500), 200000, 32, "float32", 2.0)
    factors = [cupy.asarray(factor) for factor in factors]
    seen = [set() for _ in shape]
    for _ in range(2):
        x = FlycooTensor(coords, values, shape, layout=layout, device="cuda")
        for _ in range(10):
            for mode in range(3):
                seen[mode].add(compute(x, factors, mode).tobytes())
    assert [len(results) for results in seen] == [1, 1, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_streams_take_turns_on_one_tensor(layout):
    """A remapping launch waits for the previous one, even on another stream."""
    coords, values, shape, factors = make_problem((900, 800, 700), 300000, 32, "float32")
    factors = [cupy.asarray(factor) for factor in factors]
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda")
    expected = [compute(x, factors, mode).tobytes() for mode in range(3)]
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    outs = []
    for step in range(60):
        with streams[step % 4]:
            outs.append(mttkrp(x, factors, step % 3))
    cupy.cuda.Device().synchronize()
    for step, out in enumerate(outs):
        assert out.get().tobytes() == expected[step % 3]


def test_reading_waits_for_the_last_launch():
    """Nonzeros are complete even if read on another stream than the one that moves them."""
    coords, values, shape, factors = make_problem((900, 800, 700), 1000000, 128, "float32")
    factors = [cupy.asarray(factor) for factor in factors]
    x = FlycooTensor(coords, values, shape, device="cuda")
    expected_coords, expected_values = x.nonzeros()
    cupy.cuda.Device().synchronize()
    for num_modes in (1, 2, 3, 7):
        with cupy.cuda.Stream(non_blocking=True):
            for step in range(num_modes):
                mttkrp(x, factors, step % 3)
        found_coords, found_values = x.nonzeros()
        np.testing.assert_array_equal(found_coords, expected_coords)
        np.testing.assert_array_equal(found_values, expected_values)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads_share_one_tensor(layout):
    coords, values, shape, factors = make_problem((90, 80, 70), 30000, 16, "float64")
    factors = [cupy.asarray(factor) for factor in factors]
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda")
    expected = [compute(x, factors, mode).tobytes() for mode in range(3)]
    cupy.cuda.Device().synchronize()
    wrong = []

    def work(number):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for step in range(30):
                mode = (step * (number + 1)) % 3
                result = mttkrp(x, factors, mode)
                stream.synchronize()
                if result.get().tobytes() != expected[mode]:
                    wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_duplicates_are_added_in_their_order(dtype):
    """Sums of duplicates are within rounding of the exact ones."""
    rng = np.random.default_rng(0)
    coords = rng.integers(0, 40, (2, 3000))
    values = (rng.standard_normal(3000) * 10.0 ** rng.integers(-6, 7, 3000)).astype(dtype)
    x = FlycooTensor(coords, values, (40, 40), device="cuda")
    found_coords, found = x.nonzeros()
    expected, bound = np.zeros((2, 40, 40))
    np.add.at(expected, tuple(coords), values.astype(float))
    np.add.at(bound, tuple(coords), np.abs(values).astype(float))
    places = tuple(found_coords)
    assert found.size == np.count_nonzero(expected)
    error = np.abs(found - expected[places])
    assert (error <= 40 * np.finfo(dtype).eps * bound[places]).all()


@pytest.mark.usual_limits("index", "prefixes", "tiles")
def test_nbytes_is_what_the_arrays_take():
    coords, values, shape, _ = make_problem((2000, 3000, 4000), 30000, 1, "float32")
    for layout, per_nonzero in [("remap", 32), ("replicated", 48), ("indexed", 24)]:
        x = FlycooTensor(coords, values, shape, layout=layout, device="cuda")
        others = sum(tiling.nbytes for tiling in x._layout.tilings)
        if layout == "remap":
            # Of a mode: 18 bits of a pull id, 12 of the write order, 1.5 of runs; one run a tile.
            num_tiles = -(-x.nnz // 2048)
            others += 3 * num_tiles * (2048 * (18 + 12) // 8 + 2048 * 3 // 16 + 4)
        assert x.nbytes == per_nonzero * x.nnz + others


@pytest.mark.parametrize("ndim", [33, 70])
def test_many_modes(ndim):
    """Nothing limits their number but the time that a kernel compiles."""
    random = np.random.RandomState(0)
    coords, factors = random.randint(0, 2, (ndim, 20)), random.rand(ndim, 2, 2)
    x = FlycooTensor(coords, random.rand(20), (2,) * ndim, device="cuda", layout="remap")
    coords, values = x.nonzeros()
    for mode in (0, ndim - 1):
        rows = [factors[n][own] for n, own in enumerate(coords) if n != mode]
        expected = np.zeros((2, 2))
        np.add.at(expected, coords[mode], values[:, None] * np.prod(rows, axis=0))
        found = mttkrp(x, [cupy.asarray(factor) for factor in factors], mode)
        np.testing.assert_allclose(found.get(), expected, rtol=1e-13)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_modes_together_in_groups(layout):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 5000) for size in (60, 5, 40, 7)])
    options = {"layout": layout, "device": "cuda", "groups": [(0, 1), (2, 3)]}
    x = FlycooTensor(coords, rng.random(5000), (60, 5, 40, 7), **options)
    factors = [cupy.asarray(rng.random((size, 8))) for size in x.shape]
    for mode, product in enumerate(mttkrps(x, factors)):
        assert product.get().tobytes() == mttkrp(x, factors, mode).get().tobytes()

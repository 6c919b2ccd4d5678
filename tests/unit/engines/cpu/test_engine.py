"""The CPU engine against the oracle.

Each combination of ndim, dtype, layout, words of a record and columns in registers (see
`choose_lanes`) is a kernel that takes seconds to compile, so not all combinations are tested.
"""

import hashlib
import itertools
import os
import subprocess
import sys
import threading

import numba
import numpy as np
import problems
import pytest
from problems import Problem, compute_all, make_exact_problem, make_factors, make_problem

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.engines.cpu import primitives, products, threads
from tensorly_flycoo.engines.cpu.compiling import kernel
from tensorly_flycoo.engines.cpu.records import Fields, read_rows

LAYOUTS = ("remap", "replicated", "indexed")
BOTH_LAYOUTS = pytest.mark.parametrize("layout", LAYOUTS)
SIZES = (7, 5, 6, 4, 3, 5, 2, 4)
RANKS = (1, 2, 3, 7, 10, 16, 25, 32, 33, 64, 100)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Fill all memory that the engine allocates with nan."""

    class PoisonedNumpy:
        def __getattr__(self, name):
            return getattr(np, name)

        @staticmethod
        def empty(shape, dtype=float):
            is_float = np.dtype(dtype).kind == "f"
            return np.full(shape, np.nan, dtype) if is_float else np.empty(shape, dtype)

    monkeypatch.setattr(cpu, "np", PoisonedNumpy())
    monkeypatch.setattr(primitives, "np", PoisonedNumpy())
    monkeypatch.setattr(cpu.CPU, "xp", PoisonedNumpy())


@pytest.fixture
def small_tiles(monkeypatch):
    """Cut tiles and buckets so small that tiny tensors have many of both."""
    monkeypatch.setattr(cpu, "TILE_SIZE", 16)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 64)


EVERY_NDIM = [
    *[("float64", "remap", ndim) for ndim in (1, 2, 3, 4, 5)],
    *[pytest.param("float64", "remap", ndim, marks=pytest.mark.slow) for ndim in (6, 7, 8)],
    *[("float64", "replicated", ndim) for ndim in (1, 2, 3, 4, 5)],
    pytest.param("float64", "replicated", 8, marks=pytest.mark.slow),
    *[("float32", "remap", ndim) for ndim in (1, 2, 3)],
    *[pytest.param("float32", "remap", ndim, marks=pytest.mark.slow) for ndim in (5, 8)],
]
EVERY_RANK = [
    *[("float64", "remap", rank) for rank in (1, 2, 3, 7, 10, 16, 32, 64)],
    *[("float64", "replicated", rank) for rank in (1, 3, 16, 33, 100)],
    *[("float32", "remap", rank) for rank in (1, 2, 3, 100)],
    *[pytest.param("float64", "remap", rank, marks=pytest.mark.slow) for rank in (25, 33, 100)],
    *[pytest.param("float64", "replicated", rank, marks=pytest.mark.slow) for rank in (2, 25)],
    *[
        pytest.param("float32", "remap", rank, marks=pytest.mark.slow)
        for rank in (7, 10, 16, 25, 32, 33, 64)
    ],
]


@pytest.mark.parametrize(("dtype", "layout", "ndim"), EVERY_NDIM)
def test_every_ndim(small_tiles, dtype, layout, ndim):
    problem = make_problem(SIZES[:ndim], 300, dtype=dtype)
    problem.check_tensor(problem.tensor(layout=layout), modes=[*range(ndim), 0])


@pytest.mark.parametrize(("dtype", "layout", "rank"), EVERY_RANK)
def test_every_rank(small_tiles, dtype, layout, rank):
    problem = make_problem((30, 20, 10), 500, rank, dtype)
    problem.check_tensor(problem.tensor(layout=layout))


@pytest.mark.parametrize(
    "layout", ["remap", *[pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS[1:]]]
)
def test_coordinates_wider_than_96_bits_and_more_than_2_to_63_cells(small_tiles, layout):
    problem = make_problem((8192,) * 8, 200)
    x = problem.tensor(layout=layout)
    assert x._layout.record_format.record_nbytes >= 24
    problem.check_tensor(x)


KINDS = [
    pytest.param(make_problem((50, 60, 70), 30_000), id="uniform"),
    pytest.param(make_problem((500, 600, 700), 30_000, skew=6), id="hub rows"),
    pytest.param(make_problem((1, 300, 400), 30_000), id="a mode of size 1"),
    pytest.param(make_problem((2, 40_000, 3), 30_000), id="modes of size 2 and 3"),
    pytest.param(make_problem((1, 1, 1), 20), id="one cell"),
    pytest.param(make_problem((90_000, 3, 100_000), 5000), id="many empty rows"),
    pytest.param(make_problem((9, 8, 7), 1), id="one nonzero"),
    pytest.param(make_problem((9, 8, 7), 0), id="no nonzeros"),
    pytest.param(make_problem((4, 3, 2), 10, rank=16), id="rank above every size"),
]


@BOTH_LAYOUTS
@pytest.mark.parametrize("problem", KINDS)
def test_every_kind_of_tensor(problem, layout):
    problem.check_tensor(problem.tensor(layout=layout))


@BOTH_LAYOUTS
@pytest.mark.parametrize("problem", [KINDS[0], KINDS[1]])
def test_every_kind_of_tensor_in_float32(problem, layout):
    factors = [factor.astype("float32") for factor in problem.factors]
    problem = Problem(problem.coords, problem.values.astype("float32"), problem.shape, factors)
    problem.check_tensor(problem.tensor(layout=layout))


@BOTH_LAYOUTS
@pytest.mark.parametrize("row", [0, 4, 8])
def test_one_row_holds_everything(layout, row):
    problem = make_problem((9, 200, 300), 30_000)
    problem.coords[0] = row
    x = problem.tensor(layout=layout)
    out = mttkrp(x, problem.factors, 0)
    assert (np.delete(out, row, axis=0) == 0).all()
    problem.check_tensor(x)


@BOTH_LAYOUTS
@pytest.mark.parametrize("nnz", [1, 15, 16, 17, 32, 63, 64, 65, 128, 129, 200])
def test_every_edge_of_tiles_and_buckets(small_tiles, nnz, layout):
    problem = make_exact_problem((4, 10, 5), nnz)
    x = problem.tensor(layout=layout)
    assert x.nnz == nnz
    problem.check_tensor(x, modes=[0, 1, 2, 0])


@pytest.mark.parametrize("nnz", [cpu.TILE_SIZE, cpu.BUCKET_SIZE, cpu.BUCKET_SIZE + 1])
def test_edges_at_full_size(nnz):
    problem = make_exact_problem((20, 30, 40), nnz)
    problem.check_tensor(problem.tensor())


@pytest.mark.parametrize(("first", "second"), list(itertools.product(range(4), repeat=2)))
def test_modes_out_of_order(small_tiles, first, second):
    """Compute any mode after any other, with remap-only passes in between, then all in order."""
    problem = make_problem(SIZES[:4], 300)
    x = problem.tensor()
    problem.check_tensor(x, modes=[first, second, *range(4)])


@BOTH_LAYOUTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_for_any_number_of_threads_and_in_every_run(dtype, layout):
    problem = make_problem((50, 60, 70), 30_000, dtype=dtype, skew=3)
    x = problem.tensor(layout=layout)
    num_threads = numba.get_num_threads()
    expected = compute_all(x, problem.factors)
    try:
        for count in (1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(count)
            assert compute_all(x, problem.factors) == expected
            assert compute_all(problem.tensor(layout=layout), problem.factors) == expected
    finally:
        numba.set_num_threads(num_threads)


@pytest.mark.usual_limits(
    "groups", "prefixes", "slabs", "tiles"
)  # new processes have the usual limits
@pytest.mark.parametrize("num_threads", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_the_same_bits_in_another_process(num_threads):
    """Also with more threads than this process or machine may have."""
    script = (
        "import hashlib, numba; from problems import compute_all, make_problem;"
        "problem = make_problem((50, 60, 70), 30_000, skew=3);"
        "assert numba.get_num_threads() == {};"
        "results = compute_all(problem.tensor(), problem.factors);"
        "print(hashlib.sha256(b''.join(results)).hexdigest())"
    )
    environment = {**os.environ, "NUMBA_NUM_THREADS": num_threads}
    command = [sys.executable, "-c", script.format(num_threads)]
    found = subprocess.run(
        command,
        env=environment,
        cwd=os.path.dirname(problems.__file__),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    problem = make_problem((50, 60, 70), 30_000, skew=3)
    digest = hashlib.sha256(b"".join(compute_all(problem.tensor(), problem.factors)))
    assert found.stdout.strip() == digest.hexdigest()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_in_all_layouts(dtype):
    problem = make_problem((50, 60, 70), 30_000, dtype=dtype, skew=3)
    tensors = [problem.tensor(layout=layout) for layout in LAYOUTS]
    for mode in (0, 1, 2, 1, 0, 2):
        assert len({mttkrp(x, problem.factors, mode).tobytes() for x in tensors}) == 1


def test_the_same_bits_in_any_order_of_the_modes(small_tiles):
    problem = make_problem((30, 20, 10), 500)
    expected = compute_all(problem.tensor(), problem.factors)
    for modes in itertools.permutations(range(3)):
        x = problem.tensor()
        for mode in modes:
            assert mttkrp(x, problem.factors, mode).tobytes() == expected[mode]


@pytest.mark.slow
def test_a_column_does_not_depend_on_the_rank():
    """For any number of columns in registers, even if vectors overlap at the end."""
    problem = make_problem((30, 20, 10), 500, rank=100)
    x = problem.tensor()
    expected = mttkrp(x, problem.factors, 1)
    for rank in RANKS:
        result = mttkrp(x, [factor[:, :rank] for factor in problem.factors], 1)
        np.testing.assert_array_equal(result, expected[:, :rank])


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(np.asfortranarray, id="F-ordered"),
        pytest.param(lambda factor: np.repeat(factor, 2, axis=1)[:, ::2], id="every other column"),
        pytest.param(lambda factor: np.repeat(factor, 2, axis=0)[::2], id="every other row"),
        pytest.param(lambda factor: factor[::-1].copy()[::-1], id="backwards"),
        pytest.param(lambda factor: np.pad(factor, 3)[3:-3, 3:-3], id="inside a larger one"),
        pytest.param(lambda factor: make_read_only(factor), id="read-only"),
        pytest.param(lambda factor: make_unaligned(factor), id="unaligned"),
    ],
)
def test_factors_in_any_memory(prepare):
    problem = make_problem((30, 20, 10), 500)
    x, factors = problem.tensor(), [prepare(factor) for factor in problem.factors]
    expected = compute_all(x, problem.factors)
    assert compute_all(x, factors) == expected
    for factor, original in zip(factors, problem.factors, strict=True):
        np.testing.assert_array_equal(factor, original)


def make_read_only(factor):
    factor = factor.copy()
    factor.flags.writeable = False
    return factor


def make_unaligned(factor):
    raw = np.zeros(factor.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(factor.dtype).reshape(factor.shape)
    unaligned[...] = factor
    return unaligned


def test_the_factor_of_the_mode_is_not_read():
    problem = make_problem((30, 20, 10), 500)
    x = problem.tensor()
    for mode in range(3):
        factors = list(problem.factors)
        factors[mode] = np.full_like(factors[mode], np.nan)
        problem.check(mttkrp(x, factors, mode), mode, x)


@BOTH_LAYOUTS
def test_several_threads_use_one_tensor(small_tiles, layout):
    """Each takes the modes in another order, so nearly every call is out of order for the rest."""
    problem = make_problem((30, 20, 10), 500)
    x = problem.tensor(layout=layout)
    expected = compute_all(x, problem.factors)
    wrong, start = [], threading.Barrier(4)

    def work(modes):
        start.wait()
        results = ((mode, mttkrp(x, problem.factors, mode)) for mode in modes * 25)
        wrong.extend(mode for mode, result in results if result.tobytes() != expected[mode])

    orders = [[0, 1, 2], [2, 1, 0], [1, 1, 2], [0, 2, 0]]
    threads = [threading.Thread(target=work, args=(modes,)) for modes in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    problem.check_tensor(x)


def make_failing_launch(name, fails_after):
    """Return a `threads.launch` that fails before or after the kernel `name` has written."""
    launch = threads.launch

    def launch_or_fail(loop, *arguments, **options):
        if loop.__name__ != name or fails_after:
            launch(loop, *arguments, **options)
        if loop.__name__ == name:
            raise MemoryError("the kernel failed")

    return launch_or_fail


@pytest.mark.parametrize("fails_after", [False, True], ids=["before writing", "after writing"])
@pytest.mark.parametrize(
    ("layout", "name"),
    [("remap", "mttkrp_tiles"), ("remap", "remap_tiles"), ("replicated", "mttkrp_tiles")],
)
def test_a_failed_launch_leaves_the_tensor_intact(
    small_tiles, monkeypatch, layout, name, fails_after
):
    problem = make_problem((30, 20, 10), 500)
    x = problem.tensor(layout=layout, groups=None)
    expected = compute_all(x, problem.factors)
    coords, values = x.nonzeros()
    for mode in (1, 2):  # both out of order
        with monkeypatch.context() as patch:
            patch.setattr(threads, "launch", make_failing_launch(name, fails_after))
            with pytest.raises(MemoryError, match=f"mttkrp of mode {mode} and rank"):
                mttkrp(x, problem.factors, mode)
        np.testing.assert_array_equal(x.nonzeros()[0], coords)
        np.testing.assert_array_equal(x.nonzeros()[1], values)
        assert mttkrp(x, problem.factors, 0).tobytes() == expected[0]
    problem.check_tensor(x)


def test_remapping_keeps_every_bit(small_tiles):
    problem = make_problem(SIZES[:4], 300)
    x = problem.tensor()
    coords, values = x.nonzeros()
    for mode in (0, 1, 3, 2, 2, 0):
        mttkrp(x, problem.factors, mode)
        np.testing.assert_array_equal(x.nonzeros()[0], coords)
        assert x.nonzeros()[1].tobytes() == values.tobytes()


def test_factors_at_any_address_give_the_same_bits():
    """A small factor whose rows cross cache lines is copied, and each row is a whole line then."""
    problem = make_problem((5, 3, 2), 5000)
    x, rank = problem.tensor(), 8
    factors = make_factors((5, 3, 2), rank)
    memory = np.empty(5 * rank + 16)
    expected = compute_all(x, factors)
    for offset in range(8):
        start = offset - memory.ctypes.data // 8 % 8 + 8
        moved = memory[start : start + 5 * rank].reshape(5, rank)
        moved[...] = factors[0]
        assert compute_all(x, [moved, *factors[1:]]) == expected


def test_subnormals_are_kept():
    tiny = np.finfo(np.float64).smallest_subnormal
    x = FlycooTensor([[0, 1]], [tiny, 1.0], (2,))
    assert mttkrp(x, make_factors((2,), 3), 0)[0].tolist() == [tiny] * 3


@pytest.mark.parametrize(
    ("layout", "rank"),
    [
        *[(layout, 3) for layout in LAYOUTS],
        ("replicated", 40),
        *[pytest.param(layout, 40, marks=pytest.mark.slow) for layout in ("remap", "indexed")],
    ],
)
def test_a_product_is_added_with_one_rounding(layout, rank):
    """All machines multiply and add alike; rounded twice, the sum here is 0."""
    step = 2.0**-30
    x = FlycooTensor([[0, 0], [0, 1]], [-(1 + 2 * step), 1 + step], (1, 2), layout=layout)
    factor = np.repeat([[1], [1 + step]], rank, axis=1)
    assert (mttkrp(x, [np.ones((1, rank)), factor], 0) == step**2).all()


@pytest.mark.parametrize(("layout", "dtype"), [("remap", "float64"), ("replicated", "float32")])
def test_factors_of_a_group_are_read_apart_with_the_same_bits(layout, dtype, monkeypatch):
    problem = make_problem((7, 5, 6, 4), 60, dtype=dtype)
    x = problem.tensor(layout=layout, groups=[(0, 1), (2, 3)])
    factors = make_factors(problem.shape, 3, dtype)
    combined = compute_all(x, factors)
    monkeypatch.setattr(products, "_FAR_NBYTES", 0)
    monkeypatch.setattr(products.GroupFactor, "combine", lambda self: pytest.fail("combined"))
    assert compute_all(x, factors) == combined


@kernel
def read_first(records, fields):
    return read_rows(records, np.uint64(0), fields)


@pytest.mark.parametrize("ndim", [1, 9, pytest.param(33, marks=pytest.mark.slow)])
def test_records_of_many_modes_are_read(ndim):
    """numba recursed once for each mode, which ended at 31."""
    coords = np.random.default_rng(0).integers(0, 9, (ndim, 5))
    x = FlycooTensor(coords, np.ones(5), (9,) * ndim, device="cpu", layout="replicated")
    fields = Fields.of(x._layout.record_format, range(ndim))
    found = read_first(x._layout.get_copies()[0], fields)
    assert list(found) == x.nonzeros()[0][:, 0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("ndim", [31, 65])
def test_mttkrp_of_many_modes(ndim):
    """As many as one likes; a kernel for 64 modes compiles for some ten seconds."""
    random = np.random.RandomState(0)
    x = FlycooTensor(random.randint(0, 2, (ndim, 20)), random.rand(20), (2,) * ndim, device="cpu")
    factors = [random.rand(2, 2) for _ in range(ndim)]
    coords, values = x.nonzeros()
    for mode in (0, ndim - 1):
        rows = [
            factor[own]
            for n, (factor, own) in enumerate(zip(factors, coords, strict=True))
            if n != mode
        ]
        expected = np.zeros((2, 2))
        np.add.at(expected, coords[mode], values[:, None] * np.prod(rows, axis=0))
        np.testing.assert_allclose(mttkrp(x, factors, mode), expected, rtol=1e-13)

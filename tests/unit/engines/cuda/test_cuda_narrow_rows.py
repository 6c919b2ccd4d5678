"""Narrow copies on a GPU, emulated: the kernels, and the arguments that Python gives them."""

import importlib
import itertools
import sys
import types
from types import SimpleNamespace

import narrow_row_statements
import numpy as np
import pytest
from emulated_gpu import HAS_COMPILER, EmulatedKernel, get_direct_kernel
from narrow_row_statements import draw_factor
from slow_cases import thin_out

from tensorly_flycoo.engines import cuda
from tensorly_flycoo.engines.cuda import tuning
from tensorly_flycoo.engines.narrow_rows import NARROW_FORMATS

pytestmark = HAS_COMPILER

DTYPES = (np.float32, np.float64)

#: Each rank of `test_the_bits_of_the_statement`, in one of the dtypes; the others are slow.
FAST_BITS = {(1, DTYPES[0]), (3, DTYPES[1]), (10, DTYPES[0]), (33, DTYPES[1]), (200, DTYPES[0])}


class DeviceArray(np.ndarray):
    """A NumPy array that passes for one on a GPU."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)


class Memory:
    """Memory that passes for a GPU's, full of nan."""

    device_id = 0

    def __init__(self, nbytes):
        self.numbers = np.full(nbytes // 8, np.nan)
        self.ptr = self.numbers.ctypes.data

    def __add__(self, offset):
        return self.numbers[offset // 8 :]


class Cupy(types.ModuleType):
    """The functions of CuPy that the modules use; what is not written is full of ones."""

    def __init__(self, name):
        super().__init__(name)
        unused = dict.fromkeys(("MemoryPool", "Stream", "Event"), object)
        errors = SimpleNamespace(OutOfMemoryError=MemoryError)
        self.cuda = SimpleNamespace(alloc=Memory, memory=errors, **unused)
        self.stack, self.concatenate = np.stack, np.concatenate

    def ndarray(self, shape, dtype, memptr):
        return memptr[: np.prod(shape)].reshape(shape)

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype).view(DeviceArray)

    def ones(self, shape, dtype):
        return np.ones(shape, dtype).view(DeviceArray)

    def empty(self, shape, dtype=np.float64):
        return np.full(shape, -1, "i1").astype(dtype).view(DeviceArray)

    def ascontiguousarray(self, array):
        return np.ascontiguousarray(array).view(DeviceArray)


@pytest.fixture
def tall(monkeypatch):
    """The module, with emulated kernels."""
    launch = types.ModuleType("launch")
    launch.DirectKernel, launch.get_direct_kernel = EmulatedKernel, get_direct_kernel
    launch.find_address = lambda array: 0 if array is None else array.data.ptr
    launch.row_stride = lambda array: array.strides[0] // array.itemsize
    monkeypatch.setitem(sys.modules, "cupy", Cupy("cupy"))
    replace_module(monkeypatch, launch)
    load_anew(monkeypatch, "narrow_rows")
    load_anew(monkeypatch, "graphs")
    return load_anew(monkeypatch, "tall")


@pytest.fixture
def narrow_rows(tall):
    """The module, with emulated kernels."""
    return tall.narrow_rows


def load_anew(monkeypatch, name):
    """Load a module of the engine, with what it imports as that is now."""
    spec = importlib.util.find_spec(f"{cuda.__name__}.{name}")
    module = importlib.util.module_from_spec(spec)
    replace_module(monkeypatch, module)
    spec.loader.exec_module(module)
    return module


def replace_module(monkeypatch, module):
    """Let other modules of the engine import this one."""
    name = module.__name__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, f"{cuda.__name__}.{name}", module)
    monkeypatch.setattr(cuda, name, module, raising=False)


def check(module, factor, scales=None):
    """Compare with the statement to the bit; columns whose scale is nan hold arbitrary numbers."""
    with np.errstate(over="ignore"):
        expected_scales = narrow_row_statements.find_scales(np.array(factor))
    if scales is None:
        scales = module.find_scales(factor)
        assert scales.dtype == factor.dtype
        np.testing.assert_array_equal(scales, expected_scales)
    expected, rounded = narrow_row_statements.round_rows(np.array(factor), np.array(scales))
    found = module.round_rows(factor, scales)
    np.testing.assert_array_equal(found.scales, scales)
    assert found.rows.dtype == NARROW_FORMATS[factor.dtype].dtype
    assert found.rows.shape == factor.shape
    is_usable = ~np.isnan(np.array(scales))
    assert found.rows[:, is_usable].tobytes() == expected[:, is_usable].tobytes()
    np.testing.assert_array_equal(factor, rounded)
    pitch = tuning.choose_row_nbytes(expected.shape[1] * expected.itemsize)
    assert factor.size == 0 or found.rows.strides == (pitch, expected.itemsize)


@pytest.mark.parametrize(
    ("rank", "dtype"),
    [
        pytest.param(rank, dtype, marks=[pytest.mark.slow] * ((rank, dtype) not in FAST_BITS))
        for rank, dtype in itertools.product([1, 3, 10, 33, 200], DTYPES)
    ],
)
def test_the_bits_of_the_statement(narrow_rows, rank, dtype):
    """Columns of zeros, of subnormal numbers, with inf and nan, ties of rounding."""
    check(narrow_rows, draw_factor(300, rank, dtype).view(DeviceArray))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 129, 1000])
def test_few_and_many_rows(narrow_rows, num_rows, dtype, monkeypatch):
    """Blocks that have several turns, and one with few rows."""
    monkeypatch.setattr(narrow_rows, "_NUM_BLOCKS", 7)
    factor = draw_factor(1000, 10, dtype)[:num_rows].view(DeviceArray)
    scales = None
    if num_rows == 0:
        scales = np.ones(10, dtype).view(DeviceArray)
    check(narrow_rows, factor, scales)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_lie_apart(narrow_rows, dtype):
    whole = draw_factor(100, 13, dtype).view(DeviceArray)
    padding = whole[:, 10:].tobytes()
    check(narrow_rows, whole[:, :10])
    assert whole[:, 10:].tobytes() == padding


@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_of_more_rows(narrow_rows, dtype):
    factor = draw_factor(400, 12, dtype).view(DeviceArray)
    scales = narrow_row_statements.find_scales(np.array(factor)).view(DeviceArray)
    check(narrow_rows, factor[:150], scales)


def solve(tall, x, matrix):
    """Solve by an inverse whose condition number is 1, and round; return sums of blocks."""
    system = [matrix, np.linalg.inv(matrix), [1.0]]  # as `invert` leaves it
    inverse = np.concatenate([np.ravel(numbers) for numbers in system])
    solved = tall.solve_and_round_rows(x, SimpleNamespace(address=inverse.ctypes.data))
    factor, grams, inner, narrow = solved
    gram = grams.to_array().sum(axis=0)
    return factor, gram, None if inner is None else inner.to_array().sum(), narrow


@pytest.mark.parametrize(
    ("size", "exponents", "dtype"),
    thin_out(
        itertools.product([(1, 1), (300, 7), (1000, 17), (131, 64)], [(-20, 20), (60, 90)], DTYPES),
        5,
    ),
    ids=str,
)
def test_rows_are_rounded_as_they_are_solved_for(tall, monkeypatch, size, exponents, dtype):
    """In several blocks, with usual scales and others; all but sums is exact."""
    num_rows, rank = size
    monkeypatch.setattr(tuning, "choose_rows_per_block", lambda _: 256)
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**10), 2**10, (num_rows, rank)).astype(dtype)
    scales = 2.0 ** rng.integers(*exponents, rank)
    matrix = np.diag(scales)
    if dtype == np.float64:  # more bits than narrow rows have
        matrix = np.triu(rng.integers(1, 2**20, (rank, rank)) * scales)
    expected = (x.astype(float) @ matrix).astype(dtype)
    scales = narrow_row_statements.find_scales(expected)
    rows, rounded = narrow_row_statements.round_rows(expected, scales)
    factor, gram, inner, narrow = solve(tall, x.view(DeviceArray), matrix)
    np.testing.assert_array_equal(factor, rounded)
    np.testing.assert_array_equal(narrow.scales, scales)
    assert np.array(narrow.rows).tobytes() == rows.tobytes()
    assert not factor.base[:, rank:].any()
    # Each product is rounded, and each sum of so many of them.
    eps = 2 * max(num_rows, rank) * np.finfo(float).eps
    factor = rounded.astype(float)
    bound = eps * (abs(factor.T) @ abs(factor))
    assert (abs(gram - factor.T @ factor) <= bound).all()
    products = x * factor
    assert (inner is None) == (dtype == np.float32)
    if inner is not None:
        assert abs(inner - products.sum()) <= eps * rank * abs(products).sum()


@pytest.mark.parametrize(
    ("rank", "rounds", "dtype"), thin_out(itertools.product([3, 16], [False, True], DTYPES), 3)
)
def test_models_side_by_side_are_solved_for(tall, rank, rounds, dtype):
    """Each by its own system; no number of a neighbour is written. Rows are in two blocks."""
    rng = np.random.default_rng(0)
    num_models, num_rows = 3, 140
    # The products are those of well-conditioned matrices: at most 9 times the least eigenvalue.
    grams = [
        (np.eye(rank) * rng.uniform(1, 3, (num_models, rank, 1))).view(DeviceArray)
        for _ in range(2)
    ]
    x = rng.standard_normal((num_rows, num_models * rank)).astype(dtype).view(DeviceArray)
    factors = np.full_like(x, np.nan)
    found_grams = np.full((num_models, rank, rank), np.nan).view(DeviceArray)
    inner, narrow = tall.solve_side_by_side(x, grams, factors, found_grams, rounds)
    assert (narrow is not None) == rounds
    diagonals = np.concatenate([np.diag(a * b) for a, b in zip(*grams, strict=True)])
    expected = np.array(x) / diagonals
    bound = 10 * 9 * rank * np.finfo(dtype).eps * abs(expected).max()
    if narrow is not None:
        bound += narrow_row_statements.bound_rounding(expected.astype(dtype)).max()
        widened = narrow_row_statements.widen(np.array(narrow.rows)) * np.array(narrow.scales)
        np.testing.assert_array_equal(widened, factors)
        np.testing.assert_array_equal(
            narrow.scales, narrow_row_statements.find_scales(expected.astype(dtype))
        )
    assert abs(factors - expected).max() <= bound
    check_grams(factors, found_grams)
    assert (inner is None) == (rounds and dtype == np.float32)
    if inner is not None:
        products = np.array(x, float) * np.array(factors)
        by_model = products.reshape(num_rows, num_models, rank).sum(axis=(0, 2))
        bound = 2 * num_rows * rank * np.finfo(float).eps * abs(products).sum()
        np.testing.assert_allclose(inner.sum(axis=1), by_model, rtol=0, atol=bound)


def check_grams(factors, grams):
    """Check the Gram matrices of factors side by side."""
    rank = grams.shape[1]
    for n, gram in enumerate(grams):
        own = np.array(factors[:, n * rank : (n + 1) * rank], float)
        bound = 2 * len(own) ** 2 * np.finfo(float).eps * abs(own).max() ** 2
        np.testing.assert_allclose(gram, own.T @ own, rtol=0, atol=bound)


@pytest.mark.parametrize("segment", [2, tuning.GRAM_SEGMENT])
def test_gram_matrices_of_models_side_by_side(tall, segment, monkeypatch):
    """Of three blocks of rows, which are added at once, or two of them first."""
    monkeypatch.setattr(tuning, "GRAM_SEGMENT", segment)
    factors = np.random.default_rng(0).standard_normal((260, 6)).view(DeviceArray)
    grams = np.full((3, 2, 2), np.nan).view(DeviceArray)
    tall.gram_side_by_side(factors, grams)
    check_grams(factors, grams)


def test_errors_of_models_side_by_side(tall):
    rng = np.random.default_rng(0)
    grams = [rng.random((3, 4, 4)).view(DeviceArray) for _ in range(2)]
    inner = rng.random((3, 5)).view(DeviceArray)
    errors = tall.fit_side_by_side(grams, inner, 7.0, np.dtype(np.float32))
    squares = (grams[0] * grams[1]).sum(axis=(1, 2)) + 7
    expected = np.sqrt(abs(squares - 2 * inner.sum(axis=1)))
    np.testing.assert_allclose(errors, expected, rtol=1e-13)

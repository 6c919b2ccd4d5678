"""Random starts on a GPU: NumPy's numbers, and NumPy's generator afterwards."""

import itertools

import cupy
import numpy as np
import pytest
import tensorly as tl
from sparse_problems import community_coo

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines.cuda import mersenne_twister
from tensorly_flycoo.engines.cuda.engine import CUDA

BOTH = pytest.mark.parametrize("dtype", ["float32", "float64"])
SIZES = (0, 1, 311, 312, 313, 10**6 + 3)
#: Least states of a chunk, and most chunks: one chunk, jumps over few states, and the usual ones.
CUTS = {"one chunk": (2**20, 1), "short": (1, 7), "usual": (2**10, 2**10)}


@pytest.fixture(params=CUTS.values(), ids=CUTS)
def _cut(request, monkeypatch):
    """Draw on the GPU, however few numbers, in chunks of some size."""
    monkeypatch.setattr(mersenne_twister, "MIN_NUMBERS", 1)
    monkeypatch.setattr(mersenne_twister, "MIN_CHUNK", request.param[0])
    monkeypatch.setattr(mersenne_twister, "MAX_CHUNKS", request.param[1])


@pytest.fixture
def _never_on_the_host(monkeypatch):
    """Fail if numbers are drawn on the host and copied."""
    monkeypatch.setattr("tensorly_flycoo.engines.protocol.Engine.draw_uniform", None)


def check_draw(random, other, size, dtype):
    """Compare with NumPy; the result is new memory, filled with nan in advance."""
    cupy.full(size, cupy.nan, dtype)
    numbers = CUDA.draw_uniform(random, (size,), np.dtype(dtype))
    assert isinstance(numbers, cupy.ndarray)
    assert numbers.dtype == dtype
    np.testing.assert_array_equal(numbers.get(), other.random_sample(size).astype(dtype))
    check_same_state(random, other)


def check_same_state(random, other):
    state, expected = random.get_state(), other.get_state()
    assert state[0] == expected[0]
    assert state[2:] == expected[2:]
    np.testing.assert_array_equal(state[1], expected[1])


@BOTH
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("_cut")
def test_numbers_are_numpys(size, dtype):
    """From each kind of position in a state, odd ones too, and twice in a row."""
    for position in (0, 1, 2, 311, 622, 623, 624):
        randoms = np.random.RandomState(3), np.random.RandomState(3)
        for random in randoms:
            random.normal(size=3)  # half of a pair is left over
            state = random.get_state(legacy=False)
            state["state"]["pos"] = position
            random.set_state(state)
        check_draw(*randoms, size, dtype)
        check_draw(*randoms, 1000, dtype)
        assert randoms[0].normal() == randoms[1].normal()


@BOTH
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, [5, 6, 7], None])
@pytest.mark.usefixtures("_cut", "_never_on_the_host")
def test_seeds(seed, dtype):
    random = np.random.RandomState(seed)
    other = np.random.RandomState()
    other.set_state(random.get_state())
    check_draw(random, other, 300_001, dtype)


@BOTH
@pytest.mark.usefixtures("_never_on_the_host")
def test_many_numbers(dtype):
    """So many that chunks are longer than usual."""
    check_draw(np.random.RandomState(8), np.random.RandomState(8), 200_000_001, dtype)


@BOTH
def test_other_generators(dtype):
    """Generators that the kernel does not know draw on the host."""

    class Subclass(np.random.RandomState):
        def random_sample(self, size=None):
            return 1 - super().random_sample(size)

    for make in (Subclass, lambda seed: np.random.RandomState(np.random.PCG64(seed))):
        numbers = CUDA.draw_uniform(make(3), (600_000, 2), np.dtype(dtype))
        expected = make(3).random_sample((600_000, 2)).astype(dtype)
        np.testing.assert_array_equal(numbers.get(), expected)


@BOTH
@pytest.mark.usefixtures("_cut")
def test_failed_allocations(dtype):
    """Whichever allocation is the first to fail, the generator does not change."""
    allocate = cupy.get_default_memory_pool().malloc
    for num_left in itertools.count():
        left = iter(range(num_left))

        def fail(nbytes, left=left):
            if next(left, None) is None:
                raise cupy.cuda.memory.OutOfMemoryError(nbytes, 0)
            return allocate(nbytes)

        random = np.random.RandomState(4)
        try:
            with cupy.cuda.using_allocator(fail):
                CUDA.draw_uniform(random, (10_000,), np.dtype(dtype))
        except MemoryError:
            check_same_state(random, np.random.RandomState(4))
        else:
            break
    assert num_left >= 3


@BOTH
@pytest.mark.usefixtures("_cut", "_never_on_the_host")
def test_parafacs_start_is_tensorlys(dtype):
    """The same bits as on a CPU, and the same numbers drawn afterwards."""
    x = FlycooTensor.from_coo(community_coo((50, 30, 40), dtype, seed=1))
    random, other = np.random.RandomState(5), np.random.RandomState(5)
    found = tl.decomposition.parafac(x, 7, init="random", random_state=random, n_iter_max=0)
    for factor, size in zip(found.factors, x.shape, strict=True):
        expected = other.random_sample((size, 7)).astype(dtype)
        np.testing.assert_array_equal(factor.get(), expected)
    check_same_state(random, other)

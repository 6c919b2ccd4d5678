"""A decomposition that runs out of memory, or is interrupted, anywhere."""

import contextlib
import gc
import itertools
import tracemalloc
import weakref

import numpy as np
import pytest
import tensorly as tl
from interrupting import interrupt_at
from tensorly.decomposition import CP, non_negative_parafac, parafac, tucker

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.decomposition import observed_parafac
from tensorly_flycoo.decomposition import parafac as our_parafac
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.loop.guarding import guard
from tensorly_flycoo.testing import random_tensor

SHAPE, NNZ = (400, 300, 200), 5000

#: Bytes that Python objects and small arrays may take.
SMALL_NBYTES = 2**18

#: Names of NumPy's functions that fail; each allocates.
ALLOCATORS = ("empty", "zeros", "ones", "concatenate", "stack", "flatnonzero", "cumsum", "append")


pytestmark = pytest.mark.usefixtures("flycoo_backend")


@pytest.fixture
def x():
    return random_tensor(SHAPE, NNZ, random_state=0, layout="remap")


class OutOfDeviceMemoryError(MemoryError):
    """Like CuPy's."""


class Failing:
    """Functions of which the `failing`-th call raises."""

    def __init__(self, failing, error):
        self.num, self.failing, self.error = 0, failing, error

    def wrap(self, function):
        def call(*args, **kwargs):
            self.num += 1
            if self.num - 1 == self.failing:
                raise self.error
            return function(*args, **kwargs)

        return call


def for_each_allocation(monkeypatch, task, step=1):
    """Call `task` with one later allocation failing each time; yield the errors."""
    for failing in itertools.count(step=step):
        with monkeypatch.context() as patch:
            counter = Failing(failing, OutOfDeviceMemoryError("allocated so far: 1 byte"))
            for name in ALLOCATORS:
                patch.setattr(np, name, counter.wrap(getattr(np, name)))
            try:
                task()
            except MemoryError as error:
                yield error
        if counter.num <= failing:
            return


def get_factors(model):
    return [np.array(factor) for factor in model.factors]


# What the error says


@pytest.mark.usual_limits("slabs")
@pytest.mark.parametrize("init", ["svd", "random"])
def test_parafac_may_run_out_anywhere(monkeypatch, x, init):
    options = {"n_iter_max": 2, "init": init, "random_state": 0}
    expected = get_factors(parafac(x, 3, **options))
    step = 5 if init == "svd" else 1
    errors = []
    for error in for_each_allocation(monkeypatch, lambda: parafac(x, 3, **options), step):
        errors.append(error)
        assert not x._layout.lock.locked()
    assert len(errors) > 10
    for error in errors:
        assert type(error) is MemoryError
        assert error.__context__ is None
        assert NEEDS in str(error)
        assert "allocated so far: 1 byte; " in str(error)
        assert " is free. Ways out: layout='indexed', " in str(error)
    for factor, other in zip(get_factors(parafac(x, 3, **options)), expected, strict=True):
        np.testing.assert_array_equal(factor, other)


#: Stands in the middle of each error.
NEEDS = " needs more memory than the host has: "


def run_out(*args, **kwargs):
    raise OutOfDeviceMemoryError


def decompose_unfolding(x):
    return tl.svd_interface(tl.unfold(x, 0), n_eigenvecs=2)


@pytest.mark.parametrize(
    ("name", "decompose"),
    [
        ("parafac", lambda x: parafac(x, 3)),
        ("parafac", lambda x: our_parafac(x, 3)),
        ("parafac", lambda x: CP(3).fit_transform(x)),
        ("a random start of rank 3", lambda x: parafac(x, 3, init="random")),
        ("non_negative_parafac", lambda x: non_negative_parafac(x, 3)),
        ("a random start of rank 3", lambda x: observed_parafac(x, 3)),
        ("finding 2 singular vectors of mode 0", decompose_unfolding),
        ("finding 2 singular vectors of mode 0", lambda x: tucker(x, (2, 2, 2))),
    ],
)
@pytest.mark.parametrize("kind", ["FlycooTensor", "COO"])
def test_every_function_explains_once(monkeypatch, x, name, decompose, kind):
    x = x if kind == "FlycooTensor" else x.to_coo()
    monkeypatch.setattr(cpu.CPU, "mttkrp", run_out)
    monkeypatch.setattr(cpu.CPU, "draw_uniform", run_out)
    monkeypatch.setattr(cpu.CPU, "split_columns", run_out)
    with pytest.raises(MemoryError) as caught:
        decompose(x)
    assert type(caught.value) is MemoryError
    assert str(caught.value).startswith(name + NEEDS)
    assert str(caught.value).count("needs") == 1


@pytest.mark.parametrize(
    "text", ["CUBLAS_STATUS_ALLOC_FAILED", "CUDA_ERROR_OUT_OF_MEMORY: out of memory"]
)
def test_errors_of_cudas_libraries(monkeypatch, x, text):
    def fail(*_, **__):
        raise RuntimeError(text)

    monkeypatch.setattr(cpu.CPU, "mttkrp", fail)
    with pytest.raises(MemoryError, match=f"parafac{NEEDS}{text}; .* is free"):
        parafac(x, 3, init="random")


def test_other_errors_pass(monkeypatch, x):
    def fail(*_, **__):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(cpu.CPU, "mttkrp", fail)
    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
        parafac(x, 3, init="random")


def test_dense_tensors_keep_their_error():
    error = MemoryError("of the user")

    @guard
    def decompose(tensor):
        raise error

    with pytest.raises(MemoryError) as caught:
        decompose(np.ones((2, 2)))
    assert caught.value is error


# The tensor afterwards


def test_an_error_keeps_nothing(monkeypatch, x):
    parafac(x, 3, n_iter_max=1)  # compiles
    entries = []
    split_columns = cpu.CPU.split_columns

    def watch(*arguments):
        found = split_columns(*arguments)
        entries.append(weakref.ref(found.values))
        return found

    monkeypatch.setattr(cpu.CPU, "split_columns", watch)
    monkeypatch.setattr(cpu.CPU, "sum_single_squares", run_out)  # needs the entries
    gc.disable()
    try:
        with pytest.raises(MemoryError) as caught:
            parafac(x, 3)
        assert [reference() for reference in entries] == [None]
    finally:
        gc.enable()
    assert "parafac" in str(caught.value)


@pytest.mark.usual_limits("slabs")
@pytest.mark.parametrize("size", [40, 400])
def test_a_start_may_be_interrupted_anywhere(size):
    """Small Gram matrices are formed; larger ones are iterated with."""
    x = random_tensor((size, 300, 200), NNZ, random_state=0, layout="remap")
    expected = get_factors(parafac(x, 2, n_iter_max=1))
    count = count_places(lambda: parafac(x, 2, n_iter_max=1))
    num_interrupts = 0
    for failing in np.linspace(0, count - 1, 60).astype(int):
        try:
            with interrupt_at(failing):
                parafac(x, 2, n_iter_max=1)
        except KeyboardInterrupt:
            num_interrupts += 1
        assert not x._layout.lock.locked()
    assert num_interrupts >= 50  # later calls have fewer places: what they need is cached
    for factor, other in zip(get_factors(parafac(x, 2, n_iter_max=1)), expected, strict=True):
        np.testing.assert_array_equal(factor, other)
    # The next error is explained, not taken for one inside another call.
    with pytest.raises(MemoryError, match="mttkrp of mode 0"), failing_mttkrp():
        mttkrp(x, expected, 0)


def count_places(task):
    with interrupt_at(None) as interrupter:
        task()
    return interrupter.num


@contextlib.contextmanager
def failing_mttkrp():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu.CPU, "mttkrp", run_out)
        yield


# What a start leaves


def test_the_svd_start_gives_its_memory_back():
    """At the first callback only the factors are left."""
    shape, rank = (20_000, 300, 200), 8
    x = random_tensor(shape, 50_000, random_state=0)
    assert isinstance(x, FlycooTensor)
    used = []

    def callback(model, error):
        used.append(tracemalloc.get_traced_memory())
        return True

    parafac(x, rank, n_iter_max=1, callback=callback)  # compiles
    used.clear()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        parafac(x, rank, n_iter_max=1, callback=callback)
    finally:
        tracemalloc.stop()
        gc.enable()
    factors_nbytes = sum(shape) * rank * 8
    now, peak = used[0]
    assert peak > 5 * factors_nbytes
    # TensorLy still holds the last mode's MTTKRP while it calls.
    assert now <= factors_nbytes + shape[-1] * rank * 8 + SMALL_NBYTES

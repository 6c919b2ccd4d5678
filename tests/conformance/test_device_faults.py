"""What goes wrong with tensors in slabs and on several devices, as far as a CPU can show it."""

import functools
import gc
import itertools
import logging
import multiprocessing
import threading
import tracemalloc

import numpy as np
import pytest
import tensorly as tl
from interrupting import interrupt_at
from numpy_devices import NumpyDevices, current_device
from slow_cases import thin_out
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.loop.initial_guess import spread_factors

SHAPE, RANK = (30, 40, 12), 3

#: Bytes that Python objects may take.
SMALL_NBYTES = 2**16

#: How many calls of a traceback are kept, of which one is the package's.
NUM_FRAMES = 12


def count_traced_nbytes():
    """Count the bytes that calls of the package hold; threads of a cluster's client hold others."""
    traces = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in traces if any(map(is_of_package, trace.traceback)))


def is_of_package(frame):
    return is_file_of_package(frame.filename)


@functools.cache
def is_file_of_package(path):
    """A snapshot has the same few files in a hundred thousand frames."""
    return "/tensorly_flycoo/" in path


pytestmark = pytest.mark.usefixtures("flycoo_backend")


def make_nonzeros(shape=SHAPE, nnz=900, seed=0):
    rng = np.random.default_rng(seed)
    places = rng.choice(np.prod(shape), nnz, replace=False)
    return np.stack(np.unravel_index(places, shape)), rng.random(nnz)


def spread(nonzeros, count, monkeypatch, shape=SHAPE, slabs=6, layout="remap"):
    with monkeypatch.context() as patch:
        patch.setattr(cpu.CPU, "devices", NumpyDevices(count))
        return FlycooTensor(*nonzeros, shape, slabs=slabs, layout=layout)


def draw_factors(shape=SHAPE):
    rng = np.random.default_rng(1)
    return [rng.random((size, RANK)) for size in shape]


def compute(x, factors):
    """Return the bits of the MTTKRP of all modes."""
    return [tl.to_numpy(mttkrp(x, factors, mode)).tobytes() for mode in range(x.ndim)]


def decompose(x, init="svd"):
    """Return the bits of a decomposition."""
    found = parafac(x, RANK, n_iter_max=3, init=init, random_state=0)
    return [tl.to_numpy(factor).tobytes() for factor in found.factors]


def check(x, nonzeros):
    """Compare with a tensor in one piece."""
    factors, whole = draw_factors(x.shape), FlycooTensor(*nonzeros, x.shape, slabs=1)
    for mode in range(x.ndim):
        found = tl.to_numpy(mttkrp(x, factors, mode))
        np.testing.assert_allclose(found, mttkrp(whole, factors, mode), rtol=1e-12, atol=1e-14)
    options = {"n_iter_max": 3, "init": "svd", "random_state": 0, "return_errors": True}
    errors = [parafac(tensor, 1, **options)[1][-1] for tensor in (x, whole)]
    np.testing.assert_allclose(*errors, rtol=1e-9, atol=1e-12)


# Odd tensors


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_hub_row_larger_than_a_slab(count, monkeypatch, caplog):
    (_, columns, rest), values = make_nonzeros()
    coords = np.unique(np.stack([_, np.where(columns < 30, 17, columns), rest]), axis=1)
    nonzeros = coords, values[: coords.shape[1]]
    with caplog.at_level(logging.WARNING, logger="tensorly_flycoo"):
        x = spread(nonzeros, count, monkeypatch)
    assert "a row of mode 1, which is not split" in caplog.text
    assert len(x._layout.slabs) < 6
    check(x, nonzeros)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_hub_row_of_another_mode(mode, monkeypatch):
    """All nonzeros are in one row of a mode: groups of columns of the cut mode are uneven."""
    (coords, values), factors = make_nonzeros(nnz=400), draw_factors()
    coords[mode] = 5
    coords, first = np.unique(coords, axis=1, return_index=True)
    nonzeros = coords, values[first]
    results = []
    for count in (1, 3, 5):
        x = spread(nonzeros, count, monkeypatch)
        check(x, nonzeros)
        results.append(compute(x, factors))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    ("shape", "nnz"), [((3, 2, 4), 20), ((3, 2, 4), 1), ((50, 3, 4), 2), ((2, 2), 4)]
)
def test_fewer_rows_or_nonzeros_than_slabs(shape, nnz, count, monkeypatch):
    nonzeros = make_nonzeros(shape, nnz)
    x = spread(nonzeros, count, monkeypatch, shape, slabs=8)
    assert x.slabs == 8
    assert len(x._layout.slabs) <= min(max(shape), max(nnz, 1))
    check(x, nonzeros)


# Threads and processes


def test_two_threads_with_two_tensors(monkeypatch):
    tensors = [spread(make_nonzeros(seed=n), count, monkeypatch) for n, count in ((0, 2), (1, 5))]
    expected, found, barrier = [decompose(x) for x in tensors], {}, threading.Barrier(2)

    def work(number):
        barrier.wait(30)
        found[number] = [decompose(tensors[number]) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {number: [expected[number]] * 3 for number in (0, 1)}


def _send(x, factors, pipe):
    pipe.send(compute(x, factors))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork(monkeypatch):
    x, factors = spread(make_nonzeros(), 3, monkeypatch), draw_factors()
    expected, context = compute(x, factors), multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(x, factors, sending))
    child.start()
    assert receiving.poll(60)
    assert receiving.recv() == expected
    child.join(60)
    assert child.exitcode == 0
    assert compute(x, factors) == expected


# Ctrl-C, and memory that runs out


class Watch:
    """Checks that a task that fails gives back its memory and leaves the tensor as it was."""

    def __init__(self, x, run=lambda: None):
        self.x, self.factors = x, draw_factors(x.shape)
        tracemalloc.start(NUM_FRAMES)
        # Caches and free lists are filled while memory is traced: else their objects would count
        # when they are replaced.
        for _ in range(2):
            run()
            self.expected = compute(x, self.factors)
        gc.collect()
        self.before = count_traced_nbytes()

    def check(self):
        gc.collect()
        kept = count_traced_nbytes() - self.before
        tracemalloc.stop()
        assert kept <= SMALL_NBYTES
        assert current_device() == 0
        assert compute(self.x, self.factors) == self.expected


@pytest.mark.parametrize("init", ["svd", "random"])
def test_ctrl_c(init, monkeypatch):
    """At places all over a decomposition, and between the exchanges of MTTKRP."""
    x, num_interrupts = spread(make_nonzeros(), 3, monkeypatch), 0
    expected = decompose(x, init)
    for failing in itertools.count(50, 2999):
        try:
            with interrupt_at(failing):
                decompose(x, init)
        except KeyboardInterrupt:
            num_interrupts += 1
            assert current_device() == 0
            assert not any(slab.layout.lock.locked() for slab in x._layout.slabs)
        else:
            break
    assert num_interrupts > 2
    assert decompose(x, init) == expected


def test_ctrl_c_in_an_exchange(monkeypatch):
    shape = (300, 400, 120)
    x, factors = spread(make_nonzeros(shape, 9000), 3, monkeypatch, shape), draw_factors(shape)
    expected, real = compute(x, factors), NumpyDevices.bring
    for failing in range(0, 30, 6):
        calls = itertools.count()

        def bring(devices, array, device, failing=failing, calls=calls):
            if next(calls) == failing:
                raise KeyboardInterrupt
            return real(devices, array, device)

        with monkeypatch.context() as patch:
            patch.setattr(NumpyDevices, "bring", bring)
            with pytest.raises(KeyboardInterrupt):
                compute(x, factors)
        assert current_device() == 0
        assert compute(x, factors) == expected


def fail_on(device, monkeypatch, name, after=0):
    """Let memory run out on a device, at a later call of a method of the engine."""
    real, calls = getattr(cpu.CpuEngine, name), itertools.count()

    def run_out(engine, *arguments, **options):
        if current_device() == device and next(calls) >= after:
            raise MemoryError("no memory on this device")
        return real(engine, *arguments, **options)

    monkeypatch.setattr(cpu.CpuEngine, name, run_out)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("device", [0, 1, 2])
def test_memory_runs_out_on_one_device_in_mttkrp(device, mode, monkeypatch):
    x = spread(make_nonzeros(), 3, monkeypatch)
    watch = Watch(x)
    with monkeypatch.context() as patch:
        fail_on(device, patch, "allocate_workspace", after=1)
        message = f"mttkrp of mode {mode} and rank {RANK} needs more memory"
        with pytest.raises(MemoryError, match=message):
            mttkrp(x, watch.factors, mode)
    watch.check()


@pytest.mark.parametrize("device", [0, 2])
def test_memory_runs_out_on_one_device_with_sharded_factors(device, monkeypatch):
    x = spread(make_nonzeros(), 3, monkeypatch)
    watch = Watch(x)
    with monkeypatch.context() as patch:
        fail_on(device, patch, "allocate_workspace", after=1)
        with pytest.raises(MemoryError, match=f"mttkrp of mode 1 and rank {RANK} needs"):
            mttkrp(x, spread_factors(x, watch.factors), 1)
    watch.check()


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (0, "split_columns"),
        (2, "list_shared"),
        (0, "gram"),
        (2, "allocate_workspace"),
        pytest.param(2, "split_columns", marks=pytest.mark.slow),
        pytest.param(0, "list_shared", marks=pytest.mark.slow),
        pytest.param(2, "gram", marks=pytest.mark.slow),
        pytest.param(0, "allocate_workspace", marks=pytest.mark.slow),
    ],
)
def test_memory_runs_out_on_one_device_in_a_decomposition(device, name, monkeypatch):
    x = spread(make_nonzeros(), 3, monkeypatch)
    watch = Watch(x, lambda: decompose(x))
    with monkeypatch.context() as patch:
        fail_on(device, patch, name, after=1)
        with pytest.raises(MemoryError, match="needs more memory than the host has: no memory on"):
            parafac(x, RANK, n_iter_max=2, random_state=0)
    watch.check()


@pytest.mark.parametrize(
    ("device", "layout", "name"),
    thin_out(
        itertools.product((0, 1, 2), ("remap", "replicated", "indexed"), ("pack", "sort_by_row")), 5
    ),
)
def test_memory_runs_out_on_one_device_while_building(device, layout, name, monkeypatch):
    nonzeros = make_nonzeros()
    spread(nonzeros, 3, monkeypatch, layout=layout)  # compiles

    def run_out():
        with monkeypatch.context() as patch:
            fail_on(device, patch, name, after=1)
            with pytest.raises(MemoryError, match="building a FlycooTensor of 900 nonzeros"):
                spread(nonzeros, 3, monkeypatch, layout=layout)
        gc.collect()

    tracemalloc.start(NUM_FRAMES)
    run_out()  # fills caches, as in `Watch`
    before = count_traced_nbytes()
    run_out()
    kept = count_traced_nbytes() - before
    tracemalloc.stop()
    assert kept <= SMALL_NBYTES
    assert current_device() == 0


def test_gathered_factors_are_given_back(monkeypatch):
    """Shards keep what they gathered only as long as they live."""
    shape, rng = (9000, 10_000, 12), np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 900) for size in shape])
    x = spread((coords, rng.random(900)), 3, monkeypatch, shape)
    watch = Watch(x, lambda: decompose(x, "random"))
    decompose(x, "random")
    watch.check()
    assert SMALL_NBYTES < 9000 * RANK * 8  # less than one gathered factor

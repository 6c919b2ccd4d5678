"""Streamed slabs, on the CPU engine with a stager that checks what it is asked for."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorly as tl
from numpy_devices import NumpyDevices
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, estimate_memory, mttkrp
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.ops.sampling import make_sampler
from tensorly_flycoo.ops.ttmc import multiply_nonempty_rows
from tensorly_flycoo.spread import memory
from tensorly_flycoo.spread.slab_layout import SlabLayout
from tensorly_flycoo.spread.streamed import StreamedLayout

SHAPE, RANK, NUM_SLABS = (40, 30, 200), 4, 5


class CheckingStager:
    """Copies arrays; what was announced as the next one must be the next one of a sweep."""

    def __init__(self):
        self.taken = []
        self.num_held = 0

    def put_aside(self, array, order=None):
        return array.copy()

    @contextlib.contextmanager
    def take(self, array, following):
        self.taken.append((array, following))
        self.num_held += 1
        slot = array.copy()
        try:
            yield slot
        finally:
            slot.view(np.uint8)[...] = 255  # as if others were copied there
            self.num_held -= 1


@pytest.fixture
def stagers(monkeypatch):
    """Let the CPU engine stream; return the stagers that it makes."""
    made = []

    def make():
        made.append(CheckingStager())
        return made[-1]

    monkeypatch.setattr(CPU, "make_stager", make, raising=False)
    monkeypatch.setattr(CPU, "count_free_nbytes", lambda: 0)
    return made


def make(dtype="float64", **options):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 3000) for size in SHAPE])
    values = rng.integers(1, 9, 3000).astype(dtype)
    return FlycooTensor(coords, values, SHAPE, **options)


def draw_factors(dtype="float64"):
    rng = np.random.default_rng(1)
    return [rng.random((size, RANK)).astype(dtype) for size in SHAPE]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_results_have_the_bits_of_resident_slabs(stagers, dtype):
    resident, factors = make(dtype, slabs=NUM_SLABS), draw_factors(dtype)
    x = make(dtype, slabs=NUM_SLABS, keep="host")
    assert (x.keep, x.layout, resident.keep) == ("host", "replicated", "device")
    for mode in (0, 1, 2, 0, 2, 1):
        found, expected = (mttkrp(z, factors, mode) for z in (x, resident))
        assert found.tobytes() == expected.tobytes()
    for found, expected in zip(x.nonzeros(), resident.nonzeros(), strict=True):
        np.testing.assert_array_equal(found, expected)
    inputs = {n: factor for n, factor in enumerate(factors) if n != 1}
    found, expected = (multiply_nonempty_rows(z, 1, inputs)[0] for z in (x, resident))
    assert found.tobytes() == expected.tobytes()
    assert stagers[0].num_held == 0


@pytest.mark.parametrize("groups", [[(0, 1), (2,)], [(0,), (1, 2)]])  # the first is numbered
def test_groups_of_modes(stagers, groups):
    factors = draw_factors()
    resident, x = (make(slabs=NUM_SLABS, groups=groups, keep=keep) for keep in ("device", "host"))
    for y, other in ((x, resident), (2 * x, 2 * resident)):
        assert (y.keep, y.groups, other.groups) == ("host", tuple(groups), tuple(groups))
        for mode in range(3):
            assert mttkrp(y, factors, mode).tobytes() == mttkrp(other, factors, mode).tobytes()
    assert stagers[0].num_held == 0


@pytest.mark.usual_limits(
    "groups", "prefixes"
)  # a sweep of a decomposition takes one copy for each group
def test_the_next_copy_of_a_sweep_is_announced(stagers):
    x, factors = make(slabs=NUM_SLABS, keep="host"), draw_factors()
    for mode in (0, 1, 2, 0):
        mttkrp(x, factors, mode)
    taken = stagers[0].taken
    assert len(taken) == 4 * NUM_SLABS
    for (_, following), (array, _) in itertools.pairwise(taken):
        assert following is array


@pytest.fixture(params=[2, 3])
def devices(request, monkeypatch):
    """Let the CPU engine stand for several devices."""
    numpy_devices = NumpyDevices(request.param)
    monkeypatch.setattr(CPU, "devices", numpy_devices)
    return numpy_devices


@pytest.mark.usual_limits("groups", "prefixes")
def test_each_device_streams_its_own_slabs(stagers, devices):
    """By a stager of its own, with the next copy of its own slabs announced."""
    resident, factors = make(slabs=NUM_SLABS), draw_factors()
    x = make(slabs=NUM_SLABS, keep="host")
    assert x._layout.num_streamed == NUM_SLABS
    for mode in (0, 1, 2, 0):
        found, expected = (mttkrp(z, factors, mode) for z in (x, resident))
        assert found.tobytes() == expected.tobytes()
    assert len(stagers) == devices.count
    for home, stager in enumerate(stagers):
        layouts = [slab.layout for slab in x._layout.slabs if slab.home == home]
        own = [layout.copies[mode] for mode in (0, 1, 2, 0) for layout in layouts]
        assert [id(array) for array, _ in stager.taken] == list(map(id, own))
        for (_, following), (array, _) in itertools.pairwise(stager.taken):
            assert following is array
        assert stager.num_held == 0


@pytest.mark.usual_limits("prefixes")
def test_devices_have_equally_many_slabs(stagers, devices, monkeypatch):
    """And keep as many of them as fit in each one's memory."""
    monkeypatch.setattr(memory, "STREAMED_NBYTES", 5000)
    assert make(keep="host").slabs % devices.count == 0
    num_slabs = 4 * devices.count
    x = make(slabs=num_slabs)
    sizes = memory.TensorSizes(3000, SHAPE, x.dtype, x.groups)
    nbytes, peak_nbytes = memory.estimate_layout(CPU, "replicated", sizes, num_slabs)
    kept = nbytes // devices.count
    free_nbytes = 2 * (peak_nbytes - kept + kept * 5 // 8)  # room for two and a half
    monkeypatch.setattr(CPU, "count_free_nbytes", lambda: free_nbytes)
    y, factors = make(slabs=num_slabs, keep="host"), draw_factors()
    assert y._layout.num_streamed == num_slabs - 2 * devices.count
    for mode in range(3):
        assert mttkrp(y, factors, mode).tobytes() == mttkrp(x, factors, mode).tobytes()
    options = {"dtype": "float64", "device": "cpu", "keep": "host", "slabs": num_slabs}
    estimate = estimate_memory(SHAPE, 3000, **options)
    streamed = [slab.layout for slab in y._layout.slabs if isinstance(slab.layout, StreamedLayout)]
    on_host = [copy.nbytes for layout in streamed for copy in layout.copies]
    assert estimate.host_nbytes == pytest.approx(sum(on_host), rel=0.02)
    assert peak_nbytes - estimate.peak_nbytes == estimate.host_nbytes // devices.count


@pytest.mark.usual_limits("prefixes")  # of which estimates do not know
def test_what_fits_in_half_of_the_memory_stays(stagers, monkeypatch):
    x = make(slabs=NUM_SLABS)
    sizes = memory.TensorSizes(3000, SHAPE, x.dtype, x.groups)
    nbytes, peak_nbytes = memory.estimate_layout(CPU, "replicated", sizes, NUM_SLABS)
    free_nbytes = 2 * (peak_nbytes - nbytes + 5 * nbytes // (2 * NUM_SLABS))
    monkeypatch.setattr(CPU, "count_free_nbytes", lambda: free_nbytes)
    y, factors = make(slabs=NUM_SLABS, keep="host"), draw_factors()
    assert y._layout.num_streamed == NUM_SLABS - 2
    for mode in range(3):
        assert mttkrp(y, factors, mode).tobytes() == mttkrp(x, factors, mode).tobytes()
    monkeypatch.setattr(CPU, "count_free_nbytes", lambda: 2**40)
    assert make(slabs=NUM_SLABS, keep="host").keep == "device"


OPERATIONS = [
    lambda x: x[3:9, [5, 2]],
    lambda x: x.T,
    lambda x: x.sum(axis=1),
    lambda x: x * 0,
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_other_tensors_are_made(stagers, operation):
    x, y = make(slabs=NUM_SLABS, keep="host"), make(slabs=NUM_SLABS)
    for found, expected in zip(operation(x).nonzeros(), operation(y).nonzeros(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_samples(stagers):
    x, y = make(slabs=NUM_SLABS, keep="host"), make(slabs=NUM_SLABS)
    places = np.random.default_rng(2).integers(0, x.nnz, 50)
    samplers = make_sampler(x), make_sampler(y)
    for wanted in (places, slice(2, 30)):
        for found, expected in zip(*(own.take(wanted) for own in samplers), strict=True):
            np.testing.assert_array_equal(found, expected)
    coords, values = samplers[0].take(slice(0, x.nnz))
    order = np.lexsort(coords[::-1])
    np.testing.assert_array_equal(coords[:, order], x.nonzeros()[0])
    np.testing.assert_array_equal(values[order], x.nonzeros()[1])


def test_values_are_mapped(stagers):
    x, y = make(slabs=NUM_SLABS, keep="host"), make(slabs=NUM_SLABS)
    for found, expected in ((x * 2, y * 2), (abs(-x), abs(-y)), (x.astype("float32"), y)):
        assert found.keep == "host"
        np.testing.assert_array_equal(found.nonzeros()[1], expected.nonzeros()[1])
    doubled, factors = x * 2, draw_factors()
    assert mttkrp(doubled, factors, 0).tobytes() == mttkrp(y * 2, factors, 0).tobytes()


@pytest.mark.parametrize("init", ["random", "svd"])
def test_parafac(stagers, init):
    results = set()
    for keep in ("host", "device"):
        x = make(slabs=NUM_SLABS, keep=keep)
        with tl.backend_context("flycoo"):
            cp, errors = parafac(
                x, RANK, init=init, n_iter_max=5, tol=0, random_state=0, return_errors=True
            )
        results.add(
            b"".join(factor.tobytes() for factor in cp.factors) + np.array(errors).tobytes()
        )
    assert len(results) == 1


def test_a_failure_in_the_middle_leaves_nothing_held(stagers, monkeypatch):
    x, factors = make(slabs=NUM_SLABS, keep="host"), draw_factors()
    expected, original, count = mttkrp(x, factors, 0), CPU.mttkrp, []

    def fail(layout, *arguments, **options):
        count.append(1)
        if len(count) == 3:
            with layout.step(arguments[1], CPU):
                raise KeyboardInterrupt
        original(layout, *arguments, **options)

    monkeypatch.setattr(CPU, "mttkrp", fail)
    with pytest.raises(KeyboardInterrupt):
        mttkrp(x, factors, 0)
    assert stagers[0].num_held == 0
    np.testing.assert_array_equal(mttkrp(x, factors, 0), expected)


def test_the_number_of_slabs(stagers, monkeypatch):
    assert memory.choose_num_slabs(100, 1, 16) == 2
    assert memory.choose_num_slabs(2**30, 1, 16) == 16
    assert memory.choose_num_slabs(2**33) == 2
    monkeypatch.setattr(memory, "STREAMED_NBYTES", 5000)
    x = make(keep="host")
    assert isinstance(x._layout, SlabLayout)
    assert x.slabs == -(-3000 * x._layout.record_format.record_nbytes // 5000)


@pytest.mark.usual_limits("prefixes")  # of which estimates do not know
def test_the_estimate_knows_what_stays(stagers, monkeypatch):
    """The planner of tensors is that of estimates."""
    options = {"dtype": "float64", "device": "cpu", "keep": "host", "slabs": NUM_SLABS}
    for free_nbytes in (0, 2**40):
        monkeypatch.setattr(CPU, "count_free_nbytes", lambda free=free_nbytes: free)
        estimate = estimate_memory(SHAPE, 3000, **options)
        x = make(slabs=NUM_SLABS, keep="host")
        on_host = [copy for slab in x._layout.slabs for copy in slab.layout.get_copies()]
        expected = sum(copy.nbytes for copy in on_host) if x.keep == "host" else 0
        assert estimate.host_nbytes == pytest.approx(expected, rel=0.02)
        resident = estimate_memory(SHAPE, 3000, **options | {
            "keep": "device", "layout": "replicated"
        })  # fmt: skip
        assert estimate.nbytes == resident.nbytes
        assert resident.peak_nbytes - estimate.peak_nbytes == estimate.host_nbytes


def test_bad_options():
    with pytest.raises(ValueError, match="keep is 'disk', expected one of"):
        make(keep="disk")
    with pytest.raises(ValueError, match="layout is 'remap', but keep='host' needs 'replicated'"):
        make(keep="host", layout="remap")


def test_on_a_cpu_nothing_is_streamed():
    x = make(keep="host", slabs=2)
    assert (x.keep, x.layout) == ("device", "replicated")

"""Copies between simulated GPUs, whose streams run in any order that events allow."""

import itertools

import numpy as np
import pytest
from simulated_gpus import Array, ForeignMemory, Pointer, SimulatedGpus, load_devices

from tensorly_flycoo.format.tree import make_tree

NUM_ROWS, RANK = 4, 3


@pytest.fixture(params=range(10))
def gpus(request):
    return SimulatedGpus(np.random.default_rng(request.param))


@pytest.fixture(params=["kernel", "driver"])
def copier(request):
    """What makes the copies: the driver does if GPUs cannot read each other's memory."""
    return request.param


@pytest.fixture
def module(gpus, copier, monkeypatch):
    gpus.cuda.runtime.deviceCanAccessPeer = lambda *pair: copier == "kernel"
    return load_devices(gpus, monkeypatch)


@pytest.fixture(params=[1, 2, 3, 5])
def devices(request, module):
    return module.CudaDevices(request.param)


def make(gpus, device, number, pad=0):
    """Return a matrix that work on a GPU fills, and its values; its rows may lie apart."""
    values = np.full((NUM_ROWS, RANK), float(number))
    with gpus.cuda.Device(device):
        array = gpus.empty((NUM_ROWS, RANK + pad), float)
        array.fill(-1.0)
        array[:, :RANK].fill(values)
    return array[:, :RANK], values


def use_memory_again(gpus, count):
    """Let each GPU write to what is free, after what is queued."""
    for device in range(count):
        with gpus.cuda.Device(device):
            for shape in [(NUM_ROWS, RANK), (NUM_ROWS, RANK + 2), (count * NUM_ROWS, RANK)]:
                for _ in range(4):
                    gpus.empty(shape, float).fill(-2.0)


def read(gpus, array, found):
    """Append an array's values to `found`, by work on its GPU."""
    with gpus.cuda.Device(array.data.device_id):
        gpus.launch(lambda view=array.view: found.append(view.copy()))


@pytest.mark.parametrize("pad", [0, 2])
def test_all_gather_from_all(gpus, devices, pad):
    """Twice: what is gathered is complete, and no memory is used again too early."""
    expected, found, old = [], [], []
    for number in (1, 20):
        made = [make(gpus, device, number + device, pad) for device in range(devices.count)]
        for device in range(devices.count):  # an array that is read, whose memory is then free
            with gpus.cuda.Device(device):
                before = gpus.empty((devices.count * NUM_ROWS, RANK), float)
                before.fill(7.0)
                read(gpus, before, old)
        del before
        blocks = [array for array, _ in made]
        wholes = devices.gather([(blocks, device) for device in range(devices.count)])
        assert [whole.data.device_id for whole in wholes] == list(range(devices.count))
        expected += [np.concatenate([values for _, values in made])] * devices.count
        for whole in wholes:
            read(gpus, whole, found)
        del made, blocks, wholes, whole
        use_memory_again(gpus, devices.count)
    gpus.run()
    assert all((array == 7).all() for array in old)
    key = lambda array: array.sum()  # noqa: E731
    for one, other in zip(sorted(found, key=key), sorted(expected, key=key), strict=True):
        np.testing.assert_array_equal(one, other)


def test_single_arrays(gpus, devices):
    """Those that are there are returned as they are; host arrays are copied."""
    (array, values), last = make(gpus, 0, 5), devices.count - 1
    host, found = np.arange(6.0).reshape(2, 3), []
    arrays = devices.gather([((array,), 0), ((array,), last), ((host,), last)])
    assert arrays[0] is array
    assert (arrays[1] is array) == (last == 0)
    for copy in arrays[1:]:
        read(gpus, copy, found)
    del array, arrays, copy
    use_memory_again(gpus, devices.count)
    gpus.run()
    np.testing.assert_array_equal(found[0], values)
    np.testing.assert_array_equal(found[1], host)


def test_kernel_and_driver_in_one_exchange(gpus, devices, copier):
    """A kernel copies numbers to the first GPU while the driver copies bytes to the last."""
    last, found = devices.count - 1, []
    numbers, values = make(gpus, last, 5)
    flags = gpus.empty((NUM_ROWS, RANK), bool)
    flags.fill(True)
    for array in devices.gather([((numbers,), 0), ((flags,), last)]):
        read(gpus, array, found)
    del numbers, flags, array
    use_memory_again(gpus, devices.count)
    gpus.run()
    assert gpus.num_kernels == (last > 0 and copier == "kernel")
    for array in found:
        np.testing.assert_array_equal(array, values if array.dtype == float else True)


def test_collecting(gpus, devices):
    """On the first GPU, in one exchange; what is on the host stays there."""
    made, host, found = [make(gpus, n, n) for n in range(devices.count)], np.arange(3.0), []
    first, *others = devices.collect([host, *(array for array, _ in made)])
    assert first is host
    for array in others:
        assert array.data.device_id == 0
        read(gpus, array, found)
    gpus.run()
    np.testing.assert_array_equal(found, [values for _, values in made])


def test_adding(gpus, devices, copier):
    """Each GPU adds parts of all, which are complete, and stay until they are read."""
    count = devices.count
    made = [make(gpus, device, 10.0**device) for device in range(count)]
    tree = make_tree(count)
    requests = [([array[n : n + 1] for array, _ in made], n % count) for n in range(NUM_ROWS)]
    sums = devices.add(requests, tree, gpus.add_parts)
    assert gpus.num_kernels == (NUM_ROWS if copier == "kernel" or count == 1 else 0)
    assert [total.data.device_id for total in sums] == [n % count for n in range(NUM_ROWS)]
    found = []
    for total in sums:
        read(gpus, total, found)
    del made, requests, sums, total
    use_memory_again(gpus, count)
    gpus.run()
    expected = sum(10.0**device for device in range(count))
    np.testing.assert_array_equal(found, np.full((NUM_ROWS, 1, RANK), expected))


def test_lending(gpus, devices):
    """GPUs write when what had the memory before is done; then the first one reads."""
    old, found, count = [], [], devices.count
    before, homes = gpus.empty((count * NUM_ROWS, RANK), float), list(range(count)) * 2
    before.fill(7.0)
    read(gpus, before, old)
    del before
    whole = gpus.empty((count * NUM_ROWS, RANK), float)
    parts = [whole[2 * n : 2 * n + 2] for n in range(2 * count)]
    with devices.lend(parts, homes) as lent:
        for number, (home, part) in enumerate(zip(homes, lent, strict=True)):
            with gpus.cuda.Device(home):
                part.fill(float(number))
    read(gpus, whole, found)
    del whole, parts, lent, part
    use_memory_again(gpus, count)
    gpus.run()
    np.testing.assert_array_equal(old[0], 7)
    np.testing.assert_array_equal(found[0][::2, 0], np.arange(2 * count))


def test_lending_among_all(gpus, devices):
    """Each GPU writes to memory of all, and reads its own when all have written."""
    old, found, count = [], [], devices.count
    targets = []
    for device in range(count):
        with gpus.cuda.Device(device):
            before = gpus.empty((count * NUM_ROWS, RANK), float)
            before.fill(7.0)
            read(gpus, before, old)
            del before
            targets.append(gpus.empty((count * NUM_ROWS, RANK), float))
    pairs = [(home, target) for home in range(count) for target in targets]
    homes = [home for home, _ in pairs]
    parts = [target[NUM_ROWS * home : NUM_ROWS * (home + 1)] for home, target in pairs]
    with devices.lend(parts, homes, range(count)) as lent:
        for home, part in zip(homes, lent, strict=True):
            with gpus.cuda.Device(home):
                part.fill(float(home))
    for target in targets:
        read(gpus, target, found)
    del targets, target, pairs, parts, lent, part
    use_memory_again(gpus, count)
    gpus.run()
    assert all((array == 7).all() for array in old)
    assert len(found) == count
    for array in found:
        np.testing.assert_array_equal(array[::NUM_ROWS, 0], np.arange(count))


def test_work_in_order(gpus, devices):
    """The first GPU's work comes after earlier work of all, and before their later work."""
    count, found = devices.count, []
    arrays = [make(gpus, device, device)[0] for device in range(count)]
    with devices.in_order():
        for array in arrays:  # by kernels of the first GPU, on memory of all
            gpus.launch(lambda view=array.view: view.__iadd__(10))
    for array in arrays:
        read(gpus, array, found)
    gpus.run()
    expected = [np.full((NUM_ROWS, RANK), 10.0 + device) for device in range(count)]
    key = lambda array: array.sum()  # noqa: E731
    for one, other in zip(sorted(found, key=key), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_lending_that_fails(gpus, devices):
    """Nobody writes any more when the error reaches the caller, who may free memory."""
    last = devices.count - 1
    whole = gpus.empty((NUM_ROWS, RANK), float)

    def write_and_fail():
        with devices.lend([whole], [last]), gpus.cuda.Device(last):
            whole.fill(1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert not any(gpus.queues.values())


def test_what_can_be_lent(gpus, devices, copier):
    """Memory of CuPy's own allocators, if kernels of all GPUs can write to it."""
    array = gpus.empty((NUM_ROWS, RANK), float)
    assert devices.can_lend(array) == (copier == "kernel" or devices.count == 1)
    numbers = np.arange(5.0)
    assert not devices.can_lend(Array(gpus, numbers, ForeignMemory(gpus, numbers.nbytes)))


def test_what_an_exchange_costs(gpus, devices, copier):
    """One event of each GPU before the copies, one after them, and no waits for oneself."""
    count, num_pairs = devices.count, devices.count * (devices.count - 1)
    blocks = [make(gpus, device, device)[0] for device in range(count)]
    devices.gather([(blocks, device) for device in range(count)])
    found = (gpus.num_kernels, gpus.num_copies, gpus.num_records, gpus.num_waits)
    if count == 1:
        assert found == (0, 0, 0, 0)
    else:
        num_launches = (count, 0) if copier == "kernel" else (0, count**2)
        assert found == (*num_launches, 2 * count, 2 * num_pairs)


def test_arrays_that_no_kernel_copies(gpus, devices):
    """Bytes, columns that lie apart, and memory of other allocators."""
    found, last = [], devices.count - 1
    whole = gpus.empty((NUM_ROWS, 2 * RANK), float)
    whole.fill(np.arange(2.0 * NUM_ROWS * RANK).reshape(NUM_ROWS, -1))
    flags = gpus.empty((NUM_ROWS, RANK), bool)
    flags.fill(True)
    numbers = np.arange(5.0)
    foreign = Array(gpus, numbers, ForeignMemory(gpus, numbers.nbytes))
    foreign.fill(numbers)
    for array in devices.gather([((one,), last) for one in (whole[:, ::2], flags, foreign)]):
        read(gpus, array, found)
    gpus.run()
    expected = np.arange(0.0, 2 * NUM_ROWS * RANK, 2).reshape(NUM_ROWS, RANK)
    np.testing.assert_array_equal(found[0], expected)
    assert found[1].all()
    np.testing.assert_array_equal(found[2], numbers)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_exchange_that_fails(gpus, devices, module, copier, failing, monkeypatch):
    """Nothing is under way when the error reaches the caller, who may free memory."""
    blocks = [make(gpus, device, device)[0] for device in range(devices.count)]
    owner, name = (Pointer, "copy_from_device_async")
    if copier == "kernel":
        owner, name = module, "copy_blocks"
    calls, real = itertools.count(), getattr(owner, name)

    def copy(*arguments):
        if next(calls) == failing:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(owner, name, copy)
    if 1 < devices.count > failing:
        with pytest.raises(KeyboardInterrupt):
            devices.gather([(blocks, device) for device in range(devices.count)])
        assert not any(gpus.queues.values())

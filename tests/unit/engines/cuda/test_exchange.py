"""Copies between simulated GPUs, whose streams run in any order that events allow."""

import numpy as np
import pytest
from simulated_gpus import SimulatedGpus, load_devices

NUM_ROWS, RANK = 4, 3


@pytest.fixture(params=range(15))
def gpus(request):
    return SimulatedGpus(np.random.default_rng(request.param))


@pytest.fixture(params=[1, 2, 3, 5])
def devices(request, gpus, monkeypatch):
    return load_devices(gpus, monkeypatch).CudaDevices(request.param)


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
    arrays = devices.gather([((array,), None), ((array,), last), ((host,), last)])
    assert arrays[0] is array
    assert (arrays[1] is array) == (last == 0)
    for copy in arrays[1:]:
        read(gpus, copy, found)
    del array, arrays, copy
    use_memory_again(gpus, devices.count)
    gpus.run()
    np.testing.assert_array_equal(found[0], values)
    np.testing.assert_array_equal(found[1], host)


def test_what_an_exchange_costs(gpus, devices):
    """One event of each GPU before the copies, one after them, and no waits for oneself."""
    count = devices.count
    blocks = [make(gpus, device, device)[0] for device in range(count)]
    devices.gather([(blocks, device) for device in range(count)])
    num_pairs = count * (count - 1)
    assert gpus.num_copies == count**2 if count > 1 else gpus.num_copies == 0
    assert gpus.num_records == (2 * count if count > 1 else 0)
    assert gpus.num_waits == (2 * num_pairs + 2 * count if count > 1 else 0)


def test_an_exchange_that_fails(gpus, devices, monkeypatch):
    """Nothing is under way when the error reaches the caller, who may free memory."""
    blocks = [make(gpus, device, device)[0] for device in range(devices.count)]
    real, calls = gpus.cuda.MemoryPointer.copy_from_device_async, []

    def copy(self, *arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        real(self, *arguments)

    monkeypatch.setattr(gpus.cuda.MemoryPointer, "copy_from_device_async", copy)
    if devices.count > 1:
        with pytest.raises(KeyboardInterrupt):
            devices.gather([(blocks, device) for device in range(devices.count)])
        assert not any(gpus.queues.values())

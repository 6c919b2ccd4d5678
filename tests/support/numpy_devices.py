""" "Devices" that are all NumPy: arrays know where they are, and those of two devices never mix."""

import contextlib
import threading

import numpy as np

from tensorly_flycoo.base.devices import Devices

_current = threading.local()


def current_device():
    return getattr(_current, "device", 0)


class DeviceArray(np.ndarray):
    """An array on one device; computing with it needs that device to be the current one."""

    device = 0

    def __array_finalize__(self, other):
        self.device = getattr(other, "device", current_device())

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        result = getattr(ufunc, method)(*_unwrap(inputs), **_unwrap(options))
        return _wrap(result)

    def __array_function__(self, function, types, args, kwargs):
        return _wrap(function(*_unwrap(args), **_unwrap(kwargs)))


def _check_method(name):
    def method(self, *args, **options):
        return _wrap(getattr(_unwrap(self), name)(*_unwrap(args), **_unwrap(options)))

    return method


for _name in ("all", "any", "astype", "clip", "copy", "dot", "max", "min", "nonzero", "sum"):
    setattr(DeviceArray, _name, _check_method(_name))


def _unwrap(x):
    if isinstance(x, DeviceArray):
        assert x.device == current_device(), f"device {x.device} used on {current_device()}"
        return x.view(np.ndarray)
    if isinstance(x, dict):
        return {key: _unwrap(value) for key, value in x.items()}
    if type(x) in (list, tuple):
        return type(x)(_unwrap(item) for item in x)
    return x


def _wrap(x):
    if isinstance(x, tuple):
        return tuple(map(_wrap, x))
    if isinstance(x, list):
        return list(map(_wrap, x))
    return place(x, current_device()) if isinstance(x, np.ndarray) else x


def place(array, device):
    placed = array.view(DeviceArray)
    placed.device = device
    return placed


class NumpyDevices:
    """Implements `devices.Devices`."""

    least_nnz = least_nbytes = 0
    num_at_once = 1

    def __init__(self, count=1):
        self.count = count

    def check_current(self):
        assert current_device() == 0

    @contextlib.contextmanager
    def use(self, device):
        previous = current_device()
        _current.device = device
        try:
            yield
        finally:
            _current.device = previous

    def empty(self, device, shape, dtype):
        return place(np.empty(shape, dtype), device)

    def can_lend(self, array):
        return True

    @contextlib.contextmanager
    def lend(self, arrays, homes, owners=(0,)):
        yield [place(array, home) for array, home in zip(arrays, homes, strict=True)]

    def run(self, device, function, *args):
        with self.use(device):
            return function(*args)

    def map(self, function, homes, *columns):
        return [self.run(call[0], function, *call) for call in zip(homes, *columns, strict=True)]

    def launch(self, results):
        return results

    add = Devices.add

    def bring(self, array, device):
        if isinstance(array, DeviceArray) and array.device == device:
            return array
        return place(np.array(array.view(np.ndarray)), device)

    def gather(self, requests):
        return [self._gather(arrays, device) for arrays, device in requests]

    def _gather(self, arrays, device):
        there = [self.bring(array, device) for array in arrays]
        if len(there) == 1:
            return there[0]
        whole = np.concatenate([array.view(np.ndarray) for array in there])
        return place(np.ascontiguousarray(whole), device)

    def collect(self, arrays):
        return [self.bring(x, 0) if isinstance(x, np.ndarray) else x for x in arrays]

    def replicate(self, arrays, function):
        return function(*self.collect(arrays))

    def fetch(self, matrices):
        return np.concatenate([matrix.view(np.ndarray) for matrix in matrices])

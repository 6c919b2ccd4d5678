"""Memory that a worker uses again."""

import numpy as np

from tensorly_flycoo.dask.machine import Site, SpareMemory
from tensorly_flycoo.engines.cpu.engine import CPU

SHAPE = (1000, 100)


def find_address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_when_nobody_holds_any_of_it():
    memory, dtype = SpareMemory(), np.dtype(np.float32)
    x = memory.empty(SHAPE, dtype)
    x[...] = 1
    address, part = find_address(x), x[10:20].T
    del x
    other = memory.empty(SHAPE, dtype)
    assert find_address(other) != address
    other[...] = 2
    assert (part == 1).all()
    del part
    again = memory.empty(SHAPE[::-1], dtype)
    assert find_address(again) == address
    assert (again.shape, again.dtype, again.flags.writeable) == (SHAPE[::-1], dtype, True)


def test_memory_is_given_back():
    memory, dtype = SpareMemory(), np.dtype(np.float64)
    held = memory.empty(SHAPE, dtype)
    memory.empty(SHAPE, dtype)
    assert sum(map(len, memory._spare.values())) == 1
    memory.clear()
    del held
    assert not memory._spare


def test_matrices_are_joined():
    site = Site(CPU, lambda: None)
    for num_rows in (3, 3000):
        x = np.random.default_rng(0).random((num_rows, 20))
        np.testing.assert_array_equal(site.join([x, x[:0], 2 * x]), np.concatenate([x, 2 * x]))

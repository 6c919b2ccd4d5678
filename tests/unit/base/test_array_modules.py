"""Arrays are told apart by their class, whether or not CuPy is loaded."""

import sys
import types

import numpy as np

from tensorly_flycoo.base.array_modules import is_cupy, share


class Array:
    """In place of CuPy's."""


class Special(Array):
    """A class of its own arrays that a user derives."""


def test_cupy_may_be_loaded_after_the_first_question(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    arrays = [Array(), Special()]
    assert not any(map(is_cupy, arrays))
    cupy = types.ModuleType("cupy")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert not any(map(is_cupy, arrays))  # while it is being loaded
    cupy = types.ModuleType("cupy")
    cupy.ndarray = Array
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert all(map(is_cupy, arrays))
    assert not is_cupy([arrays[0]])
    monkeypatch.setitem(sys.modules, "cupy", None)  # it cannot be loaded
    assert not any(map(is_cupy, arrays))


def test_own_arrays_are_shared_as_they_are():
    x = np.ones(2)
    assert share(x) is x
    assert share(None) is None
    assert not is_cupy(x)
    assert not is_cupy([1, 2])

"""The two primitives mean the same in NumPy and in the CPU engine."""

import numpy as np
import pytest

from tensorly_flycoo.engines import cpu
from tensorly_flycoo.format.primitives import Primitives, index_dtype


@pytest.fixture(params=[Primitives(), cpu.primitives], ids=["numpy", "cpu"])
def primitives(request):
    return request.param


@pytest.mark.parametrize("key_dtype", ["uint32", "uint64"])
def test_sort_positions_is_stable(primitives, key_dtype):
    keys = np.array([2, 0, 2, 1, 0, 2], key_dtype)
    positions = primitives.sort_positions(keys, 4)
    assert positions.tolist() == [3, 0, 4, 2, 1, 5]
    assert positions.dtype == np.uint32


@pytest.mark.parametrize("num_keys", [1, 2, 1000, 2**20])
@pytest.mark.parametrize("nnz", [0, 1, 5000])
def test_sort_positions_sorts(primitives, num_keys, nnz):
    """Also where there are too many keys to count."""
    keys = np.random.default_rng(0).integers(0, num_keys, nnz).astype(np.uint64)
    positions = primitives.sort_positions(keys, num_keys)
    expected = np.empty(nnz, np.int64)
    expected[np.argsort(keys, kind="stable")] = np.arange(nnz)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(primitives.scatter(keys, positions), np.sort(keys))


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(np.arange(5, dtype=np.uint32), id="items, 32 bits"),
        pytest.param(np.arange(5, dtype=np.uint16), id="items, 16 bits"),
        pytest.param(np.arange(10, dtype=np.uint64).reshape(5, 2), id="records of two words"),
        pytest.param(np.arange(5, dtype=np.uint64).reshape(5, 1), id="records of one word"),
    ],
)
def test_scatter(primitives, source):
    before = source.copy()
    target = primitives.scatter(source, np.array([3, 0, 4, 1, 2], np.uint32))
    np.testing.assert_array_equal(target, source[[1, 3, 4, 0, 2]])
    assert target.dtype == source.dtype
    np.testing.assert_array_equal(source, before)


@pytest.mark.parametrize(
    ("count", "smallest", "expected"),
    [
        (0, "uint32", "uint32"),
        (2**16, "uint16", "uint16"),
        (2**16 + 1, "uint16", "uint32"),
        (2**32, "uint32", "uint32"),
        (2**32 + 1, "uint32", "uint64"),
        (2**40, "uint16", "uint64"),
    ],
)
def test_index_dtype_is_the_smallest_that_fits(count, smallest, expected):
    assert index_dtype(count, smallest=smallest) == expected

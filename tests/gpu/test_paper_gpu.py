"""The paper's kernel, as published, against the executable specification."""

import cupy
import numpy as np
import pytest
import reference
from benchmark_gpu.paper import partitioning
from benchmark_gpu.paper.kernel import PaperTensor

SHAPES = ((300, 4000, 2), (90, 1, 70, 600), (50, 600, 2, 80, 30))

#: Ranks and the paper's P; with the last two a thread has several columns of the factors.
BLOCKS = ((1, 32), (7, 16), (16, 1), (32, 8), (32, 32), (32, 64), (100, 32))


def make_problem(shape, rank, nnz=30_000):
    """Draw nonzeros, crowded into low rows, with repeats."""
    random = np.random.default_rng(0)
    coords = np.stack([(size * random.random(nnz) ** 3).astype(np.int32) for size in shape])
    values = random.standard_normal(nnz).astype(np.float32)
    factors = [random.standard_normal((size, rank)).astype(np.float32) for size in shape]
    return coords, values, shape, factors


def count_multiprocessors():
    return cupy.cuda.Device().attributes["MultiProcessorCount"]


def check_sweep(problem, num_partitions, num_columns, *reading):
    """Compute each mode, from one copy that is in order into another that is all ones."""
    coords, values, shape, factors = problem
    ndim, rank = len(shape), factors[0].shape[1]
    nonzeros = cupy.asarray(coords), cupy.asarray(values)
    x = PaperTensor(*nonzeros, shape, num_partitions, *reading)
    in_order = [x.t_in[cupy.argsort(x.t_in[:, mode])].get() for mode in range(ndim)]
    for mode, size in enumerate(shape):
        x.t_out.fill(2**32 - 1)
        output = cupy.zeros((size, rank), np.float32)
        x.compute(list(map(cupy.asarray, factors)), output, num_columns)
        arguments = (coords, values, shape, factors, mode)
        bound = reference.mttkrp_error_bound(*arguments, np.float32, flush_to_zero=True)
        error = np.abs(output.get() - reference.mttkrp(*arguments))
        np.testing.assert_array_less(error, bound + np.finfo(np.float32).tiny)
        assert x.mode == (mode + 1) % ndim
        np.testing.assert_array_equal(x.t_in.get(), in_order[x.mode])
        np.testing.assert_array_equal(x.t_in[:, x.mode].get(), np.arange(values.size))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("rank", "num_columns"), BLOCKS)
def test_each_block_shape(shape, rank, num_columns):
    check_sweep(make_problem(shape, rank), count_multiprocessors(), num_columns)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_partitions", [1, 7, 2000])
def test_each_number_of_partitions(shape, num_partitions):
    check_sweep(make_problem(shape, 32), num_partitions, 32)


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("assign", [partitioning.partition_mode, partitioning.deal_mode])
def test_each_reading_of_the_text(assign, by_row):
    check_sweep(make_problem(SHAPES[1], 32), count_multiprocessors(), 32, assign, by_row)


def test_without_remapping_the_order_stays():
    coords, values, shape, factors = make_problem(SHAPES[0], 32)
    x = PaperTensor(cupy.asarray(coords), cupy.asarray(values), shape, 9)
    before = x.t_in.copy()
    factors_gpu, outputs = list(map(cupy.asarray, factors)), []
    for remaps in (False, True):
        outputs.append(cupy.zeros((shape[0], 32), np.float32))
        x.compute(factors_gpu, outputs[-1], remaps=remaps)
        assert x.mode == int(remaps)
    bound = reference.mttkrp_error_bound(coords, values, shape, factors, 0, np.float32)
    assert (np.abs((outputs[0] - outputs[1]).get()) <= bound).all()
    np.testing.assert_array_equal(x.t_out.get(), before.get())  # the copies have swapped


def test_the_format_is_the_same_on_both_sides():
    coords, values, shape, _ = make_problem(SHAPES[2], 1)
    nonzeros = cupy.asarray(coords), cupy.asarray(values)
    elements, starts = partitioning.make_elements(*nonzeros, shape, 13, cupy)
    expected, begins = partitioning.make_elements(coords, values, shape, 13)
    np.testing.assert_array_equal(elements.get(), expected)
    np.testing.assert_array_equal(cupy.stack(starts).get(), begins)

"""Tensor trains and rings of tensors, layouts and ranks beyond the comparison with TensorLy."""

import numpy as np
import pytest
from problems import make_exact_problem, make_problem

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.decomposition.tensor_train import decompose_ring


def make_dense(x):
    coords, values = x.nonzeros()
    dense = np.zeros(x.shape)
    dense[tuple(coords)] = values
    return dense


def multiply_out(cores):
    product = cores[0]
    for core in cores[1:]:
        product = np.tensordot(product, core, 1)
    return np.trace(product, axis1=0, axis2=-1)


@pytest.mark.parametrize("shape", [(6, 5, 7), (4, 3, 5, 2), (9, 8), (3, 2, 3, 2, 2), (1, 6, 1, 5)])
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_full_ranks_give_the_tensor(shape, layout):
    x = make_exact_problem(shape, int(np.prod(shape) * 0.4)).tensor(layout=layout)
    cores = decompose_ring(x, [1, *[1000] * (len(shape) - 1), 1])
    error = np.abs(multiply_out(cores) - make_dense(x)).max()
    assert error <= 100 * np.finfo(float).eps * x.norm()


def test_a_ring_of_full_ranks_gives_the_tensor():
    x = make_exact_problem((6, 5, 7), 80).tensor()
    cores = decompose_ring(x, [2, 3, 14, 2])
    assert np.abs(multiply_out(cores) - make_dense(x)).max() <= 1e-13 * x.norm()


def test_float32():
    x = make_problem((6, 5, 7), 90, dtype="float32").tensor()
    cores = decompose_ring(x, [1, 6, 7, 1])
    assert {core.dtype for core in cores} == {np.dtype("float32")}
    assert np.abs(multiply_out(cores) - make_dense(x)).max() <= 1e-5 * x.norm()


@pytest.mark.parametrize("nnz", [0, 1])
def test_few_nonzeros(nnz):
    x = FlycooTensor(np.full((3, nnz), 1), np.ones(nnz), (3, 4, 2))
    cores = decompose_ring(x, [1, 2, 2, 1])
    assert [core.shape for core in cores] == [(1, 3, 2), (2, 4, 2), (2, 2, 1)]
    assert np.abs(multiply_out(cores) - make_dense(x)).max() <= 1e-14


def test_one_mode_is_an_error():
    with pytest.raises(ValueError, match="two modes or more"):
        decompose_ring(FlycooTensor([[1]], [1.0], (3,)), [1, 1])

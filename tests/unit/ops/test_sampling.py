import numpy as np
import pytest

from tensorly_flycoo import DensifyError, FlycooTensor, mttkrp
from tensorly_flycoo.ops.sampling import Reconstruction, SampledTensor
from tensorly_flycoo.testing import random_tensor

_SHAPE = (6, 5, 7, 4)
_BY_LAYOUT = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])


def _make(layout="remap", dtype=np.float64, nnz=200):
    x = random_tensor(_SHAPE, nnz, random_state=0, layout=layout, dtype=dtype)
    return x, x.to_coo().todense()


def _draw(num_samples, without=None):
    rng = np.random.RandomState(1)
    return tuple(
        slice(None) if mode == without else rng.randint(0, size, num_samples).tolist()
        for mode, size in enumerate(_SHAPE)
    )


@_BY_LAYOUT
def test_entries(layout):
    x, dense = _make(layout)
    index = _draw(300)
    entries = SampledTensor(x)[index]
    np.testing.assert_array_equal(entries, dense[index])
    assert 0 < np.count_nonzero(entries) < entries.size  # both kinds were among them


@_BY_LAYOUT
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("mode", range(4))
def test_fibres(mode, dtype, layout):
    x, dense = _make(layout, dtype)
    index = _draw(50, without=mode)
    fibres = SampledTensor(x)[index]
    expected = dense[index].T if mode == 0 else dense[index]
    assert fibres.shape == expected.shape
    assert fibres.dtype == dtype
    np.testing.assert_array_equal(fibres.multiply_left(np.eye(50, dtype=dtype)), expected)
    weights = np.random.RandomState(2).random_sample((50, 1)).astype(dtype)
    weighted = (fibres * weights).multiply_left(np.eye(50, dtype=dtype))
    np.testing.assert_array_equal(weighted, expected * weights)


@_BY_LAYOUT
def test_samples_stay_what_they_are_where_records_move(layout):
    x, dense = _make(layout)
    sampled, index = SampledTensor(x), _draw(50, without=1)
    for mode in range(4):
        mttkrp(x, [np.ones((size, 2)) for size in _SHAPE], mode)
        fibres = sampled[index].multiply_left(np.eye(50))
        np.testing.assert_array_equal(fibres, dense[index])


def test_no_sample_and_no_nonzero():
    empty = SampledTensor(FlycooTensor(np.zeros((4, 0), int), np.zeros(0), _SHAPE))
    np.testing.assert_array_equal(empty[_draw(9)], np.zeros(9))
    fibres = empty[_draw(9, without=2)]
    np.testing.assert_array_equal(fibres.multiply_left(np.ones((3, 9))), np.zeros((3, 7)))
    sampled = SampledTensor(_make()[0])
    assert sampled[_draw(0)].shape == (0,)
    assert sampled[_draw(0, without=1)].shape == (0, 5)


def test_more_cells_than_have_numbers():
    """No coordinate is ever part of a linear index."""
    shape = (2**22,) * 3
    coords = np.array([[0, 5, 2**22 - 1], [7, 7, 2**22 - 1], [1, 2**21, 2**22 - 1]])
    x = SampledTensor(FlycooTensor(coords, [1.0, 2.0, 3.0], shape))
    np.testing.assert_array_equal(x[coords.tolist()[0], coords[1], coords[2]], [1, 2, 3])


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("num_samples", [50, 2])
def test_least_squares(num_samples, mode):
    x, dense = _make()
    index = _draw(num_samples, without=mode)
    right = dense[index].T if mode == 0 else dense[index]
    matrix = np.random.RandomState(3).random_sample((num_samples, 3))
    matrix[:, 2] = matrix[:, 0]  # so many solutions, of which the smallest is wanted
    solution, _, rank, values = SampledTensor(x)[index].solve(matrix)
    expected, _, expected_rank, expected_values = np.linalg.lstsq(matrix, right, rcond=None)
    bound = num_samples * np.finfo(float).eps * values[0] / values[rank - 1]
    assert rank == expected_rank == 2
    assert np.abs(solution - expected).max() <= bound * (1 + np.abs(expected).max())
    np.testing.assert_allclose(values, expected_values, atol=bound * values[0])


def test_the_number_of_cells_is_exact():
    huge = SampledTensor(random_tensor((2**20,) * 4, 10, random_state=0))
    assert np.prod(np.shape(huge)) == 2**80
    assert huge.shape == (2**20,) * 4


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_norm_of_what_a_model_leaves(ndim):
    x = random_tensor(_SHAPE[:ndim], 20, random_state=0)
    rng = np.random.RandomState(0)
    weights, factors = rng.random_sample(3), [rng.random_sample((n, 3)) for n in x.shape]
    letters = "abc"[:ndim]
    terms = ",".join(f"{letter}r" for letter in letters)
    model = np.einsum(f"r,{terms}->{letters}", weights, *factors)
    residual = SampledTensor(x) - Reconstruction(weights, factors)
    assert residual.shape == x.shape
    expected = np.linalg.norm(x.to_coo().todense() - model)
    np.testing.assert_allclose(residual.norm(), expected, rtol=1e-12)
    with pytest.raises(DensifyError, match=r"Residual.*tl\.norm"):
        np.asarray(residual)


def test_what_is_not_a_sample_is_refused():
    sampled = SampledTensor(_make()[0])
    for index in [0, (0, 1), (slice(None),) * 4, (slice(1), [0], [0], [0])]:
        with pytest.raises((DensifyError, TypeError)):
            sampled[index]
    with pytest.raises(DensifyError, match="lists of indices"):
        sampled[[0], [1]]
    with pytest.raises(DensifyError, match=r"SampledFibres: 1 of mode 1"):
        np.asarray(sampled[[0], :, [0], [0]])
    with pytest.raises(DensifyError, match="FlycooTensor - array"):
        sampled - np.ones(4)

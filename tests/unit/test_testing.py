"""Random tensors, and tensors with a known decomposition."""

import numpy as np
import pytest

from tensorly_flycoo.testing import planted_tensor, random_tensor


def test_random_tensor():
    x = random_tensor((50, 60, 70), 500, random_state=0, dtype="float32", layout="indexed")
    assert (x.shape, x.dtype, x.layout) == ((50, 60, 70), np.float32, "indexed")
    assert 490 <= x.nnz <= 500
    assert x.nonzeros()[1].min() > 0
    same = random_tensor((50, 60, 70), 500, random_state=np.random.RandomState(0), dtype="float32")
    np.testing.assert_array_equal(x.nonzeros()[0], same.nonzeros()[0])
    np.testing.assert_array_equal(x.nonzeros()[1], same.nonzeros()[1])


def test_skew_crowds_nonzeros_into_low_rows():
    uniform, skewed = (
        random_tensor((1000, 10**6), 5000, skew=skew, random_state=0).nonzeros()[0][0]
        for skew in (1, 3)
    )
    assert np.median(uniform) > 400
    assert np.median(skewed) < 200


@pytest.mark.parametrize("rank", [1, 3])
def test_planted_tensor_without_noise(rank):
    x, factors = planted_tensor((8, 9, 10), rank, 30, random_state=0)
    assert [factor.shape for factor in factors] == [(8, rank), (9, rank), (10, rank)]
    expected = np.einsum("ar,br,cr->abc", *factors)
    np.testing.assert_allclose(x.to_coo().todense(), expected, rtol=1e-14)
    assert np.count_nonzero(factors[0]) == rank * round(30 ** (1 / 3))


def test_noise_is_at_the_nonzeros():
    exact, _ = planted_tensor((50, 60, 70), 3, 1000, random_state=0)
    noisy, _ = planted_tensor((50, 60, 70), 3, 1000, noise=0.1, random_state=0)
    np.testing.assert_array_equal(noisy.nonzeros()[0], exact.nonzeros()[0])
    assert 0.09 < (noisy - exact).norm() / exact.norm() < 0.11


@pytest.mark.parametrize(("rank", "error"), [(0, ValueError), (1.5, TypeError)])
def test_bad_rank(rank, error):
    with pytest.raises(error, match=f"rank is {rank}"):
        planted_tensor((3, 4), rank, 2)

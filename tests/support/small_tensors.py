"""A small dense array with zeros, as a FlycooTensor and back; and a tensor of 2**86 cells."""

import numpy as np

from tensorly_flycoo import FlycooTensor

HUGE = (2**22, 2**21, 2**23, 2**20)


def make_dense(dtype="float64"):
    """Make a dense array (4, 5, 3) with zeros and, in every mode, an all-zero index."""
    rng = np.random.default_rng(0)
    dense = rng.integers(-4, 5, (4, 5, 3)) * (rng.random((4, 5, 3)) < 0.4)
    dense[2], dense[:, 1], dense[:, :, 0] = 0, 0, 0
    return dense.astype(dtype)


def make_tensor(dense, **options):
    coords = np.array(np.nonzero(dense))
    return FlycooTensor(coords, dense[tuple(coords)], dense.shape, **options)


def to_dense(x):
    coords, values = x.nonzeros()
    dense = np.zeros(x.shape, x.dtype)
    dense[tuple(coords)] = values
    assert np.count_nonzero(dense) == x.nnz
    return dense


def make_huge():
    """Make a tensor of shape `HUGE` with 50 nonzeros, including the first and the last cell."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 50) for size in HUGE])
    coords[:, 0], coords[:, 1] = 0, np.array(HUGE) - 1
    return FlycooTensor(coords, np.arange(1.0, 51.0), HUGE)

"""Unfoldings of random sparse tensors, and a check of their singular vectors."""

import numpy as np
import sparse

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.ops.lazy import LazyUnfolding


def make_dense(shape, density=0.6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * (rng.random(shape) < density)


def make_unfolding(dense, mode=0, dtype="float64"):
    x = FlycooTensor.from_coo(sparse.COO.from_numpy(dense), dtype=dtype)
    return LazyUnfolding(x, mode)


def check_orthonormal(left, dtype="float64"):
    gram = left.T.astype("float64") @ left
    bound = 4 * left.shape[0] * np.finfo(dtype).eps
    assert np.abs(gram - np.eye(left.shape[1])).max() <= bound

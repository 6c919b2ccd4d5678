"""Products of a sparse tensor with random factors of some modes: lazy ones and NumPy's."""

import numpy as np
import sparse

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.ops.mode_product import ModeProduct

RANKS = (3, 4, 3, 4)


def make_dense(shape, density=0.6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * (rng.random(shape) < density)


def make_product(dense, modes, dtype="float64"):
    x = FlycooTensor.from_coo(sparse.COO.from_numpy(dense), dtype=dtype)
    ranks = RANKS[: dense.ndim]
    rng = np.random.default_rng(2)
    factors = [rng.standard_normal(size) for size in zip(dense.shape, ranks, strict=True)]
    return ModeProduct(x, {n: factors[n].astype(dtype) for n in modes})


def multiply(dense, product):
    """Compute the product by NumPy."""
    for n, factor in product.factors.items():
        dense = np.moveaxis(np.tensordot(dense, factor, (n, 0)), -1, n)
    return dense

"""Digests of the results of an engine's functions, for comparing them bit by bit.

    python determinism.py cpu remap

prints one line per function, with its digest.
"""

import hashlib
import sys

import numpy as np
import tensorly as tl
import tensorly.decomposition

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.array_modules import move
from tensorly_flycoo.ops.unfolding_svd import Unfolding

SHAPE, RANK = (40, 30, 20), 3


def draw_nonzeros():
    """Draw nonzeros with duplicates and heavy rows that span several tiles."""
    rng = np.random.default_rng(0)
    coords = (np.array(SHAPE)[:, None] * rng.random((3, 9000)) ** 2).astype(np.int64)
    return coords, rng.standard_normal(9000)


def compute_mttkrp(x):
    rng, xp = np.random.default_rng(1), x._engine.xp
    factors = [xp.asarray(rng.standard_normal((size, RANK)).astype(x.dtype)) for size in SHAPE]
    return [mttkrp(x, factors, mode) for mode in range(3)]


def decompose(name, x, rank, init):
    """Decompose for two iterations; return the arrays of the result and the errors."""
    options = {"n_iter_max": 2, "tol": 0, "random_state": 0, "return_errors": True}
    (weights_or_core, factors), errors = getattr(tl.decomposition, name)(
        x, rank, init=init, **options
    )
    return [weights_or_core, *factors, np.array([float(error) for error in errors])]


#: Functions by their names in the table of tests/README.md.
FUNCTIONS = {
    "FlycooTensor, nonzeros": lambda x: x.nonzeros(),
    "norm": lambda x: [np.asarray(x.norm())],
    "mttkrp": compute_mttkrp,
    "parafac": lambda x: decompose("parafac", x, RANK, "random"),
    "parafac, init svd": lambda x: decompose("parafac", x, RANK, "svd"),
    "singular vectors by iteration": lambda x: Unfolding(x, 0).gram[0].iterate(RANK),
    "non_negative_parafac_hals": lambda x: decompose(
        "non_negative_parafac_hals", x, RANK, "random"
    ),
    "tucker": lambda x: decompose("tucker", x, (RANK,) * 3, "random"),
}


def compute_digests(device, layout):
    """Build tensors of both dtypes; return a digest of each function's results."""
    coords, values = draw_nonzeros()
    options = {"layout": layout, "device": device}
    dtypes = ("float32", "float64")
    tensors = [FlycooTensor(coords, values, SHAPE, dtype=dtype, **options) for dtype in dtypes]
    digests = {}
    with tl.backend_context("flycoo"):
        for name, function in FUNCTIONS.items():
            arrays = [move(array, np) for x in tensors for array in function(x)]
            digests[name] = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
    return digests


if __name__ == "__main__":
    for name, digest in compute_digests(*sys.argv[1:]).items():
        print(f"{name}: {digest}")

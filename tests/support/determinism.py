"""Digests of the results of an engine's functions, for comparing them bit by bit.

    python determinism.py cpu remap
    python determinism.py cuda remap 2

prints one line per function, with its digest; the second on two GPUs, in four slabs.
"""

import contextlib
import hashlib
import sys

import numpy as np
import tensorly as tl
import tensorly.decomposition

from tensorly_flycoo import FlycooTensor, mttkrp, set_device
from tensorly_flycoo.base.array_modules import move
from tensorly_flycoo.svd.unfolding import Unfolding

SHAPE, RANK = (40, 30, 20), 3


def draw_nonzeros():
    """Draw nonzeros with duplicates and heavy rows that span several tiles."""
    rng = np.random.default_rng(0)
    coords = (np.array(SHAPE)[:, None] * rng.random((3, 9000)) ** 2).astype(np.int64)
    return coords, rng.standard_normal(9000)


def compute_mttkrp(x):
    rng, xp = np.random.default_rng(1), x._engine.xp
    factors = [xp.asarray(rng.standard_normal((size, RANK)).astype(x.dtype)) for size in SHAPE]
    return [tl.to_numpy(mttkrp(x, factors, mode)) for mode in range(3)]


def decompose(name, x, rank, init):
    """Decompose for two iterations; return the arrays of the result and the errors."""
    options = {"n_iter_max": 2, "tol": 0, "random_state": 0, "return_errors": True}
    (weights_or_core, factors), errors = getattr(tl.decomposition, name)(
        x, rank, init=init, **options
    )
    arrays = [tl.to_numpy(array) for array in (weights_or_core, *factors)]
    return [*arrays, np.array([float(error) for error in errors])]


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


#: Those that tensors on several GPUs have.
SPREAD_FUNCTIONS = {
    name: function
    for name, function in FUNCTIONS.items()
    if name not in ("singular vectors by iteration", "tucker")
}


def compute_digests(device, layout, gpus=None):
    """Build tensors of both dtypes; return a digest of each function's results."""
    coords, values = draw_nonzeros()
    options, functions = {"layout": layout, "device": device}, FUNCTIONS
    if gpus is not None:
        options, functions = options | {"slabs": 4}, SPREAD_FUNCTIONS
    dtypes, digests = ("float32", "float64"), {}
    choice = contextlib.nullcontext() if gpus is None else set_device(device, gpus=int(gpus))
    with choice, tl.backend_context("flycoo"):
        tensors = [FlycooTensor(coords, values, SHAPE, dtype=dtype, **options) for dtype in dtypes]
        for name, function in functions.items():
            arrays = [move(array, np) for x in tensors for array in function(x)]
            digests[name] = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
    return digests


if __name__ == "__main__":
    for name, digest in compute_digests(*sys.argv[1:]).items():
        print(f"{name}: {digest}")

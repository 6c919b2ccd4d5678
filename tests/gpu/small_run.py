"""A small run of every kernel, for `sanitize.py`: all parts, or those that are named.

    python tests/gpu/small_run.py counts

Memory comes directly from CUDA: CuPy's pool would hide faults, because it places arrays side by
side in memory that was written before.
"""

import itertools
import sys
from pathlib import Path

import cupy
import numpy as np
import tensorly as tl
from tensorly.decomposition import parafac, tucker

sys.path.append(str(Path(__file__).parents[1] / "support"))

from row_rule_statements import DIFFERENT_RULES

from tensorly_flycoo import FlycooTensor, best_of, mttkrp
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.engines import tall as linear_algebra
from tensorly_flycoo.engines.cuda import mersenne_twister
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.engines.row_rules import Method, Operator, RowRule
from tensorly_flycoo.format.primitives import MTTKRP

SHAPES = [(50,), (40, 3), (60, 30, 20), (9, 8, 7, 6), (6, 5, 4, 3, 2)]
RANKS = (1, 7, 10, 31, 32, 50)
LAYOUTS = ("remap", "replicated", "indexed")
DTYPES = ("float32", "float64")
LEVELLED_RULE = RowRule(Method.ADMM, Operator.NON_NEGATIVE, levels=(np.nan, -1.0))


def draw(shape, dtype, nnz=1500):
    """Draw nonzeros with duplicates, on the GPU."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, nnz) for size in shape])
    return cupy.asarray(coords), cupy.asarray(rng.standard_normal(nnz).astype(dtype))


def compute_modes(shape, dtype, layout):
    """Compute modes in order, and one out of order."""
    x = FlycooTensor(*draw(shape, dtype), shape, layout=layout)
    for rank in RANKS:
        factors = [cupy.ones((size, rank), dtype) for size in shape]
        for mode in (*range(len(shape)), len(shape) - 1):
            mttkrp(x, factors, mode)


def read_narrow_rows(shape, dtype, layout):
    """Compute modes in order from narrow rows."""
    x = FlycooTensor(*draw(shape, dtype), shape, layout=layout, groups=None)
    for rank in RANKS:
        outs = [cupy.ones((size, rank), dtype) for size in shape]
        rows = [CUDA.round_rows(factor, CUDA.find_scales(factor)).rows for factor in outs]
        for mode, out in enumerate(outs):
            inputs = {n: own for n, own in enumerate(rows) if n != mode}
            x._layout.apply(MTTKRP, CUDA, inputs, mode, out)


def compute_tall(dtype):
    """Compute products of tall matrices, contiguous and with padding between rows."""
    for rank, pad in itertools.product(RANKS, (0, 3)):
        x = cupy.ones((2**15 + 77, rank + pad), dtype)[:, :rank]
        linear_algebra.transposed_product(x, x)
        for gram in (cupy.eye(rank, dtype=dtype), cupy.ones((rank, rank), dtype)):
            linear_algebra.solve(gram, x.T)
        linear_algebra.inner_product(x, x)
        update_each(x)


def update_each(x):
    """Update rows by a rule of each kernel."""
    gram = cupy.eye(x.shape[1])
    inverse, penalty = CUDA.invert_penalized(gram)
    for rule in DIFFERENT_RULES:
        if rule.method is Method.ADMM:
            CUDA.update_rows(rule, x, x, x, 2, penalty, inverse)
            CUDA.update_rows_until(rule, x, x, x, 3, penalty, inverse, 10.0, True)
            CUDA.find_peaks(LEVELLED_RULE, x, x, x, penalty, inverse)
            CUDA.update_rows(LEVELLED_RULE, x, x, x, 2, penalty, inverse)
        else:
            CUDA.update_rows(rule, x, x, None, 2, None, gram)
        if rule.method is Method.HALS:
            CUDA.update_rows_until(rule, x, x, None, 3, None, gram, 2.0, True)


def draw_start(dtype):
    """Draw NumPy's numbers from several chunks of its generator's states."""
    mersenne_twister.draw_uniform(np.random.RandomState(0), (10**6,), np.dtype(dtype))


def decompose(dtype):
    """Run decompositions through TensorLy, with a tall factor."""
    shape = (2**15 + 5, 20, 10)
    x = FlycooTensor(*draw(shape, dtype), shape)
    with tl.backend_context("flycoo"):
        parafac(x, 3, n_iter_max=2, init="random", random_state=0)
        tucker(x, (3, 2, 2), n_iter_max=1, init="random", random_state=0)
        best_of(parafac, x, 3, 4, random_state=0, n_iter_max=3)


def fit_counts(shape, dtype, layout, ranks):
    """Run sweeps for counts, with an extrapolation."""
    coords, values = draw(shape, dtype)
    x = FlycooTensor(coords, cupy.ceil(abs(values)), shape, layout=layout)
    for rank in ranks:
        generalized_parafac(x, rank, n_iter_max=4, random_state=0, tol=0)


def run_modes():
    for shape, dtype, layout in itertools.product(SHAPES, DTYPES, LAYOUTS):
        compute_modes(shape, dtype, layout)
        if layout == "remap":
            read_narrow_rows(shape, dtype, layout)


def run_counts():
    """Each rank in one layout, and ranks of one, two and several blocks in the others."""
    for shape, dtype, layout in itertools.product(SHAPES, DTYPES, LAYOUTS):
        if layout == "remap":
            fit_counts(shape, dtype, layout, (*RANKS, 200))
        elif len(shape) > 2:
            fit_counts(shape, dtype, layout, (7, 50, 200))


def run_tall():
    for dtype in DTYPES:
        compute_tall(dtype)
        draw_start(dtype)
        decompose(dtype)


PARTS = {"modes": run_modes, "counts": run_counts, "tall": run_tall}

if __name__ == "__main__":
    cupy.cuda.set_allocator(None)
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
    cupy.cuda.Device().synchronize()
    print("ran")

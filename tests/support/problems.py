"""Shared by the unit tests: random MTTKRP problems, and checks against the oracle.

Every tolerance is a bound of `reference`, in the order of `error_bounds`.
"""

import math
from dataclasses import dataclass

import numpy as np
import reference
from error_bounds import bound_mttkrp, list_pieces

import tensorly_flycoo
from tensorly_flycoo.tensor.coo_cache import as_flycoo


@dataclass(frozen=True)
class Problem:
    """Nonzeros and factors, and their MTTKRP from the oracle."""

    coords: np.ndarray
    values: np.ndarray
    shape: tuple
    factors: list

    def tensor(self, layout="remap", **options):
        options["layout"] = layout  # by default the one with the most parts
        return tensorly_flycoo.FlycooTensor(self.coords, self.values, self.shape, **options)

    def arguments(self, mode):
        return self.coords, self.values, self.shape, self.factors, mode

    def check(self, result, mode, x=None):
        """Compare `result` with the oracle, entry by entry.

        The bound is that of the order of additions of the tensor `x`; without it, of any order.
        """
        expected = reference.mttkrp(*self.arguments(mode))
        if x is None:
            bound = reference.mttkrp_error_bound(*self.arguments(mode), self.values.dtype)
        else:
            bound = bound_mttkrp(as_flycoo(x), self.coords, self.values, self.factors, mode)
        assert result.dtype == self.values.dtype
        assert result.shape == expected.shape
        assert (np.abs(result - expected) <= bound).all()

    def check_tensor(self, x, modes=None):
        """Compute `modes` of `x`, by default all in turn, into memory full of nan."""
        for mode in range(len(self.shape)) if modes is None else modes:
            poison_spare(x)
            out = np.full((self.shape[mode], self.factors[0].shape[1]), np.nan, x.dtype)
            result = tensorly_flycoo.mttkrp(x, self.factors, mode, out=out)
            assert result is out
            self.check(result, mode, x)


def make_factors(shape, rank, dtype="float64", seed=1):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size, rank)).astype(dtype) for size in shape]


def make_problem(shape, nnz, rank=3, dtype="float64", skew=1, seed=0):
    """Draw `nnz` nonzeros, including repeats; `skew` above 1 crowds them into low rows."""
    rng = np.random.default_rng(seed)
    sizes = np.array(shape)[:, None]
    coords = (sizes * rng.random((len(shape), nnz)) ** skew).astype(np.int64)
    values = rng.standard_normal(nnz).astype(dtype)
    return Problem(coords, values, tuple(shape), make_factors(shape, rank, dtype))


def make_exact_problem(shape, nnz, rank=3, dtype="float64", seed=0):
    """Draw exactly `nnz` distinct cells."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(math.prod(shape), nnz, replace=False)
    coords = np.stack(np.unravel_index(cells, shape)).reshape(len(shape), nnz)
    values = rng.standard_normal(nnz).astype(dtype)
    return Problem(coords, values, tuple(shape), make_factors(shape, rank, dtype))


def poison_spare(x):
    """Fill T_out with nan at coordinate 0, so that a record missed by remapping spoils a result."""
    if x.layout == "remap":
        for layout in list_pieces(x):
            layout.spare[...] = 0
            layout.record_format.values(layout.spare)[...] = np.nan


def compute_all(x, factors):
    """Compute all modes in turn; return their bytes."""
    return [tensorly_flycoo.mttkrp(x, factors, mode).tobytes() for mode in range(x.ndim)]

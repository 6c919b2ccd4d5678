"""The tensors: the shapes of the paper's six, and one that is small, with drawn nonzeros."""

import contextlib
import math
from dataclasses import dataclass

import cupy
import numpy as np

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.format import ordering

#: Sizes and number of nonzeros, as in the paper's table of data sets.
SHAPES = {
    "vast": ((165_400, 11_400, 2, 100, 89), 26_000_000),
    "music": ((23_300_000, 23_300_000, 166), 99_500_000),
    "delicious": ((532_900, 17_300_000, 2_500_000, 1_400), 140_100_000),
    "nell-1": ((2_900_000, 2_100_000, 25_500_000), 143_600_000),
    "amazon": ((15_200_000, 43_500_000, 7_800), 233_100_000),
    "twitch": ((15_500_000, 6_200_000, 783_900, 6_100, 6_100), 474_700_000),
}

#: FROSTT's uber: so small that launching its kernels takes longer than running them.
SMALL_SHAPES = {"uber": ((183, 24, 1_140, 1_717), 3_300_000)}

#: Indices that are drawn at a time, in float64: in float32 the largest modes would have rows that
#: no number stands for.
_BLOCK_SIZE = 2**26

#: With `scale` modes shrink to this size, not below.
_MIN_SIZE = 1000


@dataclass(frozen=True)
class Problem:
    """Name a tensor, and say how its nonzeros are drawn.

    Attributes
    ----------
    name : str
    alpha : float
        Indices are ``floor(size * u**alpha)`` with uniform u: 1 is uniform, 3 has heavy rows.
    is_scattered : bool
        Whether heavy rows lie all over a mode, or at its beginning.
    scale : float
        The fraction of the nonzeros, and of the sizes of large modes.
    """

    name: str
    alpha: float
    is_scattered: bool
    scale: float

    @property
    def shape(self):
        """Sizes of the modes."""
        sizes = (SHAPES | SMALL_SHAPES)[self.name][0]
        return tuple(max(min(size, _MIN_SIZE), round(size * self.scale)) for size in sizes)

    @property
    def nnz(self):
        """Number of nonzeros, repeated coordinates included."""
        return max(1, round((SHAPES | SMALL_SHAPES)[self.name][1] * self.scale))

    def draw(self, dtype, seed=0):
        """Draw coords (ndim, nnz), int32, and values (nnz,) between 0 and 1, on the GPU."""
        random = cupy.random.RandomState(seed)
        coords = cupy.empty((len(self.shape), self.nnz), np.int32)
        for rows, size in zip(coords, self.shape, strict=True):
            for start in range(0, self.nnz, _BLOCK_SIZE):
                block = rows[start : start + _BLOCK_SIZE]
                block[...] = self._draw_rows(random, size, block.size)
        values = cupy.empty(self.nnz, dtype)
        for start in range(0, self.nnz, _BLOCK_SIZE):
            block = values[start : start + _BLOCK_SIZE]
            block[...] = random.random_sample(block.size)
        # What rounding made a zero would be dropped.
        return coords, cupy.maximum(values, np.finfo(dtype).eps, out=values)

    def _draw_rows(self, random, size, count):
        rows = random.random_sample(count)
        rows **= self.alpha
        rows *= size
        rows = cupy.minimum(rows.astype(np.int64), size - 1)
        if self.is_scattered:
            rows *= _scattering_factor(size)
            rows += 12_345
            rows %= size
        return rows


def _scattering_factor(size):
    """Return a number that has no divisor in common with `size`: multiples of it hit every row."""
    factor = 2_654_435_761 % size or 1
    while math.gcd(factor, size) != 1:
        factor += 1
    return factor


@contextlib.contextmanager
def repeats_kept():
    """Let tensors keep repeated coordinates, and yield the numbers of distinct ones.

    Among nonzeros that are drawn, most are repeats where rows are heavy. The paper's counts are of
    distinct nonzeros, and they are the load that is to be timed: so none is merged here. To the
    kernels a repeat is a nonzero like another.
    """
    merge, counts = ordering.sum_duplicates, []

    def keep(records, record_format, is_equal, primitives):
        counts.append(records.shape[0] - int(is_equal.sum()))
        return records

    ordering.sum_duplicates = keep
    try:
        yield counts
    finally:
        ordering.sum_duplicates = merge


def build(coords, values, shape, layout):
    """Build a tensor on the GPU; return it and its number of distinct coordinates."""
    with repeats_kept() as counts:
        x = FlycooTensor(coords, values, shape, layout=layout, device="cuda")
    return x, counts[0] if counts else x.nnz


def draw_factors(shape, rank, dtype, seed=1):
    """Draw factors (size, rank) between 0 and 1 on the GPU."""
    random = cupy.random.RandomState(seed)
    factors = []
    for size in shape:
        factor = cupy.empty((size, rank), dtype)
        num_rows = max(1, _BLOCK_SIZE // rank)
        for start in range(0, size, num_rows):
            block = factor[start : start + num_rows]
            block[...] = random.random_sample(block.shape)
        factors.append(factor)
    return factors


def free_memory():
    """Give CuPy's unused memory back, for what needs it in larger pieces."""
    cupy.get_default_memory_pool().free_all_blocks()

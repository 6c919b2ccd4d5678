"""The tensors: the shapes of the paper's six and of FROSTT's, with random nonzeros.

Each mode is drawn apart, or, in tensors that are named "real pairs", combinations of indices repeat
as in FROSTT's tensors, see `structured`.
"""

import contextlib
from dataclasses import dataclass

import cupy
import numpy as np
from structured import STRUCTURES, draw_structured, scatter_rows

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.base.devices import assign_homes
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.engines.cuda.gpus import CudaDevices
from tensorly_flycoo.format import ordering
from tensorly_flycoo.format.layouts import LAYOUT_CLASSES
from tensorly_flycoo.spread.slab_layout import Slab
from tensorly_flycoo.spread.spread_layout import SpreadLayout

#: Mode sizes and number of nonzeros, from the paper's table of data sets; nell-2 is FROSTT's.
SHAPES = {
    "nell-2": ((12_092, 9_184, 28_818), 76_900_000),
    "vast": ((165_400, 11_400, 2, 100, 89), 26_000_000),
    "music": ((23_300_000, 23_300_000, 166), 99_500_000),
    "delicious": ((532_900, 17_300_000, 2_500_000, 1_400), 140_100_000),
    "nell-1": ((2_900_000, 2_100_000, 25_500_000), 143_600_000),
    "amazon": ((15_200_000, 43_500_000, 7_800), 233_100_000),
    "twitch": ((15_500_000, 6_200_000, 783_900, 6_100, 6_100), 474_700_000),
}

#: FROSTT's uber and nycflights': so small that kernels take longer to launch than to run.
SMALL_SHAPES = {
    "uber": ((183, 24, 1_140, 1_717), 3_300_000),
    "flights": ((16, 3, 105, 365, 20), 330_813),
}

#: FROSTT's tensors that one GPU may not hold.
LARGE_SHAPES = {
    "amazon-reviews": ((4_821_207, 1_774_269, 1_805_187), 1_741_809_018),
    "patents": ((46, 239_172, 239_172), 3_596_640_708),
    "reddit-2015": ((8_211_298, 176_962, 8_116_559), 4_687_474_081),
}

#: Where only the host's work counts.
TINY_SHAPES = {"tiny": ((1_000, 1_000, 1_000), 200_000)}

_STRUCTURED = {f"{name}, real pairs": structure for name, structure in STRUCTURES.items()}

_ALL = {name: (s.shape, s.num_prefixes[-1]) for name, s in (STRUCTURES | _STRUCTURED).items()}
_ALL |= SHAPES | SMALL_SHAPES | LARGE_SHAPES | TINY_SHAPES

#: What is measured by default: each with modes drawn apart, and with real pairs where known.
NAMES = tuple(
    name
    for shape in SMALL_SHAPES | SHAPES | STRUCTURES
    for name in (shape, f"{shape}, real pairs")
    if name in _ALL
)

#: Indices drawn at a time, in float64: float32 could not reach every row of the largest modes.
_BLOCK_SIZE = 2**26

#: `scale` shrinks no mode below this size.
_MIN_SIZE = 1000


@dataclass(frozen=True)
class Problem:
    """A named tensor, and how to draw its nonzeros.

    Attributes
    ----------
    name : str
    alpha : float
        Indices are ``floor(size * u**alpha)`` with uniform u: 1 is uniform, 3 has heavy rows.
    is_scattered : bool
        Whether heavy rows are spread over a mode rather than at its beginning.
    scale : float
        The fraction of the nonzeros and of the sizes of large modes to keep.
    share : float
        The fraction of the nonzeros to keep, in modes of the same sizes.

    Combinations of indices repeat as often at any scale and share.
    """

    name: str
    alpha: float
    is_scattered: bool
    scale: float
    share: float = 1.0

    @property
    def shape(self):
        """Sizes of the modes."""
        sizes = _ALL[self.name][0]
        return tuple(max(min(size, _MIN_SIZE), round(size * self.scale)) for size in sizes)

    @property
    def nnz(self):
        """Number of nonzeros, repeated coordinates included; real pairs may have a few fewer."""
        return max(1, round(_ALL[self.name][1] * self.scale * self.share))

    def draw(self, dtype, seed=0):
        """Draw coords (ndim, nnz), int32, and values (nnz,) between 0 and 1, on the GPU."""
        return self._draw(dtype, seed, self.shape, self.nnz)

    def draw_slab(self, dtype, number, num_slabs):
        """Draw the nonzeros of one of equal slabs, whose rows of the longest mode begin at 0.

        Return also these rows. Each slab has heavy rows of its own.
        """
        shape, mode = self.shape, int(np.argmax(self.shape))
        edges = [place * shape[mode] // num_slabs for place in (number, number + 1)]
        own_shape = (*shape[:mode], edges[1] - edges[0], *shape[mode + 1 :])
        drawn = self._draw(dtype, number, own_shape, self.nnz // num_slabs)
        return *drawn, own_shape, slice(*edges)

    def _draw(self, dtype, seed, shape, nnz):
        random = cupy.random.RandomState(seed)
        if self.name in _STRUCTURED:
            structure = _STRUCTURED[self.name].shrink(nnz / _ALL[self.name][1], shape)
            coords = draw_structured(structure, self.alpha, self.is_scattered, random, cupy)
        else:
            coords = cupy.empty((len(shape), nnz), np.int32)
            for rows, size in zip(coords, shape, strict=True):
                for block in _cut_blocks(rows):
                    block[...] = self._draw_rows(random, size, block.size)
        values = cupy.empty(coords.shape[1], dtype)
        for block in _cut_blocks(values):
            block[...] = random.random_sample(block.size)
        # A value that rounds to zero would be dropped.
        return coords, cupy.maximum(values, np.finfo(dtype).eps, out=values)

    def _draw_rows(self, random, size, count):
        rows = random.random_sample(count)
        rows **= self.alpha
        rows *= size
        rows = cupy.minimum(rows.astype(np.int64), size - 1)
        return scatter_rows(rows, size) if self.is_scattered else rows


def _cut_blocks(array):
    return [array[start : start + _BLOCK_SIZE] for start in range(0, array.size, _BLOCK_SIZE)]


@contextlib.contextmanager
def repeats_kept():
    """Let tensors keep repeated coordinates, and yield the numbers of distinct ones.

    In heavy rows most random nonzeros are repeats. They are not merged, so that the load is the
    paper's number of nonzeros. To the kernels, repeats are ordinary nonzeros.
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


def build(coords, values, shape, layout, groups=None):
    """Build a tensor on the GPU; return it and its number of distinct coordinates.

    By default its modes are apart, so that each can be timed.
    """
    with repeats_kept() as counts:
        x = FlycooTensor(coords, values, shape, layout=layout, device="cuda", groups=groups)
    return x, counts[0] if counts else x.nnz


def build_by_slab(problem, layout_name, num_slabs, gpus):
    """Draw and build each slab on one of some GPUs; the nonzeros never are in one place."""
    devices, slabs = CudaDevices(gpus), []
    for number, home in enumerate(assign_homes(num_slabs, gpus)):
        with devices.use(home), repeats_kept():
            coords, values, shape, rows = problem.draw_slab(np.float32, number, num_slabs)
            cut = CUDA.choose_cut(shape, values.dtype)
            layout = LAYOUT_CLASSES[layout_name].build(coords, values, cut, CUDA)
            del coords, values
            free_memory()
        slabs.append(Slab(rows, layout, home))
    record_format = CUDA.choose_cut(problem.shape, np.dtype(np.float32)).record_format
    layout = SpreadLayout(record_format, num_slabs, slabs, CUDA, devices)
    return FlycooTensor._of(CUDA, layout)


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
    """Free CuPy's unused memory, so that it can be allocated in larger pieces."""
    cupy.get_default_memory_pool().free_all_blocks()

"""MTTKRP of a tensor of Reddit-2015's shape: 4.69e9 nonzeros in slabs; needs 139 GB on a GPU.

    python tests/gpu/reddit_run.py

In one piece, ids would take 8 bytes, and the tensor 150 GB. The nonzeros are drawn on the GPU, slab
by slab, and never are in one place. Some rows of each mode are compared with sums in float64. It is
not part of the test suite, whose tests share a GPU.
"""

import sys
import time

import cupy
import numpy as np

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.format.indexed import IndexedLayout
from tensorly_flycoo.spread.slab_layout import Slab, SlabLayout

SHAPE, NNZ = (8_211_298, 176_962, 8_116_559), 4_687_474_081
NUM_SLABS, RANK, NUM_CHECKED = 16, 16, 1000


def draw(number, nnz):
    """Draw the nonzeros of a slab on the GPU; its rows of mode 0 begin at 0."""
    random, edges = cupy.random.RandomState(number), find_edges(number)
    sizes = (edges.stop - edges.start, *SHAPE[1:])
    coords = cupy.empty((3, nnz), np.int32)
    for row, size in zip(coords, sizes, strict=True):
        step = 2**26
        for start in range(0, nnz, step):
            part = row[start : start + step]
            part[...] = cupy.minimum((random.random_sample(part.size) ** 2 * size), size - 1)
    return coords, 0.5 + random.random_sample(nnz, dtype=np.float32)


def find_edges(number):
    """Return the rows of mode 0 of a slab."""
    return slice(number * SHAPE[0] // NUM_SLABS, (number + 1) * SHAPE[0] // NUM_SLABS)


def build(nnz):
    """Build the slabs, one after the other."""
    slabs = []
    for number in range(NUM_SLABS):
        edges = find_edges(number)
        coords, values = draw(number, nnz // NUM_SLABS)
        cut = CUDA.choose_cut((edges.stop - edges.start, *SHAPE[1:]), values.dtype)
        slabs.append(Slab(edges, IndexedLayout.build(coords, values, cut, CUDA)))
        del coords, values
        cupy.get_default_memory_pool().free_all_blocks()
    record_format = CUDA.choose_cut(SHAPE, np.dtype(np.float32)).record_format
    layout = SlabLayout(record_format, NUM_SLABS, slabs, CUDA, OneDevice(cupy))
    x = object.__new__(FlycooTensor)
    x._set(CUDA, layout)
    return x


def add_up(nnz, factors, mode, rows):
    """Compute some rows of the MTTKRP of a mode in float64, and count their nonzeros."""
    counts, expected = cupy.zeros(len(rows), np.int64), cupy.zeros((len(rows), RANK))
    place_of = cupy.full(SHAPE[mode], -1, np.int32)
    place_of[rows] = cupy.arange(len(rows), dtype=np.int32)
    for number in range(NUM_SLABS):
        coords, values = draw(number, nnz // NUM_SLABS)
        coords[0] += find_edges(number).start
        places = place_of[coords[mode]]
        kept = cupy.flatnonzero(places >= 0)
        counts += cupy.bincount(places[kept], minlength=len(rows))
        products = values[kept].astype(np.float64)[:, None]
        for n in range(3):
            if n != mode:
                products = products * factors[n][coords[n][kept]].astype(np.float64)
        for r in range(RANK):
            expected[:, r] += cupy.bincount(places[kept], products[:, r], len(rows))
    return expected, counts


def main():
    nnz = int(float(sys.argv[1]) * NNZ) if len(sys.argv) > 1 else NNZ
    start = time.perf_counter()
    x = build(nnz)
    cupy.cuda.Device().synchronize()
    print(f"{x}: {x.nbytes / 1e9:.1f} GB, built in {time.perf_counter() - start:.1f} s", flush=True)
    random = cupy.random.RandomState(0)
    factors = [random.random_sample((size, RANK), dtype=np.float32) for size in SHAPE]
    results, times = [], []
    for _ in range(2):
        results = []
        start = time.perf_counter()
        for mode in range(3):
            results.append(mttkrp(x, factors, mode))
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
    print(f"a sweep of rank {RANK}: {times[-1]:.3f} s", flush=True)
    del x
    cupy.get_default_memory_pool().free_all_blocks()
    for mode in range(3):
        rows = np.sort(np.random.default_rng(mode).choice(SHAPE[mode], NUM_CHECKED, replace=False))
        expected, counts = add_up(nnz, factors, mode, cupy.asarray(rows))
        error = cupy.abs(results[mode][rows] - expected)
        # All terms are positive, so their sum is that of their absolute values.
        bound = ((counts + 3) * np.finfo(np.float32).eps)[:, None] * expected
        assert bool((error <= bound).all()), mode
        largest = float((error / cupy.maximum(expected, 1e-30)).max())
        print(f"mode {mode}: {NUM_CHECKED} rows, largest relative error {largest:.1e}", flush=True)


if __name__ == "__main__":
    main()

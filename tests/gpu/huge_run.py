"""MTTKRP of more than 2^31 nonzeros, exact to the bit; needs 140 GB on a GPU, 20 GB on the host.

    python tests/gpu/huge_run.py

Places of nonzeros, ids and offsets then need more than 31 bits. Values and factors are 1, 2 and
their negatives: sums of a row of 32,768 such products are exact in any order, and each entry shows
whether a single nonzero was lost. It is not part of the test suite, whose tests share a GPU.
"""

import itertools

import cupy
import numpy as np

from tensorly_flycoo import FlycooTensor, estimate_memory, mttkrp

SHAPE = (2**16, 2**16)
NNZ = 2**31 + 12_345
#: Nonzeros to draw, or to add up for comparison, at a time.
BLOCK = 2**27


def draw():
    """Draw whole numbers in cells spread evenly over the tensor, in narrow types on the host."""
    random = cupy.random.RandomState(0)
    coords = np.empty((2, NNZ), np.uint16)
    values = np.empty(NNZ, np.float32)
    for start in range(0, NNZ, BLOCK):
        block = slice(start, min(start + BLOCK, NNZ))
        places = cupy.arange(block.start, block.stop, dtype=np.uint64) * 2**32 // NNZ
        coords[0, block] = (places >> 16).astype(np.uint16).get()
        coords[1, block] = (places & 0xFFFF).astype(np.uint16).get()
        values[block] = draw_whole_numbers(random, places.size).get()
    return coords, values


def draw_whole_numbers(random, *size):
    """Draw 1, 2 and their negatives."""
    return cupy.asarray([-2, -1, 1, 2], np.float32)[random.randint(4, size=size)]


def add_up(coords, values, factor, mode):
    """Compute the MTTKRP of one column in float64, which is exact."""
    total = cupy.zeros(SHAPE[mode])
    for start in range(0, NNZ, BLOCK):
        block = slice(start, start + BLOCK)
        rows, others = (cupy.asarray(coords[n, block]) for n in (mode, 1 - mode))
        terms = cupy.asarray(values[block]) * factor[others, 0].astype(np.float64)
        total += cupy.bincount(rows, weights=terms, minlength=SHAPE[mode])
    return total.get()


def check(layout, coords, values, factors, expected):
    """Build a tensor, compute every mode twice and compare each entry with the expected one."""
    x = FlycooTensor(coords, values, SHAPE, layout=layout, device="cuda")
    assert x.nnz == NNZ
    for mode in itertools.chain(range(2), range(2)):
        found = mttkrp(x, factors, mode).get()[:, 0]
        num_wrong = np.count_nonzero(found != expected[mode])
        assert num_wrong == 0, (layout, mode, num_wrong)
        print(f"{layout}, mode {mode}: all {found.size} entries are exact", flush=True)


if __name__ == "__main__":
    coords, values = draw()
    factors = [draw_whole_numbers(cupy.random.RandomState(n), SHAPE[n], 1) for n in (0, 1)]
    expected = [add_up(coords, values, factors[1 - mode], mode) for mode in (0, 1)]
    for layout in ("indexed", "replicated", "remap"):
        cupy.get_default_memory_pool().free_all_blocks()
        estimate = estimate_memory(SHAPE, NNZ, dtype=np.float32, layout=layout, device="cuda")
        print(f"{layout}: {estimate}")
        check(layout, coords, values, factors, expected)

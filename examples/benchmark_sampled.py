"""Timing sampled sweeps
=====================

Compare the seconds of sampled and exact sweeps of CP-ALS to 95 % and 99 % of the best fit.

Tensors have the structure of real ones (benchmark_gpu/structured.py; "amazon" has skewed indices
only), and values of overlapping groups with noise. A call gets the built tensor. Its clock stands
still while the exact fit of its model is computed, which sampled sweeps do not need. The table has
medians over the starts of seconds (iterations); "best" is the best fit that any way found.

Run it::

    python examples/benchmark_sampled.py --share 0.01
    python examples/benchmark_sampled.py --device cuda --ranks 25 100 --limit-s 20
"""

import argparse
import time

import numpy as np
import tensorly as tl
from benchmark_gpu.structured import STRUCTURES, draw_structured
from seconds_to_fit import find_first

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, cp_fit
from tensorly_flycoo.decomposition import parafac, randomised_parafac

SHARES = (0.95, 0.99)
AMAZON = (4_821_207, 1_774_269, 1_805_187), 1_741_809_018


def exact(**options):
    return lambda x, rank, **call: parafac(x, rank, tol=-1.0, **call, **options)


def sampled(n_samples):
    return lambda x, rank, **call: randomised_parafac(
        x, rank, n_samples, tol=0.0, max_stagnation=10**9, **call
    )


WAYS = {
    "exact": exact(),
    "momentum": exact(linesearch="nesterov"),
    "2^14 samples": sampled(2**14),
    "2^17 samples": sampled(2**17),
}


def draw(name, share, rank, xp):
    """Draw a tensor on the device of `xp`."""
    random = xp.random.RandomState(0)
    if name == "amazon":
        shape, nnz = AMAZON
        shape, nnz = [round(size * share**0.5) for size in shape], round(nnz * share)
        coords = xp.stack([
            (random.random_sample(nnz) ** 2 * size).astype(np.int32) for size in shape
        ])  # fmt: skip
    else:
        structure = STRUCTURES[name]
        shape = [size if size < 300 else round(size * share**0.5) for size in structure.shape]
        coords = draw_structured(structure.shrink(share, shape), 2.0, True, random, xp)
    values = xp.zeros(coords.shape[1], np.float32)
    tables = []
    for size in shape:
        groups = random.gamma(0.5, size=(size, rank)) * (random.random_sample((size, rank)) < 0.3)
        tables.append((random.gamma(2.0, size=(size, 1)) * (1 + 3 * groups)).astype(np.float32))
    for r in range(rank):  # a column at a time, for the memory
        product = xp.ones_like(values)
        for table, rows in zip(tables, coords, strict=True):
            product *= table[:, r][rows]
        values += product
    values *= xp.exp(0.3 * random.standard_normal(values.size)).astype(np.float32)
    return FlycooTensor(coords, values, shape)


def measure(way, x, rank, seed, limit_s):
    """Run a way until its time is over; return its seconds and exact fits."""
    xp = x._engine.xp
    seconds, fits, aside = [], [], 0.0

    def note(model, error=None):
        nonlocal aside
        if xp is not np:
            xp.cuda.Device().synchronize()
        start = time.perf_counter()
        seconds.append(start - begin - aside)
        fits.append(1 - cp_fit(x, model).relative_error)
        aside += time.perf_counter() - start
        return seconds[-1] > limit_s

    begin = time.perf_counter()
    WAYS[way](x, rank, init="random", random_state=seed, n_iter_max=10_000, callback=note)
    return {"seconds": seconds[1:], "fits": fits[1:]}  # without the initial guess


def compare(x, rank, options):
    """Print the table of a tensor and a rank."""
    calls = {}
    for way in options.ways:
        measure(way, x, rank, 0, 0)  # loads compiled code
        calls[way] = [measure(way, x, rank, n, options.limit_s) for n in range(options.starts)]
    best = max(max(call["fits"]) for runs in calls.values() for call in runs)
    print(f"{x}, rank {rank}, best fit {best:.4f}")
    for way, runs in calls.items():
        cells = []
        for share in SHARES:
            seconds, iterations = np.median([find_first(c, share * best) for c in runs], axis=0)
            cells.append(f"{share:.0%}: {seconds:.3g} s ({iterations:.0f})")
        fits = np.median([max(call["fits"]) for call in runs])
        step = np.median([call["seconds"][-1] / len(call["seconds"]) for call in runs])
        print(f"  {way:14}{cells[0]:24}{cells[1]:24}fit {fits:.4f}, {1e3 * step:.4g} ms a sweep")
    print(flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["nell-2", "enron", "amazon"]
    parser.add_argument("--tensors", nargs="+", default=names, choices=names)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[25])
    parser.add_argument("--share", type=float, default=1.0, help="of the nonzeros")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=10, help="seconds of a call")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(argv)
    tensorly_flycoo.set_device(options.device)
    if options.device == "cuda":
        import cupy as xp
    else:
        xp = np
    with tl.backend_context("flycoo"):
        for name in options.tensors:
            x = draw(name, options.share, 10, xp)
            for rank in options.ranks:
                compare(x, rank, options)
            del x


if __name__ == "__main__":
    main()

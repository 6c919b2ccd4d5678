"""Build a folder of slabs several times larger than the memory limit, and check a sweep of it.

    python tests/support/folder_memory.py FOLDER [millions of nonzeros] [slabs] [limit in MB]

FOLDER must not exist. The limit is on what a process allocates (RLIMIT_DATA), not on mapped files.
"""

import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np

from tensorly_flycoo import mttkrp, open_slabs, save_slabs

SHAPE, RANK, PART_NNZ = (2_000_000, 300_000, 50_000), 4, 10**6

#: Rows of each mode that are checked in float64.
NUM_CHECKED = 50


def draw_part(number):
    rng = np.random.default_rng(number)
    coords = [(size * rng.random(PART_NNZ) ** 1.5).astype(np.int64) for size in SHAPE]
    return np.stack(coords), rng.random(PART_NNZ).astype(np.float32)


def read_status(key):
    """Return a number of MB that Linux says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{key}:"))


def watch(peaks):
    while True:
        for key in peaks:
            peaks[key] = max(peaks[key], read_status(key))
        time.sleep(0.01)


def check_rows(results, factors, num_parts):
    """Compare sampled rows of each mode with sums in float64; return the largest relative error."""
    rng = np.random.default_rng(1)
    rows = [np.sort(rng.choice(size // 100, NUM_CHECKED, replace=False)) for size in SHAPE]
    sums = np.zeros((len(SHAPE), NUM_CHECKED, RANK))
    for number in range(num_parts):
        coords, values = draw_part(number)
        for mode, own in enumerate(rows):
            places = np.minimum(np.searchsorted(own, coords[mode]), NUM_CHECKED - 1)
            found = np.flatnonzero(own[places] == coords[mode])
            products = values[found, None].astype(np.float64)
            for n, factor in enumerate(factors):
                products = products * (factor[coords[n, found]] if n != mode else 1)
            np.add.at(sums[mode], places[found], products)
    found = np.stack([result[own] for result, own in zip(results, rows, strict=True)])
    return (np.abs(found - sums) / np.abs(sums).max((1, 2), keepdims=True)).max()


def main(path, num_parts=48, num_slabs=80, limit=480):
    resource.setrlimit(resource.RLIMIT_DATA, (limit << 20, limit << 20))
    peaks = {"VmData": 0, "RssAnon": 0}
    threading.Thread(target=watch, args=(peaks,), daemon=True).start()
    start = time.perf_counter()
    parts = (draw_part(number) for number in range(num_parts))
    save_slabs(path, parts, SHAPE, slabs=num_slabs, device="cpu")
    print(f"built in {time.perf_counter() - start:.0f} s; MB in use, at most: {peaks}")
    nbytes = sum(file.stat().st_size for file in Path(path).iterdir())
    print(f"{nbytes >> 20} MB in files, {nbytes / (limit << 20):.1f} times the limit of {limit} MB")
    start = time.perf_counter()
    x = open_slabs(path, device="cpu")
    print(f"opened in {time.perf_counter() - start:.2f} s: {x}")
    rng = np.random.default_rng(0)
    factors = [rng.random((size, RANK), dtype=np.float32) for size in SHAPE]
    start = time.perf_counter()
    results = [mttkrp(x, factors, mode) for mode in range(3)]
    print(f"sweep in {time.perf_counter() - start:.1f} s; MB in use, at most: {peaks}")
    error = check_rows(results, factors, num_parts)
    print(f"largest error of {NUM_CHECKED} rows of each mode: {error:.1e} of the largest entry")
    assert error < 1e-4


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

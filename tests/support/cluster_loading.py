"""Load .parquet files in one process and on a cluster: ``python cluster_loading.py FOLDER``.

Rows of three columns of integers and one of numbers, 20 million by default, are written to FOLDER
first. Prints the seconds that each takes, and the most memory that a worker has used.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from distributed import Client
from local_clusters import start_cluster

import tensorly_flycoo
import tensorly_flycoo.dask

MODES, SHAPE = ["user", "item", "day"], (2_000_000, 300_000, 3_000)


def write(folder, num_rows, num_files=20):
    """Write files of equal size, with row groups of 2**17 rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(num_files):
        size = num_rows // num_files
        columns = {
            name: (rng.random(size) ** 2 * length).astype(np.int64)
            for name, length in zip(MODES, SHAPE, strict=True)
        }
        table = pd.DataFrame({**columns, "value": rng.random(size, np.float32)})
        table.to_parquet(folder / f"{number:03d}.parquet", row_group_size=2**17)


def load_here(folder, slabs, indices):
    """Load the files in this process."""
    if not indices:
        table = pd.read_parquet(folder)
        return tensorly_flycoo.from_dataframe(
            table, MODES, "value", slabs=slabs, layout="replicated"
        ).tensor
    columns = pd.read_parquet(folder)
    coords = np.stack([columns.pop(name).to_numpy() for name in MODES])
    shape = coords.max(axis=1) + 1
    return tensorly_flycoo.FlycooTensor(
        coords, columns["value"].to_numpy(), shape, slabs=slabs, layout="replicated"
    )


def count_nbytes(name):
    """Return the bytes that this process has in memory (VmRSS), or has had at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name + ":")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--indices", action="store_true")
    options = parser.parse_args()
    if not options.folder.exists():
        write(options.folder, options.rows)
    arguments = {"slabs": 8, "indices": options.indices}
    load_here(options.folder / "000.parquet", **arguments)  # compiles
    for _ in range(2):
        start = time.perf_counter()
        x = load_here(options.folder, **arguments)
        print(f"one process: {time.perf_counter() - start:.1f} s, {x}", flush=True)
    nbytes = x.nbytes
    del x
    with start_cluster(options.workers, memory_limit=0) as address, Client(address) as client:
        read = tensorly_flycoo.dask.read_parquet
        y = read(options.folder / "000.parquet", MODES, "value", **arguments)
        del y
        time.sleep(5)  # until the workers have freed it
        before = client.run(count_nbytes, "VmRSS")
        for _ in range(2):
            start = time.perf_counter()
            y = read(options.folder, MODES, "value", **arguments)
            seconds = time.perf_counter() - start
            peaks = client.run(count_nbytes, "VmHWM")
            most = max(peaks[worker] - before[worker] for worker in peaks)
            share = most / (nbytes / options.workers)
            print(
                f"{options.workers} workers: {seconds:.1f} s, at most {most / 1e9:.2f} GB more",
                end="",
            )
            print(f" on a worker, {share:.1f} times its share of the tensor", flush=True)
            del y


if __name__ == "__main__":
    sys.exit(main())

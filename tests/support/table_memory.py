"""Build a folder of a table that is larger than the memory limit, and count what a part takes.

    python tests/support/table_memory.py FOLDER [millions of rows] [slabs] [limit in MB]
    python tests/support/table_memory.py arrow|pandas

FOLDER receives a .parquet file and the folder of slabs. The limit is on what the process allocates
(RLIMIT_DATA) beyond what it has when it has imported the libraries, most of which are threads.
"""

import os
import resource
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from folder_memory import read_status, watch

from tensorly_flycoo import open_slabs, save_slabs
from tensorly_flycoo.io.table_parts import TableParts

MODES = ["customer", "product", "day"]
PART_ROWS = 10**6
#: Counts what Arrow allocates; it must live as long as its arrays.
POOL = pa.proxy_memory_pool(pa.default_memory_pool())

NUM_CUSTOMERS, NUM_PRODUCTS, NUM_DAYS = 1_000_000, 200_000, 1000


def draw_part(number, customers, products, num_rows=PART_ROWS):
    """Some rows; few customers and products have many of them."""
    rng = np.random.default_rng(number)
    first, second = (
        texts.take(pa.array((len(texts) * rng.random(num_rows) ** 1.5).astype(np.int64)))
        for texts in (customers, products)
    )
    return pa.table(
        {
            "customer": first,
            "product": second,
            "day": np.datetime64("2024-01-01") + rng.integers(0, NUM_DAYS, num_rows),
            "count": rng.integers(1, 9, num_rows),
        }
    )


def list_texts(start, count):
    """Texts in no order."""
    rng = np.random.default_rng(0)
    return pa.array([f"{start}-{number:08d}" for number in rng.permutation(count)])


def write_table(path, num_parts):
    """Write a .parquet file with a row group for each part; return the sum of its counts."""
    customers = list_texts("customer", NUM_CUSTOMERS)
    products = list_texts("product", NUM_PRODUCTS)
    total = 0
    schema = draw_part(0, customers, products, 1).schema
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for number in range(num_parts):
            part = draw_part(number, customers, products)
            total += pa.compute.sum(part["count"]).as_py()
            writer.write_table(part, row_group_size=PART_ROWS)
    return total


def count_part_memory(kind, num_rows=100_000):
    """Return the most bytes allocated while parts are numbered, by Arrow and Python, by a part's.

    They include the part itself, and the labels, which are few. `kind` is "arrow" or "pandas". The
    process must exit by `os._exit`: arrays that are left belong to a memory pool.
    """
    texts = list_texts("customer", 3000), list_texts("product", 200)
    part = draw_part(0, *texts, num_rows)
    part_nbytes = part.nbytes
    if kind == "pandas":
        part_nbytes = part.to_pandas().memory_usage(deep=True).sum()
    del part

    def make_parts(numbers):
        for number in numbers:
            part = draw_part(number, *texts, num_rows)
            if kind == "pandas":
                part = part.to_pandas()
            yield part
            del part

    list(TableParts(make_parts([0]), MODES, "count", {}, "raise").iterate())  # what is imported
    table = TableParts(make_parts(range(8)), MODES, "count", {}, "raise")
    pa.set_memory_pool(POOL)
    tracemalloc.start()
    for rows in table.iterate():
        del rows
    nbytes = POOL.max_memory() + tracemalloc.get_traced_memory()[1]
    return nbytes / part_nbytes


def main(folder, num_parts=40, num_slabs=8, limit=760):
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    file = folder / "sales.parquet"
    total = write_table(file, num_parts)
    print(f"{file.stat().st_size >> 20} MB in the file, {num_parts * PART_ROWS:,} rows")
    start_mb = read_status("VmData")
    most_nbytes = (start_mb + limit) << 20
    resource.setrlimit(resource.RLIMIT_DATA, (most_nbytes, most_nbytes))
    peaks = {"VmData": 0, "RssAnon": 0}
    threading.Thread(target=watch, args=(peaks,), daemon=True).start()
    start = time.perf_counter()
    path = folder / "sales.flycoo"
    save_slabs(path, file, modes=MODES, values="count", slabs=num_slabs, device="cpu")
    seconds = time.perf_counter() - start
    print(
        f"built in {seconds:.0f} s; MB in use, at most: {peaks}, of VmData {start_mb} at the start"
    )
    x = open_slabs(path, device="cpu")
    print(f"{x}; {sum(entry.stat().st_size for entry in path.iterdir()) >> 20} MB in files")
    assert x.tensor.sum() == total


if __name__ == "__main__":
    if sys.argv[1] in ("arrow", "pandas"):
        print(count_part_memory(sys.argv[1]), flush=True)
        os._exit(0)
    main(sys.argv[1], *map(int, sys.argv[2:]))

"""Timing PARAFAC2 of many slices
==============================

Time PARAFAC2 of many sparse slices with different numbers of rows, and measure its memory.

Run it::

    python examples/benchmark_parafac2.py --slices 1000 --nnz 630_000
    python examples/benchmark_parafac2.py --slices 100_000 --nnz 63_000_000 --device cuda
    python examples/benchmark_parafac2.py --slices 50 --rows 1_000_000 --columns 30_000 \
        --nnz 1_500_000_000 --dtype float32 --layout indexed --device cuda

By default the slices have 1 to 100 rows, as the visits of a patient; --rows sets the number of all
rows, which are divided among the slices at random. Each row has the same number of nonzeros,
drawn on the device or, with --host, in host memory, where AnnData reads its matrices. An iteration
is timed with TensorLy's five updates of the factors for each one of the projections, and with one.
Peak memory, of the process or of CuPy's pool, includes the drawn matrix while the tensor is built.
"""

import argparse
import importlib
import time

import numpy as np
from benchmark_als import read_peak_nbytes

import tensorly_flycoo
from tensorly_flycoo import RaggedTensor
from tensorly_flycoo.decomposition import parafac2


def draw_matrix(xp, num_rows, num_columns, row_nnz, dtype):
    """Return a CSR matrix with one nonzero in each of `row_nnz` parts of each row."""
    width = num_columns // row_nnz
    random = xp.random.default_rng(0)
    columns = xp.empty((num_rows, row_nnz), np.int32)
    for start in range(0, num_rows, 2**16):  # random numbers are 64-bit integers at first
        part = columns[start : start + 2**16]
        part[:] = random.integers(0, width, part.shape)
        part += xp.arange(row_nnz, dtype=np.int32) * width
    values = random.random(columns.size, dtype)
    values += 1
    sparse = importlib.import_module("scipy.sparse" if xp is np else "cupyx.scipy.sparse")
    ends = xp.arange(0, columns.size + 1, row_nnz, dtype=np.int32)
    return sparse.csr_matrix((values, columns.ravel(), ends), (num_rows, num_columns))


def divide_rows(num_slices, num_rows):
    """Return the number of each row's slice, or 1 to 100 rows for each slice."""
    random = np.random.default_rng(0)
    if num_rows is None:
        return np.repeat(np.arange(num_slices), random.integers(1, 101, num_slices))
    return random.integers(0, num_slices, num_rows)


def time_iterations(x, args, n_iter_parafac):
    """Return the median seconds of an iteration after the first, and the last error."""
    times = []

    def note(model, error):  # the error was copied to the host: the device has finished
        times.append(time.perf_counter())

    _, errors = parafac2(
        x, args.rank, n_iter_max=args.iterations + 1, n_iter_parafac=n_iter_parafac, tol=None,
        random_state=0, linesearch=False, center=args.center, callback=note, return_errors=True,
        nn_modes=[0, 2] if args.non_negative else None,
    )  # fmt: skip
    return np.median(np.diff(times[1:])), errors[-1]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=1000)
    parser.add_argument("--rows", type=int, help="of all slices")
    parser.add_argument("--columns", type=int, default=5000)
    parser.add_argument("--nnz", type=int, default=630_000)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--host", action="store_true", help="draw the nonzeros in host memory")
    parser.add_argument("--dtype", default="float64", choices=("float32", "float64"))
    parser.add_argument("--layout", default="auto")
    parser.add_argument("--center", action="store_true")
    parser.add_argument("--non-negative", action="store_true", help="A and C")
    args = parser.parse_args(argv)
    xp = importlib.import_module("cupy") if args.device == "cuda" else np
    ids = divide_rows(args.slices, args.rows)
    row_nnz = max(1, round(args.nnz / ids.size))
    pool = None if xp is np else xp.get_default_memory_pool()
    drawn_by = np if args.host else xp
    matrix = draw_matrix(drawn_by, ids.size, args.columns, row_nnz, args.dtype)
    if pool:
        pool.free_all_blocks()
    start = time.perf_counter()
    x = RaggedTensor(matrix, by=ids, device=args.device, layout=args.layout)
    if pool:
        xp.cuda.Device().synchronize()
    build_s = time.perf_counter() - start
    del matrix
    if pool:
        print(f"peak memory of the build {pool.total_bytes() / 1e9:.3f} GB")
        pool.free_all_blocks()
    print(f"{x!r}, rank {args.rank}, {x.dtype}, {x.matrix.layout} on {x.matrix.device}, "
          f"{tensorly_flycoo.__version__}")  # fmt: skip
    print(f"build {build_s:.3f} s, nonzeros {x.matrix.nbytes / 1e9:.3f} GB")
    results = {"build_s": build_s}
    for count in (5, 1):
        seconds, error = time_iterations(x, args, count)
        results[count] = seconds
        print(f"an iteration with {count} of the factors {seconds:.4f} s, error {error:.6f}")
    results["peak_nbytes"] = pool.total_bytes() if pool else read_peak_nbytes()
    print(f"peak memory{' of iterations' if pool else ''} {results['peak_nbytes'] / 1e9:.3f} GB")
    return results


if __name__ == "__main__":
    main()

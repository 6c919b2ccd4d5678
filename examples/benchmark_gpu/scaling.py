"""Time whole iterations of parafac on 1, 2, ... GPUs of one machine, and check their bits.

    python examples/benchmark_gpu/scaling.py                                   # all shapes
    python examples/benchmark_gpu/scaling.py --tensors nell-1 --gpus 1 2 4 8
    python examples/benchmark_gpu/scaling.py --whole memory parquet folder     # whole calls

A JSON file of the run goes to `examples/results`.

Nonzeros are drawn at random. "one" is a tensor in one piece on one GPU. The other rows have the
same number of slabs on 1, 2, ... GPUs, and their factors must have the same bits. FROSTT's largest
tensors are drawn slab by slab, each on its GPU, and have no piece.

For each number of GPUs: the iteration; "kernels", the MTTKRPs of its modes without any copy
between GPUs; "exchange", what the copies add to them; "rest", the dense work and the host's. The
host's is an iteration of a tensor that is too small to matter, "tiny".

With --whole, calls of 50 iterations from nonzeros in host memory, a Parquet file or a folder of
slabs to factors in host memory. The folder has a slab for each of the most GPUs.
"""

import argparse
import functools
import sys
import tempfile
import time
from pathlib import Path

import cupy
import numpy as np
import tensorly as tl
from stages import print_calls, time_stages
from tensorly.cp_tensor import CPTensor
from tensors import (
    LARGE_SHAPES,
    NAMES,
    Problem,
    build_by_slab,
    draw_factors,
    free_memory,
    repeats_kept,
)

import tensorly_flycoo
from tensorly_flycoo import (
    FlycooTensor,
    Progress,
    from_dataframe,
    mttkrp,
    open_slabs,
    save_slabs,
)
from tensorly_flycoo.engines.cuda.gpus import CudaDevices
from tensorly_flycoo.format.primitives import MTTKRP
from tensorly_flycoo.spread.row_shards import RowShards, Sharding, cut_evenly, gather_each

sys.path.append(str(Path(__file__).parents[1]))  # of the examples
import runs

RANK = 32

#: Iterations of a whole call.
NUM_WHOLE = 50

#: Layout and slabs of the tensors that are drawn slab by slab: what fits on one GPU of 139 GiB.
LARGE = {
    "amazon-reviews": ("remap", 8),
    "patents": ("indexed", 16),
    "reddit-2015": ("indexed", 16),
}


def parse_arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser("scaling", description=__doc__)
    add = parser.add_argument
    names = ("tiny", "nell-2", "nell-1", *LARGE_SHAPES)
    add("--tensors", nargs="+", default=names, choices=("tiny", *NAMES, *LARGE_SHAPES))
    add("--gpus", nargs="+", type=int, default=[1, 2])
    add("--slabs", type=int, help="by default as many as the most GPUs, or 8 or 16 if drawn so")
    add("--share", type=float, default=1.0, help="of the nonzeros to draw; modes keep their sizes")
    add("--iterations", type=int, default=12)
    add("--whole", nargs="+", default=[], choices=("memory", "parquet", "folder"))
    runs.add_options(parser)
    return parser.parse_args()


def wait_for_gpus(gpus):
    """Make every GPU idle."""
    for device in range(gpus):
        cupy.cuda.Device(device).synchronize()


def time_iterations(x, factors, num_iterations, gpus):
    """Return the median seconds of an iteration with its error, and the factors."""
    wait_for_gpus(gpus)
    # It only reads factors: iterations are launched ahead, as without a callback.
    with tl.backend_context("flycoo"), Progress(num_iterations, show=None) as progress:
        guess = CPTensor((None, factors))
        options = {"n_iter_max": num_iterations, "init": guess, "tol": -1.0, "callback": progress}
        # By its whole name: this package's, though it is imported after TensorLy.
        cp = tl.decomposition.parafac(x, factors[0].shape[1], **options)
        found = [tl.to_numpy(factor) for factor in cp.factors]
    # The first iterations wait for compilers, and are recorded.
    return float(np.median(progress.seconds[num_iterations // 3 :])), found


def time_calls(function, gpus, repeats=4):
    """Return the median seconds of a call."""
    times = []
    for _ in range(repeats):
        wait_for_gpus(gpus)
        start = time.perf_counter()
        function()
        wait_for_gpus(gpus)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def time_products(x, factors, gpus):
    """Return the seconds of the MTTKRPs of all modes without copies, and with them."""
    layout, engine = x._layout, x._engine
    shards = [RowShards.scatter(f, layout.shardings[n]) for n, f in enumerate(factors)]

    slab_homes = [slab.home for slab in layout.slabs]

    def read(number, mode):
        if mode == layout.cut_mode:
            return shards[mode].blocks[number]
        home = slab_homes[number]
        return gather_each([shards[mode]], layout.devices, [home])[0][home]  # copied once

    def compute(mode):
        before = None
        for number, slab in enumerate(layout.slabs):
            with layout.devices.use(slab.home):
                own = {n: read(number, n) for n in range(x.ndim) if n != mode}
                target = cupy.empty((slab.layout.record_format.shape[mode], RANK), x.dtype)
                slab.layout.apply(MTTKRP, engine, own, mode, target)
                if mode != layout.cut_mode and slab.home in slab_homes[:number]:
                    target += before
                before = target

    def multiply(mode):
        # As in parafac, where one factor is new and is gathered.
        new = (mode - 1) % x.ndim
        own = [RowShards(s.blocks, s.sharding) if n == new else s for n, s in enumerate(shards)]
        mttkrp(x, own, mode)

    def sweep(function):
        return lambda: [function(mode) for mode in range(x.ndim)]

    return time_calls(sweep(compute), gpus), time_calls(sweep(multiply), gpus)


def time_peer_copy(nbytes=2**30):
    """Return the bytes per second of a copy from one GPU to another."""
    with cupy.cuda.Device(0):
        source = cupy.zeros(nbytes, np.uint8)
    with cupy.cuda.Device(1):
        target = cupy.zeros(nbytes, np.uint8)
        for _ in range(2):
            start = time.perf_counter()
            target.data.copy_from_device_async(source.data, nbytes, cupy.cuda.get_current_stream())
            cupy.cuda.Device(1).synchronize()
    return nbytes / (time.perf_counter() - start)


def time_mover(gpus, num_rows=2**23):
    """Return the bytes per second that each GPU receives while all gather a factor."""
    sharding = Sharding.of(cut_evenly(num_rows, gpus), CudaDevices(gpus))
    factor = RowShards.scatter(cupy.ones((num_rows, RANK), np.float32), sharding)

    def gather():
        fresh = RowShards(factor.blocks, factor.sharding)
        gather_each([fresh], sharding.devices, range(gpus))

    return (gpus - 1) * factor.blocks[0].nbytes / time_calls(gather, gpus, 6)


def build(problem, layout, num_slabs, gpus):
    """Build the tensor on `gpus` GPUs, or in one piece if that is 0."""
    if problem.name in LARGE_SHAPES:
        return build_by_slab(problem, layout, num_slabs, gpus)
    coords, values = problem.draw(np.float32)
    options = {"layout": layout, "slabs": num_slabs if gpus else None, "device": "cuda"}
    with repeats_kept():
        return FlycooTensor(coords, values, problem.shape, **options)


def measure(name, options):
    """Time one tensor; print and return its figures."""
    layout, num_slabs = LARGE.get(name, ("remap", max(options.gpus)))
    num_slabs = options.slabs or num_slabs
    problem = Problem(name, 3.0, True, 1.0, options.share)
    figures = {
        "tensor": name,
        "shape": problem.shape,
        "nnz": problem.nnz,
        "slabs": num_slabs,
        "layout": layout,
    }
    digests = {}
    for gpus in options.gpus if name in LARGE_SHAPES else (0, *options.gpus):
        free_all(max(options.gpus))
        try:
            with tensorly_flycoo.set_device("cuda", gpus=gpus or None):
                found, factors = run(problem, layout, num_slabs, gpus, options.iterations)
        except MemoryError as error:
            print(f"{name}, {gpus or 'one'}: {error}", flush=True)
            continue
        if gpus:
            digests[gpus] = b"".join(factor.tobytes() for factor in factors)
        figures[f"{gpus} gpus" if gpus else "one"] = found
        text = ", ".join(f"{key} {value:.2f}" for key, value in found.items())
        print(f"{name:15s} {gpus or 'one'!s:>3s}: {text}", flush=True)
    figures["same bits"] = len(set(digests.values())) <= 1
    print(f"{name:15s} same bits on {list(digests)} GPUs: {figures['same bits']}", flush=True)
    return figures


def run(problem, layout, num_slabs, gpus, num_iterations):
    """Build and time a tensor; return the figures and the factors, on the host."""
    start = time.perf_counter()
    x = build(problem, layout, num_slabs, gpus)
    wait_for_gpus(max(gpus, 1))
    build_s = time.perf_counter() - start
    factors = draw_factors(problem.shape, RANK, np.float32)
    seconds, results = time_iterations(x, factors, num_iterations, max(gpus, 1))
    found = {"build_s": build_s, "iteration_ms": 1e3 * seconds}
    if gpus:
        kernels, products = time_products(x, factors, gpus)
        found["kernels_ms"] = 1e3 * kernels
        found["exchange_ms"] = 1e3 * (products - kernels)
        found["rest_ms"] = 1e3 * (seconds - products)
    return found, results


def measure_calls(name, options):
    """Time whole calls from each source on each number of GPUs; print and return their figures."""
    problem, calls = Problem(name, 3.0, True, 1.0, options.share), []
    coords, values = (array.get() for array in problem.draw(np.float32))
    coords = coords.astype(np.int64)
    with tempfile.TemporaryDirectory() as folder, repeats_kept(), tl.backend_context("flycoo"):
        for source in options.whole:
            num_slabs = max(options.gpus)
            make = prepare_source(source, coords, values, problem.shape, Path(folder), num_slabs)
            for gpus in options.gpus:
                free_all(max(options.gpus))
                with tensorly_flycoo.set_device("cuda", gpus=gpus if gpus > 1 else None):
                    time_stages(make, RANK, 2, "random")  # compiles
                    wait = functools.partial(wait_for_gpus, gpus)
                    call = time_stages(make, RANK, NUM_WHOLE, "random", wait)
                way = f"{source}, {gpus} GPU{'s' if gpus > 1 else ''}"
                calls.append({"tensor": name, "nnz": values.size, "way": way, **call})
    print_calls(calls)
    return {"tensor": name, "whole": calls}


def prepare_source(source, coords, values, shape, folder, num_slabs):
    """Return a function that makes the tensor from a source, which is written first."""
    if source == "memory":
        return lambda: FlycooTensor(coords, values, shape)
    if source == "folder":
        path = folder / "slabs"
        save_slabs(path, [(coords, values)], shape, slabs=num_slabs, device="cuda")
        return lambda: open_slabs(path)
    import pyarrow as pa
    from pyarrow import parquet

    path, modes = folder / "nonzeros.parquet", [f"mode {mode}" for mode in range(len(shape))]
    table = pa.table({**dict(zip(modes, coords, strict=True)), "value": values})
    parquet.write_table(table, path)
    return lambda: from_dataframe(parquet.read_table(path), modes, "value").tensor


def free_all(gpus):
    """Free CuPy's unused memory on every GPU."""
    for device in range(gpus):
        with cupy.cuda.Device(device):
            free_memory()


if __name__ == "__main__":
    options = parse_arguments()
    num_gpus, folder = max(options.gpus), "gpus, whole calls" if options.whole else "gpus"
    record = runs.describe_run(options.commit, "cuda") | {"num_gpus": num_gpus}
    if num_gpus > 1 and not options.whole:
        with tensorly_flycoo.set_device("cuda", gpus="all"):
            link = time_peer_copy()
        movers = {gpus: time_mover(gpus) / link for gpus in options.gpus if gpus > 1}
        record |= {"link_gb_per_s": link / 1e9, "mover_of_link": movers}
        print(f"{link / 1e9:.0f} GB/s; gathering GPUs receive {movers} of it", flush=True)
    for name in options.tensors:
        record["rows"].append((measure_calls if options.whole else measure)(name, options))
        runs.save_run(record, options.results / folder, f"{num_gpus} {record['machine']}")

"""A large tensor, with checkpoints
================================

Factorise a large tensor with the shape of FROSTT's nell-2: 12092 x 9184 x 28818, 76.9M nonzeros.

Its components are planted, so the right answer is known. Before building the tensor, the script
prints how much memory it will take. A bar or log lines show the progress; Ctrl-C stops the run and
keeps the factors so far; with a checkpoint, a later run continues where this one stopped.

A start may miss components. The first one is the default of parafac, the leading singular vectors;
if its fit is poor, random ones follow, and the best run counts. Each has a checkpoint of its own.

Run it::

    python examples/large.py --scale 0.01
    python examples/large.py --layout replicated --checkpoint large.npz
"""

import argparse
import time
from pathlib import Path

import numpy as np
import tensorly as tl
from tensorly.decomposition import parafac

from tensorly_flycoo import Progress, estimate_memory
from tensorly_flycoo.testing import planted_tensor

SHAPE, NNZ = (12092, 9184, 28818), 76_879_419
#: Change of the relative error at which a run ends, and fit above which no further start is tried.
TOLERANCE, GOOD_FIT = 1e-6, 0.99
LAYOUTS = ("remap", "replicated", "indexed")


def scale_down(scale):
    """Return the shape and number of nonzeros of a smaller tensor of the same density."""
    return [max(1, round(size * scale ** (1 / 3))) for size in SHAPE], round(NNZ * scale)


def print_memory(shape, nnz, dtype):
    """Print the memory that the tensor will take in each layout."""
    for layout in LAYOUTS:
        estimate = estimate_memory(shape, nnz, dtype=dtype, layout=layout)
        kept_gb, peak_gb = estimate.nbytes / 1e9, estimate.peak_nbytes / 1e9
        print(f"  {layout:10} {kept_gb:8.3f} GB, {peak_gb:8.3f} GB while it is built")


def factorise(x, arguments):
    """Run parafac from one start after another until one fits; return the best run, its errors."""
    best = None
    for start in range(arguments.starts):
        cp_tensor, errors, is_stopped = run(x, arguments, start)
        print(f"start {start}: fit {1 - errors[-1]:.4f} after {len(errors) - 1} iterations")
        if best is None or errors[-1] < best[1][-1]:
            best = cp_tensor, errors
        if is_stopped or 1 - errors[-1] > GOOD_FIT:
            break
    return best


def run(x, arguments, start):
    """Run parafac from one start, or from its checkpoint; return whether Ctrl-C stopped it too."""
    checkpoint = arguments.checkpoint
    if checkpoint is not None:
        checkpoint = checkpoint.with_stem(f"{checkpoint.stem}-{start}")
    with Progress(arguments.iterations, checkpoint=checkpoint, show=arguments.show) as progress:
        init = "svd" if start == 0 else "random"
        cp_tensor = parafac(
            x, arguments.rank, n_iter_max=progress.n_iter_left, tol=TOLERANCE, random_state=start,
            init=init if checkpoint is None else progress.resume(default=init), callback=progress,
        )  # fmt: skip
    errors = progress.errors
    has_converged = len(errors) > 1 and abs(errors[-2] - errors[-1]) < TOLERANCE
    return cp_tensor, errors, progress.n_iter_left > 0 and not has_converged


def count_found(cp_tensor, planted):
    """Count the planted components that some component matches in all modes."""
    cosines = 1
    for factor, expected in zip(cp_tensor.factors, planted, strict=True):
        factor = tl.to_numpy(factor).astype(float)
        norms = np.outer(np.linalg.norm(expected, axis=0), np.linalg.norm(factor, axis=0))
        cosines = cosines * np.abs(expected.T @ factor) / np.maximum(norms, 1e-300)
    return int((cosines.max(axis=1) > 0.95).sum())


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1, help="fraction of the nonzeros to use")
    parser.add_argument("--rank", type=int, default=16, help="number of planted components")
    parser.add_argument("--iterations", type=int, default=50, help="most for a start")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--layout", default="auto", choices=("auto", *LAYOUTS))
    parser.add_argument("--starts", type=int, default=5, help="most starts")
    parser.add_argument("--checkpoint", type=Path, help="files to save to and continue from")
    parser.add_argument("--show", default="log", choices=("bar", "log"))
    arguments = parser.parse_args(argv)

    shape, nnz = scale_down(arguments.scale)
    print(f"{' x '.join(map(str, shape))}, about {nnz:,} nonzeros, {arguments.dtype}:")
    print_memory(shape, nnz, arguments.dtype)
    tl.set_backend("flycoo")
    start = time.perf_counter()
    options = {"dtype": arguments.dtype, "layout": arguments.layout, "random_state": 0}
    x, planted = planted_tensor(shape, arguments.rank, nnz // arguments.rank, **options)
    print(f"made in {time.perf_counter() - start:.1f} s: {x}, {x.nbytes / 1e9:.2f} GB")

    start = time.perf_counter()
    cp_tensor, errors = factorise(x, arguments)
    seconds = time.perf_counter() - start
    found = count_found(cp_tensor, planted)
    print(f"fit {1 - errors[-1]:.4f} after {seconds:.1f} s in all; "
          f"{found} of {arguments.rank} components found")  # fmt: skip
    return {"x": x, "cp_tensor": cp_tensor, "errors": errors, "found": found}


if __name__ == "__main__":
    main()

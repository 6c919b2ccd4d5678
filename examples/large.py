"""Factorise a large tensor with the shape of FROSTT's nell-2: 12092 x 9184 x 28818, 76.9M nonzeros.

Its components are planted, so it is known what is to be found. What memory it takes is said before
it is made; a bar shows the progress, Ctrl-C ends it with the factors so far, and with a checkpoint
it goes on later from where it was.

    python examples/large.py --scale 0.01
    python examples/large.py --layout replicated --checkpoint large.npz
"""

import argparse
import logging
import time

import numpy as np
import tensorly as tl
from tensorly.decomposition import parafac

from tensorly_flycoo import Progress, estimate_memory
from tensorly_flycoo.testing import planted_tensor

SHAPE, NNZ = (12092, 9184, 28818), 76_879_419
#: Components that are looked for beyond those that were planted: a random start misses some.
MORE = 4
LAYOUTS = ("remap", "replicated", "indexed")


def scale_down(scale):
    """Return the shape and the number of nonzeros of a smaller tensor that is as dense."""
    return [max(1, round(size * scale ** (1 / 3))) for size in SHAPE], round(NNZ * scale)


def print_memory(shape, nnz, dtype):
    """Say what the tensor will take in each layout."""
    for layout in LAYOUTS:
        estimate = estimate_memory(shape, nnz, dtype=dtype, layout=layout)
        kept_gb, peak_gb = estimate.nbytes / 1e9, estimate.peak_nbytes / 1e9
        print(f"  {layout:10} {kept_gb:8.3f} GB, {peak_gb:8.3f} GB while it is made")


def factorise(x, arguments):
    """Run parafac with a bar or log lines, from the checkpoint if there is one."""
    options = {"checkpoint": arguments.checkpoint, "show": arguments.show}
    with Progress(arguments.iterations, **options) as progress:
        init = "random" if arguments.checkpoint is None else progress.resume(default="random")
        cp_tensor = parafac(
            x, arguments.rank + MORE, n_iter_max=progress.n_iter_left, init=init,
            random_state=0, tol=1e-6, callback=progress,
        )  # fmt: skip
    return cp_tensor, progress.errors


def count_found(cp_tensor, planted):
    """Count the planted components that have a component like them, in all modes together."""
    cosines = 1
    for factor, expected in zip(cp_tensor.factors, planted, strict=True):
        factor = tl.to_numpy(factor).astype(float)
        norms = np.outer(np.linalg.norm(expected, axis=0), np.linalg.norm(factor, axis=0))
        cosines = cosines * np.abs(expected.T @ factor) / np.maximum(norms, 1e-300)
    return int((cosines.max(axis=1) > 0.95).sum())


def main(argv=None):
    """Do it all, and return what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1, help="of the number of nonzeros")
    parser.add_argument("--rank", type=int, default=16, help="number of planted components")
    parser.add_argument("--iterations", type=int, default=50, help="most iterations")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--layout", default="remap", choices=LAYOUTS)
    parser.add_argument("--checkpoint", help="a file to save to, and to go on from")
    parser.add_argument("--show", default="log", choices=("bar", "log"))
    arguments = parser.parse_args(argv)

    logging.basicConfig(level=logging.INFO, format="%(message)s")
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
    print(f"fit {1 - errors[-1]:.4f} after {len(errors) - 1} iterations, {seconds:.1f} s in all; "
          f"{found} of {arguments.rank} components found")  # fmt: skip

    assert 0.8 * nnz < x.nnz <= 1.2 * nnz
    assert errors[-1] < 0.02
    assert found >= arguments.rank // 2
    return {"x": x, "cp_tensor": cp_tensor, "errors": errors, "found": found}


if __name__ == "__main__":
    main()

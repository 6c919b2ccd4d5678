"""Time sweeps of generalized_parafac for counts beside iterations of parafac.

Run it::

    python examples/benchmark_gpu/poisson.py nell-2 uber

For each shape, at rank 32 in float32: MTTKRPs of all modes; the same of ratios, with logarithms in
the first mode, which make an exact sweep; and whole calls, from callback to callback. "mu" has
sweeps of two kinds: every other one tries to extrapolate, which costs another pass.
"""

import argparse

import cupy
import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensors import SMALL_SHAPES, Problem, build, draw_factors, free_memory
from timing import seconds_between, time_steps

from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.format.primitives import MTTKRP, MTTKRP_OF_RATIOS

RANK = 32


def time_kernels(x, factors):
    """Return the seconds of a sweep of MTTKRPs, and of one of ratios."""
    outs, model = [cupy.empty_like(factor) for factor in factors], dict(enumerate(factors))

    def multiply(n):
        others = {other: factor for other, factor in model.items() if other != n}
        x._layout.apply(MTTKRP, x._engine, others, n, outs[n])

    def divide(n):
        arguments = (MTTKRP_OF_RATIOS, x._engine, model, n, outs[n])
        x._layout.apply(*arguments, smallest=1e-19, wants_sum=n == 0)

    plain = [lambda n=n: multiply(n) for n in range(x.ndim)]
    ratios = [lambda n=n: divide(n) for n in range(x.ndim)]
    return time_steps(plain, 20).sum(), time_steps(ratios, 20).sum()


def time_sweeps(decompose, count):
    """Return the seconds between the calls of a callback, but for the first ones."""
    events = []
    decompose(count, lambda *_: events.append(cupy.cuda.get_current_stream().record()))
    return seconds_between(events)[2:]


def measure(name, count):
    """Print a line for a shape."""
    problem = Problem(name, alpha=3.0, is_scattered=False, scale=1.0)
    x, _ = build(*problem.draw(np.float32), problem.shape, "remap")
    factors = draw_factors(problem.shape, RANK, np.float32)
    free_memory()
    plain, ratios = time_kernels(x, factors)
    init = CPTensor((None, factors))

    def run_parafac(count, callback):
        options = {"init": init, "tol": -1.0, "callback": callback}
        tl.decomposition.parafac(x, RANK, n_iter_max=count, **options)

    def run_mu(count, callback):
        generalized_parafac(x, RANK, count, init, tol=0, callback=callback)

    iteration, sweeps = np.median(time_sweeps(run_parafac, count)), time_sweeps(run_mu, count)
    single, extrapolating = sorted((np.median(sweeps[::2]), np.median(sweeps[1::2])))
    print(
        f"{name:>9}: MTTKRPs {1e3 * plain:.2f} ms, of ratios {ratios / plain:.2f} times that; "
        f"an iteration {1e3 * iteration:.2f} ms, a sweep {1e3 * single:.2f} = "
        f"{single / iteration:.2f} times that, one that extrapolates {1e3 * extrapolating:.2f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=["nell-2", "uber"], help="of tensors.py")
    names = parser.parse_args().names
    tl.set_backend("flycoo")
    for name in names:
        measure(name, 200 if name in SMALL_SHAPES else 24)
        free_memory()


if __name__ == "__main__":
    main()

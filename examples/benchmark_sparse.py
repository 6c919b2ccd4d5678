"""Timing other functions
======================

Time functions of sparse tensors other than parafac on one engine, and check limits.

Run it::

    python examples/benchmark_sparse.py                          # on the CPU, 1M rows a mode
    python examples/benchmark_sparse.py --engine cuda --nnz 20_000_000 --json results.json
    python examples/benchmark_sparse.py --experiments ttmc

The functions of a comparison take turns in one process, for several rounds. A time is the best of
all rounds; what counts is the ratios.

- cp: an iteration of non-negative CP, by multiplicative updates (MU) and by HALS, relative to one
  of parafac; rank 32, modes of equal length.
- ttmc: a column of TTMc with ranks (16, 16, 16), relative to a column of MTTKRP of rank 32; all
  modes, for modes of equal length and for Nell-2's shape.
- rows: the inner loops of HALS and ADMM on one factor; on a GPU, relative to the CPU.
"""

import argparse
import json
import math
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import non_negative_parafac, non_negative_parafac_hals, parafac

import tensorly_flycoo
from tensorly_flycoo.ops.ttmc import multiply_nonempty_rows
from tensorly_flycoo.testing import random_tensor

RANK, TUCKER_RANK = 32, 16
NELL_2 = (12_000, 9_000, 29_000)

#: Largest ratio allowed.
BARS = {"MU": 1.5, "HALS": 1.5, "ttmc": 3.0, "rows": 1.0}

#: The error is computed in each iteration but never stops the run.
_TOL = 1e-300
_FEW = 1


def time_in_turns(functions, rounds, synchronize):
    """Return the seconds of each function: the best of several rounds in which all take turns."""
    best = dict.fromkeys(functions, math.inf)
    for number in range(rounds + 1):  # the first call compiles
        for name, function in functions.items():
            synchronize()
            start = time.perf_counter()
            function()
            synchronize()
            seconds = time.perf_counter() - start
            best[name] = min(best[name], seconds) if number else math.inf
    return best


def compare(name, seconds, reference, bar=None):
    """Print a ratio of times and return it for the table."""
    ratio = seconds / reference
    verdict = "" if bar is None else f"  bar {bar}: {'met' if ratio <= bar else 'MISSED'}"
    print(f"{name:44}{1e3 * seconds:12.2f} ms /{1e3 * reference:10.2f} ms ={ratio:7.2f}{verdict}")
    return {"name": name, "s": seconds, "reference_s": reference, "ratio": ratio, "bar": bar}


def draw(xp, *shape, dtype):
    """Draw positive numbers on the host: the same for all engines."""
    return xp.asarray((0.1 + np.random.RandomState(1).random_sample(shape)).astype(dtype))


# cp


def run_cp(options, xp, synchronize):
    """Compare iterations by the slope between few and many, from the same start."""
    x = random_tensor((options.rows,) * 3, options.nnz, random_state=0, dtype=options.dtype)
    guess = draw(xp, options.rows, RANK, dtype=options.dtype)

    def run(decompose, num_iterations, **others):
        start = CPTensor((None, [guess.copy() for _ in x.shape]))
        decompose(x, RANK, init=start, n_iter_max=num_iterations, **others)

    methods = {
        "parafac": partial(run, parafac, tol=_TOL),
        "MU": partial(run, non_negative_parafac, tol=_TOL),
        "HALS": partial(run, non_negative_parafac_hals, tol=_TOL),
    }
    counts = (_FEW, _FEW + options.iterations)
    runs = {(name, n): partial(method, n) for name, method in methods.items() for n in counts}
    best = time_in_turns(runs, options.rounds, synchronize)
    few, many = counts
    slopes = {name: (best[name, many] - best[name, few]) / (many - few) for name in methods}
    reference = slopes.pop("parafac")
    return [
        compare(f"{name} / parafac, an iteration", seconds, reference, BARS[name])
        for name, seconds in slopes.items()
    ]


# ttmc


def run_ttmc(options, xp, synchronize):
    """Compare a column of TTMc with one of MTTKRP, summed over the modes."""
    shapes = {"equal modes": (options.rows // 50,) * 3, "Nell-2's shape": NELL_2}
    return [
        compare_ttmc(name, shape, layout, options, xp, synchronize)
        for name, shape in shapes.items()
        for layout in ("remap", "replicated")
    ]


def compare_ttmc(name, shape, layout, options, xp, synchronize):
    """Time one sweep over the modes for each."""
    settings = {"random_state": 0, "dtype": options.dtype, "layout": layout}
    x = random_tensor(shape, options.nnz, **settings)
    factors = [draw(xp, size, RANK, dtype=options.dtype) for size in shape]
    narrow = [xp.ascontiguousarray(factor[:, :TUCKER_RANK]) for factor in factors]
    outs = [xp.empty_like(factor) for factor in factors]

    def sweep_mttkrp():
        for mode, out in enumerate(outs):
            tensorly_flycoo.mttkrp(x, factors, mode, out=out)

    def sweep_ttmc():
        for mode in range(x.ndim):
            multiply_nonempty_rows(x, mode, {n: f for n, f in enumerate(narrow) if n != mode})

    sweeps = {"mttkrp": sweep_mttkrp, "ttmc": sweep_ttmc}
    best = time_in_turns(sweeps, options.rounds, synchronize)
    columns = TUCKER_RANK ** (x.ndim - 1)
    label = f"TTMc / MTTKRP, a column, {layout}, {name}"
    return compare(label, best["ttmc"] / columns, best["mttkrp"] / RANK, BARS["ttmc"])


# rows


def run_rows(options, xp, synchronize):
    """Time the inner loops of HALS and ADMM on one factor, called as the decompositions do."""
    modules = [sys.modules[f"tensorly.decomposition.{m}"] for m in ("_nn_cp", "_constrained_cp")]
    hals_nnls, admm = modules[0].hals_nnls, modules[1].admm

    def make(xp):
        rows = draw(xp, options.rows, RANK, dtype=options.dtype)
        targets, gram = rows * 2.0, draw(xp, RANK, RANK, dtype=options.dtype)
        gram = gram.T @ gram + 8 * xp.eye(RANK, dtype=options.dtype)
        dual = xp.zeros_like(rows)
        return {
            "HALS, 5 sweeps": lambda: hals_nnls(targets.T, gram, rows.copy().T, n_iter_max=5),
            "ADMM, 10 steps": lambda: admm(
                targets, gram, rows.copy(), dual.copy(), n_iter_max=10, n_const=3, order=0,
                non_negative=True,
            ),
        }  # fmt: skip

    here = time_in_turns(make(xp), options.rounds, synchronize)
    if xp is np:
        for name, seconds in here.items():
            print(f"{name + ' of ' + str(options.rows) + ' rows':44}{1e3 * seconds:12.2f} ms")
        return [{"name": name, "s": seconds} for name, seconds in here.items()]
    there = time_in_turns(make(np), options.rounds, synchronize)
    return [
        compare(f"{name} of {options.rows} rows, GPU / CPU", here[name], there[name], BARS["rows"])
        for name in here
    ]


EXPERIMENTS = {"cp": run_cp, "ttmc": run_ttmc, "rows": run_rows}


def choose_engine(name):
    """Choose the device; return its array module and a function that waits for it."""
    tensorly_flycoo.set_device(name)
    if name == "cpu":
        return np, lambda: None
    import cupy

    return cupy, cupy.cuda.Device().synchronize


def main(argv=None):
    """Run the benchmark and return its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--engine", default="cpu", choices=("cpu", "cuda"))
    add("--experiments", nargs="+", default=tuple(EXPERIMENTS), choices=EXPERIMENTS)
    add("--rows", type=int, default=1_000_000, help="of a factor")
    add("--nnz", type=int, default=3_000_000)
    add("--dtype", default="float64", choices=("float32", "float64"))
    add("--iterations", type=int, default=4)
    add("--rounds", type=int, default=3)
    add("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(argv)
    figures = []
    with tl.backend_context("flycoo"):
        for name in options.experiments:
            figures += EXPERIMENTS[name](options, *choose_engine(options.engine))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return figures


if __name__ == "__main__":
    main()

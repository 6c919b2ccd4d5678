"""Timing Poisson decompositions
=============================

Time decompositions of a year of flights, all from one start, against pyttb and pygenten.

Run it::

    python examples/benchmark_counts.py
    python examples/benchmark_counts.py --rank 16 --rivals pyttb-apr pyttb-gcp pygenten

F is ``sum(m) - sum(x log m)`` over all cells, exact, for every method; lower is better. A rival
runs once, to its end; the last column says how much sooner generalized_parafac had passed its F.
pyttb and pygenten are left out if they are not installed.

Binary data, by stochastic gradients on both sides, in the shape of Chicago's crimes (synthetic, 4.6
million ones). The loss is exact here too, a sum over all 366 million cells::

    python examples/benchmark_counts.py --problem chicago --rank 8 --epochs 5 --rivals pygenten

An exact sweep, with F, beside an iteration of parafac, with its error: CPU time, in turns, on
random counts in the shapes of FROSTT's tensors, the large ones scaled down::

    export NUMBA_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    python examples/benchmark_counts.py --problem sweeps --scale 0.02 --dtype float32
"""

import argparse
import importlib.util
import time

import numpy as np
import tensorly as tl
from flights import build_tensor
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, cp_fit, cp_to_entries, set_device
from tensorly_flycoo.decomposition import generalized_parafac

#: Learning rates of pygenten's Adam; the best of them counts.
RATES = (1e-3, 3e-3, 1e-2)

#: Losses to pass: those that pygenten and pyttb had reached, and a good model's.
TARGETS = (825_034, 819_506, 808_500)

#: FROSTT's tensors: sizes of modes, and nonzeros.
SHAPES = {
    "uber": ((183, 24, 1_140, 1_717), 3_309_490),
    "nell-2": ((12_092, 9_184, 28_818), 76_879_419),
    "nell-1": ((2_902_330, 2_143_368, 25_495_389), 143_599_552),
    "delicious": ((532_924, 17_262_471, 2_480_308, 1_443), 140_126_181),
}

#: Turns of sweeps, and sweeps of a turn.
ROUNDS, SWEEPS = 3, 5

#: Days, hours, areas and kinds of crimes; how many are drawn, of which 4.6 million cells differ.
CHICAGO_SHAPE, CHICAGO_COUNT = (6186, 24, 77, 32), 5_300_000


def draw_binary(shape, count, rank):
    """Draw ones at cells of a few planted components; some cells are drawn twice."""
    random = np.random.default_rng(0)
    component = random.choice(rank, count, p=np.arange(1, rank + 1) / (rank * (rank + 1) / 2))
    coords = np.empty((len(shape), count), np.int64)
    for mode, size in enumerate(shape):
        ends = np.cumsum(random.gamma(0.3, size=(size, rank)) + 0.02, axis=0)
        for r in range(rank):
            places = np.flatnonzero(component == r)
            coords[mode, places] = np.searchsorted(
                ends[:-1, r], random.random(places.size) * ends[-1, r]
            )
    cells = np.unique(np.ravel_multi_index(coords, shape))
    return FlycooTensor(np.unravel_index(cells, shape), np.ones(cells.size), shape)


def measure_odds(x, weights, factors):
    """Return the exact loss of odds m, ``sum(log(1 + m)) - sum(log m at the ones)``."""
    first, *others = [np.maximum(factor, 0) for factor in factors]
    first = first if weights is None else first * weights
    columns = others[0]
    for factor in others[1:]:
        columns = (columns[:, None] * factor).reshape(-1, factor.shape[1])
    total = sum(np.log1p(first[n : n + 50] @ columns.T).sum() for n in range(0, len(first), 50))
    odds = cp_to_entries((None, [first, *others]), x.nonzeros()[0])
    return total - np.log(odds + 1e-10).sum()


def draw_start(x, rank):
    """Draw positive factors whose model has the sum of the counts."""
    random = np.random.RandomState(0)
    factors = [random.random_sample((size, rank)) + 0.1 for size in x.shape]
    total = np.prod([factor.sum(axis=0) for factor in factors], axis=0).sum()
    scale = (x.nonzeros()[1].sum() / total) ** (1 / x.ndim)
    return [factor * scale for factor in factors]


def measure(x, weights, factors):
    """Return F of any model, without the elements below zero that rounding may leave."""
    factors = [np.ascontiguousarray(np.maximum(factor, 0), x.dtype) for factor in factors]
    weights = None if weights is None else np.asarray(weights, x.dtype)
    return cp_fit(x, (weights, factors), loss="poisson_count").loss


def run_ours(x, factors, sweeps):
    """Return the seconds and F after each sweep."""
    trace = []

    def note(cp_tensor, loss):
        trace.append((time.perf_counter(), float(loss)))

    options = {"tol": 0, "callback": note}
    for count in (6, sweeps):  # the first run compiles, extrapolation too
        trace.clear()
        start = time.perf_counter()
        init = CPTensor((None, [factor.copy() for factor in factors]))
        generalized_parafac(x, factors[0].shape[1], count, init, **options)
    return [(seconds - start, loss) for seconds, loss in trace]


def to_pyttb(x, factors):
    """Return the tensor and the start as pyttb takes them."""
    import pyttb

    coords, values = x.nonzeros()
    subs = np.ascontiguousarray(coords.T)
    tensor = pyttb.sptensor(subs, values[:, None], x.shape)
    return tensor, pyttb.ktensor([np.ascontiguousarray(factor) for factor in factors])


def run_pyttb_apr(x, factors, arguments):
    """Run Chi and Kolda's algorithm of pyttb, a few outer iterations."""
    import pyttb

    tensor, start = to_pyttb(x, factors)
    began = time.perf_counter()
    options = {"maxiters": arguments.apr_iterations, "printitn": 0, "init": start}
    model, *_ = pyttb.cp_apr(tensor, factors[0].shape[1], algorithm="mu", **options)
    seconds = time.perf_counter() - began
    return seconds, measure(x, model.weights, model.factor_matrices)


def run_pyttb_gcp(x, factors, arguments):
    """Run generalized CP of pyttb by stochastic gradients."""
    import pyttb
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import Adam

    tensor, start = to_pyttb(x, factors)
    began = time.perf_counter()
    optimizer = Adam(max_iters=arguments.epochs, epoch_iters=100)
    rank = factors[0].shape[1]
    model, *_ = pyttb.gcp_opt(
        tensor, rank, Objectives.POISSON, optimizer, init=start, printitn=0
    )  # fmt: skip
    seconds = time.perf_counter() - began
    return seconds, measure(x, model.weights, model.factor_matrices)


def run_pygenten(x, factors, arguments):
    """Run generalized CP of GenTen by stochastic gradients: the best of several rates."""
    import pygenten

    results = []
    for rate in RATES:
        tensor, start = to_pyttb(x, factors)
        began = time.perf_counter()
        options = {"rank": factors[0].shape[1], "maxiters": arguments.epochs, "rate": rate}
        options |= {"loss_function_type": "poisson", "seed": 1, "printitn": 0, "init": start}
        options |= {"epoch_iters": 100}  # as pyttb above
        model, *_ = pygenten.gcp_sgd(tensor, **options)
        seconds = time.perf_counter() - began
        results.append((seconds, measure(x, model.weights, model.factor_matrices)))
        print(f"pygenten, rate {rate}: {seconds:.2f} s, F {results[-1][1]:,.0f}", flush=True)
    return min(results, key=lambda result: result[1])


def run_ours_on_odds(x, factors, epochs):
    """Return the seconds and the exact loss after each epoch, which the clock does not count."""
    trace, paused = [], 0.0

    def note(cp_tensor, loss):
        nonlocal paused
        now = time.perf_counter()
        trace.append((now - start - paused, measure_odds(x, *cp_tensor)))
        print(f"generalized_parafac, {len(trace) - 1:3} epochs {trace[-1][0]:8.1f} s  "
              f"loss {trace[-1][1]:13,.0f}", flush=True)  # fmt: skip
        paused += time.perf_counter() - now

    start = time.perf_counter()
    options = {"loss": "bernoulli_odds", "random_state": 0, "tol": 0, "callback": note}
    generalized_parafac(x, factors[0].shape[1], epochs, CPTensor((None, factors)), **options)
    return trace


def run_pygenten_on_odds(x, factors, epochs):
    """Return the seconds and the exact loss of GenTen's stochastic gradients."""
    import pygenten

    tensor, start = to_pyttb(x, factors)
    began = time.perf_counter()
    options = {"rank": factors[0].shape[1], "maxiters": epochs, "loss_function_type": "bernoulli"}
    # As many as ours: its defaults draw half of all nonzeros in each of 1000 steps an epoch.
    names = ("num_samples_nonzeros_grad", "num_samples_zeros_grad")
    options |= dict.fromkeys(names, sum(x.shape))
    model, *_ = pygenten.gcp_sgd(tensor, **options, seed=1, printitn=0, init=start)
    return time.perf_counter() - began, measure_odds(x, model.weights, model.factor_matrices)


def compare_on_odds(x, arguments):
    """Compare epochs on binary data with GenTen's, from one start."""
    factors = draw_start(x, arguments.rank)
    print(x, flush=True)
    trace, results = run_ours_on_odds(x, factors, arguments.epochs), {}
    if "pygenten" in arguments.rivals and importlib.util.find_spec("pygenten"):
        seconds, loss = results["pygenten"] = run_pygenten_on_odds(x, factors, arguments.epochs)
        print(f"pygenten gcp_sgd, {arguments.epochs} epochs {seconds:8.1f} s  loss {loss:13,.0f}")
    return {"trace": trace, "results": results}


def draw_counts(name, scale, dtype):
    """Draw random counts in one of the shapes; modes below 2,000 and "uber" are not scaled."""
    random, (shape, nnz) = np.random.default_rng(0), SHAPES[name]
    scale = 1 if name == "uber" else scale
    sizes = [size if size < 2000 else max(2000, round(size * scale)) for size in shape]
    coords = [random.integers(size, size=round(nnz * scale)) for size in sizes]
    return FlycooTensor(coords, 1 + random.poisson(1.0, coords[0].size).astype(dtype), sizes)


def time_sweeps(solver, x, rank):
    """Return the CPU seconds of every other sweep, without the first: SQUAREM rests there."""
    times = []
    options = {"init": "random", "random_state": 0, "tol": -1.0}  # it never stops
    solver(x, rank, SWEEPS, callback=lambda *_: times.append(time.process_time()), **options)
    return np.diff(times)[2::2]


def compare_sweeps(arguments):
    """Compare sweeps with iterations of parafac; return the ratios."""
    solvers, ratios = (generalized_parafac, tl.decomposition.parafac), {}
    with tl.backend_context("flycoo"):
        for name in SHAPES:
            x = draw_counts(name, arguments.scale, arguments.dtype)
            rounds = [[time_sweeps(solver, x, arguments.rank) for solver in solvers]
                      for _ in range(1 + ROUNDS)][1:]  # the first compiles  # fmt: skip
            sweep_s, iteration_s = np.median(rounds, axis=(0, 2))
            ratios[name] = sweep_s / iteration_s
            print(f"{name:10}{x.nnz:12,} nonzeros: sweep {1e3 * sweep_s:8.1f} ms, parafac "
                  f"{1e3 * iteration_s:8.1f} ms, ratio {ratios[name]:.2f}", flush=True)  # fmt: skip
    return ratios


RIVALS = {
    "pyttb-apr": ("pyttb", "pyttb cp_apr", run_pyttb_apr),
    "pyttb-gcp": ("pyttb", "pyttb gcp_opt", run_pyttb_gcp),
    "pygenten": ("pygenten", "pygenten gcp_sgd", run_pygenten),
}


def find_time(trace, loss):
    """Return the seconds after which F was at most `loss`; nan if it never was."""
    return next((seconds for seconds, own in trace if own <= loss), float("nan"))


def main(argv=None):
    """Run the benchmark; return the trace of our run, and each rival's seconds and F."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problem", default="flights", choices=["flights", "chicago", "sweeps"])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--sweeps", type=int, default=300, help="of generalized_parafac")
    parser.add_argument("--apr-iterations", type=int, default=5, help="outer ones, of pyttb cp_apr")
    parser.add_argument("--epochs", type=int, default=15, help="of stochastic gradients")
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, default=list(RIVALS))
    parser.add_argument("--device", default="cpu", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--scale", type=float, default=0.02, help="of the shapes, for sweeps")
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    arguments = parser.parse_args(argv)

    set_device("cpu")
    if arguments.problem == "sweeps":
        return compare_sweeps(arguments)
    if arguments.problem == "chicago":
        return compare_on_odds(draw_binary(CHICAGO_SHAPE, CHICAGO_COUNT, 8), arguments)
    x = build_tensor().tensor
    factors = draw_start(x, arguments.rank)
    print(f"{x}\nF of the start: {measure(x, None, factors):,.0f}")
    trace = run_on(arguments.device, x, factors, arguments.sweeps)
    for count in sorted({1, 10, 30, 100, arguments.sweeps}):
        if count < len(trace):
            seconds, loss = trace[count]
            print(f"generalized_parafac, {count:4} sweeps {seconds:8.2f} s  F {loss:11,.0f}")
    for target in TARGETS:
        print(f"F = {target:,} passed after {find_time(trace, target):.2f} s")
    results = {}
    for name in arguments.rivals:
        package, title, run = RIVALS[name]
        if importlib.util.find_spec(package) is None:
            print(f"{title}: {package} is not installed")
            continue
        seconds, loss = results[name] = run(x, factors, arguments)
        text = f"{title:25} {seconds:15.2f} s  F {loss:11,.0f}"
        if np.isfinite(loss):
            own = find_time(trace, loss)
            text += f"; ours after {own:.2f} s, {seconds / own:,.0f} times sooner"
        print(text, flush=True)
    return {"trace": trace, "results": results}


def run_on(device, x, factors, sweeps):
    """Run generalized_parafac on a device, from the same start."""
    if device == "cpu":
        return run_ours(x, factors, sweeps)
    import cupy

    moved = type(x)(*x.nonzeros(), x.shape, device=device)
    return run_ours(moved, [cupy.asarray(factor) for factor in factors], sweeps)


if __name__ == "__main__":
    main()

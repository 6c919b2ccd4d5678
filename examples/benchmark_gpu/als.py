"""Time an iteration of parafac, as a whole and in parts."""

import cupy
import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import _cp, parafac
from tensorly.tenalg import unfolding_dot_khatri_rao
from timing import seconds_between, synchronize, time_steps

#: parafac computes the fit for any tol but 0, and never converges with a negative one.
_TOL = -1.0

_NUM_PART_RUNS = 5


def time_als(x, factors, sweep_s, repeats, limit_s=2.0):
    """Time an iteration of parafac, its parts, and its kernels alone.

    Returns
    -------
    dict
        "iteration_s": the median of TensorLy's loop, computing the fit; "parts_s": the parts of the
        same loop written out; "kernels_s": all its kernels, without waiting for the host.
    """
    with tl.backend_context("flycoo"):
        num_iterations = int(np.clip(limit_s / sweep_s, 4, max(4, repeats)))
        return {
            "iteration_s": _time_iterations(x, factors, num_iterations),
            "parts_s": _time_parts(x, factors),
            "kernels_s": _time_kernels(x, factors, repeats),
        }


def _time_iterations(x, factors, num_iterations):
    events = []

    def record(*_):
        events.append(cupy.cuda.get_current_stream().record())

    # The callback is also called before the first iteration, which still compiles.
    options = {"init": CPTensor((None, factors)), "tol": _TOL, "callback": record}
    parafac(x, factors[0].shape[1], n_iter_max=num_iterations, **options)
    return float(np.median(seconds_between(events)[1:]))


def _time_parts(x, factors):
    runs = []
    for _ in range(1 + _NUM_PART_RUNS):
        names, events = [], []

        def mark(name, names=names, events=events):
            names.append(name)
            events.append(cupy.cuda.get_current_stream().record())

        synchronize()
        _run_iteration(x, factors, mark)
        mark(None)
        seconds = seconds_between(events)
        runs.append(
            {
                part: sum(s for name, s in zip(names[:-1], seconds, strict=True) if name == part)
                for part in names[:-1]
            }
        )
    return {part: float(np.median([run[part] for run in runs[1:]])) for part in runs[0]}


def _time_kernels(x, factors, repeats):
    """Time an iteration whose launches are queued in advance, so the GPU never waits for the host.

    The exception is `solve` on a GPU without suitable tensor cores: it inverts small matrices
    on the host.
    """
    return float(time_steps([lambda: _run_iteration(x, factors)], repeats)[0])


def _run_iteration(x, factors, mark=lambda name: None):
    """Run one iteration of `parafac`, calling `mark` where each part begins."""
    factors, rank = list(factors), factors[0].shape[1]
    weights = tl.ones(rank, **tl.context(x))
    for mode in range(x.ndim):
        mark("gram")
        gram = tl.ones((rank, rank), **tl.context(x))
        for n, factor in enumerate(factors):
            if n != mode:
                gram = gram * tl.dot(tl.conj(tl.transpose(factor)), factor)
        gram = tl.reshape(weights, (-1, 1)) * gram * tl.reshape(weights, (1, -1))
        mark("mttkrp")
        product = unfolding_dot_khatri_rao(x, (weights, factors), mode)
        mark("solve")
        solution = tl.solve(tl.conj(tl.transpose(gram)), tl.transpose(product))
        factors[mode] = tl.transpose(solution)
    mark("fit")
    _cp.error_calc(x, x.norm(), weights, factors, False, None, product)

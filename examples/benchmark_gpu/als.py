"""Time an iteration of parafac, as a whole and in parts."""

import contextlib

import cupy
import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import _cp, parafac
from timing import seconds_between, time_steps

#: parafac computes the fit for any tol but 0, and never converges with a negative one.
_TOL = -1.0

_NUM_PART_RUNS = 6


def time_als(x, factors, sweep_s, repeats, limit_s=2.0):
    """Time an iteration of parafac, its parts, and its kernels alone.

    Returns
    -------
    dict
        "iteration_s": the median of TensorLy's loop, computing the fit; "parts_s": the parts of
        the same loop, in which "solve" includes the Gram matrices; "kernels_s": all kernels of an
        iteration without the fit, without waiting for the host.
    """
    with tl.backend_context("flycoo"):
        num_iterations = int(np.clip(limit_s / sweep_s, 4, max(4, repeats)))
        return {
            "iteration_s": _time_iterations(x, factors, num_iterations),
            "parts_s": _time_parts(x, factors),
            "kernels_s": _time_kernels(x, factors, repeats),
        }


def _run(x, factors, num_iterations, **options):
    guess = CPTensor((None, factors))
    parafac(x, factors[0].shape[1], n_iter_max=num_iterations, init=guess, **options)


def _time_iterations(x, factors, num_iterations):
    events = []

    def record(*_):
        events.append(cupy.cuda.get_current_stream().record())

    # The callback is also called before the first iteration, which still compiles.
    _run(x, factors, num_iterations, tol=_TOL, callback=record)
    return float(np.median(seconds_between(events)[1:]))


def _time_parts(x, factors):
    """Time what TensorLy's loop calls, by events around it; the rest of the loop is "solve"."""
    names, events = [], []

    def mark(name):
        names.append(name)
        events.append(cupy.cuda.get_current_stream().record())

    with _marked(mark):
        _run(x, factors, _NUM_PART_RUNS, tol=_TOL)
    mark(None)
    parts, seconds = names[:-1], seconds_between(events)
    num_parts = 2 * (len(factors) + 1)  # of an iteration: each MTTKRP and solve, the fit, the rest
    runs = []
    for start in range(num_parts, len(parts), num_parts):  # the first iteration compiles
        pairs = list(zip(parts, seconds, strict=True))[start : start + num_parts]
        runs.append({part: sum(s for name, s in pairs if name == part) for part in set(parts)})
    return {part: float(np.median([run[part] for run in runs])) for part in runs[0]}


@contextlib.contextmanager
def _marked(mark):
    """Let parafac call `mark` with the name of each part where it begins."""
    own = {"unfolding_dot_khatri_rao": "mttkrp", "error_calc": "fit"}
    originals = {name: getattr(_cp, name) for name in own}

    def make_marking(name, function):
        def marking(*arguments):
            mark(name)
            result = function(*arguments)
            mark("solve")
            return result

        return marking

    try:
        for name, function in originals.items():
            setattr(_cp, name, make_marking(own[name], function))
        yield
    finally:
        for name, function in originals.items():
            setattr(_cp, name, function)


def _time_kernels(x, factors, repeats):
    """Time an iteration whose launches are queued in advance, so the GPU never waits for the host.

    The exception is `solve` on a GPU without suitable tensor cores: it inverts small matrices
    on the host.
    """
    steps = [lambda n=n: _run(x, factors, n, tol=0) for n in (1, 3)]
    one_s, three_s = time_steps(steps, repeats)
    return float((three_s - one_s) / 2)

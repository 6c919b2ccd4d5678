"""Time the GPU with events, without waiting for the host."""

import contextlib
import itertools
import time
from pathlib import Path

import cupy
import numpy as np

from tensorly_flycoo.engines.cuda import launch, tuning

#: No GPU's clock is faster, so a delay takes at least the requested time.
_CYCLES_PER_S = 3e9

_MAX_DELAY_S = 0.05


class Deadline:
    """A time limit for the whole run; None for no limit."""

    def __init__(self, limit_s):
        self._end = np.inf if limit_s is None else time.monotonic() + limit_s

    def remaining_s(self):
        """Return the seconds left; infinity without a limit."""
        return self._end - time.monotonic()


def time_steps(steps, repeats, limit_s=1.5):
    """Time functions that enqueue work on the GPU without waiting for it.

    They run one after the other, `repeats` times or as often as `limit_s` allows, but at least
    three times. A short delay on the stream lets the host enqueue all of them before the first
    begins, so that Python's time does not count.

    Returns
    -------
    float64 array (number of steps,)
        The median seconds of each.
    """
    _run_steps(steps, 0.0)  # compiles
    seconds, host_s = _run_steps(steps, 0.0)
    delay_s = min(2 * host_s, _MAX_DELAY_S)
    num_runs = int(limit_s / (seconds.sum() + delay_s))
    runs = [_run_steps(steps, delay_s)[0] for _ in range(max(3, min(repeats, num_runs)))]
    return np.median(runs, axis=0)


def time_once(steps):
    """Return the seconds of each step, run once: for those that take far longer than Python."""
    return _run_steps(steps, 0.0)[0]


def _run_steps(steps, delay_s):
    """Return the seconds of each step, and the seconds the host took to enqueue them all."""
    events = [cupy.cuda.Event() for _ in range(len(steps) + 1)]
    synchronize()
    if delay_s:
        _enqueue_delay(delay_s)
    start = time.perf_counter()
    events[0].record()
    for step, event in zip(steps, events[1:], strict=True):
        step()
        event.record()
    host_s = time.perf_counter() - start
    return seconds_between(events), host_s


def seconds_between(events):
    """Wait for the last event and return the seconds between consecutive events."""
    events[-1].synchronize()
    pairs = itertools.pairwise(events)
    return np.array([cupy.cuda.get_elapsed_time(*pair) for pair in pairs]) / 1e3


def time_call(function):
    """Call a function; return its result and the seconds until the device is idle again."""
    synchronize()
    start = time.perf_counter()
    result = function()
    synchronize()
    return result, time.perf_counter() - start


def synchronize():
    """Wait for the device."""
    cupy.cuda.Device().synchronize()


def _enqueue_delay(seconds):
    kernel = launch.get_kernel(str(Path(__file__).resolve().with_name("delay.cu")), "delay")
    launch.launch(kernel, (1,), 1, (np.int64(seconds * _CYCLES_PER_S),))


@contextlib.contextmanager
def tuned(**constants):
    """Change constants of `tuning` for the tensors built and used in the block."""
    before = {name: getattr(tuning, name) for name in constants}
    for name, value in constants.items():
        setattr(tuning, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(tuning, name, value)

"""A guard against gross regressions: ratios of times within one run, on the CPU.

Times are those of the processor, of all threads of this process: others' load is no part of them.
The two functions of a pair take turns in short runs, and the best time of each counts. A test fails
at more than twice the largest ratio measured before.
"""

import contextlib
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tensorly_flycoo import FlycooTensor, mttkrp

_SHAPE, _NNZ, _RANK = (300, 400, 500), 100_000, 16

#: Minimum number of turns, and seconds after which to stop.
_NUM_TURNS, _ENOUGH_S = 8, 2.0


def make_tensor(layout):
    random = np.random.default_rng(0)
    coords = [random.integers(size, size=_NNZ) for size in _SHAPE]
    values = random.random(_NNZ)
    return FlycooTensor(coords, values, _SHAPE, layout=layout, device="cpu")


def make_sweep(x):
    factors = [np.random.default_rng(n).random((size, _RANK)) for n, size in enumerate(x.shape)]
    return lambda: [mttkrp(x, factors, mode) for mode in range(x.ndim)]


def make_numpy_sweep(x):
    """Compute MTTKRP naively: form a row for each nonzero, then add the rows by index."""
    coords, values = x.nonzeros()
    factors = [np.random.default_rng(n).random((size, _RANK)) for n, size in enumerate(x.shape)]

    def compute(mode):
        rows = np.repeat(values[:, None], _RANK, axis=1)
        for n, factor in enumerate(factors):
            if n != mode:
                rows *= factor[coords[n]]
        out = np.zeros((x.shape[mode], _RANK))
        np.add.at(out, coords[mode], rows)
        return out

    return lambda: [compute(mode) for mode in range(x.ndim)]


def measure_ratio(first, second, is_enough):
    """Return the ratio of the best times of two functions; repeat until it is good enough."""
    pair = (first, second)
    for function in pair:
        function()  # loads compiled code
    best_s, start_s, num_turns = [np.inf, np.inf], time.process_time(), 0
    while num_turns < _NUM_TURNS or not is_enough(best_s[0] / best_s[1]):
        if time.process_time() - start_s > _ENOUGH_S:
            break
        for place, function in enumerate(pair):
            begin_s = time.process_time()
            function()
            best_s[place] = min(best_s[place], time.process_time() - begin_s)
        num_turns += 1
    return best_s[0] / best_s[1]


def check(name, first, second, band):
    """Print a ratio; fail if it exceeds twice the largest measured before."""
    ratio = measure_ratio(first, second, lambda ratio: ratio <= band[1])
    print(f"{name}: {ratio:.3f}, expected {band[0]} to {band[1]}")
    assert ratio <= 2 * band[1], f"{name} is {ratio:.3f}, measured before: {band[0]} to {band[1]}"


# The bands: smallest and largest ratio of 20 runs on two cores of a shared 2.5 GHz Xeon.


def test_ours_to_numpy():
    x = make_tensor("remap")
    ours, numpys = make_sweep(x), make_numpy_sweep(x)
    for array, expected in zip(ours(), numpys(), strict=True):
        np.testing.assert_allclose(array, expected)
    check("FLYCOO / NumPy", ours, numpys, (0.033, 0.038))


def test_remap_to_replicated():
    sweeps = [make_sweep(make_tensor(layout)) for layout in ("remap", "replicated")]
    check("remap / replicated", *sweeps, (1.2, 1.49))


@pytest.mark.parametrize(("factor", "fails"), [(1, False), (2.5, True)])
def test_only_a_gross_regression_fails(monkeypatch, factor, fails):
    """Two functions that put a clock forward; their expected ratio is 1."""
    clock = SimpleNamespace(now_s=0.0)

    def take(seconds):
        clock.now_s += seconds

    monkeypatch.setattr(time, "process_time", lambda: clock.now_s)
    pair = lambda: take(0.004 * factor), lambda: take(0.004)
    with pytest.raises(AssertionError) if fails else contextlib.nullcontext():
        check("a clock", *pair, (0.9, 1.1))

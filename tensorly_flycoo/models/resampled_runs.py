"""Fits of one model to resampled rows of a mode, all together."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.reporting import report
from ..engines.tall import call_lapack, solve_rows, transposed_product
from ..loop.cp_model import make_cp_tensor, multiply_all
from ..loop.masked_rows import MaskedRows
from ..loop.masks import MissingEntries
from ..loop.observed_rows import fit_alike
from ..loop.smoothness import smooth
from ..tensor.tensor import FlycooTensor
from .batch import GPU_MULTIPLE, Batch
from .many_starts import choose_batch_size

#: Columns of resampled runs that are computed together: of nycflights on a CPU, each takes a third
#: more time with 400 than with 128.
_RESAMPLED_COLUMNS = 128

#: The last models of each resampled run, from which it is extrapolated.
PATH_LENGTH = 8

#: What keeps `_find_limits` from dividing by rounding errors, relative to what it divides by.
_RIDGE = 1e-6


class RowRules(NamedTuple):
    """Rules for the rows of resampled runs, beside least squares."""

    missing: MissingEntries | None = None
    l2_reg: float = 0.0
    non_negative: Collection[int] = ()
    smoothness: Mapping[int, float] = {}  # of modes without missing entries or such signs


#: Least squares alone.
PLAIN_RULES = RowRules()


def run_resampled(
    x: FlycooTensor,
    factors: Sequence[Array],
    mode: int,
    weights: np.ndarray,
    num_iterations: int,
    rules: RowRules = PLAIN_RULES,
) -> list[CPTensor]:
    """Iterate `parafac` from one model for each row of `weights` (n, I), of the rows of a mode.

    Rows are fitted by the `rules`, whose missing entries are of `x`. Results are extrapolated, and
    on the host. Rows of the mode's factor are multiplied by the roots of their weights: least
    squares with weights fit the rows of `x` times these roots.
    """
    data = x if rules.missing is None else rules.missing.observed
    rank = factors[0].shape[1]
    size = max(1, min(choose_batch_size(data, rank), _RESAMPLED_COLUMNS // rank))
    paths = []
    for start in range(0, len(weights), size):
        batch_weights = weights[start : start + size]
        report(f"fits {start + 1} to {start + len(batch_weights)} of {len(weights)} together")
        paths.append(_follow_batch(data, factors, mode, batch_weights, num_iterations, rules))
    limits = find_limits(np.concatenate(paths, axis=1))
    stacks = np.split(limits, np.cumsum(x.shape)[:-1], axis=1)
    for n in rules.non_negative:
        stacks[n] = np.maximum(stacks[n], 0)
    stacks[mode] *= np.sqrt(weights[:, :, None])
    return [make_cp_tensor(None, run_factors) for run_factors in zip(*stacks, strict=True)]


def _follow_batch(
    x: FlycooTensor,
    factors: Sequence[Array],
    mode: int,
    weights: np.ndarray,
    num_iterations: int,
    rules: RowRules,
) -> np.ndarray:
    """Iterate some runs together; return their last models (T, n, I, R), the rows of all modes."""
    xp = array_module(factors[0])
    count = len(weights)
    by_row = xp.asarray(weights[:, :, None], x.dtype)
    if is_cupy(by_row):  # runs that are computed for nothing
        by_row = xp.concatenate([by_row, *[by_row[:1]] * (-count % GPU_MULTIPLE)])
    stacks = [xp.stack([factor] * len(by_row)) for factor in factors]
    batch = Batch(x, stacks, weights={mode: by_row}, fits=RuledFits(rules, factors[0].shape[1]))
    path: deque[np.ndarray] = deque(maxlen=PATH_LENGTH)
    for number in range(num_iterations + 1):
        if number > 0:
            batch.update()
        path.append(move(xp.concatenate(batch.stacks, axis=1)[:count], np))
    return np.stack(path)


def find_limits(path: np.ndarray) -> np.ndarray:
    """Call `_find_limits` with one thread of the BLAS, on whose number its products depend."""
    return call_lapack(_find_limits, path)


def _find_limits(path: np.ndarray) -> np.ndarray:
    r"""Extrapolate all factors of all runs after each iteration (T + 1, n, I, R) to their limits.

    Near the model, from which all runs start, one linear map gives the next change of any run:
    :math:`d_{t+1} = J d_t`. So after T changes a run is :math:`J (I - J)^{-1} d_T` from its limit.
    This maps each :math:`d_t - d_{t+1}` to :math:`d_{t+1}`: the coefficients that combine the
    former, of all runs, to :math:`d_T` combine the latter to what is missing. It is reduced rank
    extrapolation (Sidi, SIAM Journal on Numerical Analysis 23, 1986) with the changes of all runs.
    """
    changes = np.diff(path.reshape(*path.shape[:2], -1), axis=0)
    after = changes[1:].reshape(-1, changes.shape[2])
    bends = changes[:-1].reshape(after.shape) - after
    gram = bends @ bends.T
    gram.flat[:: len(gram) + 1] += _RIDGE * np.trace(gram) / max(1, len(gram)) or 1.0
    shares = np.linalg.solve(gram, bends @ changes[-1].T)
    return path[-1] + (shares.T @ after).reshape(path.shape[1:])


class RuledFits:
    """Fits of the rows of a batch by rules; one run after another where these need it."""

    def __init__(self, rules: RowRules, rank: int) -> None:
        self._rules = rules
        self._masked = None if rules.missing is None else MaskedRows(rules.missing, rank)

    def add_smoothness(self, gram: Array, stack: Array, mode: int) -> Array:
        """Add the penalty of the differences of neighbouring rows to Gram matrices (n, R, R)."""
        strength = self._rules.smoothness.get(mode, 0.0)
        if not strength:
            return gram
        steps = np.diff(stack, axis=1)
        return gram + strength * (steps.swapaxes(1, 2) @ steps)

    def solve(self, batch: Batch, rows: Array, mode: int) -> Array:
        """Return the factors of a mode (n, I, R) that its MTTKRP `rows` give."""
        rules = self._rules
        xp = array_module(rows)
        strength = rules.smoothness.get(mode, 0.0)
        if strength:
            rows = xp.stack([smooth(products, strength) for products in rows])
        if self._masked is None and not rules.l2_reg and mode not in rules.non_negative:
            return batch.solve_least_squares(rows, mode)
        solved = [self._fit(batch, products, number, mode) for number, products in enumerate(rows)]
        return xp.stack(solved).astype(rows.dtype, copy=False)

    def _fit(self, batch: Batch, products: Array, number: int, mode: int) -> Array:
        """Fit the rows of one run, in float64."""
        rules = self._rules
        is_non_negative = mode in rules.non_negative
        factors = [stack[number].astype(np.float64, copy=False) for stack in batch.stacks]
        products = products.astype(np.float64, copy=False)
        if self._masked is None:
            gram = multiply_all([grams[number] for grams in batch.grams], mode).astype(np.float64)
            gram = gram + rules.l2_reg * array_module(gram).eye(len(gram))
            if is_non_negative:
                return fit_alike(products, gram, factors[mode], non_negative=True)
            return solve_rows(gram, products)[0]
        row_weights = {}
        counted = list(factors)  # each row as often as it was drawn
        for n, by_row in batch.weights.items():
            run_weights = by_row[number].astype(np.float64, copy=False)
            row_weights[n] = run_weights[:, 0]
            counted[n] = factors[n] * run_weights
        pairs = zip(factors, counted, strict=True)
        # The systems of all cells; the missing ones are subtracted from them.
        grams = [transposed_product(factor, rows) for factor, rows in pairs]
        return self._masked.fit(
            products,
            grams,
            factors,
            mode,
            l2_reg=rules.l2_reg,
            non_negative=is_non_negative,
            row_weights=row_weights,
        )

"""Fits of a model to resampled data, each made in the way in which the model was made."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, move
from ..base.fit_record import FitRecord, find_record
from ..base.reporting import report
from ..decomposition import generalized_parafac
from ..decomposition.methods import CP_METHODS, METHODS
from ..loop.cp_model import find_biases, make_cp_tensor, multiply_all
from ..loop.initial_guess import take_guess
from ..loop.masks import MissingEntries, find_missing
from ..loop.observed_rows import L2_REG, RowPlan, fit_rows, measure_scale, scale_ridge
from ..tensor.tensor import FlycooTensor
from .resampled_runs import PATH_LENGTH, RowRules, find_limits, run_resampled

#: Iterations of each fit: by least squares of all cells; where cells are missing or unknown, or
#: factors are non-negative; and multiplicative updates of counts, at most.
_NUM_PLAIN = 6
_NUM_SLOW = 10
_NUM_UPDATES = 20


def find_facts(cp_tensor: Any, unknown: Any, mode: int | None, ndim: int) -> FitRecord:
    """Return how to fit a model again, or refuse: its record, with the `unknown` cells of the data.

    Without a record it is a plain model: of `parafac`, or of counts if no mode is resampled.
    """
    all_unknown = isinstance(unknown, str)
    record = find_record(cp_tensor)
    if record is None and mode is None and not all_unknown:
        record = FitRecord(loss="poisson_count", non_negative=tuple(range(ndim)))
    record = record or FitRecord()
    if all_unknown:
        record = record.replace(absent="unknown", mask=None)
    elif unknown is not None:
        record = record.replace(mask=unknown)
    obstacle = _find_obstacle(record)
    if obstacle:
        raise ValueError(
            f"cp_tensor is a model of {record.method or 'a decomposition'} {obstacle}, which is "
            "not fitted again here: pass (cp.weights, cp.factors) and a mode to have it fitted by "
            "parafac without options"
        )
    if mode in record.constraints:
        raise ValueError(
            f"mode is {mode}, along which cp_tensor is smooth, expected another one: rows that "
            "depend on their neighbours are no sample"
        )
    return record


def _find_obstacle(record: FitRecord) -> str:
    """Say what keeps a model from being fitted again as it was made; "" if nothing does."""
    if record.method in METHODS and record.method not in CP_METHODS:
        return "of several tensors or of other components than CP's"
    if record.is_weighted or record.absent == "weighted":
        return "with a confidence, which the model does not keep"
    if record.loss not in ("gaussian", "poisson_count"):
        return f"with loss={record.loss!r}"
    if record.loss == "poisson_count" and record.absent == "unknown":
        return "with loss='poisson_count' of data whose other cells are all unknown"
    for n, names in record.constraints.items():
        for name in names:
            if name != "smoothness":
                return f"with {name} in mode {n}"
        has_unknown = record.mask is not None or record.absent == "unknown"
        if has_unknown or n in record.non_negative:
            return f"with smoothness in mode {n} beside unknown cells or non-negative factors"
    return ""


def find_unseen(x: FlycooTensor, facts: FitRecord) -> list[np.ndarray]:
    """Mark the rows of each mode none of whose cells are known: no data say anything of them."""
    if facts.absent == "unknown":
        coords, _ = x.nonzeros()
        counts = [np.bincount(move(own, np), minlength=x.shape[n]) for n, own in enumerate(coords)]
        return [of == 0 for of in counts]
    missing = None if facts.mask is None else find_missing(x, facts.mask)
    unseen = [np.zeros(size, bool) for size in x.shape]
    if missing is not None:
        for n, own in zip(missing.modes, missing.coords, strict=True):
            others = math.prod(x.shape[m] for m in missing.modes if m != n)
            unseen[n] = np.bincount(move(own, np), minlength=x.shape[n]) == others
    return unseen


def fit_again(
    x: FlycooTensor,
    cp_tensor: CPTensor,
    facts: FitRecord,
    mode: int | None,
    weights: Iterable[np.ndarray],
    n_iter_max: int | None,
) -> list[CPTensor]:
    """Fit a model again by its `facts`, for each of the `weights` of a mode's rows (I,).

    Without a mode they are those of the nonzeros (nnz,), and of events how often each came.
    """
    scales = cp_tensor.weights ** (1 / x.ndim)  # changes of all factors count alike
    factors = [factor * scales for factor in cp_tensor.factors]
    if facts.dtype == x.dtype.name:  # constrained_parafac of float32 gives float64
        factors = [factor.astype(x.dtype) for factor in factors]
    start = take_guess(x, cp_tensor.rank, (None, factors))
    missing = None
    if facts.mask is not None and facts.absent != "unknown":
        missing = find_missing(x, facts.mask)
    if facts.loss == "poisson_count":
        num_updates = n_iter_max or _NUM_UPDATES
        if mode is None:
            return [_fit_events(x, start, own, num_updates, missing) for own in weights]
        return [_fit_rows_of_events(x, start, mode, own, num_updates, missing) for own in weights]
    if facts.absent == "unknown":
        return _ObservedFits(x, cp_tensor, facts).fit(weights, n_iter_max or _NUM_SLOW, mode)
    if mode is None:
        raise ValueError(
            "mode is None, expected the mode whose rows are a sample: cp_tensor is a model of "
            f"{facts.method or 'parafac'}, by least squares; only the events of a model of "
            "generalized_parafac and the entries of one of observed_parafac are drawn without one"
        )
    smoothness = {n: of["smoothness"] for n, of in facts.constraints.items()}
    rules = RowRules(missing, facts.l2_reg, facts.non_negative, smoothness)
    is_slow = missing is not None or len(facts.non_negative) > 0
    num_iterations = n_iter_max or (_NUM_SLOW if is_slow else _NUM_PLAIN)
    return run_resampled(x, start, mode, np.stack(list(weights)), num_iterations, rules)


def _fit_events(
    x: FlycooTensor,
    start: Sequence[Array],
    counts: Array,
    num_updates: int,
    missing: MissingEntries | None,
) -> CPTensor:
    """Fit a model of counts to other `counts` (nnz,) of the nonzeros."""
    if not (counts > 0).any():
        return make_cp_tensor(None, [0 * factor for factor in start])
    coords, _ = x.nonzeros()
    drawn = x._rebuild(coords[:, counts > 0], counts[counts > 0], dtype=x.dtype)
    init = make_cp_tensor(None, start)
    mask = None if missing is None else missing.of(drawn)
    return generalized_parafac(drawn, init.rank, num_updates, init, mask=mask)


def _fit_rows_of_events(
    x: FlycooTensor,
    start: Sequence[Array],
    mode: int,
    weights: np.ndarray,
    num_updates: int,
    missing: MissingEntries | None,
) -> CPTensor:
    """Fit a model of counts with `weights` (I,) of the rows of a mode.

    Poisson's loss of a row, times its weight, is that of its counts and its model times the weight:
    so counts are multiplied, and the mode's factor, which the result has times the roots alone.
    """
    coords, values = x.nonzeros()
    by_row = x._engine.xp.asarray(weights, x.dtype)
    factors = list(start)
    factors[mode] = factors[mode] * by_row[:, None]
    fit = _fit_events(x, factors, values * by_row[coords[mode]], num_updates, missing)
    fit.factors[mode] = fit.factors[mode] / np.sqrt(np.where(by_row > 0, by_row, 1))[:, None]
    return fit


@dataclass(frozen=True)
class _ObservedFits:
    """Fits of `observed_parafac` to its entries, each with a weight."""

    x: FlycooTensor
    model: CPTensor
    record: FitRecord

    def fit(
        self, weights: Iterable[np.ndarray], num_iterations: int, mode: int | None = None
    ) -> list[CPTensor]:
        """Fit once for each of the `weights`: of the entries (nnz,), or of the rows of a mode.

        Factors are extrapolated, and on the host. That of the mode is multiplied by the roots of
        its rows' weights, as `run_resampled` does.
        """
        x = self.x
        xp = self.x._engine.xp
        record = self.record
        coords, values = x._sorted_nonzeros()
        values = values.astype(np.float64)
        plans = [RowPlan.of(rows, size) for rows, size in zip(coords, x.shape, strict=True)]
        is_bias = find_biases(record, self.model.rank)
        center = float(values.mean()) if is_bias.any() else 0.0
        scale = record.scale or measure_scale(values - center) or 1.0
        l2_reg = record.l2_reg or L2_REG
        ridge = scale_ridge(l2_reg, scale, x.ndim)
        common = xp.diag(xp.asarray(np.where(is_bias, l2_reg, ridge)))
        start = self._find_start(is_bias)
        roots = []
        paths: list[np.ndarray] = []
        for own in weights:
            report(f"fit {len(paths) + 1}")
            by_entry = by_row = xp.asarray(own, np.float64)
            if mode is not None:
                by_entry = by_row[coords[mode]]
                roots.append(np.sqrt(own))
            factors = list(start)
            total = max(1.0, float(by_entry.sum()))  # 0 if rows without entries were drawn
            self._set_mean(factors, float((by_entry * values).sum()) / total)
            path: deque[np.ndarray] = deque(maxlen=PATH_LENGTH)
            for number in range(num_iterations + 1):
                for n in range(x.ndim) if number else ():
                    own_weights = None if n == mode else by_entry
                    factors[n] = fit_rows(
                        coords,
                        values if n == mode else by_entry * values,
                        factors,
                        n,
                        plans[n],
                        common,
                        weights=own_weights,
                        is_free=self._find_free(n),
                        non_negative=n in record.non_negative,
                    )
                path.append(move(xp.concatenate(factors), np))
            paths.append(np.stack(path))
        limits = find_limits(np.stack(paths, axis=1))
        stacks = np.split(limits, np.cumsum(x.shape)[:-1], axis=1)
        for n in record.non_negative:
            stacks[n] = np.maximum(stacks[n], 0)
        if mode is not None:
            stacks[mode] = stacks[mode] * np.stack(roots)[:, :, None]
        return [make_cp_tensor(None, own) for own in zip(*stacks, strict=True)]

    def _find_start(self, is_bias: np.ndarray) -> list[Array]:
        """Return the model's factors with equal columns, and biases beside ones, in float64."""
        weights, factors = self.model
        ndim = self.x.ndim
        xp = self.x._engine.xp
        start = [factor.astype(np.float64) * weights ** (1 / ndim) for factor in factors]
        firsts = [factor[0].astype(np.float64) for factor in factors]
        for r in np.flatnonzero(is_bias):
            mode = min(self.record.bias_modes[r], ndim - 1)  # the mean is in the last factor
            others = multiply_all([first[r] for first in firsts], skip=mode) * weights[r]
            for n, factor in enumerate(start):
                factor[:, r] = factors[n][:, r] * others if n == mode else 1
        return [xp.ascontiguousarray(factor) for factor in start]

    def _set_mean(self, factors: list[Array], mean: float) -> None:
        """Set the mean of a sample in place of that of the data, if it is a component."""
        modes = np.asarray(self.record.bias_modes)
        if (modes == self.x.ndim).any():
            factors[-1] = factors[-1].copy()
            factors[-1][:, np.flatnonzero(modes == self.x.ndim)] = mean

    def _find_free(self, mode: int) -> Array | None:
        """Mark the columns to fit, None for all: a mode has ones in those of others' biases."""
        if not self.record.bias_modes:
            return None
        modes = self.x._engine.xp.asarray(self.record.bias_modes)
        return (modes < 0) | (modes == mode)

"""Fits of a model to resampled data, each made in the way in which the model was made."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
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
from ..loop.model_uses import choose_mask
from ..loop.observed_rows import (
    L2_REG,
    RowPlan,
    fit_rows,
    list_cells,
    measure_scale,
    scale_ridge,
)
from ..tensor.tensor import FlycooTensor
from .resampled_runs import PATH_LENGTH, RowRules, find_limits, run_resampled

#: Iterations of each fit: by least squares of all cells; where cells are missing or unknown, or
#: factors are non-negative; and multiplicative updates of counts, at most.
_NUM_PLAIN = 6
_NUM_SLOW = 10
_NUM_UPDATES = 20


def find_facts(cp_tensor: Any, data: Any, mode: int | None) -> FitRecord:
    """Return how to fit a model again, or refuse: its record, with the unknown cells of the data.

    Without a record it is a plain model: of `parafac`, or of counts if no mode is resampled.
    """
    ndim = len(data.shape)
    are_all_unknown = isinstance(getattr(data, "unknown", None), str)
    record = find_record(cp_tensor)
    if record is None:
        record = FitRecord()
        if mode is None and not are_all_unknown:
            record = FitRecord(loss="poisson_count", non_negative=tuple(range(ndim)))
    if are_all_unknown:
        record = record.replace(absent="unknown", mask=None)
    else:
        record = record.replace(mask=choose_mask(record, data, None))
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
    """Return why a model cannot be fitted again as it was made; "" if it can."""
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


def find_unseen(x: FlycooTensor, record: FitRecord) -> list[np.ndarray]:
    """Mark the rows of each mode none of whose cells are known: no data say anything of them."""
    if record.absent == "unknown":
        coords, _ = x.nonzeros()
        return [_count_rows(rows, size) == 0 for rows, size in zip(coords, x.shape, strict=True)]
    is_unseen = [np.zeros(size, bool) for size in x.shape]
    missing = None if record.mask is None else find_missing(x, record.mask)
    if missing is None:
        return is_unseen
    # A missing cell of these modes stands for all indices of the others.
    for n, rows in zip(missing.modes, missing.coords, strict=True):
        num_cells_of_row = math.prod(x.shape[m] for m in missing.modes if m != n)
        is_unseen[n] = _count_rows(rows, x.shape[n]) == num_cells_of_row
    return is_unseen


def _count_rows(rows: Array, size: int) -> np.ndarray:
    """Count how often each of `size` rows occurs, on the host."""
    return np.bincount(move(rows, np), minlength=size)


def fit_again(
    x: FlycooTensor,
    cp_tensor: CPTensor,
    record: FitRecord,
    mode: int | None,
    weights: Iterable[np.ndarray],
    n_iter_max: int | None,
) -> list[CPTensor]:
    """Fit a model again by its record, for each of the `weights` of a mode's rows (I,).

    Without a mode they are those of the nonzeros (nnz,), and of events how often each came.
    """
    start = _make_start(x, cp_tensor, record)
    missing = None
    if record.mask is not None and record.absent != "unknown":
        missing = find_missing(x, record.mask)
    if record.loss == "poisson_count":
        num_updates = n_iter_max or _NUM_UPDATES
        if mode is None:
            return [_fit_events(x, start, counts, num_updates, missing) for counts in weights]
        return [
            _fit_rows_of_events(x, start, mode, by_row, num_updates, missing) for by_row in weights
        ]
    if record.absent == "unknown":
        return _ObservedFits(x, cp_tensor, record, n_iter_max or _NUM_SLOW, mode).fit(weights)
    if mode is None:
        raise ValueError(
            "mode is None, expected the mode whose rows are a sample: cp_tensor is a model of "
            f"{record.method or 'parafac'}, by least squares; only the events of a model of "
            "generalized_parafac and the entries of one of observed_parafac are drawn without one"
        )
    rules = RowRules(
        missing=missing,
        l2_reg=record.l2_reg,
        non_negative=record.non_negative,
        smoothness={n: names["smoothness"] for n, names in record.constraints.items()},
    )
    if n_iter_max is None:
        is_slow = missing is not None or len(record.non_negative) > 0
        n_iter_max = _NUM_SLOW if is_slow else _NUM_PLAIN
    return run_resampled(x, start, mode, np.stack(list(weights)), n_iter_max, rules)


def _make_start(x: FlycooTensor, cp_tensor: CPTensor, record: FitRecord) -> list[Array]:
    """Return the model's factors on the device of `x`, with its weights in equal shares.

    So the changes of all factors count alike where fits are extrapolated.
    """
    shares = cp_tensor.weights ** (1 / x.ndim)
    factors = [factor * shares for factor in cp_tensor.factors]
    if record.dtype == x.dtype.name:  # constrained_parafac of TensorLy gives float64
        factors = [factor.astype(x.dtype) for factor in factors]
    return take_guess(x, cp_tensor.rank, (None, factors))


def _fit_events(
    x: FlycooTensor,
    start: Sequence[Array],
    counts: Array,
    num_updates: int,
    missing: MissingEntries | None,
) -> CPTensor:
    """Fit a model of counts to other `counts` (nnz,) of the nonzeros."""
    is_drawn = counts > 0
    if not is_drawn.any():
        return make_cp_tensor(None, [0 * factor for factor in start])
    coords, _ = x.nonzeros()
    drawn = x._rebuild(coords[:, is_drawn], counts[is_drawn], dtype=x.dtype)
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
    counts = values * by_row[coords[mode]]
    fit = _fit_events(x, factors, counts, num_updates, missing)
    roots = np.sqrt(np.where(by_row > 0, by_row, 1))
    fit.factors[mode] = fit.factors[mode] / roots[:, None]
    return fit


class _ObservedFits:
    """Fits of `observed_parafac` to its entries, each of which has a weight.

    Without a `mode` weights are those of the entries, else of the mode's rows.
    """

    def __init__(
        self,
        x: FlycooTensor,
        model: CPTensor,
        record: FitRecord,
        num_iterations: int,
        mode: int | None,
    ) -> None:
        xp = x._engine.xp
        self._x = x
        self._model = model
        self._record = record
        self._num_iterations = num_iterations
        self._mode = mode
        self._coords, values = x._sorted_nonzeros()
        self._values = values.astype(np.float64)
        pairs = zip(self._coords, x.shape, strict=True)
        self._plans = [RowPlan.of(rows, size) for rows, size in pairs]
        is_bias = find_biases(record, model.rank)
        centered = self._values
        if is_bias.any():
            centered = centered - float(centered.mean())
        scale = record.scale or measure_scale(centered) or 1.0
        l2_reg = record.l2_reg or L2_REG
        # The ridge of components is relative to the scale of the data, that of biases is not.
        ridges = np.where(is_bias, l2_reg, scale_ridge(l2_reg, scale, x.ndim))
        self._ridges = xp.diag(xp.asarray(ridges))
        self._start = self._find_start(is_bias)

    def fit(self, weights: Iterable[np.ndarray]) -> list[CPTensor]:
        """Fit once for each of the `weights`.

        Factors are extrapolated, and on the host. That of the mode is multiplied by the roots of
        its rows' weights, as `run_resampled` does.
        """
        paths: list[np.ndarray] = []
        roots = []
        for fit_weights in weights:
            report(f"fit {len(paths) + 1}")
            paths.append(self._follow(fit_weights))
            if self._mode is not None:
                roots.append(np.sqrt(fit_weights))
        limits = find_limits(np.stack(paths, axis=1))
        stacks = np.split(limits, np.cumsum(self._x.shape)[:-1], axis=1)
        for n in self._record.non_negative:
            stacks[n] = np.maximum(stacks[n], 0)
        if self._mode is not None:
            stacks[self._mode] = stacks[self._mode] * np.stack(roots)[:, :, None]
        return [make_cp_tensor(None, factors) for factors in zip(*stacks, strict=True)]

    def _follow(self, weights: np.ndarray) -> np.ndarray:
        """Iterate one fit; return its last models, with the rows of all modes (T, I, R)."""
        xp = self._x._engine.xp
        entry_weights = xp.asarray(weights, np.float64)
        if self._mode is not None:  # they are of the rows of this mode
            entry_weights = entry_weights[self._coords[self._mode]]
        factors = list(self._start)
        total = max(1.0, float(entry_weights.sum()))  # 0 if rows without entries were drawn
        self._set_mean(factors, float((entry_weights * self._values).sum()) / total)
        path: deque[np.ndarray] = deque(maxlen=PATH_LENGTH)
        path.append(move(xp.concatenate(factors), np))
        for _ in range(self._num_iterations):
            for n in range(len(factors)):
                factors[n] = self._fit_rows(factors, n, entry_weights)
            path.append(move(xp.concatenate(factors), np))
        return np.stack(path)

    def _fit_rows(self, factors: list[Array], n: int, entry_weights: Array) -> Array:
        """Fit the rows of mode n to the entries, weighted by how often each was drawn.

        In the mode whose rows were resampled, all entries of a row have one weight. It is left out:
        it would only change the ridge of the row.
        """
        targets = self._values
        weights = None
        if n != self._mode:
            targets = entry_weights * self._values
            weights = entry_weights
        return fit_rows(
            list_cells(self._coords, targets, factors, n, weights),
            factors[n],
            self._plans[n],
            self._ridges,
            is_free=self._find_free(n),
            non_negative=n in self._record.non_negative,
        )

    def _find_start(self, is_bias: np.ndarray) -> list[Array]:
        """Return the model's factors with equal columns, and biases beside ones, in float64."""
        weights, factors = self._model
        ndim = self._x.ndim
        xp = self._x._engine.xp
        start = [factor.astype(np.float64) * weights ** (1 / ndim) for factor in factors]
        first_rows = [factor[0].astype(np.float64) for factor in factors]
        for r in np.flatnonzero(is_bias):
            mode = min(self._record.bias_modes[r], ndim - 1)  # the mean is in the last factor
            # The other columns are constant: their size goes into the bias, and ones stay.
            size = multiply_all([row[r] for row in first_rows], skip=mode) * weights[r]
            for factor in start:
                factor[:, r] = 1
            start[mode][:, r] = factors[mode][:, r] * size
        return [xp.ascontiguousarray(factor) for factor in start]

    def _set_mean(self, factors: list[Array], mean: float) -> None:
        """Replace the mean of the data by that of a sample, if it is a component."""
        is_mean = np.asarray(self._record.bias_modes) == self._x.ndim
        if is_mean.any():
            factors[-1] = factors[-1].copy()
            factors[-1][:, np.flatnonzero(is_mean)] = mean

    def _find_free(self, mode: int) -> Array | None:
        """Mark the columns to fit, all but the ones beside other modes' biases; None for all."""
        if not self._record.bias_modes:
            return None
        modes = self._x._engine.xp.asarray(self._record.bias_modes)
        return (modes < 0) | (modes == mode)

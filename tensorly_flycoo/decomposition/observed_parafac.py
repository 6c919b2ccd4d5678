"""Sparse tensor completion: a CP model fitted only to the stored entries of a tensor."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module
from ..base.checks import check_count, check_positive, check_rank, check_real, warn
from ..base.fit_record import FitRecord, find_record
from ..base.reporting import report
from ..io.array_file import number
from ..io.checkpoint import Resumed
from ..loop import observed_rows
from ..loop.cp_loop import Callback, Run, restore
from ..loop.cp_model import find_biases, multiply_grams
from ..loop.guarding import describe_as
from ..loop.initial_guess import draw_factors, take_guess
from ..ops.cp_entries import evaluate_model, take_model
from ..ops.mttkrp import mttkrp
from ..tensor.coo_cache import SparseData, as_flycoo
from ..tensor.tensor import FlycooTensor, group_cells
from .parafac import parafac

#: The iterations without a better model for held-out entries that end a run.
_PATIENCE = 10

#: The ridges that "validation" tries; 1 where all cells count and no part can be held out.
_RIDGES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 1e-2, 1e-4, 1e-6)

#: Of a run that tries a ridge: the most iterations, and how many end it by which changes of two
#: errors, relative to these. That of held-out entries stands still on a plateau, which a run may
#: leave fifty iterations later; that of the entries which it fits then still falls.
_NUM_TRIED = 100
_NUM_STILL = 3
_TRIED_TOL = 3e-3
_FIT_TOL = 3e-5

#: The part by which an error is clearly less than another; by which two may differ by chance; and
#: by which one is larger only if its run ended in a poor local minimum.
_CLARITY = 5e-3
_CHANCE = 1.5e-2
_STUCK = 5e-2

#: The ridges without a clearly better prediction that end the search: after a model that has
#: components, and after one that has none, or less than a part of the values' scale of them.
_NUM_WORSE = 1
_NUM_WORSE_WITHOUT = 3
_TRACE = 1e-2

#: The ridges, the largest ones that leave components, to try from another start if none helps.
_NUM_RETRIED = 2

#: How many tenths of the entries are held out, one after the other, if ridges are close.
_NUM_TENTHS = 3


@describe_as(parafac)
def observed_parafac(
    tensor: SparseData,
    rank: int,
    n_iter_max: int = 100,
    init: Any = "random",
    tol: float = 1e-8,
    random_state: Any = None,
    l2_reg: float | str = "validation",
    return_errors: bool = False,
    callback: Callback | None = None,
    *,
    confidence: "SparseData | None" = None,
    unobserved: float = 0,
    non_negative: bool = False,
    biases: bool = False,
    cg_steps: int | None = None,
    validation: "SparseData | None" = None,
) -> Any:
    r"""Fit a CP decomposition to the stored nonzeros only; all other entries are unknown.

    .. math:: \min \sum_k w_k \Big(v_k - \sum_r \prod_n F_n[c_{n,k}, r]\Big)^2
        + \lambda s^{2 - 2/N} \sum_n |F_n|^2

    over the nonzeros :math:`v_k` of `tensor`, whose root mean square is s, by alternating least
    squares. All :math:`w_k` are 1 without `confidence`.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
        With two modes or more. `confidence` says where zeros, which are not stored, were observed.
    rank : int
        R, the number of components.
    init : {"random", CPTensor, (weights, factors), ResumedCP}
        "random": that of TensorLy's `parafac` for the same `random_state`, times :math:`s^{1/N}`;
        or a guess in the dtype of `tensor`, whose weights may be None; or a
        checkpoint to resume (`Progress.resume`).
    l2_reg : float or "validation"
        The ridge :math:`\lambda`, above 0, the same for all rows, however many nonzeros they have.
        Values times :math:`c` give factors times :math:`c^{1/N}`. "validation" tries 100, 30, 10,
        3, 1, 0.3, 0.1, 0.01, 1e-4 and 1e-6, until smaller ones do not help, and takes what predicts
        held-out entries best: those of `validation`, or a tenth of the observed ones, which the run
        then gets back. Two more tenths decide between ridges that are close. The choice is the
        same for each `random_state`. With `unobserved` it is 1.
    callback : callable, optional
        Called with the CPTensor, in float64, and its error before the first and after each
        iteration; returns True to stop. For example a `Progress`.
    confidence : FlycooTensor or sparse.COO, optional
        The weights :math:`w_k`, above 0, of the observed entries; those that `tensor` lacks are
        zeros.
    unobserved : float
        The weight of all other cells, which then count as zeros; no more than any of `confidence`.
        With 1, a `tensor` of ones and a `confidence` that grows with counts, this is the model of
        implicit feedback of Hu, Koren and Volinsky.
    non_negative : bool
        Whether the factors are non-negative: five sweeps of coordinate descent then replace the
        solution of each row. Not together with `biases` or `cg_steps`.
    biases : bool
        Whether the model adds the mean of the values and a bias of each index of each mode, which
        `l2_reg` shrinks too. They are ``ndim + 1`` more components: R + n has the biases of mode n
        in its factor and ones in all others; the last has the mean in the last factor (that is the
        order of a CPTensor: a `LabelledCP` sorts its components by weight). s is then
        that of the differences from the mean, and the biases of a guess in `init` are left out.
    cg_steps : int, optional
        How many steps of conjugate gradients, in the dtype of `tensor`, improve each row; with 0
        its system is solved. By default 3 with `unobserved` and without `non_negative`, else 0. 3
        is also best for many nonzeros and large ranks on GPUs.
    validation : FlycooTensor or sparse.COO, optional
        Entries held out of `tensor`: all errors are then of these, relative to their norm. Ten
        iterations without a new smallest error end the run; the result is the model of the
        smallest, also in a run that is resumed.

    Returns
    -------
    CPTensor
        Weights of ones and factors (I_n, R) in the dtype and on the device of `tensor`. Rows
        without an observed entry are zero (with `cg_steps` nearly), except for their biases.
        Its record, ``model.flycoo``, has `l2_reg`, the ridge that was chosen; `scale`, which is s;
        and with `biases` `bias_modes`, for each component the mode of which it is a bias, N for the
        mean and -1 for others. By its `absent`, `fold_in` and other functions know that cells
        without a row are unknown.
    errors : list of float
        The root of the weighted sum of squared residuals, relative to that of squared values,
        after each iteration; only with `return_errors`.

    Warns
    -----
    UserWarning
        If held-out entries are predicted worse than by the mean, or the ridge leaves nothing of a
        component.

    Raises
    ------
    TypeError
        If `tensor` is not sparse, or `rank`, `l2_reg`, `cg_steps` or an array of `init` has the
        wrong type.
    ValueError
        If `tensor` or `validation` has no nonzeros, `tensor` has one mode, `rank` is below 1,
        `cg_steps` is below 0, `l2_reg` is not above 0, `init` is unknown, a shape or the labels of
        another tensor do not match, or a checkpoint is of another tensor or decomposition; if
        `confidence` lacks a nonzero of `tensor` or has a weight that is 0 or less, or less than
        `unobserved`; if options exclude each other.

    Notes
    -----
    An iteration takes ``nnz * ndim * R**2`` operations and solves, for each row, a system of R
    equations, or, without weights or biases, of as many as the row has nonzeros if that is fewer.
    It computes in float64, whatever the dtype. The workspace holds the nonzeros with coordinates of
    8 bytes, a permutation of them for each mode, and blocks of rows of a fixed size. To choose the
    ridge takes as long as 100 to 200 iterations, if components predict nothing or without noise up
    to 600, and another workspace. The run then starts from the model that was found with that
    ridge, if it settles clearly lower there than from `init`; both take up to 100 iterations.

    With `cg_steps` an iteration takes ``cg_steps + 2`` passes over the nonzeros per mode, of up to
    ``4 * nnz * ndim * R`` operations each. Errors, which cost nothing more, are differences of
    large sums: below about the root of the dtype's rounding they say nothing. The workspace is that
    of `mttkrp`, one more tensor, two with a `confidence`, and five arrays as large as a factor.

    The result is a local minimum. The random guess is non-negative: for values of both signs, try
    several `random_state` and a larger `l2_reg`, and compare the predictions of held-out nonzeros.
    Results are the same in every run on one machine; with a rank above 64 the last bits can change
    with the number of threads of the BLAS.

    References
    ----------
    Tomasi and Bro, "PARAFAC and missing values", Chemometrics and Intelligent Laboratory Systems
    75, 2005. Zhou, Wilkinson, Schreiber and Pan, "Large-scale Parallel Collaborative Filtering for
    the Netflix Prize", AAIM 2008. Hu, Koren and Volinsky, "Collaborative Filtering for Implicit
    Feedback Datasets", ICDM 2008. Takacs, Pilaszy and Tikk, "Applications of the Conjugate Gradient
    Method for Implicit Feedback Collaborative Filtering", RecSys 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, observed_parafac
    >>> random = np.random.RandomState(0)
    >>> factors = [random.random_sample((20, 2)) for _ in range(3)]
    >>> coords = random.randint(0, 20, (3, 1000))
    >>> coords = np.unique(coords, axis=1)  # an eighth of the 8000 entries
    >>> values = np.prod([f[c] for f, c in zip(factors, coords)], axis=0).sum(axis=1)
    >>> x = FlycooTensor(coords, values, (20, 20, 20))
    >>> cp_tensor = observed_parafac(x, rank=2, random_state=0)
    >>> whole = np.einsum("ir,jr,kr->ijk", *factors)
    >>> found = np.einsum("ir,jr,kr->ijk", *cp_tensor.factors)
    >>> bool(np.linalg.norm(found - whole) < 0.01 * np.linalg.norm(whole))
    True
    """
    x = as_flycoo(tensor, check_coords=True)
    rank = check_rank(rank)
    if x.ndim < 2:
        raise ValueError(f"tensor has shape {x.shape}, expected two modes or more")
    if x.nnz == 0:
        raise ValueError("tensor has no nonzeros, expected some: nothing is observed")
    is_open = isinstance(l2_reg, str) and l2_reg == "validation"
    if not is_open:
        check_positive(l2_reg, "l2_reg")
    if non_negative and (biases or cg_steps):
        raise ValueError("non_negative is True, expected biases=False and cg_steps=None with it")
    check_real(unobserved, "unobserved", 0)
    if unobserved and confidence is None:
        raise ValueError(f"unobserved is {unobserved}, expected 0, or more with a confidence")
    if cg_steps is None:
        cg_steps = 3 if unobserved and not non_negative else 0
    num_steps = check_count(cg_steps, "cg_steps", 0)
    entries = _observe(x, confidence, unobserved)
    held_out = None if validation is None else _read(validation, x, "validation")
    mean = entries.find_mean(x.shape)
    problem = _Problem(x, rank, init, mean, biases, unobserved, non_negative, num_steps)
    trial: _Trial | None = None
    # The errors of held-out entries: those of the mean, and of the model.
    of_mean = 0.0 if held_out is None else held_out.compare(mean)
    least = 0.0
    if isinstance(init, Resumed):
        factors = restore(init, x, len(problem.bias_modes), "observed_parafac", problem.dtype)[1]
        l2_reg = float(init.state.get("l2_reg", observed_rows.L2_REG)) if is_open else l2_reg
        check_positive(l2_reg, "l2_reg")
    else:
        factors = problem.start(random_state)
    if l2_reg == "validation" and unobserved:
        l2_reg = 1.0
    elif l2_reg == "validation":
        splits = entries.divide() if held_out is None else iter([(entries, held_out)])
        l2_reg, trial, of_judge = _choose_ridge(problem, splits)
        of_mean = of_judge if held_out is None else of_mean
        least = trial.error
        del splits
    ridge = float(l2_reg)
    if trial is not None and _is_better_start(problem, entries, ridge, trial.factors, factors):
        factors = trial.factors
    rows = problem.make_rows(entries)
    rows.ridges = problem.find_ridges(ridge)
    del entries, trial  # conjugate gradients have the entries in tensors
    run = _ObservedRun(
        problem,
        rows,
        held_out,
        ridge,
        tensor=x,
        model=(None, factors),
        n_iter_max=n_iter_max,
        init=init,
        callback=callback,
        tol=tol,
        return_errors=return_errors,
    )
    result = run.iterate()
    least = least if run.best is None else run.least
    if least > of_mean:
        advice = "" if is_open else f'l2_reg="validation" (it is {ridge:g}), '
        warn(
            f"held-out entries are predicted with an error of {least:.3g}, and of {of_mean:.3g} by "
            f"the mean: pass {advice}a lower rank or biases=True"
        )
    return result


@dataclass(frozen=True)
class _Problem:
    """Data and options of a fit, the same for each ridge and for any entries held out."""

    x: FlycooTensor
    rank: int
    init: Any
    mean: float
    biases: bool
    unobserved: float
    non_negative: bool
    num_steps: int  # of conjugate gradients

    @property
    def dtype(self) -> np.dtype:
        return self.x.dtype if self.num_steps else np.dtype(np.float64)

    @property
    def bias_modes(self) -> tuple[int, ...]:
        """The mode of each column's biases, the number of modes for the mean, else -1."""
        return (-1,) * self.rank + tuple(range(self.x.ndim + 1)) * self.biases

    @functools.cached_property
    def scale(self) -> float:
        values = self.x._sorted_nonzeros()[1].astype(np.float64)
        return observed_rows.measure_scale(values - self.mean * self.biases) or 1.0

    def start(self, random_state: Any) -> list[Array]:
        x = self.x
        init = self.init
        random = tl.check_random_state(random_state)
        if isinstance(init, str) and init == "random":
            guess = draw_factors(x, self.rank, random)
            root = self.scale ** (1 / x.ndim)
            factors = [(factor.astype(np.float64) * root).astype(self.dtype) for factor in guess]
        else:
            guess = take_guess(x, self.rank, _leave_out_biases(init) if self.biases else init)
            factors = [factor.astype(self.dtype) for factor in guess]
        if not self.biases:
            return factors
        # The components of biases are zero in the factor of their mode, and ones in the others.
        columns = x._engine.xp.arange(x.ndim + 1)
        more = [(columns != mode) + 0 * factor[:, :1] for mode, factor in enumerate(factors)]
        more[-1][:, -1] = self.mean
        return [np.concatenate(pair, axis=1) for pair in zip(factors, more, strict=True)]

    def make_rows(self, entries: "ObservedEntries") -> "_Solutions | _ConjugateGradients":
        return (_ConjugateGradients if self.num_steps else _Solutions)(self, entries)

    def find_ridges(self, l2_reg: float) -> Array:
        """Return the ridge of each column (R,), with those of biases."""
        ridges = np.full(len(self.bias_modes), float(l2_reg))
        ridges[: self.rank] = observed_rows.scale_ridge(l2_reg, self.scale, self.x.ndim)
        return self.x._engine.xp.asarray(ridges, self.dtype)

    def find_gram(self, ridges: Array, factors: list[Array], mode: int) -> Array:
        """Return the part that the systems of all rows of a mode have in common."""
        others = multiply_grams(None, factors, mode) if self.unobserved else 0
        return array_module(ridges).diag(ridges) + self.unobserved * others

    def find_free(self, mode: int) -> Array | None:
        """Mark the columns to update, None for all: a mode has ones in those of others' biases."""
        modes = self.x._engine.xp.asarray(self.bias_modes)
        return (modes < 0) | (modes == mode) if self.biases else None


@dataclass
class _ObservedRun(Run):
    """A run that fits the rows of one factor after the other.

    With held-out entries it keeps the model that predicts them best, and is over when no better one
    comes.
    """

    solver = "observed_parafac"
    problem: _Problem
    rows: "_Solutions | _ConjugateGradients"
    held_out: "ObservedEntries | None"
    ridge: float
    least: float = field(init=False, default=math.inf)
    best: list[Array] | None = field(init=False, default=None)

    def prepare(self) -> None:
        names = [f"best_{n}" for n in range(len(self.factors))]
        if self.held_out is not None and self.state.keys() >= {*names}:
            self.least = min(self.errors)
            self.best = [self.tensor._engine.xp.asarray(self.state[name]) for name in names]

    def update(self, iteration: int) -> None:
        _fit_all(self.rows, self.factors)

    def measure_start(self) -> float:
        return (self.held_out or self.rows).measure(self.factors)

    def measure(self, result: None) -> float | None:
        is_asked = self.tol or self.return_errors or self.callback is not None
        if self.held_out is None:
            return self.measure_start() if is_asked else None
        error = self.measure_start()
        if self.best is None or error < self.least:
            self.least, self.best = error, list(self.factors)
        return error

    def is_over(self) -> bool:
        has_judge = self.held_out is not None
        is_late = has_judge and len(self.errors) > int(np.argmin(self.errors)) + _PATIENCE
        return is_late or super().is_over()

    def save_state(self) -> dict[str, Array]:
        return {"l2_reg": np.array(self.ridge), **dict(number("best", self.best or []))}

    def describe(self) -> FitRecord:
        problem = self.problem
        biases = problem.bias_modes if problem.biases else ()
        facts = {"l2_reg": self.ridge, "scale": problem.scale, "bias_modes": biases}
        return super().describe().replace(**facts)

    def finish(self) -> CPTensor:
        self.factors[:] = [f.astype(self.tensor.dtype) for f in self.best or self.factors]
        return self.make()


def _leave_out_biases(init: Any) -> Any:
    """Return a guess without the components that are biases, which are fitted anew."""
    record = find_record(init)
    if record is None or not record.bias_modes:
        return init
    weights, factors = take_model(init)
    is_kept = np.flatnonzero(~find_biases(record, len(record.bias_modes)))
    kept = array_module(factors[0]).asarray(is_kept)
    return None if weights is None else weights[kept], [factor[:, kept] for factor in factors]


def _choose_ridge(
    problem: _Problem, splits: "Iterator[tuple[ObservedEntries, ObservedEntries]]"
) -> "tuple[float, _Trial, float]":
    """Return the ridge that predicts best, its trial, and the error of the mean where it judges.

    Each split has entries to fit and others to hold out. The first one finds the ridge, and others
    that are as good but for chance; the next ones decide between these. A smaller ridge has to be
    clearly better, unless its run still improves when it is cut off, as it does without noise.
    """
    known, others = next(splits)
    held_out = known.find_fair(others)
    rows = problem.make_rows(known)
    of_mean = held_out.compare(problem.mean)
    chosen, trials = _search(problem, rows, held_out, of_mean)
    best = trials[chosen]
    close = [l2_reg for l2_reg in trials if trials[l2_reg].error <= best.error * (1 + _CHANCE)]
    if len(close) > 1 and not best.is_unfinished:
        errors = [[trials[l2_reg].error for l2_reg in close]]
        for known, others in splits:
            held_out = known.find_fair(others)
            rows = problem.make_rows(known)
            again = [_Trial.run(problem, rows, n, held_out, trials[n].start) for n in close]
            errors.append([trial.error for trial in again])
        excess = np.array(errors) - np.min(errors, axis=1, keepdims=True)
        excess[excess > _STUCK * best.error] = np.nan
        excess = np.nanmean(excess, axis=0)
        most = excess.min() + _CLARITY * best.error
        good = [l2_reg for l2_reg, of_ridge in zip(close, excess, strict=True) if of_ridge <= most]
        chosen = max(good, default=chosen)  # none if a number is nan
    return chosen, trials[chosen], of_mean


def _search(
    problem: _Problem,
    rows: "_Solutions | _ConjugateGradients",
    held_out: "ObservedEntries",
    of_mean: float,
) -> "tuple[float, dict[float, _Trial]]":
    """Return the ridge that is best at one split, and what all ridges found that were tried.

    Large ones leave only biases, and the next ones can be worse than these before components are
    found: more of them have to be tried, and another start if all these end in poor local minima.
    """
    chosen = _RIDGES[0]
    num_worse = 0
    trials = {}
    best = _Trial(math.inf, is_unfinished=False, has_components=False, start=0, factors=[])
    for l2_reg in _RIDGES:
        trials[l2_reg] = trial = _Trial.run(problem, rows, l2_reg, held_out)
        num_worse += 1
        if trial.error < best.error * (1 if trial.is_unfinished else 1 - _CLARITY):
            chosen = l2_reg
            best = trial
            num_worse = 0
        for tried in trials.values():
            if tried.error > best.error * (1 + _CHANCE):
                tried.factors.clear()  # their memory is not needed
        most = _NUM_WORSE if best.has_components else _NUM_WORSE_WITHOUT
        if num_worse >= most and best.error < min(of_mean, 1.0) * (1 - _CLARITY):
            break
    if not best.has_components:
        others = [l2_reg for l2_reg, trial in trials.items() if trial.has_components]
        for l2_reg in others[:_NUM_RETRIED]:
            trial = _Trial.run(problem, rows, l2_reg, held_out, start=1)
            if trial.error < best.error * (1 - _CLARITY):
                chosen = l2_reg
                best = trial
                trials[l2_reg] = trial
    return chosen, trials


class _Trial(NamedTuple):
    """What a run with one ridge found."""

    error: float  # of held-out entries
    is_unfinished: bool  # whether it still fell when the run was cut off
    has_components: bool  # whether the ridge left some
    start: int  # the seed of its guess
    factors: list[Array]  # of the model, empty if another ridge is clearly better

    @classmethod
    def run(
        cls,
        problem: _Problem,
        rows: "_Solutions | _ConjugateGradients",
        l2_reg: float,
        held_out: "ObservedEntries",
        start: int = 0,
    ) -> Self:
        report(f"trying l2_reg {l2_reg:g}")
        rows.ridges, factors = problem.find_ridges(l2_reg), problem.start(start)
        error = math.inf
        fit = math.inf
        num_still = 0
        for _ in range(_NUM_TRIED):
            _fit_all(rows, factors)
            last_error = error
            error = held_out.measure(factors)
            last_fit = fit
            fit = rows.measure(factors)
            is_still = abs(last_error - error) < _TRIED_TOL * error
            is_still &= abs(last_fit - fit) < _FIT_TOL * fit
            num_still = num_still + 1 if is_still else 0
            if num_still == _NUM_STILL:
                break
        parts = [factor[:, : problem.rank] for factor in factors]
        size = observed_rows.measure_scale(evaluate_model(held_out.coords, None, parts))
        is_unfinished = last_error - error >= _TRIED_TOL * error
        return cls(error, is_unfinished, size > _TRACE * problem.scale, start, factors)


def _is_better_start(
    problem: _Problem,
    entries: "ObservedEntries",
    ridge: float,
    model: list[Array],
    guess: list[Array],
) -> bool:
    """Return whether a run from a trial's model ends clearly lower than one from a guess.

    A guess may end in a poor local minimum with one ridge and not with another, or with all entries
    and not with nine tenths of them.
    """
    rows = problem.make_rows(entries)
    rows.ridges = problem.find_ridges(ridge)
    objectives = [_find_minimum(rows, list(start)) for start in (model, guess)]
    return objectives[0] < objectives[1] * (1 - _CLARITY)


def _find_minimum(rows: "_Solutions | _ConjugateGradients", factors: list[Array]) -> float:
    """Return what is minimised, relative to the sum of squares, where a run from here settles."""
    fit = math.inf
    for _ in range(_NUM_TRIED):
        _fit_all(rows, factors)
        last_fit = fit
        fit = rows.measure(factors)
        if abs(last_fit - fit) < _FIT_TOL * fit:
            break
    squares = [(factor**2).sum(axis=0, dtype=np.float64) for factor in factors]
    penalty = float((sum(squares) * rows.ridges).sum())
    return fit**2 + penalty / rows.square


def _fit_all(rows: "_Solutions | _ConjugateGradients", factors: list[Array]) -> None:
    for mode in range(len(factors)):
        factors[mode] = rows.fit(factors, mode)


class ObservedEntries(NamedTuple):
    """The observed entries, in float64: what each adds to the Gram matrices and right-hand sides.

    An entry with weight w and value v adds ``w - unobserved`` and ``w * v``.
    """

    coords: Array
    values: Array
    weights: Array | None  # None for ones
    targets: Array
    unobserved: float

    @property
    def excess(self) -> Array | None:
        return None if self.weights is None else self.weights - self.unobserved

    @property
    def square(self) -> float:
        return float((self.targets * self.values).sum())

    def find_mean(self, shape: tuple[int, ...]) -> float:
        """Return the weighted mean, of all cells if all count."""
        total = self.values.size if self.excess is None else float(self.excess.sum())
        return float(self.targets.sum()) / (total + self.unobserved * math.prod(shape))

    def measure(self, factors: list[Array]) -> float:
        """Return the relative error of a model."""
        model = evaluate_model(self.coords, None, factors)
        others = 0.0
        if self.unobserved:
            others = float(multiply_grams(None, factors).sum()) - float((model**2).sum())
        return self.compare(model, self.unobserved * max(0.0, others))

    def compare(self, model: Array | float, others: float = 0.0) -> float:
        """Return the relative error of a model's values here, and the square of all others'."""
        residual = (self.values - model) ** 2
        square = float((residual if self.weights is None else self.weights * residual).sum())
        return ((square + others) / (self.square or 1.0)) ** 0.5

    def take(self, places: Array) -> Self:
        weights = None if self.weights is None else self.weights[places]
        parts = self.coords[:, places], self.values[places], weights, self.targets[places]
        return type(self)(*parts, self.unobserved)

    def divide(self) -> Iterator[tuple[Self, Self]]:
        """Yield most entries, and a tenth to judge by: the same ones for each rank and start."""
        xp = array_module(self.values)
        count = self.values.size
        places = xp.asarray(np.random.RandomState(0).permutation(count))
        num_out = max(1, count // 10)
        for start in range(0, count, num_out)[:_NUM_TENTHS]:
            out = places[start : start + num_out]
            others = xp.concatenate([places[:start], places[start + num_out :]])
            known = self.take(xp.sort(others)) if count > 1 else self
            yield known, self.take(xp.sort(out))

    def find_fair(self, others: Self) -> Self:
        """Return the others all of whose rows have entries here; all others if there are none."""
        is_fair = array_module(self.values).ones(others.values.size, bool)
        for own, ids in zip(self.coords, others.coords, strict=True):
            is_fair &= array_module(own).bincount(own, minlength=int(ids.max()) + 1)[ids] > 0
        return others.take(is_fair) if is_fair.any() else others


def _read(tensor: Any, x: FlycooTensor, name: str) -> ObservedEntries:
    """Return the nonzeros of another tensor in the shape of `x`, all of weight 1."""
    other = as_flycoo(tensor, check_coords=True)
    if other.shape != x.shape or other.nnz == 0 or other.device != x.device:
        raise ValueError(
            f"{name} has shape {other.shape}, {other.nnz} nonzeros and device {other.device!r}, "
            f"expected shape {x.shape}, some nonzeros and device {x.device!r}"
        )
    coords, values = other._sorted_nonzeros()
    values = values.astype(np.float64)
    return ObservedEntries(coords, values, None, values, 0)


def _observe(x: FlycooTensor, confidence: Any, unobserved: float) -> ObservedEntries:
    own = _read(x, x, "tensor")
    if confidence is None:
        return own
    coords, weights, *_ = _read(confidence, x, "confidence")
    least = float(weights.min())
    if not (least > 0 and least >= unobserved):
        raise ValueError(
            f"confidence has the weight {least}, expected weights above 0, and unobserved, which "
            f"is {unobserved}, or more"
        )
    xp = x._engine.xp
    joined = xp.concatenate([coords, own.coords], axis=1)
    padded = xp.concatenate([xp.zeros_like(weights), own.values])
    coords, padded, starts = group_cells(joined, padded, x.shape, x._engine)
    if lacking := starts.size - weights.size:
        raise ValueError(f"confidence lacks {lacking} of tensor's nonzeros: give each a weight")
    values = x._engine.sum_groups(padded, starts)
    return ObservedEntries(coords, values, weights, weights * values, unobserved)


class _Solutions:
    """Rows that solve their systems of equations, or non-negative ones."""

    ridges: Array

    def __init__(self, problem: _Problem, entries: ObservedEntries) -> None:
        self._problem = problem
        self._entries = entries
        self._excess = entries.excess
        self.measure = entries.measure
        self.square = entries.square
        pairs = zip(entries.coords, problem.x.shape, strict=True)
        self._plans = [observed_rows.RowPlan.of(rows, size) for rows, size in pairs]

    def fit(self, factors: list[Array], mode: int) -> Array:
        entries = self._entries
        problem = self._problem
        return observed_rows.fit_rows(
            entries.coords,
            entries.targets,
            factors,
            mode,
            self._plans[mode],
            problem.find_gram(self.ridges, factors, mode),
            weights=self._excess,
            is_free=problem.find_free(mode),
            non_negative=problem.non_negative,
        )


class _ConjugateGradients:
    """Rows that a few steps of conjugate gradients improve."""

    ridges: Array

    def __init__(self, problem: _Problem, entries: ObservedEntries) -> None:
        self._problem = problem
        x = problem.x
        excess = np.ones_like(entries.values) if entries.excess is None else entries.excess
        self._excess = x._rebuild(entries.coords, excess.astype(x.dtype))
        targets = entries.targets.astype(x.dtype)
        is_whole = entries.weights is None and entries.values.size == x.nnz
        self._targets = x if is_whole else x._rebuild(entries.coords, targets)
        self.square = entries.square
        self._square = -1.0

    def fit(self, factors: list[Array], mode: int, num_steps: int | None = None) -> Array:
        targets = mttkrp(self._targets, factors, mode)
        problem = self._problem
        rows, residuals = observed_rows.improve_rows(
            self._excess,
            targets,
            factors,
            mode,
            problem.find_gram(self.ridges, factors, mode),
            problem.find_free(mode),
            problem.num_steps if num_steps is None else num_steps,
        )
        if mode == len(factors) - 1:
            # The loss is a quadratic function of these rows: by its gradients here and at 0.
            gradients = targets + residuals + self.ridges * rows
            self._square = self.square - float((rows * gradients).sum(dtype=np.float64))
        return rows

    def measure(self, factors: list[Array]) -> float:
        if self._square < 0:  # of the initial guess, or rounded
            self.fit(factors, len(factors) - 1, num_steps=0)
        return float(np.maximum(self._square, 0.0) / self.square) ** 0.5  # or nan

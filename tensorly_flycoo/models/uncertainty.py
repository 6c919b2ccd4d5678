"""Uncertainty: how far a CP model's numbers move when it is fitted to resampled data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorly as tl
from scipy.special import stdtrit

from ..base.array_modules import Array
from ..base.checks import check_choice, check_count, check_mode, check_real
from ..base.fit_record import FitRecord, attach, find_record
from ..base.reporting import report
from ..loop.model_uses import check_model
from ..results.labelled_models import LabelledCP
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import mirror
from ..tensor.labelled import number_modes, take_labels
from ..tensor.tensor import FlycooTensor
from .match import align
from .refitting import find_facts, find_unseen, fit_again


@dataclass(frozen=True, repr=False)
class Uncertainty:
    """Intervals of a CP model's weights, factors and ranks of labels, as `uncertainty` finds them.

    Attributes
    ----------
    cp_tensor : LabelledCP
        The model; without labels, rows are labelled by their numbers. Its `plot` and `to_tidy` show
        its `intervals`, which are nan in the mode whose rows were resampled, and in rows none of
        whose cells are known.
    weights : pair of array (R,)
        The lower and the upper ends of the weights' intervals.
    samples : list of array (n, I_n, R)
        The factors of the fits, matched with those of the model, for statistics of your own. A
        jackknife's are scaled to the variance that the model's factors have, around these.
    level : float
    """

    cp_tensor: LabelledCP
    weights: tuple[np.ndarray, np.ndarray]
    samples: list[np.ndarray]
    level: float

    def __repr__(self) -> str:
        num_fits = len(self.samples[0])
        return (
            f"<Uncertainty of rank {self.cp_tensor.rank}: {self.level:.0%} intervals from "
            f"{num_fits} fits>"
        )

    def top_ranks(self, mode: str | int, component: int, n: int = 8) -> dict[Any, tuple[int, int]]:
        """Return the best and the worst rank of each of a component's top labels; 1 is the best.

        Of the ranks by magnitude in all samples, ``(1 - level) / 2`` are left out on either side.

        Parameters
        ----------
        mode, n
            As for `LabelledCP.top`; a ValueError if the mode's rows were resampled.
        component : int
            A column of the factors, from 0.

        Returns
        -------
        dict
            By label, as `LabelledCP.top` sorts them.
        """
        number = self.cp_tensor._find_mode(mode)
        component = check_mode(component, self.cp_tensor.rank, "component")
        magnitudes = np.abs(self.samples[number][:, :, component])
        if np.isnan(magnitudes).any():
            raise ValueError(f"mode is {mode!r}, expected another: its rows were resampled")
        order = np.argsort(-magnitudes, axis=1, kind="stable")
        ranks = 1 + np.argsort(order, axis=1)
        tails = [(1 - self.level) / 2, (1 + self.level) / 2]
        ends = np.quantile(ranks, tails, axis=0, method="closest_observation").T.tolist()
        labels_of_mode = [*self.cp_tensor.labels.values()][number]
        labels = take_labels(labels_of_mode, slice(None))
        ranks_of = {label: (best, worst) for label, (best, worst) in zip(labels, ends, strict=True)}
        top_labels = self.cp_tensor.top(number, n)[component]
        return {label: ranks_of[label] for label in top_labels}


@mirror
def uncertainty(
    x: Any,
    cp_tensor: Any,
    mode: int | str | None = None,
    n: int = 50,
    method: str = "bootstrap",
    *,
    level: float = 0.9,
    n_iter_max: int | None = None,
    random_state: int | np.random.RandomState | None = None,
) -> Uncertainty:
    """Find intervals of a CP model's numbers: fit it again to data that might have come instead.

    Each fit is made as the model was, as its record says (``cp_tensor.flycoo``): with its missing
    or unknown cells, ridge, biases, smoothness, signs and loss.

    With a `mode`, its rows are a sample, such as of days or patients. A "bootstrap" draws as many
    with replacement, a "jackknife" leaves some out. Without a mode the sample is what `x` stores:
    for a model of counts its events, of which each occurs again a Poisson number of times, 1 on
    average; for a model of `observed_parafac` its entries, which are drawn or left out like rows.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
    cp_tensor : LabelledCP, CPTensor or (weights, factors)
        Fitted to `x` until it had converged; in the dtype of `x`. A pair that you made has no
        record: it is taken for a model of `parafac`, or without a mode of `generalized_parafac`.
    mode : int or str, optional
        Its name, if `x` is a LabelledTensor, or its number. Its own factor gets no intervals.
    n : int
        How many fits. For a jackknife, rows are divided into `n` groups, at least one row in each,
        and each fit leaves one group out.
    method : {"bootstrap", "jackknife"}
        The latter not for events.
    level : float
        The share of intervals that should hold the truth.
    n_iter_max : int, optional
        Iterations of each fit: by default 6; 10 if cells are missing or unknown, or factors
        non-negative; up to 20 of counts.
    random_state : int or numpy.random.RandomState, optional

    Returns
    -------
    Uncertainty
        Of the model in the form of a `LabelledCP`: the model's numbers, plus and minus the quantile
        of Student's t times the standard deviation of those of the fits, in which components are
        matched with the model's, also in sign. Ends of non-negative factors are not below 0. The
        model keeps its record, to which `intervals` are added.

    Raises
    ------
    TypeError
        If `x` is not sparse, or the model has another dtype.
    ValueError
        If an option is unknown or out of range, the model does not fit `x`, labels differ, `mode`
        has one row or its rows are smooth, or `x` holds no counts and `mode` is None. If the model
        is no CP model of one tensor, or was made in a way that is not repeated here: with another
        loss than "gaussian" or "poisson_count", a `confidence`, which models do not keep, another
        constraint than non-negativity, or smoothness beside unknown cells or non-negative ones. If
        `mode` is None, but the model is one of least squares of all cells.

    Notes
    -----
    Rows are resampled without a new tensor: factor rows count as often as they are drawn. The fits
    share each MTTKRP, as in `best_of`. All begin at the model, so a few iterations show where each
    converges: 50 fits cost 3 to 4 ordinary ones of nycflights. Missing cells are not imputed: what
    they add to the equations of each row is subtracted, which takes ``R**2`` operations for each,
    mode and fit, and ``R**3`` for each missing block. Counts, and models of `observed_parafac`,
    are fitted one by one. The last factors of all fits are kept on the host. A `random_state` gives
    the same result every time on one machine.

    Intervals are of what the decomposition would find in other data. So they do not know what a
    ridge takes from all fits alike: weights that a large one shrinks, such as one chosen by
    validation, are below the true ones by more than their intervals say, while elements, whose
    columns have norm 1, are not. With a mode, intervals of weights allow for other rows.

    References
    ----------
    Riu and Bro, "Jack-knife technique for outlier detection and estimation of standard errors in
    PARAFAC models", Chemometrics and Intelligent Laboratory Systems 65, 2003. Psarras, Karlsson,
    Bro and Bientinesi, "Accelerating jackknife resampling for the canonical polyadic
    decomposition", Frontiers in Applied Mathematics and Statistics 8, 2022.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo import uncertainty
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((40, 30, 20), 2, nnz_per_component=900, noise=0.3, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     cp = tl.decomposition.parafac(x, 2, init="random", random_state=0)
    ...     found = uncertainty(x, cp, mode=0, random_state=0)
    >>> found
    <Uncertainty of rank 2: 90% intervals from 50 fits>
    >>> lower, upper = found.cp_tensor.intervals[1]
    >>> lower.shape, bool((lower <= upper).all())
    ((30, 2), True)

    The largest rows of the first component in mode 2, and the ranks that each may have:

    >>> found.top_ranks(2, 0, n=3)
    {14: (1, 2), 2: (1, 2), 19: (3, 4)}
    """
    check_choice(method, "method", ("bootstrap", "jackknife"))
    check_real(level, "level", 0)
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number between 0 and 1")
    check_model("uncertainty", cp_tensor, x)
    data = x
    mode = number_modes(x, mode)
    x = as_flycoo(x, check_coords=True)
    labels = getattr(cp_tensor, "labels", None) or getattr(data, "labels", None)
    cp_tensor = LabelledCP(cp_tensor, labels or [np.arange(size) for size in x.shape])
    check_count(n, "n", least=2)
    if n_iter_max is not None:
        check_count(n_iter_max, "n_iter_max")
    mode = None if mode is None else check_mode(mode, x.ndim)
    facts = find_facts(cp_tensor, data, mode)
    _check_sample(x, mode, method, facts)
    random = tl.check_random_state(random_state)
    if mode is not None:
        weights = _draw_weights(x.shape[mode], n, method, random)
    elif facts.loss == "poisson_count":
        weights = _draw_events(x, n, random)
    else:
        weights = _draw_weights(x.nnz, n, method, random)
    fits = fit_again(x, cp_tensor, facts, mode, weights, n_iter_max)
    # Of the weights first, then of each mode's factor.
    estimates, *aligned = align([cp_tensor, *fits], cp_tensor)
    samples = [np.stack(fitted) for fitted in zip(*aligned, strict=True)]
    if mode is not None:
        samples[1 + mode].fill(np.nan)
    if method == "jackknife":
        samples = _widen(samples, estimates)
    weight_ends, *intervals = _find_intervals(estimates, samples, facts, level)
    for ends, is_unseen in zip(intervals, find_unseen(x, facts), strict=True):
        for end in ends:
            end[is_unseen] = np.nan
    record = find_record(cp_tensor) or FitRecord()
    attach(cp_tensor, record.replace(intervals=intervals))
    return Uncertainty(cp_tensor, weight_ends, samples[1:], level)


def _widen(samples: list[np.ndarray], estimates: list[np.ndarray]) -> list[np.ndarray]:
    """Scale a jackknife's samples to the variance of the estimates, around these.

    Samples that share nearly all rows differ far less than those of other data would.
    """
    widened = []
    for estimate, fitted in zip(estimates, samples, strict=True):
        count = len(fitted)
        spread = (count - 1) / count**0.5
        widened.append(estimate + spread * (fitted - fitted.mean(axis=0)))
    return widened


def _find_intervals(
    estimates: list[np.ndarray], samples: list[np.ndarray], facts: FitRecord, level: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the lower and upper ends of the weights and factors.

    They are symmetric, by Student's t and the deviation of the samples, but not below 0 where a
    factor is non-negative; weights may be below 0 if a factor may.
    """
    ndim = len(estimates) - 1
    leasts = [0.0 if n in facts.non_negative else -np.inf for n in range(ndim)]
    intervals = []
    for estimate, fitted, least in zip(estimates, samples, [min(leasts), *leasts], strict=True):
        quantile = stdtrit(len(fitted) - 1, (1 + level) / 2)
        margin = quantile * fitted.std(axis=0, ddof=1)
        intervals.append((np.maximum(estimate - margin, least), estimate + margin))
    return intervals


def _check_sample(x: FlycooTensor, mode: int | None, method: str, facts: FitRecord) -> None:
    """Check that there is a sample: rows of a mode, observed entries, or events."""
    if mode is not None:
        if x.shape[mode] < 2:
            raise ValueError(
                f"mode is {mode}, which has {x.shape[mode]} row, expected a mode with two or more: "
                "they are the sample"
            )
        return
    is_observed = facts.absent == "unknown"
    if method == "jackknife" and not is_observed:
        raise ValueError("mode is None, expected the mode whose rows to leave out")
    if is_observed and x.nnz < 2:
        raise ValueError(f"x has {x.nnz} nonzeros, expected two or more: they are the sample")


def _draw_weights(
    size: int, n: int, method: str, random: np.random.RandomState
) -> Iterator[np.ndarray]:
    """Draw the weights (size,) of a sample's members in each fit, with means of 1."""
    if method == "bootstrap":
        shares = np.full(size, 1 / size)
        for _ in range(n):
            yield random.multinomial(size, shares).astype(np.float64)
        return
    for left_out in np.array_split(random.permutation(size), min(n, size)):
        weights = np.ones(size)
        weights[left_out] = 0
        yield weights / weights.mean()


def _draw_events(x: FlycooTensor, n: int, random: np.random.RandomState) -> Iterator[Array]:
    """Draw how often each event occurs again, for each fit: the counts (nnz,) of nonzeros."""
    _, values = x.nonzeros()
    if (values < 0).any() or (values % 1).any():
        raise ValueError("x has values that are no counts of events: pass a mode")
    for number in range(n):
        report(f"fit {number + 1} of {n}")
        yield random.poisson(values)

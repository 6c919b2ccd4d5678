"""Uncertainty: how far a CP model's numbers move when it is fitted to resampled data."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorly as tl
from scipy.special import stdtrit
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array
from ..base.checks import check_choice, check_count, check_mode, check_real
from ..base.fit_record import FitRecord, attach, find_record
from ..base.reporting import report
from ..decomposition import generalized_parafac
from ..loop.cp_model import make_cp_tensor
from ..loop.initial_guess import take_guess
from ..results.labelled_models import LabelledCP
from ..tensor.coo_cache import as_flycoo
from ..tensor.labelled import check_same_labels, number_modes, take_labels
from ..tensor.mirroring import mirror
from ..tensor.tensor import FlycooTensor
from .many_starts import run_resampled
from .match import align


@dataclass(frozen=True, repr=False)
class Uncertainty:
    """Intervals of a CP model's weights, factors and ranks of labels, as `uncertainty` finds them.

    Attributes
    ----------
    cp_tensor : LabelledCP
        The model; without labels, rows are labelled by their numbers. Its `plot` and `to_tidy` show
        its `intervals`, which are nan in the mode whose rows were resampled.
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
        fits = f"{self.level:.0%} intervals from {len(self.samples[0])} fits"
        return f"<Uncertainty of rank {self.cp_tensor.rank}: {fits}>"

    def top_ranks(self, mode: str | int, component: int, n: int = 8) -> dict[Any, tuple[int, int]]:
        """Return the best and the worst rank of each of a component's top labels; 1 is the best.

        Of the ranks by magnitude in all samples, ``(1 - level) / 2`` are left out on either side.

        Parameters
        ----------
        mode, n
            As for `LabelledCP.top`; a ValueError if the mode's rows were resampled.
        component : int

        Returns
        -------
        dict
            By label, as `LabelledCP.top` sorts them.
        """
        number = self.cp_tensor._find_mode(mode)
        component = check_mode(component, self.cp_tensor.rank, "component")
        sizes = np.abs(self.samples[number][:, :, component])
        if np.isnan(sizes).any():
            raise ValueError(f"mode is {mode!r}, expected another: its rows were resampled")
        ranks = 1 + np.argsort(np.argsort(-sizes, axis=1, kind="stable"), axis=1)
        tails = (1 - self.level) / 2, (1 + self.level) / 2
        ends = np.quantile(ranks, tails, axis=0, method="closest_observation").T.tolist()
        labels = take_labels([*self.cp_tensor.labels.values()][number], slice(None))
        found = dict(zip(labels, map(tuple, ends), strict=True))
        return {label: found[label] for label in self.cp_tensor.top(number, n)[component]}


@mirror
def uncertainty(
    x: Any, cp_tensor: Any, mode: int | str | None = None, n: int = 50, method: str = "bootstrap",
    *, level: float = 0.9, n_iter_max: int | None = None,
    random_state: int | np.random.RandomState | None = None,
) -> Uncertainty:  # fmt: skip
    """Find intervals of a CP model's numbers: fit it again to data that might have come instead.

    With a `mode`, its rows are a sample, such as of days or patients, and the model is one of
    `parafac`. A "bootstrap" draws as many rows with replacement, a "jackknife" leaves rows out.
    Without a mode, `x` counts events, and the model is one of `generalized_parafac`: each event
    occurs again a Poisson number of times, 1 on average.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
    cp_tensor : LabelledCP, CPTensor or (weights, factors)
        Fitted to `x` until it had converged; in the dtype of `x`.
    mode : int or str, optional
        Its name, if `x` is a LabelledTensor, or its number. Its own factor gets no intervals.
    n : int
        How many fits. For a jackknife, rows are divided into `n` groups, at least one row in each,
        and each fit leaves one group out.
    method : {"bootstrap", "jackknife"}
        The latter only with a mode.
    level : float
        The share of intervals that should hold the truth.
    n_iter_max : int, optional
        Iterations of each fit: by default 6, or up to 20 of counts.
    random_state : int or numpy.random.RandomState, optional

    Returns
    -------
    Uncertainty
        Of the model in the form of a `LabelledCP`: the model's numbers, plus and minus the quantile
        of Student's t times the standard deviation of those of the fits, in which components are
        matched with the model's, also in sign.

    Raises
    ------
    TypeError
        If `x` is not sparse, or the model has another dtype.
    ValueError
        If an option is unknown or out of range, the model does not fit `x`, labels differ, or `x`
        holds no counts and `mode` is None.

    Notes
    -----
    Rows are resampled without a new tensor: factor rows count as often as they are drawn. The fits
    share each MTTKRP, as in `best_of`. All begin at the model, so a few iterations show where each
    converges: 50 fits cost 3 to 4 ordinary ones of nycflights. Counts are fitted one by one. All
    factors are kept on the host, for resampled rows after each iteration. A `random_state` gives
    the same result every time on one machine.

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

    The largest rows of component 0 in mode 2, and the ranks that each may have:

    >>> found.top_ranks(2, 0, n=3)
    {14: (1, 2), 2: (1, 2), 19: (3, 4)}
    """
    check_choice(method, "method", ("bootstrap", "jackknife"))
    check_real(level, "level", 0)
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number between 0 and 1")
    check_same_labels(x, cp_tensor)
    labels = getattr(cp_tensor, "labels", None) or getattr(x, "labels", None)
    mode, x = number_modes(x, mode), as_flycoo(x, check_coords=True)
    cp_tensor = LabelledCP(cp_tensor, labels or [np.arange(size) for size in x.shape])
    scales = cp_tensor.weights ** (1 / x.ndim)  # changes of all factors count alike
    guess = None, [factor * scales for factor in cp_tensor.factors]
    start, random = take_guess(x, cp_tensor.rank, guess), tl.check_random_state(random_state)
    check_count(n, "n", least=2)
    num_iterations = (20 if mode is None else 6) if n_iter_max is None else n_iter_max
    check_count(num_iterations, "n_iter_max")
    if mode is not None:
        mode = check_mode(mode, x.ndim)
        row_weights = _draw_row_weights(x.shape[mode], n, method, random)
        fits = run_resampled(x, start, mode, row_weights, num_iterations)
    elif method == "jackknife":
        raise ValueError("mode is None, expected the mode whose rows to leave out")
    else:
        fits = _fit_events(x, start, n, num_iterations, random)
    estimates, *aligned = align([cp_tensor, *fits], cp_tensor)
    samples = [np.stack(of) for of in zip(*aligned, strict=True)]
    if mode is not None:
        samples[1 + mode].fill(np.nan)
    if method == "jackknife":
        spread, pairs = (len(fits) - 1) / len(fits) ** 0.5, zip(estimates, samples, strict=True)
        samples = [own + spread * (of - of.mean(axis=0)) for own, of in pairs]
    least = 0.0 if mode is None else -np.inf  # models of counts have no negative numbers
    pairs = zip(estimates, samples, strict=True)
    weights, *intervals = [_find_interval(*pair, level, least) for pair in pairs]
    record = find_record(cp_tensor) or FitRecord()
    attach(cp_tensor, record.replace(intervals=intervals))
    return Uncertainty(cp_tensor, weights, samples[1:], level)


def _find_interval(
    estimate: np.ndarray, samples: np.ndarray, level: float, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper ends, by Student's t and the deviation of the samples."""
    margin = stdtrit(len(samples) - 1, (1 + level) / 2) * samples.std(axis=0, ddof=1)
    return np.maximum(estimate - margin, least), estimate + margin


def _draw_row_weights(size: int, n: int, method: str, random: np.random.RandomState) -> np.ndarray:
    """Draw the weights of a mode's rows in each sample (n, size), with means of 1."""
    if method == "bootstrap":
        return random.multinomial(size, np.full(size, 1 / size), n).astype(np.float64)
    groups = np.array_split(random.permutation(size), min(n, size))
    weights = np.array([~np.isin(np.arange(size), rows) for rows in groups], np.float64)
    return weights / weights.mean(axis=1, keepdims=True)


def _fit_events(
    x: FlycooTensor, start: list[Array], n: int, n_iter_max: int, random: np.random.RandomState
) -> list[CPTensor]:
    """Fit models to the events of `x`, each drawn again a Poisson number of times."""
    coords, values = x.nonzeros()
    if (values < 0).any() or (values % 1).any():
        raise ValueError("x has values that are no counts of events: pass a mode")
    fits, init = [], make_cp_tensor(None, start)
    for number in range(n):
        report(f"fit {number + 1} of {n}")
        counts = random.poisson(values)
        drawn = x._rebuild(coords[:, counts > 0], counts[counts > 0], dtype=x.dtype)
        fits.append(generalized_parafac(drawn, init.rank, n_iter_max, init))
    return fits

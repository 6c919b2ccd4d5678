"""The Poisson distribution: likelihoods of counts, and probabilities far out in its tails."""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import special

from ..base.array_modules import Array, array_module, is_cupy

#: Smaller probabilities come from a continued fraction, in logarithms. SciPy's are accurate up to
#: 4.5 standard deviations; further out those of large counts are not (at 25, 20 times too small).
_LEAST_PROBABILITY = 1e-5

#: From this count on, Stirling's series is exact to rounding.
_MANY = 16.0

#: Steps of a continued fraction, which converges the sooner the further out in the tail.
_MAX_STEPS = 1000

_Term: TypeAlias = Callable[[int], np.ndarray]  # takes the number of a step


class CountFit(NamedTuple):
    """The fit of a CP model whose entries are the means of Poisson counts.

    Attributes
    ----------
    loss : float
        ``sum(m - x log m)`` for counts x and means m: what `generalized_parafac` minimises.
    log_likelihood : float
        The logarithm of the counts' probability: ``-loss - sum(log(x!))``.
    deviance : float
        Twice the difference to the log-likelihood of a model that equals the counts.
    explained : float
        ``1 - deviance / deviance of the mean count``: 1 is a perfect fit, 0 as good as a constant.
    num_entries : int
        The number of entries that were compared.
    """

    loss: float
    log_likelihood: float
    deviance: float
    explained: float
    num_entries: int


def check_counts(counts: Array, means: Array) -> None:
    """Refuse counts and means that are negative or nan."""
    for name, array in (("values", counts), ("the model's values", means)):
        is_wrong = ~(array >= 0)
        if is_wrong.any():
            wrong = int(np.argmax(is_wrong))
            raise ValueError(f"{name}[{wrong}] is {array[wrong]}, expected 0 or more, as of counts")


def sum_counts(counts: Array, model: Array) -> Array:
    """Sum x, ``x log x``, ``x log m`` and ``log(x!)`` for counts x > 0 with means m: (4,)."""
    if is_cupy(counts):
        from cupyx.scipy.special import gammaln
    else:
        gammaln = special.gammaln
    is_positive = counts > 0
    counts, model = counts[is_positive], model[is_positive]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = (counts, counts * np.log(counts), counts * np.log(model), gammaln(counts + 1))
    return array_module(counts).stack([term.sum() for term in terms])


def complete_fit(sums: Array, model_sum: float, num_entries: int) -> CountFit:
    """Return the fit from the sums of `sum_counts` and the sum of the means of all entries."""
    total, logs, model_logs, log_factorials = map(float, sums)
    loss = model_sum - model_logs
    # A model that equals the counts has the loss `total - logs`.
    deviance = 2 * (loss - (total - logs))
    of_mean = 2 * (logs - total * math.log(total / num_entries)) if total else 0.0
    explained = 1 - deviance / of_mean if of_mean else float("nan")
    return CountFit(loss, -loss - log_factorials, deviance, explained, num_entries)


def log_upper_tail(counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Compute ``log P(X >= count)`` of Poisson variables, in float64."""
    counts = np.ceil(counts)
    with np.errstate(divide="ignore"):
        tails = np.log(special.gammainc(np.maximum(counts, 1), means))
    is_far = (tails < np.log(_LEAST_PROBABILITY)) & (means > 0) & (counts > 0)
    tails[is_far] = _log_far_upper(counts[is_far], means[is_far])
    return np.where(counts <= 0, 0.0, tails)


def log_lower_tail(counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Compute ``log P(X <= count)`` of Poisson variables, in float64."""
    counts = np.floor(counts)
    with np.errstate(divide="ignore"):
        tails = np.log(special.gammaincc(counts + 1, means))
    is_far = tails < np.log(_LEAST_PROBABILITY)
    tails[is_far] = _log_far_lower(counts[is_far], means[is_far])
    return tails


def _log_far_upper(counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Compute `log_upper_tail` of counts far above their means.

    The tail is the probability of the count itself times ``1 + m/(k+1) + m^2/((k+1)(k+2)) + ...``,
    by Gauss's continued fraction of that series, 8.9.1 in the DLMF:
    ``1/(1 - m/(k+1 + m/(k+2 - (k+1)m/(k+3 + 2m/(k+4 - ...)))))``.
    """
    ratio = _evaluate_fraction(
        counts,
        lambda step: step // 2 * means if step % 2 == 0 else -(counts + step // 2) * means,
        lambda step: counts + step,
    )
    return _log_probability(counts, means) + np.log(counts) - np.log(ratio)


def _log_far_lower(counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Compute `log_lower_tail` of counts far below their means: 8.9.2 in the DLMF."""
    shape = counts + 1
    first = means + 1 - shape
    ratio = _evaluate_fraction(
        first, lambda step: -step * (step - shape), lambda step: first + 2 * step
    )
    return _log_probability(counts, means) + np.log(means) - np.log(ratio)


def _evaluate_fraction(first: np.ndarray, numerator: _Term, denominator: _Term) -> np.ndarray:
    """Evaluate ``first + numerator(1) / (denominator(1) + ...)`` by Lentz's method."""
    value, upper, lower = first.copy(), first.copy(), np.zeros_like(first)
    for step in range(1, _MAX_STEPS):
        a, b = numerator(step), denominator(step)
        lower = 1 / (b + a * lower)
        upper = b + a / upper
        change = upper * lower
        value = value * change
        if (np.abs(change - 1) <= np.finfo(np.float64).eps).all():
            break
    return value


def _log_probability(counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Compute the logarithms of Poisson probabilities without cancellation between large terms.

    Loader, "Fast and accurate computation of binomial probabilities", 2000.
    """
    many = np.maximum(counts, _MANY)
    distance = (means - many) / many
    squares = 1 / many**2
    series = (1 / 12 - squares * (1 / 360 - squares * (1 / 1260 - squares / 1680))) / many
    logs = np.log(means / many)
    near = np.abs(distance) < 0.5
    logs[near] = np.log1p(distance[near])
    by_series = many * (logs - distance) - series - 0.5 * np.log(2 * np.pi * many)
    directly = special.xlogy(counts, means) - means - special.gammaln(counts + 1)
    return np.where(counts < _MANY, directly, by_series)

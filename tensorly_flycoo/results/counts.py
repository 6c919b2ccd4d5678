"""The Poisson distribution: likelihoods of counts, and probabilities far out in its tails."""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from ..base.array_modules import Array, array_module, has_true, is_cupy

#: SciPy's tails of counts up to this one are accurate until they underflow. Those of larger counts
#: are up to 4.5 standard deviations from the mean; at 25, one is up to 20 times too small.
_MANY = 1e6

#: The logarithms of the least probabilities that are SciPy's: of any count, of one above `_MANY`.
_LEAST = math.log(1e-300)
_LEAST_OF_MANY = math.log(1e-5)


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
        if has_true(is_wrong):
            wrong = int(np.argmax(is_wrong))
            raise ValueError(f"{name}[{wrong}] is {array[wrong]}, expected 0 or more, as of counts")


def sum_counts(counts: Array, model: Array) -> Array:
    """Sum x, ``x log x``, ``x log m`` and ``log(x!)`` for counts x > 0 with means m: (4,)."""
    if is_cupy(counts):
        from cupyx.scipy.special import gammaln
    else:
        gammaln = special.gammaln
    is_positive = counts > 0
    counts = counts[is_positive]
    model = model[is_positive]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = [
            counts,
            counts * np.log(counts),
            counts * np.log(model),
            gammaln(counts + 1),
        ]
    return array_module(counts).stack([term.sum() for term in terms])


def complete_fit(sums: Array, model_sum: float, num_entries: int) -> CountFit:
    """Return the fit from the sums of `sum_counts` and the sum of the means of all entries."""
    total, logs, model_logs, log_factorials = map(float, sums)
    loss = model_sum - model_logs
    # A model that equals the counts has the loss `total - logs`.
    deviance = 2 * (loss - (total - logs))
    mean_deviance = 0.0  # that of the mean count
    if total:
        mean_count = total / num_entries
        mean_deviance = 2 * (logs - total * math.log(mean_count))
    explained = math.nan
    if mean_deviance:
        explained = 1 - deviance / mean_deviance
    return CountFit(
        loss=loss,
        log_likelihood=-loss - log_factorials,
        deviance=deviance,
        explained=explained,
        num_entries=num_entries,
    )


def log_upper_tail(counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Compute ``log P(X >= count)`` of Poisson variables, in float64; counts are rounded up.

    Far out, where SciPy underflows or is inaccurate, the tail is ``P(X = count)`` times the sum
    ``1 + q + ...``, with ``q = mean / (count + 1)``, whose terms fall faster than those of a
    geometric series. Sampford's bound of Mills' ratio (1953), made for the same sum of a normal
    tail, approximates it. Relative errors of the logarithms, measured against continued fractions,
    are below 2e-5.
    """
    counts = np.ceil(counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(special.gammainc(np.maximum(counts, 1), means))
        gaps = counts + 1 - means
        sums = 4 * (counts + 1) / (3 * gaps + np.sqrt(gaps**2 + 8 * means))
        # log P(X = count), with the factorial by Gosper's formula, plus the logarithm of the sum.
        far_logs = counts - means - special.rel_entr(counts, means)
        log_root = np.log(2 * np.pi * (counts + 1 / 6)) / 2
        far_logs += np.log(sums) - log_root
    is_far = logs < np.where(counts > _MANY, _LEAST_OF_MANY, _LEAST)
    logs = np.where(is_far, np.minimum(far_logs, _LEAST_OF_MANY), logs)
    return np.where(counts <= 0, 0.0, logs)

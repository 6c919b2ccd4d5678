"""The rank that scores suggest, and the reasons for and against it."""

from collections.abc import Sequence

import numpy as np

from .best_of import LOW_MATCH
from .rank_selection import RankScore

#: Held-out entries are too few if the standard error of the least loss is a larger share of what
#: its rank explains: of planted ranks, hardly any is found then, and nearly all are else.
_LARGE_ERROR = 0.06

#: Runs that agree are worth this share of what is explained: much data make any gain significant.
_SMALL_GAIN = 0.01


def suggest(
    scores: Sequence[RankScore], tolerances: Sequence[float]
) -> tuple[RankScore | None, str]:
    """Return the score of the suggested rank, and the reason; None if nothing was held out.

    It is the lowest rank as good as the best one: with a held-out loss within a standard error of
    the least. Ranks whose runs agree are preferred. Of each rank, losses that differ by less than
    its tolerance count as equal: fits that stopped a little later could change them as much.
    """
    if np.isnan(scores[0].heldout_loss):
        return None, ""
    least = min(scores, key=lambda score: score.heldout_loss)
    if least.heldout_loss >= 1:
        return scores[0], "the lowest: no rank predicts the held-out entries"
    reference = f"of the least, that of rank {least.rank}"
    gaps = {score: score.heldout_loss - least.heldout_loss for score in scores}
    as_good = []  # never empty: the least one has no gap
    for score, tolerance in zip(scores, tolerances, strict=True):
        if gaps[score] <= max(score.difference_se, tolerance):
            as_good.append(score)
    stable = [score for score in scores if _has_stable_runs(score)]
    stable_and_good = [score for score in as_good if score in stable]
    # If runs agree at none of these ranks, a slightly worse one at which they do is better.
    if not stable_and_good:
        margin = max(least.heldout_se, _SMALL_GAIN * (1 - least.heldout_loss))
        nearly_as_good = [score for score in stable if gaps[score] <= margin]
        if nearly_as_good:
            chosen = min(nearly_as_good, key=lambda score: gaps[score])
            return chosen, (
                f"the best whose runs agree (those of rank {as_good[0].rank} do not), with a "
                "held-out loss within one standard error, or a hundredth of what is explained, "
                f"{reference}"
            )
    chosen = (stable_and_good or as_good)[0]
    reach = "one standard error"
    if gaps[chosen] > chosen.difference_se:
        reach = "what rounding and unfinished fits explain"
    rule = f"the lowest with a held-out loss within {reach} {reference}"
    if chosen is not as_good[0]:
        rule += f", and with runs that agree (those of rank {as_good[0].rank} do not)"
    return chosen, rule


def _has_stable_runs(score: RankScore) -> bool:
    """Return whether the runs of a rank differ in less than half a component, on average."""
    return bool(np.max(score.rank) * (1 - score.match) < 0.5)


def list_doubts(scores: Sequence[RankScore], suggested: RankScore | None) -> list[str]:
    """List the reasons to doubt a suggestion."""
    if suggested is None:
        return []
    doubts = []
    least = min(scores, key=lambda score: score.heldout_loss)
    if least.heldout_loss >= 1:
        doubts.append("no rank predicts the held-out entries better than zeros or their mean do")
    if least.heldout_se > _LARGE_ERROR * abs(1 - least.heldout_loss):
        doubts.append(
            f"the held-out entries are too few to tell: the least loss is {least.heldout_loss:.4f} "
            f"with a standard error of {least.heldout_se:.4f}, so higher ranks than "
            f"{suggested.rank} may go unseen; pass more data, or merge rows"
        )
    if suggested.rank == scores[-1].rank and len(scores) > 1:
        doubts.append(
            f"the suggested rank {suggested.rank} is the highest one tried: try higher ones"
        )
    if suggested.match < LOW_MATCH:
        doubts.append(
            f"the runs of the suggested rank {suggested.rank} found different components (match "
            f"{suggested.match:.2f}): trust its fit, not its components"
        )
    return doubts

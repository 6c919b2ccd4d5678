"""Pictures of the scores of ranks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..decomposition.labelled_plot import make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .select_rank import RankScore

#: The lowest core consistency shown: those of far too many components are hugely negative.
_LEAST_CONSISTENCY = -50


def draw_scores(
    scores: "Sequence[RankScore]", errors: Sequence[np.ndarray], suggested: int | None
) -> "Figure":
    """Draw a panel for each score along the ranks; see `RankSelection.plot`."""
    ranks = [score.rank for score in scores]
    figure = make_figure(9, 6)
    top, bottom = figure.subplots(2, 2, sharex=True)
    for rank, of_rank in zip(ranks, errors, strict=True):
        top[0].plot([rank] * len(of_rank), of_rank, ".", color="0.7", markersize=5)
    _draw(top[0], ranks, [score.error for score in scores], "relative error (gray: all runs)")
    losses, spreads = zip(
        *[(score.heldout_loss, score.heldout_se) for score in scores], strict=True
    )
    _draw(top[1], ranks, losses, "held-out loss, with standard errors")
    top[1].errorbar(ranks, losses, spreads, fmt="none", ecolor="C0")
    cores = np.array([score.core_consistency for score in scores])
    is_cut = (cores < _LEAST_CONSISTENCY).any()
    title = f"core consistency, %{f' (cut at {_LEAST_CONSISTENCY})' if is_cut else ''}"
    _draw(bottom[0], ranks, np.maximum(cores, _LEAST_CONSISTENCY), title)
    bottom[0].set_ylim(_LEAST_CONSISTENCY - 5, 105)
    _draw(bottom[1], ranks, [score.match for score in scores], "match of the runs")
    bottom[1].set_ylim(-0.03, 1.05)
    for panels in (top, bottom):
        for axes in panels:
            axes.spines[["top", "right"]].set_visible(False)
            if suggested is not None:
                axes.axvline(suggested, color="C1", linestyle="--", linewidth=1, zorder=0)
    _label_ranks(bottom, ranks)
    if suggested is not None:
        figure.suptitle(f"Suggested rank: {suggested} (dashed)", fontsize=11)
    return figure


def _draw(axes: "Axes", ranks: Sequence[int], values: Sequence[float], title: str) -> None:
    axes.plot(ranks, values, marker="o", color="C0")
    axes.set_title(title, fontsize=10, loc="left")


def _label_ranks(panels: "Sequence[Axes]", ranks: Sequence[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    for axes in panels:
        axes.set_xlabel("rank")
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.set_xlim(min(ranks) - 0.5, max(ranks) + 0.5)

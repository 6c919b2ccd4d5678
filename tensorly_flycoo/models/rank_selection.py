"""The result of `select_rank`: scores of ranks, as text, table, HTML and picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.checks import require
from ..base.notebooks import make_paragraphs, make_text_table
from ..base.tables import format_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

#: The lowest core consistency that text shows, and that a picture draws: those of far too many
#: components are hugely negative.
_LEAST_SHOWN = -999
_LEAST_DRAWN = -50

#: The most ranks that a picture names on its axis.
_MAX_TICKS = 12


class RankScore(NamedTuple):
    """The scores of one rank's model; nan stands for a score that was not computed.

    Attributes
    ----------
    rank : int, of a Tucker model a tuple
    error : float
        The relative error of the model; of `generalized_parafac`, the loss F.
    heldout_loss : float
        What the best run, which was fitted without the held-out entries, does not explain there:
        the norm of the residual, relative to that of the values; with ``loss="poisson_count"`` the
        deviance, relative to that of the mean. Entries have weights: the loss is that of all cells.
        With `observed_parafac` they have none, and the mean is taken off the values.
    heldout_se : float
        The standard error of that loss, over the held-out entries.
    difference_se : float
        The standard error of its difference to the least loss of a rank.
    core_consistency : float
        That of a CP model, at most 100. See `core_consistency`.
    match : float
        Of CP models, the mean `factor_match_score` of the other runs with the best one; of a rank
        with few runs, after the first iterations of these.
    """

    rank: Any
    error: float
    heldout_loss: float
    heldout_se: float
    difference_se: float
    core_consistency: float
    match: float


@dataclass(frozen=True)
class RankSelection:
    """The result of `select_rank`.

    Attributes
    ----------
    scores : list of RankScore
        In ascending order of the ranks.
    errors : list of array
        For each rank, the `error` of all its runs, at the entries that were not held out. Of a rank
        with few runs all but the best were cut short; the last began from the rank before.
    models : list of CPTensor, TuckerTensor or Parafac2Tensor
        For each rank, the model.
    rank : int, tuple of int or None
        The suggested rank; None if no entries were held out.
    rule : str
        Why this rank is suggested.
    warnings : list of str
        What speaks against the suggestion.
    """

    scores: list[RankScore]
    errors: list[np.ndarray]
    models: list[Any]
    rank: Any
    rule: str
    warnings: list[str]
    _error: str = "error"  # what `RankScore.error` is called: "error" or "loss"

    @property
    def best(self) -> Any:
        """The model of the suggested rank."""
        if self.rank is None:
            raise ValueError("no rank is suggested without held-out entries: choose from .models")
        return self.models[self._list("rank").index(self.rank)]

    @property
    def table(self) -> "DataFrame":
        """The scores as a DataFrame with a row for each rank; needs pandas."""
        import pandas

        return pandas.DataFrame(self.scores).set_index("rank")

    def __repr__(self) -> str:
        return "\n".join([format_table(self._list_rows()), *self._explain()])

    def _repr_html_(self) -> str:
        """Return the same table and rule for a notebook."""
        return make_text_table(self._list_rows()) + make_paragraphs(self._explain())

    def _list_rows(self) -> list[list[str]]:
        """Return the scores as texts, headings first."""
        head = ["rank", self._error, "held-out loss (se)", "core consistency", "match", "runs", ""]
        rows = [head]
        for score, errors in zip(self.scores, self.errors, strict=True):
            core = f"{score.core_consistency:.0f}"
            if score.core_consistency < _LEAST_SHOWN:
                core = f"< {_LEAST_SHOWN}"
            rows.append(
                [
                    str(score.rank),
                    f"{score.error:.4f}",
                    f"{score.heldout_loss:.4f} ({score.heldout_se:.4f})",
                    core,
                    f"{score.match:.2f}",
                    str(len(errors)),
                    "<- suggested" if score.rank == self.rank else "",
                ]
            )
        return rows

    def _explain(self) -> list[str]:
        """Return why the rank is suggested, if one is; warnings were shown when they arose."""
        if self.rank is None:
            return []
        doubts = "; see .warnings for what speaks against it" if self.warnings else ""
        return [f"rank {self.rank} is {self.rule}{doubts}"]

    def plot(self) -> np.ndarray:
        """Draw the scores of all ranks, with the suggested one dashed.

        Returns
        -------
        array (4,) of matplotlib.axes.Axes
            The error, with those of all runs in gray; the held-out loss with its standard errors;
            the core consistency, where values below -50 are drawn at -50; the match of the runs.
            They are in one figure of pyplot, which a notebook shows.

        Raises
        ------
        ImportError
            If Matplotlib is missing.

        Examples
        --------
        >>> import matplotlib, tensorly as tl
        >>> from tensorly_flycoo import select_rank
        >>> from tensorly_flycoo.testing import planted_tensor
        >>> matplotlib.use("agg")
        >>> x, _ = planted_tensor((20, 30, 40), 2, nnz_per_component=300, noise=0.1, random_state=0)
        >>> with tl.backend_context("flycoo"):
        ...     selection = select_rank(x, range(1, 4), n_runs=3, random_state=0)
        >>> axes = selection.plot()
        >>> [panel.get_title(loc="left") for panel in axes[1:]]
        ['held-out loss, with standard errors', 'core consistency, %', 'match of the runs']
        """
        pyplot = require("matplotlib.pyplot", "plot needs Matplotlib: pip install matplotlib")
        figure, grid = pyplot.subplots(2, 2, sharex=True, figsize=(9, 6), layout="constrained")
        panels = grid.ravel()
        error_axes, loss_axes, core_axes, match_axes = panels
        places = self._place_ranks()
        self._draw_errors(error_axes, places)
        self._draw_losses(loss_axes, places)
        self._draw_cores(core_axes, places)
        _draw_scores(match_axes, "match of the runs", places, self._list("match"))
        match_axes.set_ylim(-0.03, 1.05)
        for axes in (core_axes, match_axes):
            axes.set_xlabel("rank")
        self._name_ranks(core_axes, places)  # axes share it
        if self.rank is not None:
            suggested = places[self._list("rank").index(self.rank)]
            for axes in panels:
                axes.axvline(suggested, color="C1", linestyle="--", linewidth=1, zorder=0)
            figure.suptitle(f"Suggested rank: {self.rank} (dashed)", fontsize=11)
        return np.asarray(panels)

    def _list(self, name: str) -> list[Any]:
        """List one score of all ranks."""
        return [getattr(score, name) for score in self.scores]

    def _place_ranks(self) -> Sequence[int]:
        """Return the places of ranks on an axis: tuples stand side by side."""
        ranks = self._list("rank")
        if all(np.ndim(rank) == 0 for rank in ranks):
            return ranks
        return range(len(ranks))

    def _name_ranks(self, axes: "Axes", places: Sequence[int]) -> None:
        """Name the ranks on an axis, or only some integers if they are many."""
        ranks = self._list("rank")
        if places == ranks:
            ticker = require("matplotlib.ticker", "plot needs Matplotlib: pip install matplotlib")
            axes.xaxis.set_major_locator(ticker.MaxNLocator(_MAX_TICKS, integer=True))
        else:
            axes.set_xticks(places, [str(rank) for rank in ranks])
        axes.set_xlim(min(places) - 0.5, max(places) + 0.5)

    def _draw_errors(self, axes: "Axes", places: Sequence[int]) -> None:
        """Draw the errors of the models, and those of all runs as dots."""
        runs = "runs without the held-out entries"
        if self.rank is None:
            runs = "all runs"
        _draw_scores(axes, f"{self._error} (gray: {runs})", places, self._list("error"))
        for place, errors in zip(places, self.errors, strict=True):
            axes.plot([place] * len(errors), errors, ".", color="0.7", zorder=0)

    def _draw_losses(self, axes: "Axes", places: Sequence[int]) -> None:
        """Draw the held-out losses with bars of one standard error."""
        losses = self._list("heldout_loss")
        _draw_scores(axes, "held-out loss, with standard errors", places, losses)
        axes.errorbar(places, losses, self._list("heldout_se"), fmt="none", ecolor="C0")

    def _draw_cores(self, axes: "Axes", places: Sequence[int]) -> None:
        """Draw the core consistencies, cut where they are hugely negative."""
        cores = np.array(self._list("core_consistency"))
        title = "core consistency, %"
        if (cores < _LEAST_DRAWN).any():
            title += f" (cut at {_LEAST_DRAWN})"
        _draw_scores(axes, title, places, np.maximum(cores, _LEAST_DRAWN))
        axes.set_ylim(_LEAST_DRAWN - 5, 105)


def _draw_scores(axes: "Axes", title: str, places: Sequence[int], values: Sequence[float]) -> None:
    """Draw one score of each rank as a line with markers."""
    axes.plot(places, values, marker="o", color="C0")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)

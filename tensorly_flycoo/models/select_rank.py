"""Compare CP models of several ranks."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tensorly.cp_tensor import CPTensor

from .. import decomposition
from ..array_modules import move
from ..checks import check_count, check_rank, num_cells
from ..decomposition.cp_fit import cp_fit
from ..decomposition.labelled_cp import label_result
from ..decomposition.losses import check_exact
from ..ops.sampling import make_sampler
from ..tensor.coo_cache import as_flycoo
from ..tensor.labelled import LabelledTensor
from ..tensor.pieces import sum_values
from ..tensor.tensor import FlycooTensor
from .best_of import Starts, as_random_state, best_of, name_of
from .core_consistency import core_consistency

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from sparse import SparseArray

#: The suggested rank's held-out loss may be this much above the least, relative to that. On 48
#: planted tensors (ranks 3 to 5, noise of 10 % to 30 %), 0, 3, 5 and 10 % found 27, 43, 46 and 47
#: of the ranks.
_TOLERANCE = 0.05

#: The decompositions that return a CP model.
CP_METHODS = (
    "parafac",
    "non_negative_parafac",
    "non_negative_parafac_hals",
    "constrained_parafac",
    "randomised_parafac",
    "observed_parafac",
    "generalized_parafac",
)

#: With counts, held-out entries are compared with the model plus this part of the mean count. A
#: model that calls a held-out count impossible would be infinitely bad otherwise.
_FLOOR = 1e-3

#: Core consistency is left out if it would take more operations than this.
_MAX_CORE_OPERATIONS = 10**10


class RankScore(NamedTuple):
    """How well the CP model of one rank does; nan stands for a score that was not computed.

    Attributes
    ----------
    rank : int
    error : float
        The relative error of the best run; of `generalized_parafac`, the loss F.
    heldout_loss : float
        The norm of the residual at the held-out entries, relative to the norm of their values, for
        a model that was fitted without them. Of ``loss="poisson_count"``, the share of their
        deviance that the model, plus a thousandth of the mean count, does not explain.
    core_consistency : float
        Of the best run; at most 100. See `core_consistency`.
    match : float
        The mean factor match score of the other runs with the best one; see `factor_match_score`.
    """

    rank: int
    error: float
    heldout_loss: float
    core_consistency: float
    match: float


@dataclass(frozen=True)
class RankSelection:
    """What `select_rank` returns.

    Attributes
    ----------
    scores : list of RankScore
        In ascending order of the ranks.
    errors : list of array (n_runs,)
        For each rank, the relative errors of all runs.
    models : list of CPTensor
        For each rank, the best run.
    rank : int or None
        The suggested rank; None if no entries were held out.
    """

    scores: list[RankScore]
    errors: list[np.ndarray]
    models: list[CPTensor]
    rank: int | None

    @property
    def best(self) -> CPTensor:
        """The model of the suggested rank."""
        if self.rank is None:
            raise ValueError("no rank is suggested without held-out entries: choose from .models")
        return self.models[[score.rank for score in self.scores].index(self.rank)]

    @property
    def table(self) -> "DataFrame | list[dict[str, Any]]":
        """The scores as a DataFrame with a row for each rank; without pandas, a list of dicts."""
        records = [score._asdict() for score in self.scores]
        try:
            from pandas import DataFrame
        except ImportError:
            return records
        return DataFrame(records).set_index("rank")

    def __repr__(self) -> str:
        lines = ["rank     error  held-out loss  core consistency  match"]
        for score in self.scores:
            mark = "  <- suggested" if score.rank == self.rank else ""
            core = f"{max(score.core_consistency, -999):.0f}"
            text = f"{score.rank:4} {score.error:9.4f}  {score.heldout_loss:13.4f}  {core:>16}"
            lines.append(f"{text}  {score.match:5.2f}{mark}")
        return "\n".join(lines)

    def plot(self) -> "Figure":
        """Draw the scores of all ranks, with the suggested one marked.

        Returns
        -------
        matplotlib.figure.Figure
            ``figure.savefig(path)`` writes it; a notebook shows it.

        Raises
        ------
        ImportError
            If Matplotlib is not installed.
        """
        from .rank_plot import draw_scores

        return draw_scores(self.scores, self.errors, self.rank)


def select_rank(
    x: "FlycooTensor | LabelledTensor | SparseArray",
    ranks: Iterable[int],
    n_runs: int = 20,
    method: str | Callable[..., Any] = "parafac",
    holdout: float = 0.05,
    random_state: int | np.random.RandomState | None = None,
    **options: Any,
) -> RankSelection:
    """Fit CP models of several ranks to a sparse tensor, score them, and suggest a rank.

    For each rank, `best_of` finds the best of several runs. From there a model is fitted without
    some held-out entries, which it has to predict: a share of the nonzeros, and as many cells,
    nearly all zeros, whose indices are drawn from those of the nonzeros.

    The suggested rank is the lowest one whose held-out loss is within 5 % of the least. The other
    scores are for your own judgement. A core consistency near 100 says that components do not
    interact; a match near 1 says that all starts find the same components. Both usually fall above
    the right rank.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
    ranks : iterable of int
    n_runs : int
        Starts for each rank.
    method : str or callable
        A CP decomposition with the parameters `random_state` and `init`: the name of a function of
        `tensorly_flycoo.decomposition`, or a function. To hold entries out it needs `mask`:
        "parafac", "non_negative_parafac" and "generalized_parafac" (its losses "gaussian" and
        "poisson_count") have it.
    holdout : float
        The share of the nonzeros to hold out; 0 holds out nothing and suggests nothing.
    random_state : int or numpy.random.RandomState, optional
        Draws the held-out entries and the seeds of the runs, which are the same for each rank.
    **options
        For each run, such as `n_iter_max` and `tol`; but no `mask` if entries are held out.

    Returns
    -------
    RankSelection
        With the attributes `rank`, `best`, `table`, `scores`, `errors` and `models`, and the method
        `plot`.

    Raises
    ------
    RuntimeError
        If TensorLy's backend is not "flycoo", and the method needs that.
    TypeError
        If `x` is not sparse, `ranks` is a single number, a rank or `n_runs` is not an integer,
        `holdout` is not a number, an option is unknown, or `method` returns no CP model.
    ValueError
        If `ranks` is empty, a rank or `n_runs` is below 1, `holdout` is not in [0, 1), or `method`
        is unknown; or if entries are held out although `method` has no mask, or one is given.

    Notes
    -----
    The runs take most of the time: see `best_of`. The model without the held-out entries takes one
    more run. It starts from the best run's model, and its iterations forget what that model knew of
    these entries. (With counts it starts where the best run started.)
    Core consistency takes ``nnz * R**(ndim - 1)`` operations and is left out (nan) above ten
    billion. All models are kept. The same `random_state` gives the same result on one machine.

    References
    ----------
    Papalexakis, "Automatic unsupervised tensor mining with quality assessment", SDM 2016. Bro and
    Kiers, "A new efficient method for determining the number of components in PARAFAC models",
    Journal of Chemometrics 17, 2003.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo import select_rank
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((20, 30, 40), 2, nnz_per_component=300, noise=0.1, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     selection = select_rank(x, range(1, 4), n_runs=3, random_state=0)
    >>> selection.rank, selection.best.rank
    (2, 2)
    """
    labels = x.labels if isinstance(x, LabelledTensor) else None
    x, ranks = as_flycoo(x, check_coords=True), _check_ranks(ranks)
    function = _find_method(method)
    _check_holdout(x, holdout, function, options)
    check_count(n_runs, "n_runs")
    options.pop("return_errors", None)  # best_of takes them in any case
    random = as_random_state(random_state)
    seed = random.randint(2**31 - 1)
    mask = _hold_out(x, holdout, random) if holdout else None
    scores, errors, models = [], [], []
    for rank in ranks:
        starts = best_of(function, x, rank, n_runs, seed, **options)
        best, loss = starts.best, float("nan")
        if not isinstance(best, CPTensor):
            raise TypeError(
                f"{name_of(function)} returns a {type(best).__name__}, expected a CP decomposition"
            )
        if mask is not None:
            start = _choose_start(starts, loss_of(function, options))
            model = function(x, rank, **{**options, "mask": mask, **start})
            loss = _measure(x, model, mask, loss_of(function, options))
        core = _find_core_consistency(x, best)
        least = float(starts.final_errors.min())
        scores.append(RankScore(rank, least, loss, core, starts.match))
        errors.append(starts.final_errors)
        models.append(best if labels is None else label_result(best, labels))
    return RankSelection(scores, errors, models, _suggest(scores))


def _check_ranks(ranks: Iterable[int]) -> list[int]:
    if not isinstance(ranks, Iterable):
        raise TypeError(f"ranks is {ranks!r}, expected several integers, such as range(1, 11)")
    checked = sorted({check_rank(rank) for rank in ranks})
    if not checked:
        raise ValueError("ranks is empty, expected at least one rank")
    return checked


def _find_method(method: str | Callable[..., Any]) -> Callable[..., Any]:
    if callable(method):
        return method
    if method not in CP_METHODS:
        raise ValueError(f"method is {method!r}, expected one of {CP_METHODS}, or a function")
    function: Callable[..., Any] = getattr(decomposition, method)
    return function


def _check_holdout(
    x: FlycooTensor, holdout: Any, method: Callable[..., Any], options: Mapping[str, Any]
) -> None:
    if not isinstance(holdout, int | float | np.number) or isinstance(holdout, bool):
        raise TypeError(f"holdout is {holdout!r}, expected a number from 0 to below 1")
    if not 0 <= holdout < 1:
        raise ValueError(f"holdout is {holdout}, expected a number from 0 to below 1")
    if holdout and "mask" not in inspect.signature(method).parameters:
        raise ValueError(
            f"{name_of(method)} has no mask, so nothing can be held out: pass holdout=0, or the "
            "method 'parafac' or 'non_negative_parafac'"
        )
    if holdout:
        check_exact(loss_of(method, options), " to hold entries out: pass holdout=0")
    if holdout and options.get("mask") is not None:
        raise ValueError("mask is given, but select_rank holds entries out itself: pass holdout=0")
    if holdout and x.nnz == 0:
        raise ValueError("x has no nonzeros, expected some to hold out: pass holdout=0")


def loss_of(method: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return the loss that a decomposition minimises.

    Examples
    --------
    >>> loss_of(decomposition.parafac, {}), loss_of(decomposition.generalized_parafac, {})
    ('gaussian', 'poisson_count')
    """
    parameter = inspect.signature(method).parameters.get("loss")
    return "gaussian" if parameter is None else options.get("loss", parameter.default)


def _choose_start(starts: Starts, loss: Any) -> dict[str, Any]:
    """Return where the run without the held-out entries starts: from the best model.

    Updates for counts are too slow to forget what that model knew of the entries, and start as its
    run did.
    """
    if loss == "gaussian":
        return {"init": starts.best}
    return {"init": "random", "random_state": starts.seeds[starts.best_number]}


def _measure(x: FlycooTensor, model: CPTensor, mask: Any, loss: str) -> float:
    """Compute the held-out loss of a model."""
    if loss == "gaussian":
        return cp_fit(x, model, mask=mask).relative_error
    weights, factors = model
    xp = x._engine.xp
    mean = sum_values(x._layout, x._engine) / num_cells(x.shape)
    floor = xp.full(1, _FLOOR * mean, x.dtype)
    raised = [
        xp.concatenate([factor, xp.ones((factor.shape[0], 1), x.dtype)], axis=1)
        for factor in factors
    ]
    fit = cp_fit(x, (xp.concatenate([weights, floor]), raised), mask=mask, loss="poisson_count")
    return 1 - fit.explained


def _hold_out(x: FlycooTensor, share: float, random: np.random.RandomState) -> Any:
    """Mask a share of the nonzeros, and as many cells whose indices come from separate nonzeros."""
    import sparse

    count = max(1, round(share * x.nnz))
    numbers = random.choice(x.nnz, count, replace=False)
    others = random.randint(x.nnz, size=(x.ndim, count))
    places = x._engine.xp.asarray(np.append(numbers, others))
    coords = move(make_sampler(x).take(places)[0], np).reshape(x.ndim, 1 + x.ndim, count)
    rows = [np.append(of[0], of[1 + mode]) for mode, of in enumerate(coords)]
    cells = np.unique(np.stack(rows), axis=1)  # sorted, as the mask has to be
    options = {"fill_value": 1.0, "sorted": True, "has_duplicates": False}
    return sparse.COO(cells, np.zeros(cells.shape[1]), x.shape, **options)


def _suggest(scores: Sequence[RankScore]) -> int | None:
    """Return the lowest rank whose held-out loss is near the least; None without any.

    Examples
    --------
    >>> losses = {1: 0.8, 2: 0.21, 3: 0.2, 4: 0.3}
    >>> _suggest([RankScore(rank, 0.1, loss, 100.0, 1.0) for rank, loss in losses.items()])
    2
    """
    least = min((score.heldout_loss for score in scores), default=float("nan"))
    near = [score.rank for score in scores if score.heldout_loss <= (1 + _TOLERANCE) * least]
    return min(near, default=None)


def _find_core_consistency(x: FlycooTensor, model: CPTensor) -> float:
    num_operations = x.nnz * model.rank ** (x.ndim - 1)
    is_possible = x.ndim > 1 and num_operations <= _MAX_CORE_OPERATIONS
    return core_consistency(x, model) if is_possible else float("nan")

"""Replicability: a model's components, sought again in other parts of the data."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.checks import check_count, check_mode
from ..base.reporting import report
from ..decomposition.methods import find_method
from ..tensor.coo_cache import as_flycoo
from ..tensor.labelled import LabelledTensor, Labels, number_modes
from ..tensor.mirroring import mirror
from .best_of import best_of
from .match import factor_match_score


@dataclass(frozen=True)
class Replicability:
    """The models of several subsets of a tensor, and how alike they are.

    Attributes
    ----------
    scores : array (n_folds * (n_folds - 1) / 2,)
        The factor match scores of all pairs of models, without weights and the split mode.
    models : list of CPTensor
        The best model of each subset.
    rows : list of array
        The rows of the split mode that each subset has, ascending.
    """

    scores: np.ndarray
    models: list[CPTensor]
    rows: list[np.ndarray]

    def __repr__(self) -> str:
        numbers = f"match {self.scores.mean():.3f}, at least {self.scores.min():.3f}"
        return f"<Replicability of rank {self.models[0].rank}: {len(self.models)} folds, {numbers}>"


@mirror
def replicability(
    x: Any,
    rank: int,
    mode: int | str,
    n_folds: int = 5,
    n_starts: int = 10,
    method: str | Callable[..., Any] = "parafac",
    random_state: int | np.random.RandomState | None = None,
    **options: Any,
) -> Replicability:
    """Fit CP models to subsets of a mode's rows, and compare their factors of the other modes.

    The rows of a mode, such as days, are divided at random into folds. A subset is all rows but
    those of one fold; with two folds, subsets are halves. If the components are in the data, the
    scores are near 1 (tlviz's examples ask for 0.9); one too many fits the noise of each subset.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
        The models of a LabelledTensor are `LabelledCP`.
    rank : int
    mode : int or str
        Its name, if `x` is a LabelledTensor, or its number.
    n_folds : int
    n_starts : int
        Random starts for each subset; the one with the least error counts.
    method : str or callable
        A CP decomposition with a `random_state`: the name of a function of
        `tensorly_flycoo.decomposition`, or a function.
    random_state : int or numpy.random.RandomState, optional
        Draws the folds and the starts.
    **options
        For `best_of`, such as `n_iter_max`, or a `mask` of `x`, of which each subset gets its rows.

    Returns
    -------
    Replicability

    Raises
    ------
    TypeError
        If `x` is not sparse, a number is not an integer, or `method` returns no CP model.
    ValueError
        If `x` has one mode, `mode` or `method` is unknown, or `n_folds` is out of range. Other
        errors are those of `best_of`, also if a subset has no nonzeros.

    Notes
    -----
    Takes `n_folds` calls of `best_of`, for each of which a tensor is built. A `random_state` gives
    the same result every time on one machine.

    References
    ----------
    Adali, Kantar, Akhonda, Strother, Calhoun and Acar, "Reproducibility in matrix and tensor
    decompositions", IEEE Signal Processing Magazine 39, 2022.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo import replicability
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((20, 30, 40), 2, nnz_per_component=300, noise=0.1, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     results = [replicability(x, rank, mode=2, random_state=0) for rank in (2, 3)]
    >>> [bool(result.scores.min() > 0.9) for result in results]
    [True, False]
    """
    labels = x.labels if isinstance(x, LabelledTensor) else None
    options, mode = number_modes(x, options), number_modes(x, mode)
    mask = options.get("mask")
    x, solver = as_flycoo(x, check_coords=True), find_method(method)
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}, expected two modes or more")
    mode = check_mode(mode, x.ndim)
    size, n_folds = x.shape[mode], check_count(n_folds, "n_folds", least=2)
    if n_folds > size:
        raise ValueError(f"n_folds is {n_folds}, expected at most {size}, the size of mode {mode}")
    random = tl.check_random_state(random_state)
    folds = np.array_split(random.permutation(size), n_folds)
    rows, models = [np.setdiff1d(np.arange(size), fold) for fold in folds], []
    for number, kept in enumerate(rows):
        report(f"fold {number + 1} of {n_folds}: {n_starts} runs")
        places = (*[slice(None)] * mode, kept)
        subset: Any = x[places]
        if mask is not None and mask.shape[mode : mode + 1] == (size,):  # else for all rows
            options["mask"] = mask[places]
        if labels is not None:
            name = [*labels][mode]
            own = labels | {name: labels[name][kept]}
            subset = LabelledTensor(subset, Labels(own, labels.ordered))
        starts = best_of(solver.function, subset, rank, n_starts, random, **options)
        if starts.matches is None:
            raise TypeError(f"{solver.name} returns no CP model, expected a CP decomposition")
        models.append(starts.best)
    others = [(None, [*cp.factors[:mode], *cp.factors[mode + 1 :]]) for cp in models]
    scores = [factor_match_score(*pair, consider_weights=False) for pair in combinations(others, 2)]
    return Replicability(np.array(scores), models, rows)

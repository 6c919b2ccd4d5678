"""Replicability: a model's components, sought again in other parts of the data."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import Parafac2Tensor

from ..base.array_modules import Array
from ..base.checks import check_count, check_mode
from ..base.reporting import report
from ..decomposition.methods import CP_METHODS, find_method
from ..loop.unknown_cells import forget_unknown, obey_unknown
from ..ops.ragged import RaggedTensor
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import mirror
from ..tensor.labelled import LabelledTensor, Labels, number_modes
from ..tensor.tensor import FlycooTensor
from .best_of import best_of, refuse_progress
from .match import factor_match_score


@dataclass(frozen=True)
class Replicability:
    """The models of several subsets of a tensor, and how alike they are.

    Attributes
    ----------
    scores : array (n_folds * (n_folds - 1) / 2,)
        The factor match scores of all pairs of models, without weights and the split mode; of
        PARAFAC2 models those of C alone.
    models : list of CPTensor or Parafac2Tensor
        The best model of each subset.
    rows : list of array
        The rows of the split mode, or the slices, that each subset has, ascending.
    """

    scores: np.ndarray
    models: list[Any]
    rows: list[np.ndarray]

    def __repr__(self) -> str:
        rank = self.models[0].rank
        match = f"match {self.scores.mean():.3f}, at least {self.scores.min():.3f}"
        return f"<Replicability of rank {rank}: {len(self.models)} folds, {match}>"


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
    """Fit models to subsets of a mode's rows, and compare their factors of the other modes.

    The rows of a mode, such as days, are divided at random into folds. A subset is all rows but
    those of one fold; with two folds, subsets are halves. If the components are in the data, the
    scores are near 1 (tlviz's examples ask for 0.9); one too many fits the noise of each subset.

    With "parafac2" the slices, such as patients, are divided, and the factors C are compared: rows
    of A and projections are of slices, of which each subset has others, and B turns with them. The
    score of one factor is higher by chance than that of several.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO, for "parafac2" also slices
        The models of a LabelledTensor are `LabelledCP`; a `RaggedTensor` may have labels too.
    rank : int
    mode : int or str
        Its name, if `x` has labels, or its number; 0 for "parafac2".
    n_folds : int
    n_starts : int
        Random starts for each subset; the one with the least error counts.
    method : str or callable
        A CP decomposition with a `random_state`: the name of a function of
        `tensorly_flycoo.decomposition`, or a function. Or "parafac2".
    random_state : int or numpy.random.RandomState, optional
        Draws the folds and the starts.
    **options
        For `best_of`, such as `n_iter_max`, or a `mask` of `x`, of which each subset gets its rows
        or slices, as it does of the cells that `x` knows as unknown.

    Returns
    -------
    Replicability

    Raises
    ------
    TypeError
        If `x` is not sparse, a number is not an integer, or `method` returns no CP or PARAFAC2
        model.
    ValueError
        If `x` has one mode, `mode` or `method` is unknown, `mode` is not 0 for "parafac2", a `mask`
        has not one part for each slice, or `n_folds` is out of range. Other errors are those of
        `best_of`, also if a subset has no nonzeros.

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
    refuse_progress("replicability", options)
    solver = find_method(method, known=(*CP_METHODS, "parafac2"))
    options = obey_unknown(x, solver.name, solver.defaults, number_modes(x, options))
    mask = options.pop("mask", None)
    read = _read_slices if solver.model == "PARAFAC2" else _read_rows
    data: _Rows | _Slices = read(x, number_modes(x, mode), mask)
    n_folds = check_count(n_folds, "n_folds", least=2)
    if n_folds > data.size:
        raise ValueError(
            f"n_folds is {n_folds}, expected at most {data.size}, the size of mode {data.mode}"
        )
    random = tl.check_random_state(random_state)
    folds = np.array_split(random.permutation(data.size), n_folds)
    rows = [np.setdiff1d(np.arange(data.size), fold) for fold in folds]
    models = []
    for number, rows_of_fold in enumerate(rows, 1):
        report(f"fold {number} of {n_folds}: {n_starts} runs")
        subset = data.take(rows_of_fold)
        mask_of_subset = data.take_mask(rows_of_fold)
        if mask_of_subset is not None:
            options["mask"] = mask_of_subset
        starts = best_of(solver.function, subset, rank, n_starts, random, **options)
        if starts.matches is None and not isinstance(starts.best, Parafac2Tensor):
            raise TypeError(f"{solver.name} returns no CP model, expected a CP decomposition")
        models.append(starts.best)
    comparable = [(None, _list_common_factors(model, data.mode)) for model in models]
    scores = [
        factor_match_score(first, second, consider_weights=False)
        for first, second in combinations(comparable, 2)
    ]
    return Replicability(np.array(scores), models, rows)


@dataclass(frozen=True)
class _Rows:
    """A sparse tensor, of whose mode some rows can be taken."""

    x: FlycooTensor
    mode: int
    mask: Any
    labels: Labels | None

    @property
    def size(self) -> int:
        return self.x.shape[self.mode]

    def take(self, rows: np.ndarray) -> Any:
        """Return a tensor of some rows, with their labels if there are any."""
        subset: Any = self.x[self._index(rows)]
        if self.labels is None:
            return subset
        name = [*self.labels][self.mode]
        labels = self.labels | {name: self.labels[name][rows]}
        return LabelledTensor(subset, Labels(labels, self.labels.ordered))

    def take_mask(self, rows: np.ndarray) -> Any:
        """Return the mask of some rows; one of size 1 in the mode is for all rows."""
        mask = self.mask
        if mask is None or mask.shape[self.mode : self.mode + 1] != (self.size,):
            return mask
        return mask[self._index(rows)]

    def _index(self, rows: np.ndarray) -> tuple[Any, ...]:
        return (*[slice(None)] * self.mode, rows)


@dataclass(frozen=True)
class _Slices:
    """Slices, of which some can be taken; they have their labels themselves."""

    x: RaggedTensor
    mask: Any  # a list with a mask for each slice, or None
    mode: int = 0

    @property
    def size(self) -> int:
        return self.x.shape[0]

    def take(self, slices: np.ndarray) -> RaggedTensor:
        return self.x.take_slices(slices)

    def take_mask(self, slices: np.ndarray) -> Any:
        if self.mask is None:
            return None
        return [self.mask[k] for k in slices]


def _read_rows(data: Any, mode: int, mask: Any) -> _Rows:
    """Return the rows of a mode of a sparse tensor, or refuse a mode that it does not have."""
    labels = data.labels if isinstance(data, LabelledTensor) else None
    x = as_flycoo(data, check_coords=True)
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}, expected two modes or more")
    return _Rows(x, check_mode(mode, x.ndim), mask, labels)


def _read_slices(data: Any, mode: int, mask: Any) -> _Slices:
    """Return slices, or refuse another mode and a mask of others."""
    x = data
    if not isinstance(x, RaggedTensor):
        x = RaggedTensor(forget_unknown(data))
    if check_mode(mode, 3) != 0:
        raise ValueError(f"mode is {mode}, expected 0 for parafac2: slices can be left out")
    if mask is not None and len(mask) != x.shape[0]:
        raise ValueError(f"mask has {len(mask)} slices, expected {x.shape[0]}")
    return _Slices(x, mask)


def _list_common_factors(model: CPTensor | Parafac2Tensor, mode: int) -> list[Array]:
    """Return the factors that models of other rows have too."""
    if isinstance(model, Parafac2Tensor):
        return [model.factors[2]]
    return [*model.factors[:mode], *model.factors[mode + 1 :]]

"""CP decompositions of sparse tensors as an estimator in scikit-learn's style."""

import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from types import FrameType
from typing import Any, NamedTuple, Self

import numpy as np
import tensorly as tl

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_choice, check_real
from ..decomposition.methods import CP_METHODS, METHODS, find_method
from ..loop.holding_out import count_share, hold_out
from ..loop.losses import EXACT_LOSSES
from ..loop.masks import drop_missing, find_missing
from ..loop.unknown_cells import find_unknown
from ..results.counts import CountFit
from ..results.cp_fit import cp_fit
from ..results.fold_in import fold_in
from ..tensor.cells import find_places
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.unknown import make_mask
from .best_of import best_of, run_once


@dataclass(eq=False)
class FlycooCP:
    """A CP decomposition of a sparse tensor that scikit-learn can clone and search.

    It does not import scikit-learn.

    Parameters
    ----------
    rank : int
        May be left out where a search sets it.
    method : str or callable
        A CP decomposition of `tensorly_flycoo.decomposition`, by its name, or another function.
    n_iter_max : int
    init : {"random", "svd", CPTensor}
        With "random", the best of `n_starts` runs is kept: see `best_of`.
    n_starts : int
        Only for ``init="random"``.
    tol : float
    random_state : int or numpy.random.RandomState, optional
    mask : sparse.COO, optional
        The entries to hold out, as for `parafac`; `fit` does not read their values, and `score`
        compares only these; with "observed_parafac" only those that are stored.
    holdout : float, optional
        Instead of a mask, the share of the nonzeros to hold out, with as many cells whose indices
        are drawn from theirs, nearly all zeros; with "observed_parafac" nonzeros alone. They depend
        on the tensor only, so that all models of a search are judged by the same entries.
    options : dict, optional
        Further options of the decomposition.

    Attributes
    ----------
    cp_tensor_ : CPTensor
        The model; a `LabelledCP` of a `LabelledTensor`.
    errors_ : list of float
        The relative error after each iteration.

    Notes
    -----
    Folds of the rows of a tensor cannot choose a rank: the rows of one fold say nothing about the
    factor rows of another, so `score` takes only the tensor of `fit`. Hold out single entries by
    `holdout` or `mask` instead, and give `GridSearchCV` the tensor as its only sample, ``[x]``, in
    one fold, as in the example; anything else is refused in a search. (A pipeline that ends in
    another estimator may take folds of rows.) Outside of a search, without held-out entries, the
    score is the fit, which grows with the rank. The best model of a search does
    not know the held-out entries either: fit another one, of its rank, without `holdout`. A search
    takes the best score, though it be so by chance: `select_rank` prefers a lower rank as good.

    `fit` runs under TensorLy's backend "flycoo" whatever the current one is, so also in the
    processes of ``n_jobs=2``.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooCP
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((20, 20, 20), 2, 300, noise=0.1, random_state=0)
    >>> FlycooCP(2, random_state=0).fit(x).score(x) > 0.85
    True

    The best of three ranks, judged by a fifth of the nonzeros and as many zeros:

    >>> from sklearn.model_selection import GridSearchCV
    >>> estimator = FlycooCP(holdout=0.2, random_state=0)
    >>> search = GridSearchCV(estimator, {"rank": [1, 2, 3]}, cv=[([0], [0])]).fit([x])
    >>> search.best_params_
    {'rank': 2}
    """

    rank: int | None = None
    _: KW_ONLY
    method: str | Callable[..., Any] = "parafac"
    n_iter_max: int = 100
    init: Any = "random"
    n_starts: int = 5
    tol: float = 1e-8
    random_state: Any = None
    mask: Mask = None
    holdout: float | None = None
    options: dict[str, Any] | None = None

    def fit(self, x: LabelledData, y: None = None) -> Self:
        """Decompose a sparse tensor, or the only one in a list, and return the estimator.

        Raises
        ------
        ValueError
            If there is no CP decomposition `method` or it can hold nothing out, `holdout` is not
            above 0 and below 1 or comes with a `mask`, or the score of a search would judge
            nothing: it passes parts of a tensor, or there is neither a `mask` nor a `holdout`.
            Other errors are the decomposition's.
        """
        self._check_parameters()
        self._check_search(x)
        x = _take_only(x)
        origin = _describe(x)
        self.cp_tensor_, self.errors_ = self._fit(x)
        self._origin = origin
        return self

    @property
    def _holds_out(self) -> bool:
        """Whether entries are held out, which `score` compares with the model."""
        return self.mask is not None or self.holdout is not None

    def _check_parameters(self) -> None:
        """Refuse parameters that do not go together."""
        if self.rank is None:
            raise ValueError("rank is None, expected an integer, or a search that sets it")
        method = find_method(self.method)
        if self._holds_out and not method.can_hold_out:
            suitable = [name for name in CP_METHODS if METHODS[name].can_hold_out]
            raise ValueError(f"method is {method.name!r}, expected one of {suitable} to hold out")
        if self.holdout is None:
            return
        check_real(self.holdout, "holdout", 0)
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout is {self.holdout!r}, expected a number between 0 and 1")
        if self.mask is not None:
            raise ValueError("holdout comes with a mask, expected one of them")

    def _check_search(self, x: Any) -> None:
        """Refuse a search whose scores would say nothing."""
        # A search of scikit-learn divides its x into folds: ``[x]`` is one fold, the whole tensor.
        is_listed = type(x) is list and len(x) == 1
        if is_listed and not self._holds_out:
            raise ValueError(
                "mask and holdout are None: a search would score the entries of the fit, which the "
                "highest rank fits best; pass holdout=0.2, or a mask of the entries to hold out "
                "(if this is no search, x instead of [x])"
            )
        if not is_listed and _is_scored(self):
            raise ValueError(
                "x is a part of a tensor: folds of rows cannot judge a model of other rows; pass "
                "FlycooCP(holdout=0.2) and cv=[([0], [0])] to the search, and [x] to its fit"
            )

    @mirror
    def _fit(self, x: Any) -> tuple[Any, Any]:
        """Return the model and its errors, without the values of held-out entries."""
        method = find_method(self.method)
        options = {"tol": self.tol, "n_iter_max": self.n_iter_max, **(self.options or {})}
        mask = self._find_mask(x)
        if mask is not None:
            x = drop_missing(x, mask)
            if method.knows_zeros:  # else cells that are not stored are unknown already
                options["mask"] = mask
        is_random = isinstance(self.init, str) and self.init == "random"
        with tl.backend_context("flycoo", local_threadsafe=True):
            if is_random and self.n_starts != 1:
                starts = best_of(
                    method.function, x, self.rank, self.n_starts, self.random_state, **options
                )
                return starts.best, starts.errors[starts.best_number]
            options = method.prefer_momentum(x, options, one_by_one=True) | {"init": self.init}
            return run_once(method, x, self.rank, self.random_state, options)

    def fit_transform(self, x: Any, y: None = None) -> Any:
        """Fit the model, and return the factor rows of the first mode, as `transform` does."""
        return self.fit(x).transform(x)

    def score(self, x: LabelledData, y: None = None) -> float:
        """Return the model's fit, 1 - relative error, at the held-out entries if there are any.

        With ``loss="poisson_count"`` it is the share of the deviance that the model explains.

        Raises
        ------
        ValueError
            If `x` is not the tensor of `fit` (by its shape, number of nonzeros and norm), or the
            loss has no score. For other tensors there is `cp_fit`.
        """
        loss = find_method(self.method).find_loss(self.options or {})
        if loss not in EXACT_LOSSES:
            raise ValueError(f"loss is {loss!r}, which has no score")
        x = _take_only(x)
        origin = _describe(x)
        if not origin.is_like(self._origin) or not origin.has_norm_of(self._origin):
            raise ValueError(
                f"x has (shape, nonzeros, norm) {tuple(origin)}, expected {tuple(self._origin)}, "
                "the tensor of fit: folds of rows cannot judge a model of other rows; pass "
                "holdout=0.2 and in a search cv=[([0], [0])] and fit([x]), or call cp_fit"
            )
        mask = self._find_mask(x)
        held_out = None if mask is None else self._list_held_out(x, mask)
        fit = cp_fit(x, self.cp_tensor_, held_out=held_out, loss=loss)
        if isinstance(fit, CountFit):
            return fit.explained
        return fit.fit

    def _find_mask(self, x: LabelledData) -> Mask:
        """Return the mask, or the one of `holdout`: the same for equal tensors."""
        if self.holdout is None:
            return self.mask
        has_zeros = find_method(self.method).knows_zeros
        random = np.random.RandomState(0)
        plain = as_flycoo(x, check_coords=True)
        count = count_share(plain.nnz, self.holdout)
        coords = hold_out(plain, count, random, with_zeros=has_zeros)
        return make_mask(coords, plain.shape)

    def _list_held_out(self, x: LabelledData, mask: Mask) -> tuple[Array, Array]:
        """Return the coordinates and values of the entries that `fit` did not read."""
        missing = find_missing(x, mask, lists=True)
        if missing is None:
            raise ValueError("mask marks no entry as missing, expected at least one")
        is_judged = missing.start != 0
        if find_method(self.method).knows_zeros:  # zeros are judged too, but no unknown cells
            xp = array_module(missing.coords)
            is_judged = xp.ones(missing.count, bool)
            mask_of_x = find_unknown(x)
            unknown = None if mask_of_x is None else find_missing(x, mask_of_x, lists=True)
            if unknown is not None:
                is_unknown, _ = find_places(unknown.coords, missing.coords, xp)
                is_judged &= ~is_unknown
        return missing.coords[:, is_judged], missing.start[is_judged]

    def transform(self, x: LabelledData) -> Any:
        """Return a factor row for each index of the first mode of `x`: (I, R); see `fold_in`.

        An array, or a table if `set_output` says so, with the labels of `x` as its index.
        """
        x = _take_only(x)
        rows = fold_in(self.cp_tensor_, x, 0, mask=self._mask_rows(x))
        output = getattr(self, "_sklearn_output_config", {}).get("transform", "default")
        if output == "default":
            return rows
        columns = [*self.get_feature_names_out()]
        if output == "polars":
            import polars

            return polars.DataFrame(move(rows, np), columns)
        import pandas

        labels = getattr(x, "labels", {})
        index = next(iter(labels.values()), None)  # of the first mode
        return pandas.DataFrame(move(rows, np), index, columns)

    def _mask_rows(self, x: LabelledData) -> Any:
        """Return the mask for the rows to transform: of `fit` for its tensor, else an empty one."""
        if not find_method(self.method).knows_zeros:
            return None  # only what is stored is known
        if _describe(x).is_like(self._origin):
            mask = self._find_mask(x)
            if mask is not None:
                return mask
        return np.ones((1,) * x.ndim)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what `transform` returns, as scikit-learn's pipelines do.

        "pandas" or "polars" is a table, "default" an array; None leaves it as it is.
        """
        if transform is not None:
            check_choice(transform, "transform", ("default", "pandas", "polars"))
            self._sklearn_output_config = {"transform": transform}  # which `clone` copies
        return self

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return a name for each column of `transform`: "flycoocp0", "flycoocp1" and so on."""
        rank = self.cp_tensor_.weights.shape[0]
        return np.array([f"flycoocp{column}" for column in range(rank)], object)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, and return the estimator; a ValueError if one is unknown."""
        names = [*self.get_params()]
        for name, value in params.items():
            if name not in names:
                raise ValueError(f"FlycooCP has no parameter {name!r}, expected one of {names}")
            setattr(self, name, value)
        return self

    def __getattr__(self, name: str) -> Any:
        text = f"FlycooCP has no attribute {name!r}"
        if not name.startswith("__"):
            text += ": it comes with the first fit"
        raise AttributeError(text)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))


class _Origin(NamedTuple):
    """The facts by which the tensor of `fit` is recognised."""

    shape: tuple[int, ...]
    nnz: int
    norm: float

    def is_like(self, origin: "_Origin") -> bool:
        return self.shape == origin.shape and self.nnz == origin.nnz

    def has_norm_of(self, origin: "_Origin") -> bool:
        """Return whether the norms are the same but for rounding, as on another device."""
        return bool(np.isclose(self.norm, origin.norm, rtol=1e-5))


def _describe(x: Any) -> _Origin:
    """Return the facts by which a sparse tensor is recognised."""
    plain = as_flycoo(x, check_coords=True)
    return _Origin(plain.shape, plain.nnz, float(plain.norm()))


def _is_scored(estimator: FlycooCP) -> bool:
    """Return whether scikit-learn's model selection fits an estimator to score it.

    It gives parts of a tensor to `fit` as if they were tensors, and turns each error of `score` to
    nan and a warning, but raises those of `fit`. Nothing that it passes says so: only the stack of
    callers does. Where a pipeline ends in another estimator, such as a classifier of factor rows,
    that one is scored, which is right.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        is_selection = frame.f_globals.get("__name__", "").startswith("sklearn.model_selection")
        if is_selection and frame.f_locals.get("estimator") is estimator:
            return True
        frame = frame.f_back
    return False


def _take_only(x: Any) -> Any:
    """Return the only item of a list, in which a search passes the tensor."""
    if type(x) is list and len(x) == 1:
        return x[0]
    return x

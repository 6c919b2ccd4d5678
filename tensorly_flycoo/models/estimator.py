"""CP decompositions of sparse tensors as an estimator in scikit-learn's style."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
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

#: The share of the nonzeros that is held out where neither a mask nor `holdout` says which.
_SHARE = 0.2


@dataclass(eq=False)
class FlycooCP:
    """A CP decomposition of a sparse tensor that scikit-learn can clone and search.

    Samples are the indices of the first mode, features the components of their factor rows. It does
    not import scikit-learn.

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
    A search of scikit-learn takes a tensor as it takes a table, and divides its first mode into
    folds. Rows of one fold say nothing about those of another, so `score` holds out a fifth of the
    nonzeros of the tensor that it gets, and as many zeros. It finds factor rows by `transform` from
    the other entries, and compares what they predict with those held out. The best model of the
    search is then fitted to the whole tensor. A mode of few rows, or without new ones to come, is
    better not divided: give the search the whole tensor as its only sample, ``[x]``, in one fold,
    ``cv=[([0], [0])]``. Of ``[x]`` `fit` holds out a fifth itself, unless `mask` or `holdout` says
    which, and `score` judges these; then the best model does not know them either.

    Outside of a search, without held-out entries, the score of the tensor of `fit` is the fit,
    which grows with the rank. A search takes the best score, though it be so by chance:
    `select_rank` prefers a lower rank as good.

    `fit` runs under TensorLy's backend "flycoo" whatever the current one is, so also in the
    processes of ``n_jobs=2``.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooCP
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((20, 20, 20), 2, 300, noise=0.1, random_state=0)
    >>> FlycooCP(2, random_state=0).fit(x).score(x) > 0.85
    True

    The best of three ranks, by five folds of rows, or by a fifth of the nonzeros and as many zeros:

    >>> from sklearn.model_selection import GridSearchCV
    >>> estimator, ranks = FlycooCP(random_state=0), {"rank": [1, 2, 3]}
    >>> GridSearchCV(estimator, ranks).fit(x).best_params_
    {'rank': 2}
    >>> GridSearchCV(estimator, ranks, cv=[([0], [0])]).fit([x]).best_params_
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

        Of ``[x]`` a fifth of the nonzeros is held out, unless `mask` or `holdout` says which.

        Raises
        ------
        ValueError
            If there is no CP decomposition `method` or it can hold nothing out, or `holdout` is not
            above 0 and below 1 or comes with a `mask`. Other errors are the decomposition's.
        """
        share = self.holdout
        if share is None and self.mask is None and _is_listed(x):
            share = _SHARE
        self._check_parameters(share)
        x = _take_only(x)
        origin = _describe(x)
        self.cp_tensor_, self.errors_ = self._fit(x, share)
        self._origin = origin
        self._share = share
        return self

    def _check_parameters(self, share: float | None) -> None:
        """Refuse parameters that do not go together; `share` is that to hold out, if any."""
        if self.rank is None:
            raise ValueError("rank is None, expected an integer, or a search that sets it")
        method = find_method(self.method)
        holds_out = self.mask is not None or share is not None
        if holds_out and not method.can_hold_out:
            suitable = [name for name in CP_METHODS if METHODS[name].can_hold_out]
            raise ValueError(
                f"method is {method.name!r}, expected one of {suitable} to hold out entries of the "
                "tensor of fit, as for [x]; a search of x itself divides its first mode instead"
            )
        if self.holdout is None:
            return
        check_real(self.holdout, "holdout", 0)
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout is {self.holdout!r}, expected a number between 0 and 1")
        if self.mask is not None:
            raise ValueError("holdout comes with a mask, expected one of them")

    @mirror
    def _fit(self, x: Any, share: float | None) -> tuple[Any, Any]:
        """Return the model and its errors, without the values of held-out entries."""
        method = find_method(self.method)
        options = {"tol": self.tol, "n_iter_max": self.n_iter_max, **(self.options or {})}
        mask = self._find_mask(x, share)
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
        """Return the model's fit, 1 - relative error, at held-out entries.

        Of the tensor of `fit` (by its shape, number of nonzeros and norm) they are those that `fit`
        held out; all are compared if it held out none. Of another tensor, such as new rows, they
        are a fifth of the nonzeros, or `holdout`, and as many zeros: rows found from the other
        entries predict them. With ``loss="poisson_count"`` the score is the share of the deviance
        that the model explains.

        Raises
        ------
        ValueError
            If the loss has no score, or `fold_in` refuses the model or a tensor other than that of
            `fit`.
        NotFittedError
            Before a fit.
        """
        loss = find_method(self.method).find_loss(self.options or {})
        if loss not in EXACT_LOSSES:
            raise ValueError(f"loss is {loss!r}, which has no score")
        self._check_fitted()
        x = _take_only(x)
        model = self.cp_tensor_
        share = self._share
        is_new = not self._is_fitted_to(x)
        if is_new:
            share = share or _SHARE
        mask = self._find_mask(x, share)
        if is_new:
            model = self._replace_rows(x, mask)
        held_out = None if mask is None else self._list_held_out(x, mask)
        fit = cp_fit(x, model, held_out=held_out, loss=loss)
        if isinstance(fit, CountFit):
            return fit.explained
        return fit.fit

    def _is_fitted_to(self, x: LabelledData) -> bool:
        """Return whether a tensor is that of `fit`, by its facts."""
        origin = _describe(x)
        return origin.is_like(self._origin) and origin.has_norm_of(self._origin)

    def _replace_rows(self, x: LabelledData, mask: Mask) -> tuple[Array, list[Array]]:
        """Return the model with rows of `x` in its first mode, found without held-out entries."""
        rows = self._find_rows(drop_missing(x, mask), mask)
        return self.cp_tensor_.weights, [rows, *self.cp_tensor_.factors[1:]]

    def _find_mask(self, x: LabelledData, share: float | None) -> Mask:
        """Return the mask, or one of a share of the nonzeros: the same for equal tensors."""
        if self.mask is not None or share is None:
            return self.mask
        has_zeros = find_method(self.method).knows_zeros
        random = np.random.RandomState(0)
        plain = as_flycoo(x, check_coords=True)
        count = count_share(plain.nnz, share)
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
        self._check_fitted()
        x = _take_only(x)
        mask = None
        if _describe(x).is_like(self._origin):
            mask = self._find_mask(x, self._share)
        rows = self._find_rows(x, mask)
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

    def _find_rows(self, x: LabelledData, mask: Mask) -> Array:
        """Return factor rows of the first mode from all entries that `mask` does not mark."""
        if not find_method(self.method).knows_zeros:
            mask = None  # only what is stored is known
        elif mask is None:
            mask = np.ones((1,) * x.ndim)  # a mask of the fit is for its own rows
        return fold_in(self.cp_tensor_, x, 0, mask=mask)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what `transform` returns, as scikit-learn's pipelines do.

        "pandas" or "polars" is a table, "default" an array; None leaves it as it is.
        """
        if transform is not None:
            check_choice(transform, "transform", ("default", "pandas", "polars"))
            self._sklearn_output_config = {"transform": transform}  # which `clone` copies
        return self

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return a name for each column of `transform`: "flycoocp0", "flycoocp1" and so on.

        Raises NotFittedError before a fit.
        """
        self._check_fitted()
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

    def _check_fitted(self) -> None:
        """Raise scikit-learn's error, an AttributeError too, if there is no model yet."""
        if "cp_tensor_" in vars(self):
            return
        text = "this FlycooCP is not fitted yet: call fit first"
        try:
            from sklearn.exceptions import NotFittedError
        except ImportError:
            raise AttributeError(text) from None
        raise NotFittedError(text)

    def __getattr__(self, name: str) -> Any:
        text = f"FlycooCP has no attribute {name!r}"
        if not name.startswith("__"):
            text += ": it comes with the first fit"
        raise AttributeError(text)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
            input_tags=InputTags(two_d_array=False),  # no arrays, but sparse tensors
            no_validation=True,
        )


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


def _is_listed(x: Any) -> bool:
    """Return whether `x` is a list of one tensor, as a search takes it."""
    return type(x) is list and len(x) == 1


def _take_only(x: Any) -> Any:
    """Return the only item of a list, or whatever else as it is."""
    if _is_listed(x):
        return x[0]
    return x

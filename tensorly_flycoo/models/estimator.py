"""CP decompositions of sparse tensors as an estimator in scikit-learn's style."""

from typing import TYPE_CHECKING, Any, Self

from .. import decomposition
from ..decomposition.cp_fit import cp_fit
from .parameters import Parameters
from .select_rank import CP_METHODS, loss_of

if TYPE_CHECKING:
    from sparse import SparseArray

    from ..tensor.labelled import LabelledTensor
    from ..tensor.tensor import FlycooTensor


class FlycooCP(Parameters):
    """A CP decomposition of a sparse tensor that scikit-learn can clone and search.

    It has the methods that `sklearn.base.clone` and `GridSearchCV` need, and does not import
    scikit-learn.

    Parameters
    ----------
    rank : int
    method : str
        The name of a decomposition in `tensorly_flycoo.decomposition` that returns a CP model.
    n_iter_max : int
    init : {"random", "svd", CPTensor}
    tol : float
    random_state : int or numpy.random.RandomState, optional
    mask : sparse.COO, optional
        The entries to hold out, as for `parafac`; `score` compares only these.
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
    factor rows of another. Hold out single entries by `mask` instead, and give `GridSearchCV` the
    tensor as its only sample, ``[x]``, in one fold, as in the example. Without a mask the score is
    the fit, which grows with the rank.

    Under other backends than "flycoo", `parafac` raises a RuntimeError, and so does `fit`.

    Examples
    --------
    >>> import numpy as np, sparse, tensorly as tl
    >>> from tensorly_flycoo import FlycooCP
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((20, 20, 20), 2, 300, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     FlycooCP(2, random_state=0).fit(x).score(x) > 0.99
    True

    The better of two ranks, judged by a tenth of the nonzeros:

    >>> from sklearn.model_selection import GridSearchCV
    >>> coords, _ = x.nonzeros()
    >>> held_out = coords[:, ::10]
    >>> mask = sparse.COO(held_out, np.zeros(held_out.shape[1]), x.shape, fill_value=1.0)
    >>> estimator = FlycooCP(1, mask=mask, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     search = GridSearchCV(estimator, {"rank": [1, 2]}, cv=[([0], [0])]).fit([x])
    >>> search.best_params_
    {'rank': 2}
    """

    def __init__(
        self,
        rank: int,
        *,
        method: str = "parafac",
        n_iter_max: int = 100,
        init: Any = "random",
        tol: float = 1e-8,
        random_state: Any = None,
        mask: "SparseArray | None" = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.rank = rank
        self.method = method
        self.n_iter_max = n_iter_max
        self.init = init
        self.tol = tol
        self.random_state = random_state
        self.mask = mask
        self.options = options

    def fit(self, x: "FlycooTensor | LabelledTensor | SparseArray", y: None = None) -> Self:
        """Decompose a sparse tensor, or the only one in a list, and return the estimator.

        Raises
        ------
        ValueError
            If there is no CP decomposition `method`. Other errors are the decomposition's.
        """
        if self.method not in CP_METHODS:
            raise ValueError(f"method is {self.method!r}, expected one of {CP_METHODS}")
        options = {"init": self.init, "tol": self.tol, "random_state": self.random_state}
        if self.mask is not None:
            options["mask"] = self.mask
        options |= {"n_iter_max": self.n_iter_max, "return_errors": True, **(self.options or {})}
        decompose = getattr(decomposition, self.method)
        self.cp_tensor_, self.errors_ = decompose(_take_only(x), self.rank, **options)
        return self

    def score(self, x: "FlycooTensor | LabelledTensor | SparseArray", y: None = None) -> float:
        """Return the model's fit, 1 - relative error, at the entries of `mask` if one is given.

        With ``loss="poisson_count"`` it is the share of the deviance that the model explains.

        Raises
        ------
        ValueError
            If the shape of `x` is not that of the model, or the loss has no score.
        """
        loss = loss_of(getattr(decomposition, self.method), self.options or {})
        if loss == "gaussian":
            return cp_fit(_take_only(x), self.cp_tensor_, mask=self.mask).fit
        if loss != "poisson_count":
            raise ValueError(f"loss is {loss!r}, which has no score")
        fit = cp_fit(_take_only(x), self.cp_tensor_, mask=self.mask, loss="poisson_count")
        return fit.explained

    def fit_transform(
        self, x: "FlycooTensor | LabelledTensor | SparseArray", y: None = None
    ) -> Any:
        """Decompose a sparse tensor, and return the model, as TensorLy's classes do."""
        return self.fit(x).cp_tensor_


def _take_only(x: Any) -> Any:
    """Return the only item of a list, in which a search passes the tensor."""
    return x[0] if type(x) is list and len(x) == 1 else x

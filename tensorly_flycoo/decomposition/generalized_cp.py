"""`generalized_parafac` as a class, as TensorLy has one for each decomposition."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from .generalized_parafac import generalized_parafac
from .resuming import Callback

if TYPE_CHECKING:
    from sparse import SparseArray

    from ..tensor.labelled import LabelledTensor
    from ..tensor.tensor import FlycooTensor


class GeneralizedCP:
    """A CP decomposition with any loss, in the style of TensorLy's `CP`.

    Parameters
    ----------
    rank : int
    n_iter_max, init, svd, mask, random_state, loss, method, tol, fixed_modes, callback, samples
        As for `generalized_parafac`.

    Attributes
    ----------
    decomposition_ : CPTensor
        The model, once `fit` or `fit_transform` has been called.
    errors_ : list of float
        The loss after each sweep.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> from tensorly_flycoo.decomposition import GeneralizedCP
    >>> x = FlycooTensor([[0, 1, 1], [2, 0, 1]], [3, 1, 2], shape=(2, 3))
    >>> GeneralizedCP(1, random_state=0).fit_transform(x).factors[0].shape
    (2, 1)
    """

    decomposition_: Any
    errors_: list[float]

    def __init__(
        self,
        rank: int | str,
        n_iter_max: int = 100,
        init: Any = "random",
        svd: str = "truncated_svd",
        mask: "SparseArray | None" = None,
        random_state: Any = None,
        loss: Any = "poisson_count",
        *,
        method: str = "auto",
        tol: float = 1e-6,
        fixed_modes: Sequence[int] | None = None,
        callback: Callback | None = None,
        samples: tuple[int, int] | None = None,
    ) -> None:
        self.rank = rank
        self.n_iter_max = n_iter_max
        self.init = init
        self.svd = svd
        self.mask = mask
        self.random_state = random_state
        self.loss = loss
        self.method = method
        self.tol = tol
        self.fixed_modes = fixed_modes
        self.callback = callback
        self.samples = samples

    def fit_transform(self, tensor: "FlycooTensor | LabelledTensor | SparseArray") -> Any:
        """Decompose a sparse tensor, and return the model."""
        names = ("n_iter_max", "init", "svd", "mask", "random_state", "loss", "method", "tol")
        options = {name: getattr(self, name) for name in names}
        self.decomposition_, self.errors_ = generalized_parafac(
            tensor, self.rank, **options, fixed_modes=self.fixed_modes, callback=self.callback,
            samples=self.samples, return_errors=True,
        )  # fmt: skip
        return self.decomposition_

    def fit(self, tensor: "FlycooTensor | LabelledTensor | SparseArray") -> Self:
        """Decompose a sparse tensor, and return this object."""
        self.fit_transform(tensor)
        return self

    def __repr__(self) -> str:
        return f"Rank-{self.rank} GeneralizedCP decomposition with loss={self.loss!r}"

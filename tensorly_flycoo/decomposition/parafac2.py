"""PARAFAC2 of sparse slices, which may have different numbers of rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..checks import densify_error
from ..tensor.coo_cache import as_flycoo, is_sparse
from ..tensor.tensor import FlycooTensor
from .tensorly_loop import dense_to_tensorly, require_flycoo_backend, tensorly_loop

if TYPE_CHECKING:
    from sparse import SparseArray


@dense_to_tensorly
def parafac2(
    tensor_slices: "FlycooTensor | SparseArray | Sequence[FlycooTensor | SparseArray]",
    rank: int,
    n_iter_max: int = 2000,
    init: Any = "random",
    svd: str = "truncated_svd",
    normalize_factors: bool = False,
    tol: float = 1e-8,
    nn_modes: Any = None,
    random_state: Any = None,
    verbose: bool | int = False,
    return_errors: bool = False,
    n_iter_parafac: int = 5,
    linesearch: bool = True,
    mask: None = None,
) -> Any:
    """Decompose sparse slices that share all but one of their factors (PARAFAC2).

    TensorLy's own loop, under its backend "flycoo": it multiplies each slice with factors.

    Parameters
    ----------
    tensor_slices : FlycooTensor or sparse.COO of three modes, or a sequence of those of two
        Slices (J_i, K); a tensor (I, J, K) is cut into I of them.
    rank : int
        R, the number of components.
    n_iter_max : int
        At most.
    init : {"random", CPTensor, Parafac2Tensor}
        The initial guess; "svd" has no sparse version here.
    svd : {"truncated_svd", "randomized_svd"}
        Of small dense matrices.
    normalize_factors : bool
        Whether the columns of factors have norm 1, with their norms in the weights.
    tol : float
        Stops when the square of the error decreases by less than this part of it.
    nn_modes : "all" or sequence of int, optional
        Modes whose factors are non-negative.
    random_state : int or numpy.random.RandomState, optional
    verbose : bool or int
    return_errors : bool
    n_iter_parafac : int
        Iterations of parafac in each one of this.
    linesearch : bool
        Whether to extrapolate every other iteration.
    mask : None
        Masks have no sparse version here.

    Returns
    -------
    Parafac2Tensor
        Weights (R,), factors (I, R), (R, R) and (K, R), and a projection (J_i, R) for each slice,
        on the device of the slices.
    errors : list of scalar
        With `return_errors`: the relative error after each iteration.

    Raises
    ------
    DensifyError
        With ``init="svd"`` or a mask.
    RuntimeError
        If TensorLy's backend is not "flycoo".
    ValueError
        If a tensor has another number of modes than three.

    Notes
    -----
    Each slice is multiplied with dense matrices three times an iteration or so: ``nnz * R``
    operations each.

    References
    ----------
    Kiers, ten Berge and Bro, "PARAFAC2 - Part I. A direct fitting algorithm for the PARAFAC2
    model", Journal of Chemometrics 13, 1999.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo.testing import random_tensor
    >>> slices = [random_tensor((size, 10), 40, random_state=0) for size in (8, 9, 12)]
    >>> with tl.backend_context("flycoo"):
    ...     decomposition = parafac2(slices, 2, n_iter_max=5, random_state=0)
    >>> [projection.shape for projection in decomposition.projections]
    [(8, 2), (9, 2), (12, 2)]
    """
    options = dict(locals())
    del options["mask"]  # which TensorLy 0.9 does not know
    require_flycoo_backend()
    slices = options["tensor_slices"] = _list_slices(tensor_slices)
    if isinstance(init, str) and init == "svd":
        size = slices[0].shape[1]
        instead = "use init='random', or factors of your own"
        raise densify_error("init='svd' of parafac2", (size, size), instead)
    if mask is not None:
        instead = "it replaces the missing values in each iteration; leave mask out"
        raise densify_error("mask= of parafac2", slices[0].shape, instead)
    return tensorly_loop("parafac2")(**options)


def _list_slices(tensor_slices: Any) -> list[Any]:
    """Convert sparse slices, or cut them out of a sparse tensor, once."""
    if is_sparse(tensor_slices):
        if tensor_slices.ndim != 3:
            raise ValueError(
                f"tensor_slices has shape {tensor_slices.shape}, expected three modes, or a list"
            )
        tensor_slices = as_flycoo(tensor_slices, check_coords=True)
    return [as_flycoo(x, check_coords=True) if is_sparse(x) else x for x in tensor_slices]

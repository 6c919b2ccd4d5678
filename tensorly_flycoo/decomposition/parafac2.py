"""PARAFAC2 of sparse slices, which may have different numbers of rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base.checks import check_rank, densify_error
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

    This runs TensorLy's own loop, which multiplies slices by factors, and needs its backend
    "flycoo".

    Parameters
    ----------
    tensor_slices : sequence of FlycooTensor or sparse.COO, or one of three modes
        Slices (J_i, K), or a tensor (I, J, K), which is cut into I slices.
    rank : int
        R, the number of components.
    n_iter_max : int
    init : {"random", CPTensor, Parafac2Tensor}
        The initial guess; "svd" is not supported for sparse slices.
    svd : {"truncated_svd", "randomized_svd"}
        The method for small dense matrices.
    normalize_factors : bool
        Whether the columns of the factors have norm 1, and the weights hold their norms.
    tol : float
        Stop when the squared error decreases by less than this fraction of itself.
    nn_modes : "all" or sequence of int, optional
        Modes whose factors are non-negative.
    random_state : int or numpy.random.RandomState, optional
    verbose : bool or int
    return_errors : bool
    n_iter_parafac : int
        Iterations of parafac in each iteration.
    linesearch : bool
        Whether to extrapolate every other iteration.
    mask : None
        Not supported for sparse slices.

    Returns
    -------
    Parafac2Tensor
        Weights (R,), factors (I, R), (R, R) and (K, R), and a projection (J_i, R) for each slice,
        on the device of the slices.
    errors : list of scalar
        The relative error after each iteration; only with `return_errors`.

    Raises
    ------
    DensifyError
        If `init` is "svd", or a mask is given.
    RuntimeError
        If TensorLy's backend is not "flycoo".
    TypeError
        If `rank` is no integer.
    ValueError
        If `rank` is below 1, or a single tensor does not have three modes.

    Notes
    -----
    An iteration multiplies each slice by dense matrices about three times, with ``nnz * R``
    operations each time.

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
    del options["mask"]  # TensorLy 0.9 does not have it
    require_flycoo_backend()
    options["rank"] = check_rank(rank)
    slices = options["tensor_slices"] = _list_slices(tensor_slices)
    if isinstance(init, str) and init == "svd":
        size = slices[0].shape[1]
        instead = "use init='random' or your own factors"
        raise densify_error("init='svd' of tl.decomposition.parafac2", (size, size), instead)
    if mask is not None:
        instead = "it replaces the missing values in each iteration; leave mask out"
        raise densify_error("mask= of tl.decomposition.parafac2", slices[0].shape, instead)
    return tensorly_loop("parafac2")(**options)


def _list_slices(tensor_slices: Any) -> list[Any]:
    """Convert sparse slices, or cut them out of a sparse tensor, once."""
    if is_sparse(tensor_slices):
        if tensor_slices.ndim != 3:
            raise ValueError(
                f"tensor_slices has shape {tensor_slices.shape}, expected three modes or a list"
            )
        tensor_slices = as_flycoo(tensor_slices, check_coords=True)
    return [as_flycoo(x, check_coords=True) if is_sparse(x) else x for x in tensor_slices]

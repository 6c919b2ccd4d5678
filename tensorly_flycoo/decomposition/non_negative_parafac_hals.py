"""Non-negative CP decomposition by hierarchical alternating least squares."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..array_modules import running_on
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .tensorly_loop import dense_to_tensorly, require_flycoo_backend, tensorly_loop

if TYPE_CHECKING:
    from sparse import SparseArray


@dense_to_tensorly
def non_negative_parafac_hals(
    tensor: "FlycooTensor | SparseArray",
    rank: int,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: str = "truncated_svd",
    tol: float = 10e-8,
    random_state: Any = None,
    sparsity_coefficients: Sequence[float | None] | float | None = None,
    fixed_modes: Sequence[int] | None = None,
    nn_modes: Any = "all",
    exact: bool = False,
    normalize_factors: bool = False,
    verbose: bool | int = False,
    return_errors: bool = False,
    cvg_criterion: str = "abs_rec_error",
) -> Any:
    """Decompose a sparse tensor into non-negative factors, a column at a time.

    TensorLy's own loop, under its backend "flycoo".

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
    rank : int
        R, the number of components.
    n_iter_max : int
        At most.
    init : {"svd", "random", CPTensor}
        The initial guess, non-negative, in the dtype and on the device of `tensor`.
    svd : {"truncated_svd", "randomized_svd"}
        Both find the leading singular vectors to rounding.
    tol : float
        Stops when the error changes by less; 0 never does, and computes no error.
    random_state : int or numpy.random.RandomState, optional
    sparsity_coefficients : float or sequence of float, optional
        The weight of the sum of each factor in what is minimised.
    fixed_modes : sequence of int, optional
        Factors that stay as they are.
    nn_modes : "all", set of int or None
        Modes whose factors are non-negative; those of others are least squares solutions.
    exact : bool
        Whether each factor is iterated until it no longer changes.
    normalize_factors : bool
        Whether the columns of factors have norm 1, with their norms in the weights.
    verbose : bool or int
    return_errors : bool
    cvg_criterion : {"abs_rec_error", "rec_error"}
        Whether an error that grows stops too ("rec_error").

    Returns
    -------
    CPTensor
        Weights (R,) and factors (I_n, R) in the dtype and on the device of `tensor`.
    errors : list of scalar
        With `return_errors` and `tol`: the relative error after each iteration.

    Raises
    ------
    DensifyError
        With another `svd`.
    RuntimeError
        If TensorLy's backend is not "flycoo".
    TypeError
        If `init` is on another device or of another dtype, or `cvg_criterion` is unknown.

    Notes
    -----
    One MTTKRP a mode and iteration.

    References
    ----------
    Gillis and Glineur, "Accelerated Multiplicative Updates and Hierarchical ALS Algorithms for
    Nonnegative Matrix Factorization", Neural Computation 24, 2012.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     cp_tensor = non_negative_parafac_hals(x, 3, n_iter_max=5)
    >>> all((factor >= 0).all() for factor in cp_tensor.factors)
    True
    """
    options = dict(locals())
    require_flycoo_backend()
    x = options["tensor"] = as_flycoo(tensor, check_coords=True)
    with running_on(x._engine.xp):
        return tensorly_loop("non_negative_parafac_hals")(**options)

"""CP decomposition with a constraint or penalty for each factor, by ADMM."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..array_modules import running_on
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .initial_guess import check_initial_guess
from .tensorly_loop import dense_to_tensorly, require_flycoo_backend, tensorly_loop

if TYPE_CHECKING:
    from sparse import SparseArray

#: A strength for all modes, one for each, or some by the numbers of their modes.
Strength: TypeAlias = float | Sequence[float] | dict[int, float] | None
#: Whether for all modes, or for some by their numbers.
Switch: TypeAlias = bool | dict[int, bool] | None


@dense_to_tensorly
def constrained_parafac(
    tensor: "FlycooTensor | SparseArray",
    rank: int | float | str,
    n_iter_max: int = 100,
    n_iter_max_inner: int = 10,
    init: Any = "svd",
    svd: str = "truncated_svd",
    tol_outer: float = 1e-8,
    tol_inner: float = 1e-6,
    random_state: Any = None,
    verbose: int = 0,
    return_errors: bool = False,
    cvg_criterion: str = "abs_rec_error",
    fixed_modes: list[int] | None = None,
    non_negative: Switch = None,
    l1_reg: Strength = None,
    group_lasso: Strength = None,
    l2_reg: Strength = None,
    l2_square_reg: Strength = None,
    unimodality: Switch = None,
    normalize: Switch = None,
    simplex: Strength = None,
    normalized_sparsity: Strength = None,
    soft_sparsity: Strength = None,
    smoothness: Strength = None,
    monotonicity: Switch = None,
    hard_sparsity: Strength = None,
) -> Any:
    """Decompose a sparse tensor into factors with constraints or penalties, by AO-ADMM.

    TensorLy's own loop, under its backend "flycoo". A constraint is given for all modes, as a list
    or as a dict for some; a mode has one at most.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
    rank : int, float or "same"
        R, the number of components; see `tensorly.cp_tensor.validate_cp_rank`.
    n_iter_max, n_iter_max_inner : int
        At most, of the whole and of ADMM for one factor.
    init : {"svd", "random", CPTensor}
        The initial guess, in the dtype and on the device of `tensor`.
    svd : {"truncated_svd", "randomized_svd"}
        Both find the leading singular vectors to rounding.
    tol_outer : float
        Stops when the error changes by less; 0 never does.
    tol_inner : float
        Stops ADMM when a factor changes by less.
    random_state : int or numpy.random.RandomState, optional
    verbose : int
    return_errors : bool
    cvg_criterion : {"abs_rec_error", "rec_error"}
        Whether an error that grows stops too ("rec_error").
    fixed_modes : list of int, optional
        Factors that stay as they are; the last one cannot.
    non_negative, unimodality, normalize, monotonicity : bool or dict, optional
        No negative elements; columns with one peak; a largest element of 1; descending columns.
    l1_reg, group_lasso, l2_reg, l2_square_reg, smoothness : float, list or dict, optional
        The weight of a penalty on the 1-norm, on the norms of rows, on the 2-norm, on its square,
        and on the differences of neighbours in columns.
    simplex, soft_sparsity : float, list or dict, optional
        The sum, or the largest 1-norm, of each column.
    normalized_sparsity, hard_sparsity : int, list or dict, optional
        How many elements are kept; the first scales them to norm 1.

    Returns
    -------
    CPTensor
        Weights of ones (R,) and factors (I_n, R) on the device of `tensor`.
    errors : list of scalar
        With `return_errors`: the relative error after each iteration.

    Raises
    ------
    DensifyError
        With another `svd`.
    RuntimeError
        If TensorLy's backend is not "flycoo".
    TypeError
        If `init` is on another device or of another dtype.
    ValueError
        If a mode has two constraints.

    Notes
    -----
    One MTTKRP a mode and iteration.

    References
    ----------
    Huang, Sidiropoulos and Liavas, "A flexible and efficient algorithmic framework for constrained
    matrix and tensor factorization", IEEE Transactions on Signal Processing 64, 2016.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     cp_tensor = constrained_parafac(x, 3, n_iter_max=5, non_negative={1: True})
    >>> bool((cp_tensor.factors[1] >= 0).all())
    True
    """
    # TensorLy 0.9 does not know group_lasso; None is the default wherever it is possible.
    options = {name: value for name, value in locals().items() if value is not None}
    require_flycoo_backend()
    x = options["tensor"] = as_flycoo(tensor, check_coords=True)
    check_initial_guess(init, x.dtype, x.device == "cuda")
    with running_on(x._engine.xp):
        return tensorly_loop("constrained_parafac")(**options)

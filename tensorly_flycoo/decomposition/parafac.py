"""CP decomposition by alternating least squares, with missing values and from checkpoints too."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorly.cp_tensor import validate_cp_rank

from ..array_modules import Array
from ..checks import densify_error
from ..io.checkpoint import ResumedCP
from ..linalg.tall_skinny import qr, solve
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .cp_model import make_cp_tensor, multiply_grams
from .masked_loop import iterate, list_free_modes, start
from .masks import ImputedTensor, find_missing
from .resuming import Callback, resume_options
from .tensorly_loop import dense_to_tensorly, require_flycoo_backend, tensorly_loop

if TYPE_CHECKING:
    from sparse import SparseArray


@dense_to_tensorly
def parafac(
    tensor: "FlycooTensor | SparseArray",
    rank: int | float | str,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: str = "truncated_svd",
    normalize_factors: bool = False,
    orthogonalise: bool | int = False,
    tol: float = 1e-8,
    random_state: Any = None,
    verbose: int = 0,
    return_errors: bool = False,
    sparsity: int | float | None = None,
    l2_reg: float = 0,
    mask: "SparseArray | None" = None,
    cvg_criterion: str = "abs_rec_error",
    fixed_modes: Sequence[int] | None = None,
    svd_mask_repeats: int = 5,
    linesearch: bool = False,
    callback: Callback | None = None,
) -> Any:
    """Decompose a sparse tensor by alternating least squares (CP, CANDECOMP/PARAFAC).

    Without a mask this is TensorLy's own loop under its backend "flycoo". With one it is a loop
    here, which gives the same errors and factors and runs under any backend of TensorLy.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
    rank : int, float or "same"
        R, the number of components; see `tensorly.cp_tensor.validate_cp_rank`.
    n_iter_max : int
        At most.
    init : {"svd", "random", CPTensor, ResumedCP}
        The initial guess, in the dtype and on the device of `tensor`; or a checkpoint to go on
        from (`Progress.resume`).
    svd : {"truncated_svd", "randomized_svd"}
        Both find the leading singular vectors to rounding.
    normalize_factors : bool
        Whether the columns of factors have norm 1, with their norms in the weights.
    orthogonalise : bool or int
        Up to this iteration (True: 1) the columns of factors are first made orthonormal.
    tol : float
        Stops when the error changes by less; 0 never does.
    random_state : int or numpy.random.RandomState, optional
    verbose : int
    return_errors : bool
    sparsity : None
        TensorLy's sparse component has no sparse version here.
    l2_reg : float
        Added to the diagonal of each system of equations.
    mask : sparse.COO, optional
        Of the shape of `tensor`, with fill_value 1 and stored zeros: these entries are missing.
    cvg_criterion : {"abs_rec_error", "rec_error"}
        Whether an error that grows stops too ("rec_error").
    fixed_modes : sequence of int, optional
        Factors that stay as they are; the last one cannot.
    svd_mask_repeats : int
        How often ``init="svd"`` imputes the missing entries.
    linesearch : bool
        Whether to extrapolate every other iteration, as Bro proposed.
    callback : callable, optional
        Called with the CPTensor and its error before the first and after each iteration; stops if
        it returns True.

    Returns
    -------
    CPTensor
        Weights (R,) and factors (I_n, R) in the dtype and on the device of `tensor`.
    errors : list of float
        With `return_errors`: after each iteration the norm of the residual over that of the
        tensor, both with the model's values at missing entries.

    Raises
    ------
    DensifyError
        With `sparsity`, another `svd`, or a mask that stores what is observed.
    RuntimeError
        If there is no mask and TensorLy's backend is not "flycoo".
    TypeError
        If `mask` or `init` is of another type, on another device or of another dtype, or
        `cvg_criterion` is unknown.
    ValueError
        If shapes do not fit, the mask holds other numbers than 0 and 1, or a checkpoint is given
        with a mask, `linesearch` or `orthogonalise`.

    Notes
    -----
    One MTTKRP a mode and iteration. Missing entries cost as much as nonzeros, and are kept beside
    the tensor as `MissingEntries`.

    References
    ----------
    Kolda and Bader, "Tensor Decompositions and Applications", SIAM Review 51, 2009. Tomasi and Bro,
    "PARAFAC and missing values", Chemometrics and Intelligent Laboratory Systems 75, 2005. Bro,
    "Multi-way Analysis in the Food Industry", University of Amsterdam, 1998.

    Examples
    --------
    >>> import sparse, tensorly as tl
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     cp_tensor = parafac(x, 3, init="random", random_state=0, n_iter_max=5)
    >>> [factor.shape for factor in cp_tensor.factors]
    [(10, 3), (20, 3), (30, 3)]

    With two missing entries:

    >>> mask = sparse.COO([[0, 1], [2, 3], [4, 5]], [0.0, 0.0], x.shape, fill_value=1.0)
    >>> cp_tensor, errors = parafac(x, 3, mask=mask, n_iter_max=5, return_errors=True)
    >>> len(errors)
    5
    """
    options = dict(locals())
    del options["tensor"]
    if isinstance(init, ResumedCP):
        options = resume_options(options)
    missing = None if mask is None else find_missing(tensor, mask)
    if missing is None:
        require_flycoo_backend()
        options["mask"] = None
        return tensorly_loop("parafac")(as_flycoo(tensor, check_coords=True), **options)
    if sparsity:
        raise densify_error("sparsity=", missing.shape, "it has no sparse version here")
    x, num_components = ImputedTensor(missing), validate_cp_rank(missing.shape, rank=rank)
    model = start(
        x, num_components, svd_mask_repeats, init=init, svd=svd, random_state=random_state,
        normalize_factors=normalize_factors,
    )  # fmt: skip
    if list(fixed_modes or []) == list(range(missing.ndim)):
        return make_cp_tensor(*model)
    if callback is not None:
        callback(make_cp_tensor(*model), x.measure(*model)[0])
    search = _LineSearch(x, verbose) if linesearch else None
    modes = list_free_modes(missing.ndim, fixed_modes)
    update = _LeastSquares(x, modes, l2_reg, orthogonalise, search)
    cp_tensor, errors = iterate(
        x, model, update, n_iter_max=n_iter_max, tol=tol, cvg_criterion=cvg_criterion,
        normalize_factors=normalize_factors, verbose=verbose, callback=callback,
        wants_errors=bool(tol or return_errors or linesearch or callback is not None),
    )  # fmt: skip
    return (cp_tensor, errors) if return_errors else cp_tensor


@dataclass
class _LeastSquares:
    """Alternating least squares: one system of equations a mode."""

    x: ImputedTensor
    modes: list[int]
    l2_reg: float
    orthogonalise: int
    search: "_LineSearch | None"

    def __call__(
        self, iteration: int, weights: Array | None, factors: list[Array], errors: list[float]
    ) -> tuple[Array | None, list[Array], Array | None]:
        if self.orthogonalise and iteration <= self.orthogonalise:
            rank = factors[0].shape[1]
            factors = [qr(f)[0] if f.shape[0] >= rank else f for f in factors]
        before, factors = factors, list(factors)
        for mode in self.modes:
            last_mttkrp = self.x.mttkrp(weights, factors, mode)
            gram = multiply_grams(weights, factors, skip=mode, ridge=self.l2_reg)
            factors[mode] = solve(gram, last_mttkrp.T).T
        if self.search is None or iteration % 2 or iteration <= _LineSearch.LAST_WITHOUT:
            return weights, factors, last_mttkrp
        return weights, self.search.extrapolate(iteration, weights, before, factors, errors), None


class _LineSearch:
    """Extrapolation of what an iteration changed, where that gives a smaller error.

    Bro's: iteration t goes on to ``t ** (1 / power)`` times the change; after some failures the
    power grows.
    """

    #: Every other iteration is extrapolated after this one.
    LAST_WITHOUT = 5
    _MAX_FAILURES = 4

    def __init__(self, x: ImputedTensor, verbose: int) -> None:
        self._x, self._verbose = x, verbose
        self._power, self._num_failures = 2, 0

    def extrapolate(
        self,
        iteration: int,
        weights: Array | None,
        before: list[Array],
        factors: list[Array],
        errors: list[float],
    ) -> list[Array]:
        """Return the factors that are kept, and impute the missing entries from them."""
        self._x.impute(weights, factors)
        jump = iteration ** (1 / self._power)
        further = [old + (new - old) * jump for old, new in zip(before, factors, strict=True)]
        error, values = self._x.measure(weights, further)
        is_better = error < errors[-1]
        if self._verbose:
            print(f"Line search of jump {jump} {'accepted' if is_better else 'failed'}")
        if is_better:
            self._num_failures, self._x.values = 0, values
            return further
        self._num_failures += 1
        if self._num_failures == self._MAX_FAILURES:
            self._power, self._num_failures = self._power + 1, 0
        return factors

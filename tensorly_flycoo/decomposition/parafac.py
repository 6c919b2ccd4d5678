"""CP decomposition by alternating least squares, with missing values or from a checkpoint too."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..base.array_modules import Array
from ..base.checks import densify_error
from ..engines.tall_skinny import qr, solve
from ..io.checkpoint import Resumed
from ..ops import gram_products
from ..tensor.tensor import FlycooTensor
from .cp_loop import iterate, list_free_modes, measure_by, start
from .cp_model import make_cp_tensor, multiply_grams
from .masks import ImputedTensor, find_missing
from .resuming import Callback, prepare_options, resume_options
from .stopping import has_converged
from .tensorly_loop import dense_to_tensorly, require_flycoo_backend, tensorly_loop
from .whole_tensor import WholeTensor

if TYPE_CHECKING:
    from sparse import SparseArray

_logger = logging.getLogger("tensorly_flycoo")


@dense_to_tensorly
def parafac(
    tensor: "FlycooTensor | SparseArray",
    rank: int | str,
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

    Without a mask this runs TensorLy's own loop and needs its backend "flycoo". With a mask it runs
    a loop of its own, which gives the same errors and factors and works under any backend.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
    rank : int or "same"
        R, the number of components. "same" gives the model as many parameters as the tensor has
        cells; it is refused if the nonzeros take fewer numbers than that. So are all fractions.
    n_iter_max : int
    init : {"svd", "random", CPTensor, ResumedCP}
        The initial guess, in the dtype and on the device of `tensor`; or a checkpoint to resume
        (`Progress.resume`).
    svd : {"truncated_svd", "randomized_svd"}
        How to find leading singular vectors: "truncated_svd" to rounding error if at most 8192 rows
        of an unfolding share a column with another row, otherwise approximately;
        "randomized_svd" by TensorLy's sketch.
    normalize_factors : bool
        Whether the columns of the factors have norm 1, and the weights hold their norms.
    orthogonalise : bool or int
        Up to this iteration (True: 1), first make the columns of the factors orthonormal.
    tol : float
        Stop when the error changes by less; 0 never stops.
    random_state : int, numpy.random.RandomState or generator of cupy.random, optional
        The first two give TensorLy's numbers on every device; CuPy's are drawn on the GPU faster.
    verbose : int
    return_errors : bool
    sparsity : None
        Not supported for a sparse tensor.
    l2_reg : float
        Added to the diagonal of each system of equations.
    mask : sparse.COO, optional
        In the shape of `tensor`, with fill_value 1; its stored zeros mark the missing entries.
    cvg_criterion : {"abs_rec_error", "rec_error"}
        With "rec_error" an increase of the error stops the loop too.
    fixed_modes : sequence of int, optional
        Modes whose factors keep their initial values; the last mode cannot be fixed, except with
        all others.
    svd_mask_repeats : int
        How often ``init="svd"`` imputes the missing entries.
    linesearch : bool
        Whether to use Bro's line search, which extrapolates every other iteration.
    callback : callable, optional
        Called with the CPTensor and its error before the first and after each iteration; returns
        True to stop.

    Returns
    -------
    CPTensor
        Weights (R,) and factors (I_n, R) in the dtype and on the device of `tensor`.
    errors : list of float
        The relative error after each iteration, with the model's values at missing entries; only
        with `return_errors`.

    Raises
    ------
    DensifyError
        If `sparsity` is given, `svd` is any other method, or the mask marks what is observed
        (fill_value 0).
    RuntimeError
        If no entry is missing and TensorLy's backend is not "flycoo".
    TypeError
        If `rank` is no integer, `mask` or `init` has the wrong type, device or dtype, or
        `cvg_criterion` is unknown.
    ValueError
        If `rank` is below 1, shapes do not match, the mask holds numbers other than 0 and 1, or a
        checkpoint is of another tensor or decomposition, or given together with a mask,
        `linesearch` or `orthogonalise`.

    Notes
    -----
    One MTTKRP per mode and iteration. A missing entry costs as much as a nonzero; memory: see
    `MissingEntries`.

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
    options = prepare_options(locals())
    if isinstance(init, Resumed):
        options = resume_options(options)
    missing = None if mask is None else find_missing(options["tensor"], mask)
    if missing is None:
        require_flycoo_backend()
        return _run_tensorly_loop(options | {"mask": None})
    if sparsity:
        raise densify_error("sparsity=", missing.shape, "leave it out")
    model = start(
        missing.tensor, missing, options["rank"], init, svd, random_state, solver="parafac",
        svd_mask_repeats=svd_mask_repeats, normalize_factors=normalize_factors,
    )  # fmt: skip
    if list(fixed_modes or []) == list(range(missing.ndim)):
        return make_cp_tensor(*model)
    data = ImputedTensor(missing)
    search = LineSearch(verbose) if linesearch else None
    modes = list_free_modes(missing.ndim, fixed_modes)
    wants_errors = bool(tol or return_errors or linesearch or callback is not None)
    cp_tensor, errors = iterate(
        model, LeastSquares(data, modes, l2_reg, orthogonalise, search),
        measure_by(data, wants_errors), solver="parafac", tensor=missing.tensor,
        n_iter_max=n_iter_max, is_over=lambda errors: has_converged(errors, tol, cvg_criterion),
        callback=callback, start_error=lambda: data.measure(*model)[0],
        normalize_factors=normalize_factors, verbose=verbose,
    )  # fmt: skip
    return (cp_tensor, errors) if return_errors else cp_tensor


def _run_tensorly_loop(options: dict[str, Any]) -> Any:
    """Decompose a tensor without missing entries, as calls by `backend.replacements` do."""
    x = options.pop("tensor")
    if x.nnz == 0:
        raise ValueError(f"tensor of shape {x.shape} has no nonzeros, expected at least one")
    whole = WholeTensor(x)
    try:
        return tensorly_loop("parafac")(whole, **options)
    finally:
        gram_products.stop()
        if x.device == "cuda" and not whole.device.memory.num_solves:
            _logger.debug("parafac ran without fast Gram products (float32, ranks up to 32)")


@dataclass
class LeastSquares:
    """Alternating least squares in our own loops: a system for each mode."""

    x: Any  # an ImputedTensor, a WholeTensor, or the projected slices of `parafac2`
    modes: list[int]
    l2_reg: float
    orthogonalise: int
    search: "LineSearch | None"

    def __call__(
        self, iteration: int, weights: Array | None, factors: list[Array], errors: list[float]
    ) -> tuple[Array | None, list[Array], Array | None]:
        if self.orthogonalise and iteration <= self.orthogonalise:
            rank = factors[0].shape[1]
            factors = [qr(f)[0] if f.shape[0] >= rank else f for f in factors]
        before = list(factors) if self.search is not None else factors
        for mode in self.modes:
            last_mttkrp = self.x.mttkrp(weights, factors, mode)
            gram = multiply_grams(weights, factors, skip=mode, ridge=self.l2_reg)
            factors[mode] = solve(gram, last_mttkrp.T).T
        if self.search is None or not self.search.is_due(iteration):
            return weights, factors, last_mttkrp
        self.x.impute(weights, factors)
        arguments = (iteration, before, factors, errors[-1])
        factors, found = self.search.extrapolate(*arguments, partial(self.x.measure, weights))
        if found is not None:
            self.x.values = found[1]
        return weights, factors, None


class LineSearch:
    """Bro's line search: extrapolates an iteration's change if that lowers the error.

    Iteration t multiplies the change by ``t ** (1 / power)``; repeated failures increase `power`.
    """

    _MAX_FAILURES = 4

    def __init__(self, verbose: int) -> None:
        self._verbose = verbose
        self._power, self._num_failures = 2, 0

    def is_due(self, iteration: int) -> bool:
        """Return whether an iteration is extrapolated: every other one after the first six."""
        return iteration % 2 == 0 and iteration > 5

    def extrapolate(
        self, iteration: int, before: list[Array], factors: list[Array], error: Any, measure: Any
    ) -> tuple[list[Array], tuple | None]:
        """Return the better factors; if these are new, also their error and what comes with it."""
        jump = iteration ** (1 / self._power)
        further = [old + (new - old) * jump for old, new in zip(before, factors, strict=True)]
        found = measure(further)
        is_better = found[0] < error
        if self._verbose:
            print(f"Line search of jump {jump} {'accepted' if is_better else 'failed'}")
        if is_better:
            self._num_failures = 0
            return further, found
        self._num_failures += 1
        if self._num_failures == self._MAX_FAILURES:
            self._power, self._num_failures = self._power + 1, 0
        return factors, None

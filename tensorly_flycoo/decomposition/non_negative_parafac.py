"""Non-negative CP decomposition by multiplicative updates, with or without missing values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tensorly.cp_tensor import validate_cp_rank

from ..array_modules import Array
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .cp_model import multiply_grams, normalize
from .masked_loop import iterate, list_free_modes, start
from .masks import ImputedTensor, find_missing
from .tensorly_loop import dense_to_tensorly, require_flycoo_backend, tensorly_loop

if TYPE_CHECKING:
    from sparse import SparseArray

#: How often TensorLy imputes the missing entries for ``init="svd"``.
_SVD_MASK_REPEATS = 5


@dense_to_tensorly
def non_negative_parafac(
    tensor: "FlycooTensor | SparseArray",
    rank: int | float | str,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: str = "truncated_svd",
    tol: float = 10e-7,
    random_state: Any = None,
    verbose: int = 0,
    normalize_factors: bool = False,
    return_errors: bool = False,
    mask: "SparseArray | None" = None,
    cvg_criterion: str = "abs_rec_error",
    fixed_modes: Sequence[int] | None = None,
) -> Any:
    """Decompose a sparse tensor into non-negative factors by multiplicative updates.

    Without a mask this runs TensorLy's own loop and needs its backend "flycoo". With a mask it runs
    a loop of its own, which gives the same errors and factors and works under any backend.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
        With non-negative values.
    rank : int, float or "same"
        R, the number of components; see `tensorly.cp_tensor.validate_cp_rank`.
    n_iter_max : int
    init : {"svd", "random", CPTensor}
        The initial guess, non-negative, in the dtype and on the device of `tensor`.
    svd : {"truncated_svd", "randomized_svd"}
        Both find the leading singular vectors to rounding error.
    tol : float
        Stop when the error changes by less; 0 never stops, and computes no errors.
    random_state : int or numpy.random.RandomState, optional
    verbose : int
    normalize_factors : bool
        Whether the columns of the factors have norm 1, and the weights hold their norms.
    return_errors : bool
    mask : sparse.COO, optional
        In the shape of `tensor`, with fill_value 1; its stored zeros mark the missing entries.
    cvg_criterion : {"abs_rec_error", "rec_error"}
        With "rec_error" an increase of the error stops the loop too.
    fixed_modes : sequence of int, optional
        Modes whose factors keep their initial values; the last mode cannot be fixed.

    Returns
    -------
    CPTensor
        Weights (R,) and factors (I_n, R) in the dtype and on the device of `tensor`.
    errors : list of float
        The relative error after each iteration, with the model's values at missing entries; only
        with `return_errors`, and empty if `tol` is 0.

    Raises
    ------
    DensifyError
        If `svd` is any other method, or the mask marks what is observed (fill_value 0).
    RuntimeError
        If no entry is missing and TensorLy's backend is not "flycoo".
    TypeError
        If `mask` or `init` has the wrong type, device or dtype, or `cvg_criterion` is unknown.
    ValueError
        If shapes do not match, or the mask holds numbers other than 0 and 1.

    Notes
    -----
    One MTTKRP per mode and iteration; see `parafac` for the cost of missing entries.

    References
    ----------
    Shashua and Hazan, "Non-negative tensor factorization with applications to statistics and
    computer vision", ICML 2005.

    Examples
    --------
    >>> import sparse
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> mask = sparse.COO([[0, 1], [2, 3], [4, 5]], [0.0, 0.0], x.shape, fill_value=1.0)
    >>> cp_tensor = non_negative_parafac(x, 3, mask=mask, n_iter_max=5)
    >>> all((factor >= 0).all() for factor in cp_tensor.factors)
    True
    """
    options = dict(locals())
    del options["tensor"]
    missing = None if mask is None else find_missing(tensor, mask)
    if missing is None:
        require_flycoo_backend()
        options["mask"] = None
        return tensorly_loop("non_negative_parafac")(
            as_flycoo(tensor, check_coords=True), **options
        )
    x, num_components = ImputedTensor(missing), validate_cp_rank(missing.shape, rank=rank)
    model = start(
        missing, num_components, init, svd, random_state, _SVD_MASK_REPEATS,
        normalize_factors=normalize_factors, non_negative=True,
    )  # fmt: skip
    modes = list_free_modes(missing.ndim, fixed_modes)
    cp_tensor, errors = iterate(
        x, model, _MultiplicativeUpdate(x, modes, normalize_factors), n_iter_max=n_iter_max,
        tol=tol, cvg_criterion=cvg_criterion, normalize_factors=normalize_factors,
        verbose=verbose, wants_errors=bool(tol),
    )  # fmt: skip
    return (cp_tensor, errors) if return_errors else cp_tensor


@dataclass
class _MultiplicativeUpdate:
    """Multiplicative updates: each factor is multiplied by a ratio that is 1 at a local optimum."""

    x: ImputedTensor
    modes: list[int]
    normalize_factors: bool

    def __call__(
        self, iteration: int, weights: Array | None, factors: list[Array], errors: list[float]
    ) -> tuple[Array | None, list[Array], Array | None]:
        factors, eps = list(factors), float(np.finfo(factors[0].dtype).eps)
        for mode in self.modes:
            self.x.impute(weights, factors)
            last_mttkrp = self.x.mttkrp(weights, factors, mode)
            expected = factors[mode] @ multiply_grams(weights, factors, skip=mode)
            factors[mode] = factors[mode] * np.maximum(last_mttkrp, eps) / np.maximum(expected, eps)
            if self.normalize_factors and mode != self.modes[-1]:
                weights, factors = normalize(weights, factors)
        return weights, factors, last_mttkrp

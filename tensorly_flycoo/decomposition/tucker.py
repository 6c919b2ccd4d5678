"""Tucker decomposition by TensorLy's own loop, which `iterate` runs step by step for a callback."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorly as tl
from tensorly.tucker_tensor import TuckerTensor, validate_tucker_rank

from ..base.array_modules import Array
from ..engines.tall_skinny import transposed_product
from ..io.checkpoint import Resumed
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .cp_loop import Callback, has_converged, iterate, restore
from .guarding import describe_as, require_flycoo_backend, tensorly_loop
from .parafac import parafac
from .ranks import find_tucker_rank

if TYPE_CHECKING:
    from sparse import SparseArray


@describe_as(parafac)
def tucker(
    tensor: "FlycooTensor | SparseArray",
    rank: int | str | Sequence[int] | None,
    fixed_factors: Sequence[int] | None = None,
    n_iter_max: int = 100,
    init: Any = "svd",
    return_errors: bool = False,
    svd: str = "truncated_svd",
    tol: float = 10e-5,
    random_state: Any = None,
    mask: None = None,
    verbose: bool = False,
    callback: Callback | None = None,
) -> Any:
    """Decompose a sparse tensor by higher-order orthogonal iteration (Tucker).

    This runs TensorLy's own iterations, and needs its backend "flycoo".

    Parameters
    ----------
    rank : int, sequence of int, "same" or None
        The size of the core, in all modes or each. None (the size of the tensor) and "same" (as
        many parameters as cells) are refused if the nonzeros are fewer numbers.
    fixed_factors : sequence of int, optional
        Modes whose factors of `init` are kept; not together with `callback`.
    init : {"svd", "random", TuckerTensor, (core, factors), ResumedTucker}
        The initial guess, in the dtype and on the device of `tensor`; or a checkpoint to resume
        (`Progress.resume`).
    random_state : int or numpy.random.RandomState, optional
    mask : None
        Not supported for a sparse tensor.

    Returns
    -------
    TuckerTensor
        A core of size `rank` and factors (I_n, R_n), on the device of `tensor`.
    errors : list of float
        The relative error after each iteration; only with `return_errors`.

    Raises
    ------
    DensifyError
        If a mask is given, or `svd` is any other method.
    RuntimeError
        If TensorLy's backend is not "flycoo".
    TypeError
        If a rank is no integer, such as a fraction.
    ValueError
        If a rank is below 1, their number is not that of the modes, `init` is unknown or does not
        match, `fixed_factors` comes with `callback`, or a checkpoint is of another tensor.

    Notes
    -----
    One chain of products with the factors per mode and iteration, and one for the core (`ttmc`).

    References
    ----------
    De Lathauwer, De Moor and Vandewalle, "On the Best Rank-1 and Rank-(R1, ..., RN) Approximation
    of Higher-Order Tensors", SIAM Journal on Matrix Analysis and Applications 21, 2000.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     core, factors = tucker(x, [2, 3, 4], n_iter_max=5)
    >>> core.shape
    (2, 3, 4)
    """
    options = dict(locals())
    require_flycoo_backend()
    x = options["tensor"] = as_flycoo(tensor, check_coords=True)
    num_modes = None if fixed_factors else x.ndim
    options["rank"] = find_tucker_rank(x, rank, num_modes)
    if callback is None and not isinstance(init, Resumed):
        del options["callback"]
        return tensorly_loop("tucker")(**options)
    if fixed_factors:
        raise ValueError(
            f"fixed_factors is {fixed_factors!r}, expected None together with callback= or a "
            "checkpoint: leave one of them out"
        )
    ranks = options["rank"]
    if ranks is None or isinstance(ranks, int):
        ranks = list(x.shape) if ranks is None else [ranks] * x.ndim
    ranks = [int(r) for r in validate_tucker_rank(x.shape, ranks)]
    step = functools.partial(
        tensorly_loop("partial_tucker"), x, ranks, svd=svd, random_state=random_state, mask=mask
    )
    if isinstance(init, Resumed):
        core, factors = restore(init, x, tuple(ranks), "tucker", x.dtype)
    else:
        (core, factors), _ = step(n_iter_max=0, init=init)
        factors = list(factors)  # not the caller's list

    def update(
        iteration: int, core: Array, factors: list[Array], errors: list[float]
    ) -> tuple[Array, list[Array], float]:
        # An iteration starts from the factors alone, and writes them to the list that it gets.
        (core, factors), (error,) = step(n_iter_max=1, init=(core, list(factors)))
        return core, factors, error

    tucker_tensor, errors = iterate(
        (core, factors), update, lambda core, factors, error: error, solver="tucker", tensor=x,
        n_iter_max=n_iter_max, init=init, callback=callback, verbose=verbose,
        # As in TensorLy, the first two errors are not compared.
        is_over=lambda errors: len(errors) > 2 and has_converged(errors, tol, "abs_rec_error"),
        start_error=lambda: _measure(x, core, factors),
        make=lambda core, factors: TuckerTensor((core, list(factors))),
    )  # fmt: skip
    return (tucker_tensor, errors) if return_errors else tucker_tensor


def _measure(x: FlycooTensor, core: Array, factors: list[Array]) -> float:
    """Compute the relative error of any core and factors."""
    inner = (core * tl.tenalg.multi_mode_dot(x, factors, transpose=True)).sum()
    grams = [transposed_product(factor, factor) for factor in factors]
    model_square = (core * tl.tenalg.multi_mode_dot(core, grams)).sum()
    square = x.norm() ** 2
    return float(abs(square + model_square - 2 * inner)) ** 0.5 / float(x.norm())

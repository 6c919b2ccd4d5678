"""Tucker decomposition by TensorLy's own loop, which `Run` takes step by step for a callback."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorly as tl
from tensorly.tucker_tensor import TuckerTensor, validate_tucker_rank

from ..engines.tall import transposed_product
from ..io.checkpoint import Resumed
from ..loop.cp_loop import Callback, Run, restore
from ..loop.guarding import describe_as, require_flycoo_backend, tensorly_loop
from ..loop.ranks import find_tucker_rank
from ..tensor.coo_cache import SparseData, as_flycoo
from .parafac import parafac


@describe_as(parafac)
def tucker(
    tensor: SparseData,
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
        The initial guess, in the dtype of `tensor`; or a checkpoint to resume
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
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    ranks = find_tucker_rank(x, rank, None if fixed_factors else x.ndim)
    if callback is None and not isinstance(init, Resumed):
        return tensorly_loop("tucker")(
            x, ranks, fixed_factors=fixed_factors, n_iter_max=n_iter_max, init=init,
            return_errors=return_errors, svd=svd, tol=tol, random_state=random_state, mask=mask,
            verbose=verbose,
        )  # fmt: skip
    if fixed_factors:
        raise ValueError(
            f"fixed_factors is {fixed_factors!r}, expected None together with callback= or a "
            "checkpoint: leave one of them out"
        )
    if ranks is None or isinstance(ranks, int):
        ranks = list(x.shape) if ranks is None else [ranks] * x.ndim
    ranks = [int(r) for r in validate_tucker_rank(x.shape, ranks)]
    step = functools.partial(
        tensorly_loop("partial_tucker"), x, ranks, svd=svd, random_state=random_state, mask=mask
    )
    if isinstance(init, Resumed):
        model = restore(init, x, tuple(ranks), "tucker", x.dtype)
    else:
        (core, factors), _ = step(n_iter_max=0, init=init)
        model = core, list(factors)  # not the caller's list
    return _TensorlyIterations(
        step, tensor=x, model=model, n_iter_max=n_iter_max, init=init, callback=callback, tol=tol,
        verbose=verbose, return_errors=return_errors,
    ).iterate()  # fmt: skip


class TuckerRun(Run):
    """A run of a Tucker decomposition, whose `weights` are the core."""

    def is_over(self) -> bool:
        # As in TensorLy, the first two errors are not compared.
        return len(self.errors) > 2 and super().is_over()

    def make(self) -> TuckerTensor:
        return TuckerTensor((self.weights, list(self.factors)))


@dataclass
class _TensorlyIterations(TuckerRun):
    """TensorLy's own loop, one iteration at a time."""

    solver = "tucker"
    partial_tucker: Callable[..., Any]  # TensorLy's, which takes `n_iter_max` and `init`

    def update(self, iteration: int) -> float:
        # An iteration starts from the factors alone, and writes them to the list that it gets.
        init = (self.weights, self.factors)
        (self.weights, self.factors[:]), (error,) = self.partial_tucker(n_iter_max=1, init=init)
        return error

    def measure_start(self) -> float:
        """Compute the relative error of any core and factors."""
        x, core, factors = self.tensor, self.weights, self.factors
        inner = (core * tl.tenalg.multi_mode_dot(x, factors, transpose=True)).sum()
        grams = [transposed_product(factor, factor) for factor in factors]
        model_square = (core * tl.tenalg.multi_mode_dot(core, grams)).sum()
        square = x.norm() ** 2
        return float(abs(square + model_square - 2 * inner)) ** 0.5 / float(x.norm())

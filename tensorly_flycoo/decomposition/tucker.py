"""Tucker decomposition by TensorLy's own loop, which `Run` takes step by step for a callback."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import tensorly as tl
from tensorly.tucker_tensor import TuckerTensor, validate_tucker_rank

from ..base.array_modules import Array, array_module
from ..engines.tall import transposed_product
from ..io.checkpoint import Resumed
from ..loop.guarding import describe_as, require_flycoo_backend, tensorly_loop
from ..loop.masks import MissingEntries, find_missing
from ..loop.ranks import find_tucker_rank
from ..loop.run import Callback, Run, RunModel, Sweep
from ..loop.starting import restore
from ..loop.stopping import Converged
from ..ops.cp_entries import choose_block_size
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.tensor import FlycooTensor
from .parafac import parafac


@describe_as(parafac)
def tucker(
    tensor: LabelledData,
    rank: int | str | Sequence[int] | None,
    fixed_factors: Sequence[int] | None = None,
    n_iter_max: int = 100,
    init: Any = "svd",
    return_errors: bool = False,
    svd: str = "truncated_svd",
    tol: float = 10e-5,
    random_state: Any = None,
    mask: Mask = None,
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

    Returns
    -------
    TuckerTensor
        A core of size `rank` and factors (I_n, R_n), on the device of `tensor`.
    errors : list of float
        The relative error after each iteration; only with `return_errors`. With a mask it is that
        of the tensor with the values at missing entries of the model before.

    Raises
    ------
    DensifyError
        If the mask marks what is observed (fill_value 0), or `svd` is any other method.
    RuntimeError
        If TensorLy's backend is not "flycoo".
    TypeError
        If a rank is no integer, such as a fraction.
    ValueError
        If a rank is below 1, their number is not that of the modes, `init` is unknown or does not
        match, `fixed_factors` comes with `callback` or a mask, or a checkpoint is of another
        tensor.

    Notes
    -----
    One chain of products with the factors per mode and iteration, and one for the core (`ttmc`).
    With a mask, whose missing entries are listed, each iteration imputes them first, as TensorLy's
    does, and in slabs plans the tensor anew; ``init="random"`` may find a better model.

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
    # With fixed factors, ranks may be those of the other modes alone.
    num_ranks = None if fixed_factors else x.ndim
    ranks = find_tucker_rank(x, rank, num_ranks)
    missing = None if mask is None else find_missing(tensor, mask, lists=True)
    if isinstance(init, tuple | list | TuckerTensor) and not isinstance(init, Resumed):
        init = _copy_guess(init)

    # TensorLy's own loop, if it can do all that is asked for.
    if callback is None and not isinstance(init, Resumed) and missing is None:
        return tensorly_loop("tucker")(
            x,
            ranks,
            fixed_factors=fixed_factors,
            n_iter_max=n_iter_max,
            init=init,
            return_errors=return_errors,
            svd=svd,
            tol=tol,
            random_state=random_state,
            verbose=verbose,
        )
    if fixed_factors:
        raise ValueError(
            f"fixed_factors is {fixed_factors!r}, expected None together with callback=, mask= or "
            "a checkpoint: leave one of them out"
        )

    # TensorLy's iterations, one at a time.
    sizes = _list_ranks(x, ranks)
    iterate = functools.partial(
        tensorly_loop("partial_tucker"), rank=sizes, svd=svd, random_state=random_state
    )
    if isinstance(init, Resumed):
        model = restore(init, x, tuple(sizes), "tucker", x.dtype)
    else:
        if missing is not None and isinstance(init, str) and init == "svd":
            init = start_masked(missing, sizes)
        (core, factors), _ = iterate(x, n_iter_max=0, init=init)
        model = RunModel(core, list(factors))  # not the caller's list
    return Run(
        sweep=TensorlyTucker(iterate, model, x, missing),
        tensor=x,
        n_iter_max=n_iter_max,
        stop=Converged(tol, num_skipped=1),  # as in TensorLy
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
    ).iterate()


def _list_ranks(x: FlycooTensor, ranks: int | Sequence[int] | str | None) -> list[int]:
    """List the rank of each mode; None gives the modes' sizes, and one integer serves all modes."""
    if ranks is None:
        ranks = x.shape
    elif isinstance(ranks, int):
        ranks = [ranks] * x.ndim
    return [int(r) for r in validate_tucker_rank(x.shape, ranks)]


def _copy_guess(init: Any) -> Any:
    """Return a guess with a list of its own: TensorLy writes the new factors to that which it gets.

    >>> _copy_guess((1, [2, 3]))
    (1, [2, 3])
    """
    has_core = len(init) == 2 and isinstance(init[1], tuple | list)
    if not has_core:
        return init
    core, factors = init
    return core, list(factors)


def start_masked(missing: MissingEntries, ranks: Sequence[int]) -> tuple[Array, list[Array]]:
    """Make TensorLy's start by singular vectors, which impute missing entries five times."""
    factors = []
    for mode, rank in enumerate(ranks):
        left, *_ = missing.unfold_imputed(mode, rank, 5).svd(rank)
        factors.append(left)
    return tl.tenalg.multi_mode_dot(missing.tensor, factors, transpose=True), factors


def evaluate_tucker(coords: Array, core: Array, factors: Sequence[Array]) -> Array:
    """Return the values of a model at coords (ndim, count): (count,)."""
    values = array_module(core).empty(coords.shape[1], core.dtype)
    block_size = choose_block_size(core, core.size)
    for start in range(0, values.size, block_size):
        block = coords[:, start : start + block_size]
        first, *rest = [factor[ids] for factor, ids in zip(factors, block, strict=True)]
        product = first @ core.reshape(core.shape[0], -1)
        for rows in rest:
            product = (rows[:, :, None] * product.reshape(*rows.shape, -1)).sum(axis=1)
        values[start : start + block_size] = product[:, 0]
    return values


def fill_missing(x: FlycooTensor, missing: MissingEntries | None, model: RunModel) -> FlycooTensor:
    """Return the tensor with the values of the model at its missing entries.

    An iteration begins with it: expectation maximisation.
    """
    if missing is None:
        return x
    return missing.fill(evaluate_tucker(missing.coords, model.weights, model.factors))


def make_tucker_tensor(model: RunModel) -> TuckerTensor:
    """Make a TensorLy TuckerTensor with a list of factors of its own."""
    return TuckerTensor((model.weights, list(model.factors)))


@final
class TensorlyTucker(Sweep):
    """TensorLy's own loop, one iteration at a time."""

    solver = "tucker"

    def __init__(
        self,
        iterate: Callable[..., Any],  # its `partial_tucker`, of a tensor, `n_iter_max` and `init`
        model: RunModel,
        x: FlycooTensor,
        missing: MissingEntries | None,
    ) -> None:
        self.model = model
        self._iterate = iterate
        self._x = x
        self._missing = missing

    def update(self, iteration: int) -> float:
        # An iteration starts from the factors alone, and writes them to the list that it gets.
        model = self.model
        x = fill_missing(self._x, self._missing, model)
        guess = model.weights, model.factors
        updated, (error,) = self._iterate(x, n_iter_max=1, init=guess)
        model.weights, model.factors[:] = updated
        return error

    def measure_start(self) -> float:
        """Compute the relative error of any core and factors."""
        x = fill_missing(self._x, self._missing, self.model)
        core = self.model.weights
        factors = self.model.factors
        inner = (core * tl.tenalg.multi_mode_dot(x, factors, transpose=True)).sum()
        grams = [transposed_product(factor, factor) for factor in factors]
        model_square = (core * tl.tenalg.multi_mode_dot(core, grams)).sum()
        norm = x.norm()
        # |x - m|^2 = |x|^2 + |m|^2 - 2 <x, m>; rounding may leave less than 0.
        residual_square = float(abs(norm**2 + model_square - 2 * inner))
        return residual_square**0.5 / float(norm)

    def make(self) -> TuckerTensor:
        return make_tucker_tensor(self.model)

    def save_state(self) -> dict[str, Array]:
        """Return nothing: an iteration depends on the model alone."""
        return {}

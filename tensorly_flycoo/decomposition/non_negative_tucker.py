"""Non-negative Tucker decompositions: multiplicative updates, and hierarchical ALS.

An update takes the tensor's TTMc, the core and Gram matrices: nothing as large as the tensor.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorly as tl
from tensorly.decomposition import _tucker
from tensorly.solvers.nnls import active_set_nnls, fista
from tensorly.tenalg import kronecker, multi_mode_dot
from tensorly.tucker_tensor import TuckerTensor, tucker_normalize, validate_tucker_rank

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_choice, check_matrix, check_real
from ..base.reporting import span
from ..engines.tall_skinny import multiply, transposed_product
from ..io.checkpoint import Resumed
from ..ops.ttmc import multiply_nonempty_rows
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .cp_loop import Callback, has_converged, iterate, list_free_modes, restore
from .guarding import describe_as, require_flycoo_backend
from .non_negative_parafac_hals import improve, spread_penalties
from .ranks import find_tucker_rank
from .tucker import tucker

if TYPE_CHECKING:
    from sparse import SparseArray

#: TensorLy's least numerator and denominator.
_EPSILON = 10e-12


@describe_as(tucker)
def non_negative_tucker(
    tensor: "FlycooTensor | SparseArray",
    rank: int | str | Sequence[int] | None,
    n_iter_max: int = 10,
    init: Any = "svd",
    tol: float = 10e-5,
    random_state: Any = None,
    verbose: bool = False,
    return_errors: bool = False,
    normalize_factors: bool = False,
    callback: Callback | None = None,
) -> Any:
    """Decompose a sparse tensor into a non-negative core and factors by multiplicative updates.

    It gives TensorLy's numbers, and needs its backend "flycoo".

    Parameters
    ----------
    init : {"svd", "random", TuckerTensor, (core, factors), list of factors, ResumedTucker}
        As of `tucker`, or factors alone; the absolute values of a guess are taken.
    normalize_factors : bool
        Whether the columns of the factors get length 1 after each iteration but the one that
        converges; the core takes up their lengths.

    Returns
    -------
    TuckerTensor, errors
        As of `tucker`, in the dtype of `tensor`.

    Raises
    ------
    RuntimeError
        If TensorLy's backend is not "flycoo".
    TypeError, ValueError
        As of `tucker`; and if `tensor` has no nonzeros, or an array of `init` has the wrong device
        or dtype.

    Notes
    -----
    One chain of products with the factors (`ttmc`) per mode and iteration. The workspace holds its
    result: ``prod(R) / R_n`` numbers for each index of a mode that has nonzeros. Results have the
    same bits in every run on one machine.

    References
    ----------
    Kim and Choi, "Nonnegative Tucker Decomposition", CVPR 2007.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     core, factors = non_negative_tucker(x, [2, 3, 4], init="random", random_state=0)
    >>> core.shape, all((array >= 0).all() for array in (core, *factors))
    ((2, 3, 4), True)
    """

    def scale(array: Array, numerator: Array, denominator: Array) -> Array:
        return array * (numerator.clip(_EPSILON, None) / denominator.clip(_EPSILON, None))

    return _decompose(
        tensor, rank, init, "truncated_svd", random_state, None, tol, return_errors,
        lambda targets, gram, factor, mode: scale(factor, targets, multiply(factor, gram)),
        lambda targets, grams, core: scale(core, targets, multi_mode_dot(core, grams)),
        solver="non_negative_tucker", n_iter_max=n_iter_max, verbose=verbose,
        normalize_factors=normalize_factors, callback=callback,
    )  # fmt: skip


@describe_as(non_negative_tucker)
def non_negative_tucker_hals(
    tensor: "FlycooTensor | SparseArray", rank: int | str | Sequence[int] | None,
    n_iter_max: int = 100, init: Any = "svd", svd: str = "truncated_svd", tol: float = 1e-8,
    sparsity_coefficients: float | Sequence[float | None] | None = None,
    core_sparsity_coefficient: float | None = None, fixed_modes: Sequence[int] | None = None,
    random_state: Any = None, verbose: bool = False, normalize_factors: bool = False,
    return_errors: bool = False, exact: bool = False, algorithm: str = "fista",
    callback: Callback | None = None,
) -> Any:  # fmt: skip
    """Decompose a sparse tensor into a non-negative core and factors by hierarchical ALS.

    TensorLy's own non-negative least squares update the core, on the host. All that is not said
    here is as of `non_negative_tucker`.

    Parameters
    ----------
    svd : {"truncated_svd", "randomized_svd"}
        The method for ``init="svd"``.
    sparsity_coefficients : float or sequence of float, optional
        Weights of a penalty on the sum of each factor's elements.
    core_sparsity_coefficient : float, optional
        Weight of a penalty on the sum of the core's elements, with "fista".
    fixed_modes : sequence of int, optional
        Modes whose factors of `init` are kept; the last mode is always updated.
    exact : bool
        Whether to sweep over a factor until it stops changing, instead of at most five times.
    algorithm : {"fista", "active_set"}
        Updates the core in up to `n_iter_max` steps (a checkpoint keeps that number);
        "active_set" forms a square matrix with a row for each element of the core.

    Returns
    -------
    TuckerTensor, errors

    Raises
    ------
    DensifyError
        If `svd` is any other method.
    ValueError
        If `algorithm` is unknown, `sparsity_coefficients` has not one number for each mode, or
        `init` has no factors for `fixed_modes`.

    References
    ----------
    Phan and Cichocki, "Extended HALS Algorithm for Nonnegative Tucker Decomposition and Its
    Applications for Multiway Analysis and Classification", Neurocomputing 74, 2011.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     core, factors = non_negative_tucker_hals(x, [2, 3, 4], n_iter_max=5, random_state=0)
    >>> core.shape, all((array >= 0).all() for array in (core, *factors))
    ((2, 3, 4), True)
    """
    check_choice(algorithm, "algorithm", ("fista", "active_set"))
    if core_sparsity_coefficient is not None:
        check_real(core_sparsity_coefficient, "core_sparsity_coefficient", 0)
    penalties = spread_penalties(sparsity_coefficients, tensor.ndim, {*range(tensor.ndim)})
    if fixed_modes and isinstance(init, str):
        raise ValueError(f"fixed_modes needs factors to keep, but init is {init!r}: pass a model")
    steps = init.saved.state.get("steps", n_iter_max) if isinstance(init, Resumed) else n_iter_max

    def update_core(targets: Array, grams: list[Array], core: Array) -> Array:
        # On the host: the arrays are small, and a step there takes less than a launch.
        xp, targets, core = array_module(core), move(targets, np), move(core, np)
        grams = [move(gram, np) for gram in grams]
        if algorithm == "fista":
            # With a factor that is zero, so is the model: the core stays.
            step = float(1 / (np.prod([np.linalg.norm(gram, 2) for gram in grams]) or np.inf))
            options = {"lr": step, "sparsity_coef": core_sparsity_coefficient}
            found = fista(targets, grams, x=core, n_iter_max=int(steps), **options)
        else:
            found = active_set_nnls(targets.ravel(), kronecker(grams), core, int(steps))
        return xp.asarray(found.reshape(core.shape))

    return _decompose(
        tensor, rank, init, svd, random_state, fixed_modes, tol, return_errors,
        lambda targets, gram, factor, mode: improve(targets, gram, factor, penalties[mode], exact),
        update_core,
        solver="non_negative_tucker_hals", n_iter_max=n_iter_max, verbose=verbose,
        normalize_factors=normalize_factors, callback=callback,
        save_state=lambda: {"steps": np.asarray(steps)},
    )  # fmt: skip


def _decompose(
    tensor: Any, rank: Any, init: Any, svd: str, random_state: Any,
    fixed_modes: Sequence[int] | None, tol: float, return_errors: bool,
    update_factor: Callable[..., Array], update_core: Callable[[Array, list[Array], Array], Array],
    **options: Any,
) -> Any:  # fmt: skip
    """Update the factors of the modes that are not fixed, and then the core.

    `update_factor` takes the mode's TTMc times the core, the Gram matrix of what multiplies the
    factor in the model, the factor and its mode; `update_core` takes the tensor times all factors,
    their Gram matrices and the core.
    """
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    found = find_tucker_rank(x, rank, x.ndim) or x.shape
    ranks = tuple(int(r) for r in validate_tucker_rank(x.shape, found))
    if x.nnz == 0:
        raise ValueError(f"tensor of shape {x.shape} has no nonzeros, expected at least one")
    modes = list_free_modes(x.ndim, fixed_modes)
    with span("start"):
        core, factors = _start(x, ranks, init, svd, random_state, options["solver"])

    def project(factors: list[Array], mode: int) -> tuple[Array, Array | slice]:
        return multiply_nonempty_rows(x, mode, {n: f for n, f in enumerate(factors) if n != mode})

    def contract(factors: list[Array], projected: tuple[Array, Array | slice]) -> Array:
        """Return the tensor times all factors, from the TTMc of the last mode."""
        rows, numbers = projected
        return transposed_product(factors[-1][numbers], rows).T.reshape(ranks)

    def update(
        iteration: int, core: Array, factors: list[Array], errors: list[float]
    ) -> tuple[Array, list[Array], Array]:
        grams = [transposed_product(factor, factor) for factor in factors]
        for mode in modes:
            rows, numbers = project(factors, mode)
            unfolded = tl.unfold(core, mode)
            gram = tl.unfold(multi_mode_dot(core, grams, skip=mode), mode) @ unfolded.T
            targets = x._engine.xp.zeros_like(factors[mode])
            targets[numbers] = multiply(rows, unfolded.T)
            factors[mode] = update_factor(targets, gram, factors[mode], mode)
            grams[mode] = transposed_product(factors[mode], factors[mode])
        products = contract(factors, (rows, numbers))
        return update_core(products, grams, core), factors, products

    def measure(core: Array, factors: list[Array], products: Array) -> float:
        core, square = core.astype(np.float64), np.float64(float(x.norm())) ** 2
        grams = [transposed_product(factor, factor).astype(np.float64) for factor in factors]
        model = float((core * multi_mode_dot(core, grams)).sum())
        return float(np.sqrt(abs(square + model - 2 * float((core * products).sum())) / square))

    tucker_tensor, errors = iterate(
        (core, factors), update, measure, tensor=x, init=init,
        start_error=lambda: measure(core, factors, contract(factors, project(factors, x.ndim - 1))),
        # As in TensorLy, the first two errors are not compared.
        is_over=lambda errors: len(errors) > 2 and has_converged(errors, tol, "abs_rec_error"),
        make=lambda core, factors: TuckerTensor((core, list(factors))),
        normalize=lambda core, factors: tuple(tucker_normalize((core, factors))), **options,
    )  # fmt: skip
    return (tucker_tensor, errors) if return_errors else tucker_tensor


def _start(
    x: FlycooTensor, ranks: tuple[int, ...], init: Any, svd: str, random_state: Any, solver: str
) -> tuple[Array, list[Array]]:
    """Return TensorLy's initial core and factors, or those of the checkpoint in `init`."""
    if isinstance(init, Resumed):
        return restore(init, x, ranks, solver, x.dtype)
    if isinstance(init, tuple | list | TuckerTensor):
        core, factors = (None, init) if isinstance(init, list) else init
        if len(factors) != x.ndim:
            raise ValueError(f"init has {len(factors)} factors, expected {x.ndim}, one per mode")
        named = [(f"factors[{n}] of init", f, x.shape[n]) for n, f in enumerate(factors)]
        if core is not None:
            named.append(("the core of init", core.reshape(core.shape[0], -1), ranks[0]))
        for name, array, size in named:
            check_matrix(array, name, size, x.dtype, x._engine.array_type)
        found = tuple(factor.shape[1] for factor in factors)
        if found != ranks or (core is not None and core.shape != ranks):
            shape = "" if core is None else f" and a core of shape {core.shape}"
            raise ValueError(f"init has factors of ranks {found}{shape}, expected {ranks}")
    start = inspect.unwrap(_tucker.initialize_tucker)
    core, factors = start(
        x, ranks, range(x.ndim), random_state, init=init, svd=svd, non_negative=True
    )
    return core, list(factors)

"""Non-negative Tucker decompositions: multiplicative updates, and hierarchical ALS.

An update takes the tensor's TTMc, the core and Gram matrices: nothing as large as the tensor.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorly as tl
from tensorly.decomposition import _tucker
from tensorly.solvers.nnls import active_set_nnls, fista
from tensorly.tenalg import kronecker, multi_mode_dot
from tensorly.tucker_tensor import TuckerTensor, tucker_normalize, validate_tucker_rank

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_choice, check_matrix, check_real
from ..base.reporting import span
from ..engines.tall import multiply, transposed_product
from ..io.checkpoint import Resumed
from ..loop.cp_loop import Callback, list_free_modes, restore
from ..loop.guarding import describe_as, require_flycoo_backend
from ..loop.hals import improve
from ..loop.masks import find_missing
from ..loop.ranks import find_tucker_rank
from ..ops.ttmc import multiply_nonempty_rows
from ..tensor.coo_cache import Mask, SparseData, as_flycoo
from ..tensor.tensor import FlycooTensor
from .non_negative_parafac_hals import non_negative_parafac_hals, spread_penalties
from .tucker import TuckerRun, start_masked, tucker

#: TensorLy's least numerator and denominator.
_EPSILON = 10e-12


@describe_as(tucker)
def non_negative_tucker(
    tensor: SparseData,
    rank: int | str | Sequence[int] | None,
    n_iter_max: int = 10,
    init: Any = "svd",
    tol: float = 10e-5,
    random_state: Any = None,
    verbose: bool = False,
    return_errors: bool = False,
    normalize_factors: bool = False,
    callback: Callback | None = None,
    mask: Mask = None,
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
        As of `tucker`; and if `tensor` has no nonzeros, or an array of `init` has the wrong dtype.

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
    return _begin(
        _MultiplicativeRun,
        tensor,
        rank,
        init,
        "truncated_svd",
        random_state,
        None,
        mask,
        tol=tol,
        n_iter_max=n_iter_max,
        verbose=verbose,
        return_errors=return_errors,
        normalize_factors=normalize_factors,
        callback=callback,
    ).iterate()


@describe_as(non_negative_parafac_hals, non_negative_tucker)
def non_negative_tucker_hals(
    tensor: SparseData,
    rank: int | str | Sequence[int] | None,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: str = "truncated_svd",
    tol: float = 1e-8,
    sparsity_coefficients: float | Sequence[float | None] | None = None,
    core_sparsity_coefficient: float | None = None,
    fixed_modes: Sequence[int] | None = None,
    random_state: Any = None,
    verbose: bool = False,
    normalize_factors: bool = False,
    return_errors: bool = False,
    exact: bool = False,
    algorithm: str = "fista",
    callback: Callback | None = None,
) -> Any:
    """Decompose a sparse tensor into a non-negative core and factors by hierarchical ALS.

    TensorLy's own non-negative least squares update the core, on the host. All that is not said
    here is as of `non_negative_tucker`.

    Parameters
    ----------
    core_sparsity_coefficient : float, optional
        Weight of a penalty on the sum of the core's elements, with "fista".
    fixed_modes : sequence of int, optional
        Modes whose factors of `init` are kept; the last mode is always updated.
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
    return _begin(
        _Hals,
        tensor,
        rank,
        init,
        svd,
        random_state,
        fixed_modes,
        None,
        penalties=penalties,
        core_penalty=core_sparsity_coefficient,
        exact=exact,
        algorithm=algorithm,
        tol=tol,
        n_iter_max=n_iter_max,
        verbose=verbose,
        return_errors=return_errors,
        normalize_factors=normalize_factors,
        callback=callback,
    ).iterate()


def _begin(
    solver: "type[_MultiplicativeRun]",
    tensor: Any,
    rank: Any,
    init: Any,
    svd: str,
    random_state: Any,
    fixed_modes: Sequence[int] | None,
    mask: Mask,
    **options: Any,
) -> "_MultiplicativeRun":
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    found = find_tucker_rank(x, rank, x.ndim) or x.shape
    ranks = tuple(int(r) for r in validate_tucker_rank(x.shape, found))
    if x.nnz == 0:
        raise ValueError(f"tensor of shape {x.shape} has no nonzeros, expected at least one")
    modes = list_free_modes(x.ndim, fixed_modes)
    missing = None if mask is None else find_missing(tensor, mask, lists=True)
    if missing is not None and isinstance(init, str) and init == "svd":
        init = start_masked(missing, ranks)
    with span("start"):
        model = _start(x, ranks, init, svd, random_state, solver.solver)
    return solver(modes, missing=missing, tensor=x, model=model, init=init, **options)


@dataclass
class _MultiplicativeRun(TuckerRun):
    """Updates the factors of the modes that are not fixed, and then the core."""

    solver = "non_negative_tucker"
    modes: list[int]
    data: FlycooTensor = field(init=False)  # with the values of the model at missing entries

    def update_factor(self, targets: Array, gram: Array, mode: int) -> Array:
        """Update a factor by the mode's TTMc times the core, and the Gram matrix of its systems."""
        return _scale(self.factors[mode], targets, multiply(self.factors[mode], gram))

    def update_core(self, targets: Array, grams: list[Array]) -> Array:
        """Update the core by the tensor times all factors, and their Gram matrices."""
        return _scale(self.weights, targets, multi_mode_dot(self.weights, grams))

    def update(self, iteration: int) -> Array:
        core = self.weights
        factors = self.factors
        self.data = self.fill()
        grams = [transposed_product(factor, factor) for factor in factors]
        for mode in self.modes:
            rows, numbers = self._project(mode)
            unfolded = tl.unfold(core, mode)
            gram = tl.unfold(multi_mode_dot(core, grams, skip=mode), mode) @ unfolded.T
            targets = array_module(core).zeros_like(factors[mode])
            targets[numbers] = multiply(rows, unfolded.T)
            factors[mode] = self.update_factor(targets, gram, mode)
            grams[mode] = transposed_product(factors[mode], factors[mode])
        products = self._contract(rows, numbers)
        self.weights = self.update_core(products, grams)
        return products

    def _project(self, mode: int) -> tuple[Array, Array | slice]:
        others = {n: factor for n, factor in enumerate(self.factors) if n != mode}
        return multiply_nonempty_rows(self.data, mode, others)

    def _contract(self, rows: Array, numbers: Array | slice) -> Array:
        """Return the tensor times all factors, from the TTMc of the last mode."""
        return transposed_product(self.factors[-1][numbers], rows).T.reshape(self.weights.shape)

    def measure(self, result: Array) -> float:
        core = self.weights.astype(np.float64)
        square = np.float64(float(self.data.norm())) ** 2
        grams = [transposed_product(factor, factor).astype(np.float64) for factor in self.factors]
        model = float((core * multi_mode_dot(core, grams)).sum())
        return float(np.sqrt(abs(square + model - 2 * float((core * result).sum())) / square))

    def measure_start(self) -> float:
        self.data = self.fill()
        return self.measure(self._contract(*self._project(len(self.factors) - 1)))

    def normalize(self) -> None:
        self.weights, self.factors[:] = tucker_normalize((self.weights, self.factors))


def _scale(array: Array, numerator: Array, denominator: Array) -> Array:
    return array * (numerator.clip(_EPSILON, None) / denominator.clip(_EPSILON, None))


@dataclass(kw_only=True)
class _Hals(_MultiplicativeRun):
    """The same, but by HALS, and non-negative least squares for the core."""

    solver = "non_negative_tucker_hals"
    penalties: list[float | None]
    core_penalty: float | None
    exact: bool
    algorithm: str

    def update_factor(self, targets: Array, gram: Array, mode: int) -> Array:
        return improve(targets, gram, self.factors[mode], self.penalties[mode], exact=self.exact)

    def update_core(self, targets: Array, grams: list[Array]) -> Array:
        # On the host: the arrays are small, and a step there takes less than a launch.
        xp = array_module(targets)
        targets = move(targets, np)
        core = move(self.weights, np)
        grams = [move(gram, np) for gram in grams]
        if self.algorithm == "fista":
            # With a factor that is zero, so is the model: the core stays.
            step = float(1 / (np.prod([np.linalg.norm(gram, 2) for gram in grams]) or np.inf))
            options = {"lr": step, "sparsity_coef": self.core_penalty}
            found = fista(targets, grams, x=core, n_iter_max=self.num_steps, **options)
        else:
            found = active_set_nnls(targets.ravel(), kronecker(grams), core, self.num_steps)
        return xp.asarray(found.reshape(core.shape))

    @property
    def num_steps(self) -> int:
        return int(self.state.get("steps", self.n_iter_max))

    def save_state(self) -> dict[str, Array]:
        return {"steps": np.asarray(self.num_steps)}


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

"""Non-negative Tucker decompositions: multiplicative updates, and hierarchical ALS.

An update takes the tensor's TTMc, the core and Gram matrices: nothing as large as the tensor.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

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
from ..loop.acceleration import start_momentum
from ..loop.guarding import describe_as, require_flycoo_backend
from ..loop.hals import improve
from ..loop.masks import MissingEntries, find_missing
from ..loop.momentum import NESTEROV
from ..loop.ranks import find_tucker_rank
from ..loop.run import Callback, Run, RunModel, find_state
from ..loop.starting import list_free_modes, restore
from ..loop.stopping import Converged
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.tensor import FlycooTensor, check_has_nonzeros
from .non_negative_parafac_hals import non_negative_parafac_hals, spread_penalties
from .tucker import tucker
from .tucker_sweep import TuckerSweep, list_grams, start_masked

#: TensorLy's least numerator and denominator.
_EPSILON = 10e-12


@describe_as(tucker)
def non_negative_tucker(
    tensor: LabelledData,
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
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    ranks = _find_ranks(x, rank)

    # Begin.
    missing = None if mask is None else find_missing(tensor, mask, lists=True)
    if missing is not None and isinstance(init, str) and init == "svd":
        init = start_masked(missing, ranks)
    sweep = NonNegativeTucker(
        solver="non_negative_tucker",
        model=_start(x, ranks, init, "truncated_svd", random_state, "non_negative_tucker"),
        x=x,
        missing=missing,
        modes=list(range(x.ndim)),
        rule=MultiplicativeTucker(),
    )
    return Run(
        sweep=sweep,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=Converged(tol, num_skipped=1),  # as in TensorLy
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
        normalize=normalize_tucker if normalize_factors else None,
    ).iterate()


@describe_as(non_negative_parafac_hals, non_negative_tucker)
def non_negative_tucker_hals(
    tensor: LabelledData,
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
    linesearch: bool | str = False,
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
    linesearch : False or "nesterov"
        "nesterov": Nesterov's momentum as in `parafac`, of the factors and the core, whose
        elements that would be negative become zero. Only for sparse tensors.

    Returns
    -------
    TuckerTensor, errors

    Raises
    ------
    DensifyError
        If `svd` is any other method.
    ValueError
        If `algorithm` or `linesearch` is unknown, `sparsity_coefficients` has not one number for
        each mode, or `init` has no factors for `fixed_modes`.

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
    # Check the options.
    check_choice(algorithm, "algorithm", ("fista", "active_set"))
    check_choice(linesearch, "linesearch", (False, NESTEROV))
    if core_sparsity_coefficient is not None:
        check_real(core_sparsity_coefficient, "core_sparsity_coefficient", 0)
    penalties = spread_penalties(sparsity_coefficients, tensor.ndim, {*range(tensor.ndim)})
    if fixed_modes and isinstance(init, str):
        raise ValueError(f"fixed_modes needs factors to keep, but init is {init!r}: pass a model")
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    ranks = _find_ranks(x, rank)

    # Begin.
    rule = HalsTucker(
        penalties=penalties,
        core_penalty=core_sparsity_coefficient,
        exact=exact,
        algorithm=algorithm,
        num_steps=int(find_state(init).get("steps", n_iter_max)),
    )
    sweep = NonNegativeTucker(
        solver="non_negative_tucker_hals",
        modes=list_free_modes(x.ndim, fixed_modes),
        model=_start(x, ranks, init, svd, random_state, "non_negative_tucker_hals"),
        x=x,
        missing=None,
        rule=rule,
    )
    momentum = None
    if linesearch == NESTEROV:
        parts = [*sweep.modes, sweep.core_part]
        momentum = start_momentum(sweep, parts, init, project_non_negative)
    return Run(
        sweep=sweep,
        accelerate=momentum,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=Converged(tol, num_skipped=1),  # as in TensorLy
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
        normalize=normalize_tucker if normalize_factors else None,
    ).iterate()


def _find_ranks(x: FlycooTensor, rank: Any) -> tuple[int, ...]:
    """Return the rank of each mode; refuse a tensor without nonzeros."""
    given_ranks = find_tucker_rank(x, rank, x.ndim) or x.shape
    ranks = tuple(int(r) for r in validate_tucker_rank(x.shape, given_ranks))
    check_has_nonzeros(x)
    return ranks


class TuckerRule(ABC):
    """How a sweep updates a factor and the core."""

    @abstractmethod
    def update_factor(self, factor: Array, targets: Array, gram: Array, mode: int) -> Array:
        """Return a new factor.

        `targets` (I, R) is the mode's TTMc times the core, `gram` (R, R) the Gram matrix of the
        systems of its rows.
        """

    @abstractmethod
    def update_core(self, core: Array, targets: Array, grams: list[Array]) -> Array:
        """Return a new core, from the tensor times all factors, and their Gram matrices."""

    @abstractmethod
    def save_state(self) -> dict[str, Array]:
        """Return the arrays that a resumed run needs besides the model."""


@final
class MultiplicativeTucker(TuckerRule):
    """Multiplies by ratios that are 1 at a local optimum."""

    def update_factor(self, factor: Array, targets: Array, gram: Array, mode: int) -> Array:
        return _scale(factor, targets, multiply(factor, gram))

    def update_core(self, core: Array, targets: Array, grams: list[Array]) -> Array:
        return _scale(core, targets, multi_mode_dot(core, grams))

    def save_state(self) -> dict[str, Array]:
        return {}


def _scale(array: Array, numerator: Array, denominator: Array) -> Array:
    """Multiply by a ratio, both of whose parts are at least `_EPSILON`."""
    return array * (numerator.clip(_EPSILON, None) / denominator.clip(_EPSILON, None))


@final
@dataclass(frozen=True, kw_only=True)
class HalsTucker(TuckerRule):
    """Sweeps of HALS for a factor, and non-negative least squares for the core."""

    penalties: list[float | None]  # of each mode, on the sum of the factor's elements
    core_penalty: float | None
    exact: bool
    algorithm: str  # for the core
    num_steps: int  # of the algorithm, at most; the same for a resumed run

    def update_factor(self, factor: Array, targets: Array, gram: Array, mode: int) -> Array:
        return improve(targets, gram, factor, self.penalties[mode], exact=self.exact)

    def update_core(self, core: Array, targets: Array, grams: list[Array]) -> Array:
        # On the host: the arrays are small, and a step there takes less than a launch.
        targets_on_host = move(targets, np)
        guess = move(core, np)
        grams_on_host = [move(gram, np) for gram in grams]
        if self.algorithm == "fista":
            updated = self._run_fista(guess, targets_on_host, grams_on_host)
        else:
            matrix = kronecker(grams_on_host)
            updated = active_set_nnls(targets_on_host.ravel(), matrix, guess, self.num_steps)
        return array_module(targets).asarray(updated.reshape(core.shape))

    def _run_fista(
        self, guess: np.ndarray, targets: np.ndarray, grams: list[np.ndarray]
    ) -> np.ndarray:
        """Improve a core by accelerated gradient steps of TensorLy's."""
        # The Lipschitz constant of the gradient: the norm of the grams' Kronecker product.
        lipschitz = np.prod([np.linalg.norm(gram, 2) for gram in grams])
        if lipschitz == 0:  # a factor is zero: no core changes the model, so take no step
            lipschitz = np.inf
        return fista(
            targets,
            grams,
            x=guess,
            n_iter_max=self.num_steps,
            lr=float(1 / lipschitz),
            sparsity_coef=self.core_penalty,
        )

    def save_state(self) -> dict[str, Array]:
        return {"steps": np.asarray(self.num_steps)}


def project_non_negative(n: int, array: Array) -> Array:
    """Set the negative elements of any part of a model to zero."""
    return np.maximum(array, 0)


@final
class NonNegativeTucker(TuckerSweep):
    """Updates the factors of the modes that are not fixed, and then the core.

    For momentum, the factors are the first parts of the model, and the core is the last.
    """

    def __init__(
        self,
        *,
        solver: str,
        model: RunModel,
        x: FlycooTensor,
        missing: MissingEntries | None,
        modes: list[int],
        rule: TuckerRule,
    ) -> None:
        super().__init__(solver=solver, model=model, x=x, missing=missing)
        self.modes = modes
        self._rule = rule

    def update(self, iteration: int) -> float:
        """Update the factors one after the other, then the core; return the error."""
        core = self.model.weights
        factors = self.model.factors
        self._fill()
        grams = list_grams(factors)
        for mode in self.modes:
            rows, numbers = self._project(mode)  # of the TTMc, where it is not zero
            unfolded = tl.unfold(core, mode)
            gram = tl.unfold(multi_mode_dot(core, grams, skip=mode), mode) @ unfolded.T
            targets = self._make_targets(mode, rows, numbers)
            factors[mode] = self._rule.update_factor(factors[mode], targets, gram, mode)
            grams[mode] = transposed_product(factors[mode], factors[mode])
        # The last mode is never fixed, so `rows` are those of its TTMc: contract them with the new
        # factor.
        products = self._contract(self.modes[-1], rows, numbers)
        self.model.weights = self._rule.update_core(core, products, grams)
        return self._measure(products, grams)

    def save_state(self) -> Mapping[str, Array]:
        return self._rule.save_state()

    @property
    def core_part(self) -> int:
        """The number of the core among the parts."""
        return len(self.model.factors)

    def get_part(self, n: int) -> Array:
        if n == self.core_part:
            return self.model.weights
        return self.model.factors[n]

    def set_part(self, n: int, array: Array) -> None:
        if n == self.core_part:
            self.model.weights = array
        else:
            self.model.factors[n] = array

    def place_parts(self, parts: Mapping[int, np.ndarray]) -> dict[int, Array]:
        """Return parts of a checkpoint on the device of the tensor."""
        return {n: self._x._engine.xp.asarray(part) for n, part in parts.items()}

    def impute(self) -> None:
        """Do nothing: an update begins by filling in the missing entries."""

    def find_loss(self, error: float) -> float:
        return error

    def can_compare_errors(self) -> bool:
        """Return True: where nothing is negative, no large components cancel."""
        return True

    def keep(self) -> tuple[Array, list[Array]]:
        return self.model.weights, list(self.model.factors)

    def take_back(self, kept: tuple[Array, list[Array]]) -> None:
        self.model.weights, self.model.factors[:] = kept


def normalize_tucker(model: RunModel) -> None:
    """Move the norms of the factors' columns into the core."""
    model.weights, model.factors[:] = tucker_normalize((model.weights, model.factors))


def _start(
    x: FlycooTensor, ranks: tuple[int, ...], init: Any, svd: str, random_state: Any, solver: str
) -> RunModel:
    """Return TensorLy's initial core and factors, or those of the checkpoint in `init`."""
    with span("start"):
        if isinstance(init, Resumed):
            return restore(init, x, ranks, solver, x.dtype)
        if isinstance(init, tuple | list | TuckerTensor):
            _check_guess(init, x, ranks)
        start = inspect.unwrap(_tucker.initialize_tucker)
        core, factors = start(
            x, ranks, range(x.ndim), random_state, init=init, svd=svd, non_negative=True
        )
    return RunModel(core, list(factors))


def _check_guess(init: Any, x: FlycooTensor, ranks: tuple[int, ...]) -> None:
    """Refuse a guess, maybe of factors alone, whose arrays do not fit."""
    if isinstance(init, list):
        core = None
        factors = init
    else:
        core, factors = init
    if len(factors) != x.ndim:
        raise ValueError(f"init has {len(factors)} factors, expected {x.ndim}, one per mode")
    for n, factor in enumerate(factors):
        name = f"factors[{n}] of init"
        check_matrix(factor, name, x.shape[n], x.dtype, x._engine.array_type)
    if core is not None:
        unfolded = core.reshape(core.shape[0], -1)
        check_matrix(unfolded, "the core of init", ranks[0], x.dtype, x._engine.array_type)
    guess_ranks = tuple(factor.shape[1] for factor in factors)
    if guess_ranks != ranks or (core is not None and core.shape != ranks):
        of_core = ""
        if core is not None:
            of_core = f" and a core of shape {core.shape}"
        raise ValueError(f"init has factors of ranks {guess_ranks}{of_core}, expected {ranks}")

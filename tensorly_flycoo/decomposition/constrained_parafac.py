"""CP decomposition whose factors meet constraints or are penalised (AO-ADMM)."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensorly.cp_tensor import CPTensor
from tensorly.tenalg.proximal import proximal_operator, validate_constraints

from ..base.array_modules import Array, array_module
from ..base.checks import warn
from ..engines.tall import solve
from ..io.checkpoint import Resumed
from ..loop.cp_loop import AlternatingRun, Callback, list_free_modes, restore
from ..loop.cp_model import make_cp_tensor, multiply_grams
from ..loop.guarding import describe_as, require_flycoo_backend
from ..loop.initial_guess import check_initial_guess, make_initial_guess, spread_factors
from ..loop.ranks import find_cp_rank
from ..loop.scaling import CONSTRAINTS
from ..loop.smoothness import smooth
from ..loop.whole_tensor import WholeTensor
from ..tensor.coo_cache import SparseData, as_flycoo
from ..tensor.tensor import FlycooTensor
from .parafac import parafac
from .proximal import fit_monotone, fit_unimodal

#: The parameter of a constraint: one for all modes, one per mode, or a dict for some modes.
Constraint = Any

#: A proximal operator: maps a column (I,) or factor (I, R) to one that meets the constraint.
Projection = Callable[[Array], Array]


@describe_as(parafac)
def constrained_parafac(
    tensor: SparseData,
    rank: int | str,
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
    fixed_modes: Sequence[int] | None = None,
    non_negative: Constraint = None,
    l1_reg: Constraint = None,
    group_lasso: Constraint = None,
    l2_reg: Constraint = None,
    l2_square_reg: Constraint = None,
    unimodality: Constraint = None,
    normalize: Constraint = None,
    simplex: Constraint = None,
    normalized_sparsity: Constraint = None,
    soft_sparsity: Constraint = None,
    smoothness: Constraint = None,
    monotonicity: Constraint = None,
    hard_sparsity: Constraint = None,
    callback: Callback | None = None,
) -> Any:
    """Decompose a sparse tensor into CP factors under constraints or penalties.

    Each factor is updated by ADMM, with the proximal operator of its mode's constraint. These are
    TensorLy's, except three that would form square matrices as large as a mode: those of
    `unimodality`, `smoothness` and `monotonicity` take time linear in the size of the mode.

    Parameters
    ----------
    n_iter_max, n_iter_max_inner : int
        Iterations over all modes, and of ADMM for one mode.
    tol_outer : float
        Stop when the error changes by less, or when the constraint violations add up to less; 0
        never stops.
    tol_inner : float
        Stop ADMM when both of its relative residuals are less.
    non_negative, unimodality, normalize, monotonicity : bool or dict of int to bool, optional
        Constraints on the factors of all modes, or of some.
    l1_reg, group_lasso, l2_reg, l2_square_reg, smoothness : float, list or dict, optional
        Weights of penalties: one for all modes, one per mode, or a dict for some modes.
    simplex, normalized_sparsity, soft_sparsity, hard_sparsity : number, list or dict, optional
        Parameters of constraints, given in the same way.

    Returns
    -------
    CPTensor
        Weights of ones (R,) in the dtype of `tensor`, and factors (I_n, R), on the device of
        `tensor`. As in TensorLy, factors that were updated are float64.
    errors : list of float
        The relative error after each iteration; only with `return_errors`.

    Raises
    ------
    DensifyError, TypeError
        As of `parafac`.
    RuntimeError
        If TensorLy's backend is not "flycoo": its proximal operators would not run on a GPU.
    ValueError
        As of `parafac`; and if a mode has two constraints, or a checkpoint other free modes.

    Warns
    -----
    UserWarning
        If the result is all zeros: a penalty was too strong.

    Notes
    -----
    One MTTKRP per mode and iteration. ADMM solves for all rows of a factor together, and meets the
    constraints only in the limit: the error may increase.

    References
    ----------
    Huang, Sidiropoulos and Liavas, "A Flexible and Efficient Algorithmic Framework for Constrained
    Matrix and Tensor Factorization", IEEE Transactions on Signal Processing 64, 2016.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     cp_tensor = constrained_parafac(x, 3, n_iter_max=5, non_negative=True)
    >>> all((factor >= 0).all() for factor in cp_tensor.factors)
    True
    """
    given = {n: v for n, v in locals().items() if n in CONSTRAINTS and v is not None}
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    num_components = find_cp_rank(x, rank)
    projections = _choose_projections(given, x.ndim)
    if isinstance(init, Resumed):
        _, factors = restore(init, x, num_components, "constrained_parafac")
    else:
        factors = _start(x, num_components, init, svd, random_state, projections)
    factors = spread_factors(x, factors)
    run = _Admm(
        WholeTensor(x),
        list_free_modes(x.ndim, fixed_modes),
        projections,
        n_iter_max_inner,
        tol_inner,
        tensor=x,
        model=(None, factors),
        n_iter_max=n_iter_max,
        init=init,
        callback=callback,
        tol=tol_outer,
        cvg_criterion=cvg_criterion,
        return_errors=return_errors,
        verbose=verbose,
    )
    result = run.iterate()
    if x.nnz:
        _warn_of_zeros(x, result[0] if return_errors else result, given)
    return result


def _choose_projections(given: dict[str, Constraint], ndim: int) -> list[Projection]:
    """Return the proximal operator of each mode's constraint."""
    projections: list[Projection] = []
    for mode in range(ndim):
        name, parameter = validate_constraints(**given, n_const=ndim, order=mode)
        own: dict[str, Projection] = {
            "smoothness": functools.partial(smooth, strength=parameter, free_ends=False),
            "monotonicity": fit_monotone,
            "unimodality": fit_unimodal,
        }
        theirs = functools.partial(proximal_operator, **given, n_const=ndim, order=mode)
        projections.append(own.get(name, theirs))
    return projections


def _start(
    x: FlycooTensor,
    rank: int,
    init: Any,
    svd: str,
    random_state: Any,
    projections: list[Projection],
) -> list[Array]:
    """Make an initial guess and apply the proximal operators, or scale the user's guess."""
    if not isinstance(init, str):
        weights, factors = CPTensor(check_initial_guess(init, x.dtype, x.device == "cuda"))
        # As in TensorLy, each factor is scaled by the geometric mean of the weights.
        scale = math.prod(weights.tolist()) ** (1 / rank)
        return [factor * x.dtype.type(scale) for factor in factors]
    _, factors = make_initial_guess(x, rank, init, svd, random_state)
    return [project(f) for project, f in zip(projections, factors, strict=True)]


def _warn_of_zeros(x: FlycooTensor, cp_tensor: CPTensor, given: dict[str, Constraint]) -> None:
    """Warn if the model of nonzeros is zero, and name the penalties or constraints to blame."""
    square = float(multiply_grams(*cp_tensor).sum())
    if not square <= (np.finfo(x.dtype).eps * float(x.norm())) ** 2:
        return
    causes = ", ".join(f"{name}={value!r}" for name, value in given.items())
    warn(
        f"constrained_parafac ended in all zeros: {causes or 'the initial guess'} is too strong "
        "for this tensor. Try a tenth of it, and less until some factors remain; how strong a "
        "penalty is depends on the size of the tensor's values. For a very sparse tensor "
        "init='svd' may be the cause: pass init='random'"
    )


@dataclass
class _Admm(AlternatingRun):
    """ADMM for each free mode in turn, with its state between iterations.

    A violation is the distance from a factor to the least squares solution, relative to its norm.
    """

    solver = "constrained_parafac"
    projections: Sequence[Projection]
    n_iter_max_inner: int
    tol_inner: float

    def prepare(self) -> None:
        factors = self.factors
        # Float64, as in TensorLy.
        self.duals = {n: array_module(factors[n]).zeros(factors[n].shape) for n in self.modes}
        self.violations: dict[int, Any] = dict.fromkeys(self.modes, math.inf)
        if not isinstance(self.init, Resumed):
            return
        if self.state.keys() != self.save_state().keys():
            raise ValueError(
                "the checkpoint has other free modes than this call, or was written by another "
                "decomposition: resume with the same fixed_modes"
            )
        for mode, dual in self.duals.items():
            self.duals[mode] = array_module(dual).asarray(self.state[f"dual_{mode}"])
            self.violations[mode] = float(self.state[f"violation_{mode}"])

    def is_over(self) -> bool:
        is_met = len(self.errors) > 1 and sum(self.violations.values()) < self.tol
        return is_met or super().is_over()

    def save_state(self) -> dict[str, Array]:
        duals = {f"dual_{mode}": dual for mode, dual in self.duals.items()}
        return duals | {f"violation_{mode}": own for mode, own in self.violations.items()}

    def make(self) -> CPTensor:
        # Weights in the dtype of x, though the factors are float64.
        weights = self.tensor._engine.xp.ones(self.factors[0].shape[1], self.tensor.dtype)
        return make_cp_tensor(weights, self.factors)

    def update_factor(self, product: Array, gram: Array, mode: int) -> Array:
        dual = self.duals[mode]
        project = self.projections[mode]
        norm = np.linalg.norm
        factor = self.factors[mode]
        step = gram.trace() / gram.shape[0]
        shifted = gram + step * array_module(gram).eye(gram.shape[0])
        for _ in range(self.n_iter_max_inner):
            before = factor
            split = solve(shifted.T, (product + step * (factor + dual)).T).T
            factor = project(split - dual)
            dual = dual + factor - split
            is_split = norm(factor - split) < self.tol_inner * norm(factor)
            if is_split and norm(factor - before) < self.tol_inner * norm(dual):
                break
        self.duals[mode] = dual
        with np.errstate(divide="ignore", invalid="ignore"):  # of zeros, which are warned of
            self.violations[mode] = norm(factor - split) / norm(factor)
        return factor

"""CP decomposition whose factors meet constraints or are penalised (AO-ADMM)."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from tensorly.cp_tensor import CPTensor
from tensorly.tenalg.proximal import proximal_operator

from ..base.array_modules import Array, array_module
from ..base.checks import warn
from ..engines.tall import solve
from ..io.checkpoint import Resumed
from ..loop.alternating import AlternatingSweep
from ..loop.constraints import name_constraints
from ..loop.cp_model import multiply_grams
from ..loop.guarding import describe_as, require_flycoo_backend
from ..loop.initial_guess import check_initial_guess, make_initial_guess, spread_factors
from ..loop.ranks import find_cp_rank
from ..loop.run import Callback, Run, RunModel
from ..loop.smoothness import smooth
from ..loop.starting import list_free_modes, restore
from ..loop.stopping import AnyOf, Converged, Feasible
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
    constraints = {
        "non_negative": non_negative,
        "l1_reg": l1_reg,
        "group_lasso": group_lasso,
        "l2_reg": l2_reg,
        "l2_square_reg": l2_square_reg,
        "unimodality": unimodality,
        "normalize": normalize,
        "simplex": simplex,
        "normalized_sparsity": normalized_sparsity,
        "soft_sparsity": soft_sparsity,
        "smoothness": smoothness,
        "monotonicity": monotonicity,
        "hard_sparsity": hard_sparsity,
    }
    constraints = {name: value for name, value in constraints.items() if value is not None}
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    num_components = find_cp_rank(x, rank)
    projections = _choose_projections(constraints, x.ndim)

    # Begin.
    if isinstance(init, Resumed):
        model = restore(init, x, num_components, "constrained_parafac")
        model.weights = None  # they are ones
    else:
        model = _start(x, num_components, init, svd, random_state, projections)
    model.factors = spread_factors(x, model.factors)
    modes = list_free_modes(x.ndim, fixed_modes)
    admm = Admm(model.factors, modes, projections, n_iter_max_inner, tol_inner)
    if isinstance(init, Resumed):
        admm.resume(init.state)
    sweep = AlternatingSweep(
        solver="constrained_parafac",
        model=model,
        tensor=x,
        data=WholeTensor(x),
        modes=modes,
        update_factor=admm.update_factor,
        save_rule_state=admm.save_state,
    )
    result = Run(
        sweep=sweep,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=AnyOf(Feasible(admm.violations, tol_outer), Converged(tol_outer, cvg_criterion)),
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
    ).iterate()
    if x.nnz:
        cp_tensor = result[0] if return_errors else result
        _warn_of_zeros(x, cp_tensor, constraints)
    return result


def _choose_projections(constraints: dict[str, Constraint], ndim: int) -> list[Projection]:
    """Return the proximal operator of each mode's constraint."""
    projections: list[Projection] = []
    for mode, (name, parameter) in enumerate(name_constraints(constraints, ndim)):
        # In place of those that would form square matrices.
        linear_time: dict[str, Projection] = {
            "smoothness": functools.partial(smooth, strength=parameter, free_ends=False),
            "monotonicity": fit_monotone,
            "unimodality": fit_unimodal,
        }
        of_tensorly = functools.partial(proximal_operator, **constraints, n_const=ndim, order=mode)
        projections.append(linear_time.get(name, of_tensorly))
    return projections


def _start(
    x: FlycooTensor,
    rank: int,
    init: Any,
    svd: str,
    random_state: Any,
    projections: list[Projection],
) -> RunModel:
    """Make an initial guess and apply the proximal operators, or scale the user's guess."""
    if not isinstance(init, str):
        weights, factors = CPTensor(check_initial_guess(init, x.dtype, x.device == "cuda"))
        # As in TensorLy, each factor is scaled by the geometric mean of the weights.
        scale = math.prod(weights.tolist()) ** (1 / rank)
        return RunModel(None, [factor * x.dtype.type(scale) for factor in factors])
    _, factors = make_initial_guess(x, rank, init, svd, random_state)
    pairs = zip(projections, factors, strict=True)
    return RunModel(None, [project(factor) for project, factor in pairs])


def _warn_of_zeros(
    x: FlycooTensor, cp_tensor: CPTensor, constraints: dict[str, Constraint]
) -> None:
    """Warn if the model of nonzeros is zero, and name the penalties or constraints to blame."""
    square = float(multiply_grams(*cp_tensor).sum())
    if not square <= (np.finfo(x.dtype).eps * float(x.norm())) ** 2:
        return
    causes = ", ".join(f"{name}={value!r}" for name, value in constraints.items())
    warn(
        f"constrained_parafac ended in all zeros: {causes or 'the initial guess'} is too strong "
        "for this tensor. Try a tenth of it, and less until some factors remain; how strong a "
        "penalty is depends on the size of the tensor's values. For a very sparse tensor "
        "init='svd' may be the cause: pass init='random'"
    )


@final
class Admm:
    """ADMM for a factor, with its state from one iteration to the next.

    A violation is the distance from a factor to the least squares solution, relative to its norm.
    """

    def __init__(
        self,
        factors: Sequence[Array],
        modes: Sequence[int],  # whose factors are updated
        projections: Sequence[Projection],  # of all modes
        num_steps: int,  # at most, for a factor
        tol: float,
    ) -> None:
        self._projections = projections
        self._num_steps = num_steps
        self._tol = tol
        # Scaled dual variables of ADMM; float64, as in TensorLy.
        self._duals = {n: array_module(factors[n]).zeros(factors[n].shape) for n in modes}
        # How far a factor is from its unconstrained copy, relatively; unknown before an update.
        self.violations: dict[int, Any] = dict.fromkeys(modes, math.inf)

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on where `save_state` was called; refuse the state of other free modes."""
        if state.keys() != self.save_state().keys():
            raise ValueError(
                "the checkpoint has other free modes than this call, or was written by another "
                "decomposition: resume with the same fixed_modes"
            )
        for mode, dual in self._duals.items():
            self._duals[mode] = array_module(dual).asarray(state[f"dual_{mode}"])
            self.violations[mode] = float(state[f"violation_{mode}"])

    def save_state(self) -> dict[str, Array]:
        duals = {f"dual_{mode}": dual for mode, dual in self._duals.items()}
        return duals | {f"violation_{mode}": number for mode, number in self.violations.items()}

    def update_factor(self, factor: Array, product: Array, gram: Array, mode: int) -> Array:
        """Return the factor after some steps from the last one."""
        project = self._projections[mode]
        dual = self._duals[mode]
        norm = np.linalg.norm
        penalty = gram.trace() / gram.shape[0]
        penalized = gram + penalty * array_module(gram).eye(gram.shape[0])
        for _ in range(self._num_steps):
            before = factor
            # The unconstrained copy of the factor, in the splitting of ADMM.
            split = solve(penalized.T, (product + penalty * (factor + dual)).T).T
            factor = project(split - dual)
            dual = dual + factor - split
            is_split_closed = norm(factor - split) < self._tol * norm(factor)
            if is_split_closed and norm(factor - before) < self._tol * norm(dual):
                break
        self._duals[mode] = dual
        with np.errstate(divide="ignore", invalid="ignore"):  # of zeros, which are warned of
            self.violations[mode] = norm(factor - split) / norm(factor)
        return factor

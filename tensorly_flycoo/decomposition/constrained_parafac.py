"""CP decomposition whose factors meet constraints or are penalised (AO-ADMM)."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from tensorly.cp_tensor import CPTensor
from tensorly.tenalg.proximal import proximal_operator

from ..base.array_modules import Array
from ..base.checks import check_choice, warn
from ..engines.row_rules import Operator
from ..io.checkpoint import Resumed
from ..loop.acceleration import start_momentum
from ..loop.alternating import AlternatingSweep
from ..loop.constraints import SETS, name_constraints
from ..loop.cp_model import multiply_grams
from ..loop.guarding import describe_as, require_flycoo_backend
from ..loop.initial_guess import check_initial_guess, make_initial_guess, spread_factors
from ..loop.momentum import NESTEROV
from ..loop.ranks import find_cp_rank
from ..loop.run import Callback, Run, RunModel, only_reads
from ..loop.smoothness import smooth
from ..loop.starting import list_free_modes, restore
from ..loop.stopping import AnyOf, Converged, Feasible
from ..loop.whole_tensor import WholeTensor
from ..spread.array_admm import Projection, project_checked
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.tensor import FlycooTensor
from .admm import Admm, ModeConstraint
from .parafac import parafac
from .proximal import clip_negative, fit_monotone, fit_unimodal, project_rows

#: The parameter of a constraint: one for all modes, one per mode, or a dict for some modes.
Constraint: TypeAlias = Any

#: Proximal operators of rows, given in the same way.
Prox: TypeAlias = Projection | Sequence[Projection | None] | Mapping[int, Projection] | None

#: The constraints and penalties that are separable by rows.
_ROW_OPERATORS = {
    "non_negative": Operator.NON_NEGATIVE,
    "l1_reg": Operator.L1,
    "l2_square_reg": Operator.L2_SQUARE,
    "group_lasso": Operator.GROUP_LASSO,
}


@describe_as(parafac)
def constrained_parafac(
    tensor: LabelledData,
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
    prox: Prox = None,
    linesearch: bool | str = False,
) -> Any:
    """Decompose a sparse tensor into CP factors under constraints or penalties.

    Each factor is updated by ADMM, with the proximal operator of its mode's constraint. Those of
    `non_negative`, `l1_reg`, `l2_square_reg` and `group_lasso` map each row for itself: one pass
    over the rows takes all steps of ADMM, and an iteration costs hardly more than one of `parafac`.
    The others are TensorLy's, which see whole columns, except three that would form square matrices
    as large as a mode: those of `unimodality`, `smoothness` and `monotonicity` take time linear in
    the size of the mode.

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
    prox : callable, list or dict of int to callable, optional
        Your own proximal operators: one for all modes, one per mode, or a dict for some modes. One
        is called with some rows of a factor, (n, R) on the device of `tensor`, and returns those
        rows mapped, each for itself; it must not write to its argument. So the parameter of a
        penalty is up to you. Only for sparse tensors.
    linesearch : False or "nesterov"
        "nesterov": Nesterov's momentum as in `parafac`, where extrapolated factors are projected.
        Not with penalties. Only for sparse tensors.

    Returns
    -------
    CPTensor
        Weights of ones (R,) and factors (I_n, R), in the dtype and on the device of `tensor`.
    errors : list of float
        The relative error after each iteration; only with `return_errors`.

    Raises
    ------
    DensifyError
        As of `parafac`.
    TypeError
        As of `parafac`; and if an operator of `prox` is no function.
    RuntimeError
        If TensorLy's backend is not "flycoo": its proximal operators would not run on a GPU.
    ValueError
        As of `parafac`; and if a mode has two constraints, or a penalty beside `linesearch`; if a
        checkpoint has other free modes; or if `prox` returns no array of the shape that it got.

    Warns
    -----
    UserWarning
        If the result is all zeros: a penalty was too strong.

    Notes
    -----
    One MTTKRP per mode and iteration, and ``2 * I_n * R**2`` operations for each step of ADMM, of
    which the constraints that are separable by rows take all in one pass over the rows; they need
    one more array as large as each factor. ADMM stops within an iteration where TensorLy's does, to
    the step. It meets some constraints only in the limit, and the error may increase. Steps are
    taken in the dtype of `tensor`; sums over rows, and the inverse of a Gram matrix, are float64.

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

    Memberships, non-negative rows with a sum of at most 1, by an operator of one's own:

    >>> import numpy as np
    >>> def shorten(rows):
    ...     kept = np.maximum(rows, 0)
    ...     return kept / np.maximum(kept.sum(axis=1, keepdims=True), 1)
    >>> with tl.backend_context("flycoo"):
    ...     cp_tensor = constrained_parafac(x, 3, n_iter_max=5, prox={1: shorten})
    >>> bool((cp_tensor.factors[1].sum(axis=1) < 1 + 1e-12).all())
    True
    """
    options = {
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
        "prox": prox,
    }
    options = {name: value for name, value in options.items() if value is not None}
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    num_components = find_cp_rank(x, rank)
    constraints = _choose_constraints(options, x.ndim)
    _check_linesearch(linesearch, options, x.ndim)

    # Begin.
    if isinstance(init, Resumed):
        model = restore(init, x, num_components, "constrained_parafac")
        model.weights = None  # they are ones
    else:
        model = _start(x, num_components, init, svd, random_state, constraints)
    model.factors = spread_factors(x, model.factors)
    modes = list_free_modes(x.ndim, fixed_modes)
    admm = Admm(model.factors, modes, constraints, n_iter_max_inner, tol_inner)
    if isinstance(init, Resumed):
        admm.resume(init.state)
    sweep = AlternatingSweep(
        solver="constrained_parafac",
        model=model,
        tensor=x,
        data=WholeTensor(x),
        modes=modes,
        update_factor=admm.update_factor,
        rule_state=admm,
        factors_may_change=not only_reads(callback),
    )
    momentum = None
    if linesearch == NESTEROV:
        momentum = start_momentum(sweep, modes, init, partial(_project, constraints))
    else:
        sweep.look_ahead(n_iter_max)
    result = Run(
        sweep=sweep,
        accelerate=momentum,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=AnyOf(Feasible(admm.violations, tol_outer), Converged(tol_outer, cvg_criterion)),
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
    ).iterate()
    if x.nnz:
        cp_tensor = result[0] if return_errors else result
        _warn_of_zeros(x, cp_tensor, options)
    return result


def _check_linesearch(linesearch: Any, options: dict[str, Constraint], ndim: int) -> None:
    """Refuse momentum with a penalty: it looks at the error alone, which a penalty may raise."""
    check_choice(linesearch, "linesearch", (False, NESTEROV))
    if not linesearch:
        return
    for name, parameter in name_constraints(options, ndim):
        if name is not None and name not in SETS:
            raise ValueError(
                f"linesearch is {linesearch!r} and {name} is {parameter!r}, expected False with a "
                f"penalty or prox: momentum is for {', '.join(SETS)}"
            )


def _project(constraints: Sequence[ModeConstraint], mode: int, factor: Array) -> Array:
    """Let a factor that was extrapolated meet its constraint."""
    return constraints[mode].project(factor)


def _choose_constraints(options: dict[str, Constraint], ndim: int) -> list[ModeConstraint]:
    """Return the constraint of each mode; the options are known by TensorLy, or `prox`."""
    constraints = []
    for mode, (name, parameter) in enumerate(name_constraints(options, ndim)):
        if name is None:
            constraint = _constrain_rows(Operator.NONE, 0.0)
        elif name in _ROW_OPERATORS:
            constraint = _constrain_rows(_ROW_OPERATORS[name], float(parameter))
        elif name == "prox":
            if not callable(parameter):
                raise TypeError(
                    f"prox of mode {mode} is {parameter!r}, expected a function of rows (n, R)"
                )
            constraint = ModeConstraint(partial(project_checked, parameter))
        else:
            project = _choose_projection(name, parameter, mode, ndim)
            constraint = ModeConstraint(project, is_separable=False)
        constraints.append(constraint)
    return constraints


def _constrain_rows(operator: Operator, strength: float) -> ModeConstraint:
    """Return a constraint whose operator the kernels have."""
    if operator is Operator.NON_NEGATIVE:
        return ModeConstraint(clip_negative, operator)
    project = partial(project_rows, operator=operator, strength=strength)
    return ModeConstraint(project, operator, strength)


def _choose_projection(name: str, parameter: Any, mode: int, ndim: int) -> Projection:
    """Return the proximal operator of a constraint that sees whole columns, or more."""
    # In place of those of TensorLy that would form square matrices.
    if name == "smoothness":
        return partial(smooth, strength=parameter, free_ends=False)
    if name == "monotonicity":
        return fit_monotone
    if name == "unimodality":
        return fit_unimodal
    return partial(proximal_operator, **{name: {mode: parameter}}, n_const=ndim, order=mode)


def _start(
    x: FlycooTensor,
    rank: int,
    init: Any,
    svd: str,
    random_state: Any,
    constraints: Sequence[ModeConstraint],
) -> RunModel:
    """Make an initial guess and apply the proximal operators, or scale the user's guess."""
    if not isinstance(init, str):
        weights, factors = CPTensor(check_initial_guess(init, x.dtype, x.device == "cuda"))
        # As in TensorLy, each factor is scaled by the geometric mean of the weights.
        scale = math.prod(weights.tolist()) ** (1 / rank)
        return RunModel(None, [factor * x.dtype.type(scale) for factor in factors])
    _, factors = make_initial_guess(x, rank, init, svd, random_state)
    pairs = zip(constraints, factors, strict=True)
    return RunModel(None, [constraint.project(factor) for constraint, factor in pairs])


def _warn_of_zeros(x: FlycooTensor, cp_tensor: CPTensor, options: dict[str, Constraint]) -> None:
    """Warn if the model of nonzeros is zero, and name the penalties or constraints to blame."""
    square = float(multiply_grams(*cp_tensor).sum())
    if not square <= (np.finfo(x.dtype).eps * float(x.norm())) ** 2:
        return
    causes = ", ".join(f"{name}={value!r}" for name, value in options.items())
    warn(
        f"constrained_parafac ended in all zeros: {causes or 'the initial guess'} is too strong "
        "for this tensor. Try a tenth of it, and less until some factors remain; how strong a "
        "penalty is depends on the size of the tensor's values. For a very sparse tensor "
        "init='svd' may be the cause: pass init='random'"
    )

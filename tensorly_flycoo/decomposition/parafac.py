"""CP decomposition by alternating least squares, with missing values or from a checkpoint too."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorly as tl

from ..base.checks import check_choice, check_count, check_real, densify_error
from ..base.fit_record import RunState, attach, current_record
from ..base.watching import is_watched
from ..io.checkpoint import Resumed
from ..loop.acceleration import GaussNewton, start_momentum
from ..loop.ahead import IterationsAhead
from ..loop.alternating import normalize_cp
from ..loop.cp_model import make_cp_tensor
from ..loop.gauss_newton import AUTO, GAUSS_NEWTON
from ..loop.guarding import require_flycoo_backend, tensorly_loop
from ..loop.least_squares import FactorSolver, LeastSquares, OwnSolver, TensorlyCp
from ..loop.line_search import LineSearch
from ..loop.masks import ImputedTensor, MissingEntries, find_missing
from ..loop.momentum import NESTEROV
from ..loop.precision import NarrowFactors, OnceWhole, is_mixed, narrow_factors
from ..loop.ranks import find_cp_rank
from ..loop.recording import suits
from ..loop.run import Accelerator, Callback, Run, find_state, only_reads
from ..loop.smoothness import Smoothness, read_smoothness
from ..loop.starting import list_free_modes, start
from ..loop.stopping import Converged, Stop
from ..loop.whole_residual import WholeResidual
from ..loop.whole_tensor import SweepCount, WholeTensor
from ..ops.residual import ResidualTensor
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.tensor import FlycooTensor, check_has_nonzeros

_logger = logging.getLogger("tensorly_flycoo")


def parafac(
    tensor: LabelledData,
    rank: int | str,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: str = "truncated_svd",
    normalize_factors: bool = False,
    orthogonalise: bool | int = False,
    tol: float = 1e-8,
    random_state: Any = None,
    verbose: int = 0,
    return_errors: bool = False,
    sparsity: int | float | None = None,
    l2_reg: float = 0,
    mask: Mask = None,
    cvg_criterion: str = "abs_rec_error",
    fixed_modes: Sequence[int] | None = None,
    svd_mask_repeats: int = 5,
    linesearch: bool | str = False,
    callback: Callback | None = None,
    smoothness: Smoothness = None,
) -> Any:
    """Decompose a sparse tensor by alternating least squares (CP, CANDECOMP/PARAFAC).

    Without a mask this runs TensorLy's own loop and needs its backend "flycoo". With a mask it runs
    a loop of its own, which gives the same errors and factors and works under any backend.
    ``linesearch="nesterov"`` runs the iterations of either, `smoothness` those of the second.

    Parameters
    ----------
    tensor : FlycooTensor, sparse.COO or ResidualTensor
        A ResidualTensor takes TensorLy's loop, with a random or given start, on one device.
    rank : int or "same"
        R, the number of components. "same" gives the model as many parameters as the tensor has
        cells, and is refused if the nonzeros take fewer numbers. Fractions are always refused.
    n_iter_max : int
    init : {"svd", "random", CPTensor, ResumedCP}
        The initial guess, in the dtype of `tensor`; or a checkpoint to resume
        (`Progress.resume`).
    svd : {"truncated_svd", "randomized_svd"}
        How to find leading singular vectors: "truncated_svd" to rounding error if at most 8192 rows
        of an unfolding share a column with another row, otherwise approximately;
        "randomized_svd" by TensorLy's sketch.
    normalize_factors : bool
        Whether the columns of the factors have norm 1, and the weights hold their norms.
    orthogonalise : bool or int
        Up to this iteration (True: 1), first make the columns of the factors orthonormal.
    tol : float
        Stop when the error changes by less; 0 never stops.
    random_state : int or numpy.random.RandomState, optional
        Gives TensorLy's numbers on every device.
    verbose : int
    return_errors : bool
    sparsity : None
        Not supported for a sparse tensor.
    l2_reg : float
        Added to the diagonal of each system of equations, whatever the size of the values.
    mask : sparse.COO or array, optional
        In the shape of `tensor`: 1, or True, but 0 at the missing entries. A COO has fill_value 1
        and stores these zeros; a dense array suits small tensors. Where its size is 1, it
        holds for all indices of the mode: blocks that are missing so are never listed, begin with
        zeros where TensorLy takes the values of `tensor`, and no ``init="svd"`` imputes them.
    cvg_criterion : {"abs_rec_error", "rec_error"}
        With "rec_error" an increase of the error stops the loop too.
    fixed_modes : sequence of int, optional
        Modes whose factors keep their initial values; the last mode cannot be fixed (in `parafac`:
        except with all others).
    svd_mask_repeats : int
        How often ``init="svd"`` imputes the missing entries.
    linesearch : {False, True, "nesterov", "gauss-newton", "auto"}
        True: Bro's line search, which extrapolates every other iteration. The others (not for a
        dense tensor) take back what raises the error, see `Notes`. "nesterov": Nesterov's momentum,
        which extrapolates before each iteration. "gauss-newton": after five of these, damped
        Gauss-Newton steps. "auto": momentum, and such steps from where five iterations raise the
        fit by less than 0.25 %, if the tensor has at least ``120 * rank**2`` nonzeros.
    callback : callable, optional
        Called with the model and its error before the first and after each iteration, such as a
        `Progress`; returns True to stop. For a dense tensor only where TensorLy has it.
    smoothness : float, list or dict of int to float, optional
        A strength s for all modes, one per mode, or a dict for some, such as ``{2: 10.0}``. The
        squared residual gets s times the sum of the squared differences of the model's neighbouring
        slices, whatever the size of the values: this evens out about ``sqrt(s)`` slices to each
        side of one. The penalty of a constant factor is zero. Not for a dense tensor.

    Returns
    -------
    CPTensor
        Weights (R,) and factors (I_n, R) in the dtype and on the device of `tensor`.
    errors : list of float
        The relative error after each iteration, with the model's values at missing entries; only
        with `return_errors`.

    Raises
    ------
    DensifyError
        If `sparsity` is given, `svd` is any other method, or the mask marks what is observed
        (fill_value 0).
    RuntimeError
        If no entry is missing and TensorLy's backend is not "flycoo".
    TypeError
        If `rank` is no integer, `mask` or `init` has the wrong type or dtype, or
        `cvg_criterion` is unknown.
    ValueError
        If `rank` is below 1, shapes do not match, the mask holds numbers other than 0 and 1,
        `linesearch` is unknown, "gauss-newton" or "auto" comes with a mask or `orthogonalise`,
        `smoothness` is negative or comes with `linesearch`, or a checkpoint is of another tensor or
        decomposition, or given together with a mask, ``linesearch=True`` or `orthogonalise`.

    Notes
    -----
    One MTTKRP per mode and iteration. A missing entry costs as much as a nonzero; memory: see
    `MissingEntries`. With momentum the factors are kept twice, errors never rise by a step, the
    fixed points are those of plain iterations, and an iteration whose step is taken back costs two.
    A Gauss-Newton step costs an iteration, and at most 30 conjugate gradients, which multiply two
    matrices (R, R) a mode on the host; one that is taken back costs one MTTKRP. The MTTKRPs of all
    modes but the longest are kept, and a float64 copy of a float32 factor and MTTKRP at a time.
    Errors never rise by more than their rounding; with `l2_reg`, their squares plus the ridge's
    share do not. Factors are normalised at the end only. A factor that `smoothness` makes smooth
    solves a banded system on the host, O(I_n R). Squared residual and penalty together never rise
    but by `orthogonalise`; `tol` looks at errors alone.

    References
    ----------
    Kolda and Bader, "Tensor Decompositions and Applications", SIAM Review 51, 2009. Tomasi and Bro,
    "PARAFAC and missing values", Chemometrics and Intelligent Laboratory Systems 75, 2005. Bro,
    "Multi-way Analysis in the Food Industry", University of Amsterdam, 1998. Mitchell, Ye and De
    Sterck, "Nesterov acceleration of alternating least squares for canonical tensor decomposition",
    Numerical Linear Algebra with Applications 27, 2020, doi 10.1002/nla.2297. Phan, Tichavsky and
    Cichocki, "Low complexity damped Gauss-Newton algorithms for CANDECOMP/PARAFAC", SIAM Journal on
    Matrix Analysis and Applications 34, 2013, doi 10.1137/100808034.

    Examples
    --------
    >>> import sparse, tensorly as tl
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     cp_tensor = parafac(x, 3, init="random", random_state=0, n_iter_max=5)
    >>> [factor.shape for factor in cp_tensor.factors]
    [(10, 3), (20, 3), (30, 3)]

    With two missing entries:

    >>> mask = sparse.COO([[0, 1], [2, 3], [4, 5]], [0.0, 0.0], x.shape, fill_value=1.0)
    >>> cp_tensor, errors = parafac(x, 3, mask=mask, n_iter_max=5, return_errors=True)
    >>> len(errors)
    5

    With Gauss-Newton steps where momentum crawls:

    >>> with tl.backend_context("flycoo"):
    ...     cp_tensor = parafac(x, 3, init="random", random_state=0, linesearch="auto")
    """
    # Check the options.
    num_components = find_cp_rank(tensor, rank)
    _check_linesearch(linesearch, mask, orthogonalise)
    if isinstance(init, Resumed):
        _check_resumable(linesearch, orthogonalise, mask)
    check_real(l2_reg, "l2_reg", 0)
    strengths = read_smoothness(smoothness, len(tensor.shape), linesearch)
    if not isinstance(orthogonalise, bool):
        check_count(orthogonalise, "orthogonalise", 0)
    options = _Options(
        rank=num_components,
        n_iter_max=n_iter_max,
        init=init,
        svd=svd,
        normalize_factors=normalize_factors,
        orthogonalise=orthogonalise,
        tol=tol,
        random_state=random_state,
        verbose=verbose,
        return_errors=return_errors,
        sparsity=sparsity,
        l2_reg=l2_reg,
        cvg_criterion=cvg_criterion,
        fixed_modes=fixed_modes,
        svd_mask_repeats=svd_mask_repeats,
        linesearch=linesearch,
        callback=callback,
    )

    if isinstance(tensor, ResidualTensor):
        _check_residual(tensor, mask, strengths, options)
        return _run_tensorly_loop(WholeResidual(tensor), options)

    # Take the data.
    missing = None if mask is None else find_missing(tensor, mask)
    x = as_flycoo(tensor, check_coords=True)
    if missing is None:
        require_flycoo_backend()
        check_has_nonzeros(x)

    # Run TensorLy's own loop if it can do all that is asked for, else ours.
    is_resumed = isinstance(init, Resumed)
    narrow = None
    if missing is None and is_mixed():
        narrow = _narrow_factors(x, strengths, options)
    needs_own_loop = is_resumed or options.is_accelerated or any(strengths)
    if missing is None and narrow is None and not needs_own_loop:
        return _run_tensorly_loop(WholeTensor(x), options)
    return _run_own_loop(x, missing, strengths, options, narrow)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The options of `parafac` that TensorLy's has too, by its names."""

    rank: int
    n_iter_max: int
    init: Any
    svd: str
    normalize_factors: bool
    orthogonalise: bool | int
    tol: float
    random_state: Any
    verbose: int
    return_errors: bool
    sparsity: int | float | None
    l2_reg: float
    cvg_criterion: str
    fixed_modes: Sequence[int] | None
    svd_mask_repeats: int
    linesearch: bool | str
    callback: Callback | None

    @property
    def is_accelerated(self) -> bool:
        """Whether `linesearch` names one that TensorLy does not have."""
        return isinstance(self.linesearch, str)

    @property
    def wants_errors(self) -> bool:
        """Whether the error of each iteration is needed."""
        has_callback = self.callback is not None
        return bool(self.tol or self.return_errors or self.linesearch or has_callback)


def _check_linesearch(linesearch: bool | str, mask: Mask, orthogonalise: bool | int) -> None:
    """Refuse an unknown `linesearch`, and Gauss-Newton steps where they are not possible."""
    check_choice(linesearch, "linesearch", (False, True, NESTEROV, GAUSS_NEWTON, AUTO))
    if linesearch not in (GAUSS_NEWTON, AUTO):
        return
    for name, is_given in ("mask", mask is not None), ("orthogonalise", orthogonalise):
        if is_given:
            raise ValueError(
                f"linesearch is {linesearch!r}, expected False, True or {NESTEROV!r} together "
                f"with {name}="
            )


def _check_resumable(linesearch: bool | str, orthogonalise: bool | int, mask: Mask) -> None:
    """Refuse options whose state is not in a checkpoint."""
    is_bro = bool(linesearch) and not isinstance(linesearch, str)
    not_saved = {"linesearch": is_bro, "orthogonalise": orthogonalise, "mask": mask}
    for name, value in not_saved.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}= cannot resume a checkpoint: start anew, or leave it out")


def _check_residual(
    x: ResidualTensor, mask: Mask, strengths: list[float], options: _Options
) -> None:
    """Refuse options for a `ResidualTensor` that take more than TensorLy's loop and MTTKRPs."""
    require_flycoo_backend()
    if isinstance(options.init, str) and options.init != "random":
        instead = "pass init='random', or a CPTensor"
        raise densify_error(f"init={options.init!r} of {x!r}", x.shape, instead)
    refused = {
        "mask": mask is not None,
        "smoothness": any(strengths),
        "sparsity": options.sparsity,
        "linesearch": options.is_accelerated,
        "a checkpoint as init": isinstance(options.init, Resumed),
        "a callback that writes checkpoints": getattr(options.callback, "checkpoint", None),
    }
    for name, is_given in refused.items():
        if is_given:
            raise ValueError(f"parafac of {x!r} does not take {name}: leave it out")


def _narrow_factors(
    x: FlycooTensor, strengths: list[float], options: _Options
) -> NarrowFactors | None:
    """Return the narrow factors of a run in mixed precision; None where it cannot round them."""
    # Bro's line search and fixed modes have factors that nobody rounds; smooth ones stay smooth.
    if options.linesearch is True or options.fixed_modes or any(strengths):
        return None
    return narrow_factors(
        x,
        options.rank,
        options.n_iter_max,
        options.tol,
        factors_may_change=not only_reads(options.callback),
    )


def _run_own_loop(
    x: FlycooTensor,
    missing: MissingEntries | None,
    strengths: list[float],
    options: _Options,
    narrow: NarrowFactors | None,
) -> Any:
    """Decompose a tensor by a loop of our own, which does what TensorLy's cannot.

    `strengths` are those of `smoothness` for each mode; `narrow` narrows the factors, if any does.
    """
    if options.sparsity:
        raise densify_error("sparsity=", x.shape, "leave it out")
    model = start(
        x,
        missing,
        options.rank,
        options.init,
        options.svd,
        options.random_state,
        solver="parafac",
        svd_mask_repeats=options.svd_mask_repeats,
        normalize_factors=options.normalize_factors,
        by_blocks=missing is None,
    )
    if list(options.fixed_modes or []) == list(range(x.ndim)):
        # As in TensorLy: the start alone, without errors and without a call of the callback.
        return make_cp_tensor(model.weights, model.factors)

    # What an iteration does.
    data = WholeTensor(x) if missing is None else ImputedTensor(missing)
    if isinstance(data, WholeTensor) and narrow is not None:
        _prepare_rounding(data, narrow, options)
    search = None
    if options.linesearch and not options.is_accelerated:
        search = LineSearch(options.verbose)
    sweep = LeastSquares(
        model=model,
        tensor=x,
        data=data,
        modes=list_free_modes(x.ndim, options.fixed_modes),
        factor_solver=_choose_solver(data, strengths, options.l2_reg, options.wants_errors),
        l2_reg=options.l2_reg,
        orthogonalise=options.orthogonalise,
        search=search,
    )
    accelerator = _make_accelerator(sweep, options.linesearch, options.init)

    # Normalised factors come with weights, and Gauss-Newton steps change factors on their own.
    if not options.normalize_factors and options.linesearch != GAUSS_NEWTON:
        sweep.record(options.n_iter_max)

    # When factors are normalised.
    normalize = None
    finish = None
    if options.normalize_factors:
        # What Gauss-Newton steps keep, and what is rounded, is of the factors as they are.
        if isinstance(accelerator, GaussNewton) or narrow is not None:
            finish = partial(_normalize_result, sweep)
        else:
            normalize = normalize_cp

    stop: Stop = Converged(options.tol, options.cvg_criterion)
    if narrow is not None:
        stop = OnceWhole(stop, narrow)
    return Run(
        sweep=sweep,
        accelerate=accelerator,
        tensor=x,
        n_iter_max=options.n_iter_max,
        stop=stop,
        callback=options.callback,
        verbose=options.verbose,
        return_errors=options.return_errors,
        normalize=normalize,
        finish=finish,
        clean_up=sweep.factor_solver.end_iteration,
    ).iterate()


def _prepare_rounding(data: WholeTensor, narrow: NarrowFactors, options: _Options) -> None:
    """Let a run that rounds know and look ahead as much as TensorLy's loop."""
    data.narrow = narrow
    data.memory.narrow = narrow
    data.memory.factors_may_change = not only_reads(options.callback)
    data.memory.has_unit_weights = not options.normalize_factors
    if not options.is_accelerated:  # momentum may move factors before the next iteration
        data.num_left = options.n_iter_max


def _choose_solver(
    data: WholeTensor | ImputedTensor, strengths: list[float], l2_reg: float, wants_errors: bool
) -> FactorSolver:
    """Choose TensorLy's way of solving, unless entries are missing or modes smooth."""
    if isinstance(data, WholeTensor) and not any(strengths):
        return TensorlyCp(data=data, l2_reg=l2_reg)
    return OwnSolver(data=data, smoothness=strengths, l2_reg=l2_reg, wants_errors=wants_errors)


def _make_accelerator(sweep: LeastSquares, linesearch: bool | str, init: Any) -> Accelerator | None:
    """Make the accelerator that `linesearch` names; if `init` is a checkpoint, resume its state."""
    if not isinstance(linesearch, str):
        return None
    momentum = start_momentum(sweep, sweep.factor_solver.list_moved(sweep.modes), init)
    if linesearch == NESTEROV:
        return momentum
    return GaussNewton(sweep, momentum, linesearch, find_state(init))


def _normalize_result(sweep: LeastSquares) -> Any:
    """Make the result of a run whose factors keep their norms in between."""
    normalize_cp(sweep.model)
    return sweep.make()


def _run_tensorly_loop(whole: WholeTensor, options: _Options) -> Any:
    """Decompose a tensor without missing entries by TensorLy's own loop."""
    memory = whole.memory
    callback = options.callback
    has_callback = callback is not None
    whole.num_left = options.n_iter_max + has_callback
    last_mode = whole.ndim - 1  # which is never fixed
    free_modes = set(range(last_mode)) - set(options.fixed_modes or ())
    first_mode = min(free_modes, default=last_mode)
    if is_watched():
        whole.sweep_count = SweepCount(first_mode, options.n_iter_max)
    memory.factors_may_change = not only_reads(callback)
    memory.has_unit_weights = not options.normalize_factors  # the loop leaves them as they are
    is_plain = only_reads(callback) and memory.has_unit_weights and not options.linesearch
    if is_plain and whole.can_compute_ahead and suits(whole.tensor, options.rank):
        memory.ahead = IterationsAhead(whole.tensor, memory, first_mode, options.n_iter_max)
    if callback is not None:
        options = replace(
            options,
            callback=_wrap_callback(callback, whole),
            tol=options.tol or -math.inf,  # never stops; with 0, no errors are computed
        )
    try:
        return tensorly_loop("parafac")(whole, **vars(options))
    finally:
        whole.end_products()
        if memory.ahead is not None:
            memory.ahead.end()
        if whole.tensor.device == "cuda" and not memory.num_solves:
            _logger.debug("parafac ran without fast Gram products (ranks up to 128)")


def _wrap_callback(callback: Callback, whole: WholeTensor) -> Callback:
    """Make the callback of TensorLy's loop: the user's gets models with their record."""
    memory = whole.memory
    record = current_record("parafac").replace(run=RunState(whole.tensor))

    def call(cp_tensor: Any, error: Any) -> Any:
        if memory.ahead is not None:  # its arrays will be overwritten, which the user may keep
            cp_tensor = cp_tensor.cp_copy()
        returned = callback(attach(cp_tensor, record), error)
        if memory.factors_may_change:  # weights may have been changed in place
            memory.has_unit_weights = bool((tl.to_numpy(cp_tensor.weights) == 1).all())
        return returned

    return call

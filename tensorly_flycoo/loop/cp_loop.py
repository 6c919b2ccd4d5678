"""The loop that decompositions share: start or resume, iterate, stop."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ..base.array_modules import Array
from ..base.checks import warn
from ..base.fit_record import FitRecord, RunState, attach, current_record, find_record
from ..base.reporting import span
from ..io.checkpoint import Resumed, ResumedTucker, find_digest
from ..tensor.tensor import FlycooTensor
from .cp_model import make_cp_tensor, multiply_grams, normalize, normalize_updated
from .initial_guess import make_initial_guess, spread_factors
from .masks import MissingEntries, is_same_mask
from .smoothness import add_differences

#: Called with a model and its error; returns True to stop.
Callback: TypeAlias = Callable[..., bool | None]

#: Weights (R,), None for ones, and factors (I_n, R); or a core and factors.
Model: TypeAlias = tuple[Array | None, list[Array]]


def start(
    x: FlycooTensor,
    missing: MissingEntries | None,
    rank: int,
    init: Any,
    svd: str,
    random_state: Any,
    *,
    solver: str,
    svd_mask_repeats: int = 5,  # TensorLy's
    non_negative: bool = False,
    normalize_factors: bool = False,
    by_blocks: bool = False,
) -> Model:
    """Make the initial guess of a CP model, or restore the checkpoint in `init`.

    With `by_blocks` the factors are row-sharded if `x` is on several devices.
    """
    if isinstance(init, Resumed):
        weights, factors = restore(init, x, rank, solver, x.dtype)
    else:
        unfold = None
        if missing is not None:
            options = {"rank": rank, "num_repeats": svd_mask_repeats}
            unfold = functools.partial(missing.unfold_imputed, **options)
        with span("start"):
            weights, factors = make_initial_guess(
                x,
                rank,
                init,
                svd,
                random_state,
                unfold=unfold,
                non_negative=non_negative,
                normalize_factors=normalize_factors,
            )
    return weights, spread_factors(x, factors) if by_blocks else factors


def restore(
    init: Any,
    x: FlycooTensor,
    rank: int | tuple[int, ...],
    solver: str,
    dtype: np.dtype | None = None,
) -> tuple[Array, list[Array]]:
    """Return the weights, or core, and factors of a checkpoint on the device of `x`.

    Refuse one of another solver, tensor, rank or, if given, dtype; one that does not name its
    tensor or solver is checked only for shape, rank and dtype.
    """
    is_tucker = isinstance(init, ResumedTucker)
    if init.solver not in ("", solver) or is_tucker != ("tucker" in solver):
        written_by = init.solver or ("tucker" if is_tucker else "a CP decomposition")
        raise ValueError(
            f"the checkpoint was written by {written_by}, expected {solver}: resume it there, or "
            "pass a tuple of its weights and factors as an initial guess"
        )
    found = (init.shape, init.rank, init.factors[0].dtype)
    expected = (x.shape, rank, found[2] if dtype is None else dtype)
    if found != expected:
        raise ValueError(
            f"the checkpoint has shape {found[0]}, rank {found[1]} and dtype {found[2]}, expected "
            f"{expected[0]}, rank {expected[1]} and {expected[2]}"
        )
    if init.digest not in ("", find_digest(x)):
        raise ValueError(
            f"the checkpoint is of another tensor of shape {x.shape}: its nonzeros differ from "
            f"those of x, {x!r}; resume with the original tensor, or pass another checkpoint="
        )
    _check_resumed_facts(init, solver)
    xp, (first, factors) = x._engine.xp, init
    return xp.asarray(first), [xp.asarray(factor) for factor in factors]


#: Facts of a checkpoint that a call has to share: with others its model would not be one.
_LASTING_FACTS = ("loss", "absent", "unobserved", "non_negative")


def _check_resumed_facts(init: Any, solver: str) -> None:
    """Refuse a checkpoint that was made in another way, if it and the call say how."""
    saved = find_record(init)
    record = current_record(solver)
    if saved is None or saved.method != solver or not record.dtype:
        return
    for name in _LASTING_FACTS:
        before = getattr(saved, name)
        now = getattr(record, name)
        if before != now:
            raise ValueError(
                f"the checkpoint was written with {name} {before!r}, and this call has {now!r}: "
                "resume with the options of the first run"
            )
    if not is_same_mask(saved.mask, record.mask):
        raise ValueError(
            "the checkpoint is of a run in which other cells were missing: resume with the same "
            "mask, or the same unknown cells of the tensor"
        )


def list_free_modes(ndim: int, fixed_modes: Sequence[int] | None) -> list[int]:
    """List the modes whose factors are updated: those not fixed, and always the last."""
    fixed = list(fixed_modes or [])
    if ndim - 1 in fixed:
        warn(
            f"fixed_modes has mode {ndim - 1}, the last one, which cannot be fixed and is updated: "
            "transpose the tensor to fix it"
        )
    return [mode for mode in range(ndim) if mode not in fixed or mode == ndim - 1]


@dataclass(kw_only=True)
class Run:
    """A run of a decomposition: a model that `update` improves until it has converged.

    A solver derives from this class, writes `update`, and overrides what it does in another way.
    `model` is the initial guess, or the state in the checkpoint `init`. Its list of factors stays
    the run's: new factors replace the old ones in it, which are then free.
    """

    solver: ClassVar[str]
    tensor: Any  # what checkpoints are of
    model: InitVar[Model]
    n_iter_max: int
    init: Any = None
    callback: Callback | None = None
    tol: float = 0
    cvg_criterion: str = "abs_rec_error"
    normalize_factors: bool = False
    verbose: int = 0
    return_errors: bool = False
    weights: Any = field(init=False)  # or Tucker's core
    factors: list[Array] = field(init=False)
    errors: list[Any] = field(init=False)  # those of the checkpoint first

    def __post_init__(self, model: Model) -> None:
        self.weights, self.factors = model
        self.errors = self.init.errors[1:] if isinstance(self.init, Resumed) else []
        self.prepare()

    def prepare(self) -> None:
        """Set up, or restore, what an update needs besides the model."""

    @property
    def state(self) -> Mapping[str, np.ndarray]:
        """State that `save_state` returned for the checkpoint; empty without one."""
        return self.init.state if isinstance(self.init, Resumed) else {}

    def update(self, iteration: int) -> Any:
        """Update the weights and factors; return what `measure` takes."""
        raise NotImplementedError

    def measure(self, result: Any) -> Any:
        """Return the error of the updated model, None if it is not needed."""
        return result

    def measure_start(self) -> Any:
        """Return the error of the initial guess."""
        raise NotImplementedError

    def step(self, iteration: int) -> Any:
        """Update the model; return its error."""
        return self.measure(self.update(iteration))

    def is_over(self) -> bool:
        return has_converged(self.errors, self.tol, self.cvg_criterion)

    def normalize(self) -> None:
        self.weights, self.factors[:] = normalize(self.weights, self.factors)

    def save_state(self) -> Mapping[str, Array]:
        """Return the arrays that a resumed run needs besides the weights and factors."""
        return {}

    def describe(self) -> FitRecord:
        """Return the record of the model: what the options say, and what the run has found."""
        return current_record(self.solver)

    def make(self) -> Any:
        """Make the model of an iteration, with a list of its own."""
        return make_cp_tensor(self.weights, self.factors)

    def finish(self) -> Any:
        """Make the result."""
        return self.make()

    def iterate(self) -> Any:
        """Update the model until it has converged; return it, and its errors if `return_errors`.

        The errors in a checkpoint count for `is_over`, but are not returned. The callback gets the
        model, whose record has the tensor and the solver's state, and its error: before the first
        iteration that of the start or checkpoint. The arrays never change.
        """
        num_past = len(self.errors)
        if self.callback is not None:
            self._call(self.errors[-1] if num_past else self.measure_start())
        is_done = num_past > 0 and self.is_over()
        if num_past and self.normalize_factors and not is_done:
            self.normalize()
        for iteration in range(0 if is_done else self.n_iter_max):
            if self.verbose > 1:
                print(f"iteration {iteration} begins")
            error = self.step(iteration)
            if error is not None:
                self.errors.append(error)
                if self.verbose:
                    print(f"iteration {iteration}, reconstruction error: {error}")
            if self._call(*self.errors[-1:]) or self.is_over():
                break
            if self.normalize_factors:
                self.normalize()
        result = attach(self.finish(), self.describe())
        return (result, self.errors[num_past:]) if self.return_errors else result

    def _call(self, *error: Any) -> bool:
        if self.callback is None:
            return False
        run = RunState(self.tensor, self.save_state())
        model = attach(self.make(), self.describe().replace(run=run))
        return self.callback(model, *error) is True


@dataclass
class AlternatingRun(Run):
    """A run that updates one factor after the other, from their MTTKRPs.

    `update` returns the last MTTKRP, from which the error follows; None if the missing entries are
    already imputed from the new model. By default it calls `update_mode` for each mode.
    """

    data: Any  # a WholeTensor or an ImputedTensor
    modes: list[int]
    wants_errors: bool = field(default=True, kw_only=True)
    smoothness: Sequence[float] = field(default=(), kw_only=True)  # of each mode
    l2_reg: float = field(default=0, kw_only=True)

    def update_factor(self, product: Array, gram: Array, mode: int) -> Array:
        """Return a new factor from its MTTKRP (I, R) and the others' Gram product (R, R)."""
        raise NotImplementedError

    def update_mode(self, mode: int) -> Array:
        """Update a factor; return its MTTKRP."""
        product = self.data.mttkrp(self.weights, self.factors, mode)
        longer = add_differences(self.factors, self.smoothness, skip=mode)
        gram = multiply_grams(self.weights, longer, mode, self.l2_reg)
        self.factors[mode] = self.update_factor(product, gram, mode)
        return product

    def update(self, iteration: int) -> Array | None:
        factors = self.factors
        product = None
        for mode in self.modes:
            self.data.impute(self.weights, factors)
            product = self.update_mode(mode)
            if self.normalize_factors and mode != self.modes[-1]:
                self.weights, factors[:] = normalize_updated(self.weights, factors, mode)
        return product

    def measure(self, result: Array | None) -> Any:
        if result is None:
            return None
        if not self.wants_errors:
            self.data.impute(self.weights, self.factors)
            return None
        error, self.data.values = self.data.measure(self.weights, self.factors, result)
        return error

    def measure_start(self) -> Any:
        return self.data.measure(self.weights, self.factors)[0]


def has_converged(errors: Sequence[float], tol: float, criterion: str) -> bool:
    """Return whether the last error changed by less than `tol`; False if there is only one.

    With "abs_rec_error" the absolute change counts, with "rec_error" the decrease: then an increase
    stops the loop too. A `tol` of 0 never stops.
    """
    if not tol or len(errors) < 2:
        return False
    decrease = float(errors[-2]) - float(errors[-1])
    if criterion == "abs_rec_error":
        return bool(abs(decrease) < tol)
    if criterion == "rec_error":
        return bool(decrease < tol)
    raise TypeError(f"cvg_criterion is {criterion!r}, expected 'abs_rec_error' or 'rec_error'")


def has_settled(losses: Sequence[float], tol: float) -> bool:
    """Return whether the last loss decreased by less than `tol`, relative to itself."""
    if not tol or len(losses) < 2:
        return False
    return bool(losses[-2] - losses[-1] < tol * abs(losses[-1]))

"""Alternating least squares from many random starts at once.

The columns of an MTTKRP do not depend on each other. So one MTTKRP with the columns of all runs
updates a mode of every run, and the small matrices of all runs are multiplied and inverted as a
stack (n, R, R). Runs that have converged or are dropped leave the stack.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, is_cupy
from ..base.reporting import report
from ..base.watching import note_iteration
from ..format.packing import round_up
from ..loop.initial_guess import draw_factors
from ..loop.masks import MissingEntries
from ..loop.momentum import Pace
from ..loop.precision import NarrowFactors, narrow_factors
from ..loop.stopping import has_converged
from ..spread.memory import count_iteration_nbytes
from ..spread.spread_layout import SpreadLayout
from ..tensor.tensor import FlycooTensor
from .batch import GPU_MULTIPLE, Batch, ModelStack
from .gpu_batch import GpuBatch, find_kernels
from .imputed_starts import ImputedStarts
from .match import find_matches

#: Runs that have ended stay in the stack if fewer columns than this would be left: MTTKRP would not
#: be faster, and would need another kernel, which may have to be compiled. (Missing entries cost by
#: run.)
_LEAST_COLUMNS = 16

#: Bytes of the factors of all runs together, on a CPU, that suit its caches: with three times as
#: many, each column of an MTTKRP took twice as long (1 MB of L2 a core, 2000^3, 300K nonzeros).
_CPU_CACHE_NBYTES = 2**22

#: Bytes of a row that MTTKRP reads together on a CPU; filling them pays even beyond the caches.
_CPU_ROW_NBYTES = 128

#: How much larger the arrays of a run are here than in a run of its own: each factor lies in
#: memory as a stack and as columns, and a mode's MTTKRP does too; momentum keeps a stack more.
_COPIES = 4

#: The most runs of a batch, whatever the memory.
_MOST_RUNS = 2**10

#: The share of the free memory that all runs together may take.
_SHARE = 0.5

#: No run is dropped before so many iterations; runs are compared with each other after as many.
_PATIENCE = 10

#: Runs whose factor match score is so high are on the way to the same solution.
_SAME = 0.95


@dataclass(eq=False)
class StackedRun:
    """A run: its CP tensor, once it has ended, and its relative error after each iteration."""

    cp_tensor: Any = None
    errors: Any = field(default_factory=list)  # a list
    is_dropped: bool = False
    leader: int | None = None  # the run for which it was dropped since they match
    waits: bool = False  # until others need narrow rows no more either
    pace: Pace = field(default_factory=Pace)

    @property
    def is_active(self) -> bool:
        return self.cp_tensor is None and not self.is_dropped

    @property
    def goes_on(self) -> bool:
        """Whether the next iteration counts."""
        return self.is_active and not self.waits

    @property
    def last_error(self) -> float:
        """The error after the last iteration, inf if that is nan or there was none."""
        if not self.errors or np.isnan(self.errors[-1]):
            return np.inf
        return float(self.errors[-1])


class Stopping(NamedTuple):
    """Options of `parafac` that end a run."""

    n_iter_max: int = 100
    tol: float = 1e-8
    cvg_criterion: str = "abs_rec_error"

    def ends(self, errors: Sequence[Any]) -> bool:
        is_last = len(errors) >= self.n_iter_max
        return is_last or has_converged(errors, self.tol, self.cvg_criterion)


class Watcher(Protocol):
    """An observer of runs that go together, such as a `Progress`."""

    def begin_run(self, title: str) -> None:
        """Report that runs begin, by their title."""

    def __call__(self, model: CPTensor, error: float) -> bool:
        """See the best model before and after each iteration; return True to stop all runs."""
        ...


def run_together(
    x: FlycooTensor,
    rank: int,
    seeds: Sequence[int],
    stopping: Stopping,
    has_momentum: bool = False,
    missing: MissingEntries | None = None,
    keep_all: bool = True,
    watcher: Watcher | None = None,
    model: CPTensor | None = None,
) -> list[StackedRun]:
    """Run ``parafac(x, rank, init="random", random_state=seed)`` for each of the seeds.

    With a `model`, which a run of the only seed has left, go on from it.

    With `has_momentum`, also with ``linesearch="nesterov"``. With `missing`, those entries of `x`
    are imputed: without momentum. Runs to repeat alone have no CP tensor: two together would not
    be faster or not fit, `x` is zero, which a lone run refuses, or the `watcher` has stopped all
    before they began.

    Unless `keep_all`, runs are dropped by the rule of `best_of`, whose notes also say which results
    are reproduced to the bit. (An error that approaches its limit like 1 / t has t times its last
    decrease to go; a run that matches a better one that is not dropped is dropped for it.) The host
    waits for a GPU once per iteration of all runs, and to compare them.
    """
    runs = [StackedRun() for _ in seeds]
    num_missing = 0 if missing is None else missing.count
    size = choose_batch_size(x, rank, num_missing)
    # One run at a time only pays to drop hopeless ones, or with missing entries.
    is_lone = size == 1 and missing is None and (keep_all or isinstance(x._layout, SpreadLayout))
    if size == 0 or is_lone or x.norm() == 0:
        return runs
    for start in range(0, len(seeds), size):
        members = runs[start : start + size]
        begin_run(watcher, f"runs {start + 1} to {start + len(members)} of {len(seeds)} together")
        if model is None:
            narrow = None
            if missing is None and not keep_all:
                num_columns = rank * len(members)
                narrow = narrow_factors(x, num_columns, stopping.n_iter_max, stopping.tol)
            own_seeds = seeds[start : start + size]
            batch = _draw_batch(x, rank, own_seeds, stopping.n_iter_max, missing, narrow)
        else:
            batch = _resume_batch(x, model, stopping.n_iter_max, missing)
        is_stopped = _run_batch(batch, members, runs, stopping, has_momentum, keep_all, watcher)
        if is_stopped:
            break
    return runs


def begin_run(watcher: Watcher | None, title: str) -> None:
    """Report that a run begins, or several together."""
    if watcher is None:
        report(title)
    else:
        watcher.begin_run(title)


def choose_batch_size(x: FlycooTensor, rank: int, num_missing: int = 0) -> int:
    """Choose how many runs fit free memory and a CPU's caches together; 0 if not even one does."""
    size = _MOST_RUNS
    itemsize = x.dtype.itemsize
    free_nbytes = x._engine.count_free_nbytes()
    if free_nbytes is not None:
        run_nbytes = _COPIES * count_iteration_nbytes(x._engine, x._layout, rank)
        missing_nbytes = num_missing * itemsize
        if x.device != "cpu":
            # Each column has the values too, and MTTKRP of the mode that numbers entries.
            missing_nbytes *= _COPIES * rank
        run_nbytes += missing_nbytes
        size = int(_SHARE * free_nbytes) // run_nbytes
    if x.device == "cpu":
        column_nbytes = sum(x.shape) * itemsize
        num_columns = max(_CPU_CACHE_NBYTES // column_nbytes, _CPU_ROW_NBYTES // itemsize)
        size = min(size, max(1, num_columns // rank))
    return size


def _draw_batch(
    x: FlycooTensor,
    rank: int,
    seeds: Sequence[int],
    num_iterations: int,
    missing: MissingEntries | None,
    narrow: NarrowFactors | None,
) -> ModelStack:
    """Draw the initial guesses of TensorLy."""
    guesses = [draw_factors(x, rank, tl.check_random_state(seed)) for seed in seeds]
    return _begin_batch(x, guesses, num_iterations, missing, narrow)


def _begin_batch(
    x: FlycooTensor,
    guesses: list[list[Array]],
    num_iterations: int,
    missing: MissingEntries | None,
    narrow: NarrowFactors | None = None,
) -> ModelStack:
    """Begin with guesses, whose weights are ones."""
    if is_cupy(guesses[0][0]):
        guesses += guesses[:1] * (-len(guesses) % GPU_MULTIPLE)
    stacks = [np.stack(factors) for factors in zip(*guesses, strict=True)]
    imputed = None
    if missing is not None:
        imputed = ImputedStarts(missing, len(guesses))
        x = missing.observed
    kernels = find_kernels(x, stacks)
    if kernels is not None:
        return GpuBatch(x, stacks, kernels, num_iterations, imputed, narrow)
    return Batch(x, stacks, imputed, narrow=narrow)


def _resume_batch(
    x: FlycooTensor, model: CPTensor, num_iterations: int, missing: MissingEntries | None
) -> ModelStack:
    """Take a model as the last iteration of a batch has left it."""
    batch = _begin_batch(x, [model.factors], num_iterations, missing)
    if batch.imputed is not None:
        batch.imputed.measure(batch.columns)
    return batch


def _run_batch(
    batch: ModelStack,
    members: Sequence[StackedRun],
    runs: Sequence[StackedRun],
    stopping: Stopping,
    has_momentum: bool,
    keep_all: bool,
    watcher: Watcher | None,
) -> bool:
    """Iterate the members of a batch until all have ended; return whether the watcher stopped them.

    `runs` are those of all batches, with which members are compared. Runs that have ended may stay
    in the batch, and be computed for nothing.
    """
    num_fillers = batch.num_models - len(members)
    stack = [*members, *(StackedRun(is_dropped=True) for _ in range(num_fillers))]
    num_shown = 0  # iterations
    if watcher is not None:
        watcher(batch.take(0), np.nan)
    while any(run.is_active for run in stack):
        if not any(run.goes_on for run in stack):
            _end_rounding(batch, stack)
        stack = _remove_ended(batch, stack)
        _iterate(batch, stack, stopping, has_momentum)
        if not keep_all:
            _drop(runs, stack, batch)
        num_done = _count_iterations(members)
        least_error = min(run.last_error for run in members)
        note_iteration(num_done, stopping.n_iter_max, least_error)
        if watcher is None or num_done == num_shown:
            continue
        num_shown = num_done
        if _show_best(watcher, members, stack, batch):
            for place, run in enumerate(stack):
                if run.is_active:
                    run.cp_tensor = batch.take(place)
            return True
    return False


def _end_rounding(batch: ModelStack, stack: Sequence[StackedRun]) -> None:
    """Let runs that wait go on with whole rows."""
    if batch.narrow is not None:
        batch.narrow.turn()
    for run in stack:
        run.waits = False


def _remove_ended(batch: ModelStack, stack: list[StackedRun]) -> list[StackedRun]:
    """Take runs that have ended out of a batch, if that pays and enough are left.

    Return the run at each place.
    """
    least = 1
    if batch.imputed is None:
        least = -(-_LEAST_COLUMNS // batch.rank)
    num_active = sum(run.is_active for run in stack)
    size = round_up(max(num_active, least), batch.multiple)
    if size > batch.shrinks_to * len(stack):
        return stack
    active_first = np.argsort([not run.is_active for run in stack], kind="stable")
    places = np.sort(active_first[:size])
    batch.keep(places)
    return [stack[place] for place in places]


def _count_iterations(members: Sequence[StackedRun]) -> int:
    """Return how many iterations all runs have done that still go on, or the most if none does.

    Runs whose steps were taken back lag behind the others.
    """
    active_counts = [len(run.errors) for run in members if run.goes_on]
    if active_counts:
        return min(active_counts)
    return max(len(run.errors) for run in members)


def _iterate(
    batch: ModelStack, stack: Sequence[StackedRun], stopping: Stopping, has_momentum: bool
) -> None:
    """Do one iteration of all runs; a step that raised the error of a run is taken back."""
    narrow = batch.narrow
    steps = [run.pace.step if run.goes_on else 0.0 for run in stack]
    errors = batch.iterate(steps if has_momentum else None)
    is_back = np.zeros(len(stack), bool)
    for place, (run, error) in enumerate(zip(stack, errors, strict=True)):
        if not run.goes_on:
            continue
        if steps[place] and not error <= run.errors[-1]:
            run.pace.take_back()
            is_back[place] = True
            continue
        if has_momentum and run.errors:
            run.pace.advance()
        run.errors.append(error)
        if narrow is not None and narrow.is_rounding:
            num_done = len(run.errors)
            is_spent = num_done >= _PATIENCE and narrow.has_served(run.errors)
            run.waits = is_spent or num_done == stopping.n_iter_max - 1
        elif stopping.ends(run.errors):
            run.cp_tensor = batch.take(place)
    if is_back.any():
        batch.take_back(is_back)


def _show_best(
    watcher: Watcher, members: Sequence[StackedRun], stack: Sequence[StackedRun], batch: ModelStack
) -> bool:
    """Show a watcher the best run of a batch; return whether it stops all."""
    best = min(members, key=lambda run: run.last_error)
    model = best.cp_tensor
    if model is None:
        model = batch.take(stack.index(best))
    return watcher(model, best.last_error)


def _drop(runs: Sequence[StackedRun], stack: Sequence[StackedRun], batch: ModelStack) -> None:
    """Drop active runs; see `run_together`."""
    places = {run: place for place, run in enumerate(stack) if run.is_active}
    # The iterations that all runs have done that go on.
    t = min((len(run.errors) for run in places if run.goes_on), default=0)
    if t < _PATIENCE:
        return
    begun = [run for run in runs if run.errors]
    best_first = sorted(begun, key=lambda run: float(run.errors[-1]))
    least = float(best_first[0].errors[-1])
    # The more iterations, the fewer runs are safe from being dropped: all of them at first.
    num_safe = -(-_PATIENCE * len(best_first) // t)
    for run in best_first[num_safe:]:
        if run in places and _is_hopeless(run, least, t):
            run.cp_tensor = batch.take(places[run])
            run.is_dropped = True
    if t % _PATIENCE == 0:
        rivals = [run for run in best_first if not run.is_dropped]
        _drop_twins(rivals, runs, places, batch)


def _is_hopeless(run: StackedRun, least: float, t: int) -> bool:
    """Return whether a run will stay above the least error even if it falls twice as far as 1 / t.

    After t iterations, 1 / t is t times its last decrease above its limit.
    """
    before, last = map(float, run.errors[-2:])
    decrease = max(before - last, 0.0)
    return last - 2 * t * decrease > least


def _drop_twins(
    rivals: Sequence[StackedRun],
    runs: Sequence[StackedRun],
    places: Mapping[StackedRun, int],
    batch: ModelStack,
) -> None:
    """Drop active runs, those in `places`, that match a better one; `rivals` are the best first."""
    if len(rivals) < 2:
        return
    models = [batch.view(places[run]) if run in places else run.cp_tensor.factors for run in rivals]
    are_same = find_matches(models, _SAME)
    for number, run in enumerate(rivals):
        better = [
            rivals[n] for n in range(number) if not rivals[n].is_dropped and are_same[number, n]
        ]
        if run in places and better:
            run.cp_tensor = batch.take(places[run])
            run.is_dropped = True
            run.leader = runs.index(better[0])

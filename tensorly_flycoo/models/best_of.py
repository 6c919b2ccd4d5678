"""The best run of a decomposition from several starts."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.checks import check_count
from ..base.fit_record import FitRecord, RunState, attach, find_record
from ..decomposition.methods import METHODS, Method, find_method
from ..decomposition.recording import describe_fit
from ..io.checkpoint import copy_model
from ..loop.guarding import require_flycoo_backend
from ..loop.masks import MissingBlocks, MissingEntries, find_missing
from ..loop.momentum import NESTEROV
from ..loop.scaling import find_exponent
from ..loop.unknown_cells import obey_unknown
from ..results.coupled_cp import CoupledCP
from ..results.cp_fit import cp_fit
from ..results.labelled_models import label_result
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import is_sparse, mirror
from ..tensor.labelled import LabelledTensor, number_modes
from ..tensor.tensor import FlycooTensor
from .many_starts import StackedRun, Stopping, begin_run, run_together
from .match import factor_match_score
from .progress import Progress

#: Below this match, more than half of a model's components are not found again by other runs.
LOW_MATCH = 0.5


@dataclass(frozen=True)
class Starts:
    """Runs of one decomposition from several starts.

    Attributes
    ----------
    runs : list
        What the decomposition returned, such as a CPTensor, from each start.
    errors : list of list of float
        For each run, the relative error after each iteration, up to that of its model; only the
        final one if the decomposition returns no errors.
    seeds : list of int
        The `random_state` of each run.
    matches : array (n,) or None
        The factor match score of each run with the best one: near 1 if they found the same
        components; biases do not count. None if the runs are no CP models. A run that was dropped
        since it matched another has the score of that one.
    dropped : list of int
        The numbers of the runs that were dropped before they ended by themselves; see `best_of`.
    """

    runs: list[Any]
    errors: list[list[Any]]
    seeds: list[int]
    matches: np.ndarray | None
    dropped: list[int] = field(default_factory=list)
    _error: str = "error"  # what `errors` are called: "error" or "loss"

    @property
    def final_errors(self) -> np.ndarray:
        """The last error of each run, inf if there is none."""
        last = [float(errors[-1]) if errors else np.inf for errors in self.errors]
        return np.nan_to_num(last, nan=np.inf)

    @property
    def best_number(self) -> int:
        """The number of the run with the least error, of those that were not dropped."""
        errors = self.final_errors
        errors[self.dropped] = np.inf
        return int(np.argmin(errors))

    @property
    def best(self) -> Any:
        """The run with the least error."""
        return self.runs[self.best_number]

    @property
    def match(self) -> float:
        """The mean factor match score of the other runs with the best one; nan without any."""
        if self.matches is None or len(self.runs) == 1:
            return float("nan")
        return float(np.delete(self.matches, self.best_number).mean())

    def __repr__(self) -> str:
        best = self.best_number
        match = f", match {self.match:.3f}" if self.match >= 0 else ""
        if self.match < LOW_MATCH:
            match += f": the runs found different components{self._describe_ends()}"
        error = f"{self.final_errors[best]:.6g}"
        return f"<Starts: {len(self.runs)} runs, least {self._error} {error} of run {best}{match}>"

    def _describe_ends(self) -> str:
        """Say so if no run has ended by itself: all went through the same number of iterations."""
        are_dropped = set(self.dropped)
        kept = [errors for n, errors in enumerate(self.errors) if n not in are_dropped]
        lengths = {len(errors) for errors in kept}
        if len(kept) < 2 or len(lengths) > 1 or lengths == {1}:
            return ""
        return f", and none was at its end after {lengths.pop()} iterations (n_iter_max)"


@mirror
def best_of(
    decomposition: str | Callable[..., Any],
    x: Any,
    rank: Any,
    n_starts: int = 10,
    random_state: int | np.random.RandomState | None = None,
    keep_all: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Starts:
    """Run a decomposition from several random starts, and find the best run.

    One start may end in a poor local minimum. Each run is ``decomposition(x, rank, init="random",
    random_state=seed, **options)`` with a seed of its own. `parafac` of a sparse tensor runs all
    starts together, which takes far less time if the tensor is small, and drops those that are
    hopeless or on the way to a solution that another one finds (see Notes). Other decompositions
    run one start after another, each to its end.

    Parameters
    ----------
    decomposition : str or callable
        A function of `tensorly.decomposition` or `tensorly_flycoo.decomposition` with a parameter
        `random_state`, or the name of one, as for `select_rank`.
    x : FlycooTensor, LabelledTensor, sparse.COO or array
        Whatever the decomposition takes, such as the blocks of `coupled_parafac`. Models of a
        LabelledTensor have its labels; its unknown cells are unknown to all runs.
    rank : int, or whatever the decomposition takes
    n_starts : int
    random_state : int or numpy.random.RandomState, optional
        Draws the seeds of the runs.
    keep_all : bool
        Whether no run is dropped. Then all end by themselves, as they would alone.
    progress : Progress, optional
        In its ``with`` block. It shows which run has begun, or which run together, and counts their
        iterations from 0; of runs together it gets the model with the least error. A checkpoint is
        of the run at hand: the decomposition can go on from it, the search cannot. Ctrl-C, or the
        time limit of all runs, ends the search after the iteration: the result has the runs that
        have begun.
    **options
        For each run; `init` may only be "random". For a sparse tensor, `parafac` and this package's
        `non_negative_parafac_hals` get ``linesearch="nesterov"`` unless you pass another one or a
        mask. Starts of `parafac` run together with no options but `n_iter_max`, `tol`,
        `cvg_criterion`, ``linesearch=False`` or "nesterov", and `mask`, then without momentum.

    Returns
    -------
    Starts

    Raises
    ------
    RuntimeError
        If a sparse tensor is decomposed by TensorLy's loop and the backend is not "flycoo".
    TypeError
        If `decomposition` is a class, `n_starts` is not an integer, `random_state` is a
        generator of CuPy, or an option is unknown.
    ValueError
        If `n_starts` is below 1, `init` is not "random", `callback` is a `Progress` or comes with
        `progress`, or the decomposition is unknown or has no `random_state`. Other errors are the
        decomposition's.

    Notes
    -----
    After t iterations, from the 10th on, the best ``ceil(10 n / t)`` of n starts are safe. Any
    other is dropped if its error, less 2 t times its last decrease, is still above the least one.
    After each 10 iterations, one whose factor match score with a better one is 0.95 is dropped too.
    So the best start may be lost: in simulations never where the tensor has as many components as
    the model, but 5 times in 36 (10 starts) where one component of the model fits noise.

    As many starts run together as fit half of the free memory and, on a CPU, its caches. On a CPU
    each run gives the bits that it gives alone, with a mask up to rounding errors. On a GPU runs
    differ from lone ones by rounding errors, which iterations amplify: after six of them, in tests,
    by less than 1e-10 (float64) or 1e-3 (float32) of the largest element. Every call gives the same
    bits. `observed_parafac` chooses its ridge in the first run, for all.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo import best_of
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((20, 30, 40), 3, nnz_per_component=200, noise=0.1, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     starts = best_of(tl.decomposition.parafac, x, 3, n_starts=5, random_state=0)
    >>> len(starts.runs), starts.best.rank, bool(starts.match > 0.5)
    (5, 3, True)
    """
    method = find_method(decomposition, "decomposition", tuple(METHODS))
    _check(method, n_starts, options, progress)
    labelled = x if isinstance(x, LabelledTensor) else None
    options = obey_unknown(x, method.name, method.defaults, number_modes(x, options))
    options = method.prefer_momentum(x, options)
    if is_sparse(x):
        x = as_flycoo(x, check_coords=True)
    seeds = tl.check_random_state(random_state).randint(2**31 - 1, size=n_starts).tolist()
    runs = [StackedRun() for _ in seeds]
    if n_starts > 1 and _suits_batch(method, x, rank, options):
        require_flycoo_backend()
        mask = options.get("mask")
        missing = None if mask is None else find_missing(x, mask)
        if isinstance(missing, MissingBlocks):
            options["mask"] = missing  # one run after another, with one plan
        else:
            runs = _run_together(method, x, rank, seeds, options, missing, keep_all, progress)
    # Those that could not go together, or all.
    _run_one_by_one(method, x, rank, seeds, options, runs, progress)
    ended = [run for run in runs if run.cp_tensor is not None]  # the first ones, after Ctrl-C
    results = [run.cp_tensor for run in ended]
    starts = Starts(
        runs=results,
        errors=[list(run.errors) for run in ended],
        seeds=seeds[: len(ended)],
        matches=None,
        dropped=[number for number, run in enumerate(ended) if run.is_dropped],
        _error=method.error_name,
    )
    if all(isinstance(result, CPTensor | CoupledCP) for result in results):
        starts = replace(starts, matches=_match_runs(ended, starts.best_number, rank))
    if labelled is not None:
        starts = replace(starts, runs=[label_result(result, labelled) for result in results])
    return starts


def _run_together(
    method: Method,
    x: Any,
    rank: int,
    seeds: Sequence[int],
    options: Mapping[str, Any],
    missing: MissingEntries | None,
    keep_all: bool,
    progress: Progress | None,
    model: CPTensor | None = None,
) -> list[StackedRun]:
    """Run `parafac` from all starts together, or on from a model; give the models their records."""
    record = describe_fit(method.name, {**method.defaults, **options}, x)
    stopping_options = {name: options[name] for name in Stopping._fields if name in options}
    watcher = None
    if progress is not None:
        watcher = _RecordingWatcher(progress, record, x)
    runs = run_together(
        x,
        rank,
        seeds,
        Stopping(**stopping_options),
        has_momentum=options.get("linesearch") == NESTEROV,
        missing=missing,
        keep_all=keep_all,
        watcher=watcher,
        model=model,
    )
    for run in runs:
        if run.cp_tensor is not None:
            attach(run.cp_tensor, record)
    return runs


@dataclass(frozen=True)
class _RecordingWatcher:
    """A progress that gets models with a record, as the callback of one run does."""

    progress: Progress
    record: FitRecord
    tensor: FlycooTensor

    def begin_run(self, title: str) -> None:
        self.progress.begin_run(title)

    def __call__(self, model: CPTensor, error: float) -> bool:
        state = RunState(self.tensor)
        return self.progress(attach(copy_model(model), self.record.replace(run=state)), error)


def _run_one_by_one(
    method: Method,
    x: Any,
    rank: Any,
    seeds: Sequence[int],
    options: Mapping[str, Any],
    runs: list[StackedRun],
    progress: Progress | None,
) -> None:
    """Replace the runs that have not ended by lone ones, or by those until Ctrl-C."""
    options = dict(options)
    if "init" in method.defaults:
        options["init"] = "random"
    if progress is not None and "callback" in method.defaults:
        options["callback"] = progress
    for number, seed in enumerate(seeds):
        if not runs[number].is_active:
            continue
        # Even a stop that comes before all runs leaves the first one, of one iteration.
        if progress is not None and progress.is_stopped and number > 0:
            return
        begin_run(progress, f"run {number + 1} of {len(seeds)}")
        result, errors = run_once(method, x, rank, seed, options)
        runs[number] = StackedRun(result, end_at_model(errors, options))
        options = keep_ridge(method, result, options)


def end_at_model(errors: Sequence[Any], options: Mapping[str, Any]) -> Sequence[Any]:
    """Return the errors of a run up to the model that it returned.

    With held-out entries to judge by, that is the model with the least error, not the last one.
    """
    if len(errors) == 0 or not is_sparse(options.get("validation")):
        return errors
    return errors[: int(np.argmin(errors)) + 1]


def _match_runs(runs: Sequence[StackedRun], best_number: int, rank: Any) -> np.ndarray:
    """Return the match of each run with the best one; of a dropped twin, that of its leader."""
    models = [take_components(run.cp_tensor, rank) for run in runs]
    scores = np.array([factor_match_score(models[best_number], model) for model in models])
    leaders = np.arange(len(runs))  # each is its own, unless it was dropped for another one
    for number, run in enumerate(runs):
        if run.leader is not None:
            leaders[number] = run.leader
    for _ in runs:  # a leader may have been dropped for another one
        leaders = leaders[leaders]
    return scores[leaders]


def take_components(model: CPTensor | CoupledCP, rank: Any) -> Any:
    """Return a guess of the first `rank` components, without the biases that follow them."""
    if isinstance(model, CoupledCP):
        return None, [*model.factors.values()]
    if not isinstance(rank, int | np.integer) or model.rank <= rank:
        return model
    return model.weights[:rank], [factor[:, :rank] for factor in model.factors]


def _check(
    method: Method, n_starts: Any, options: Mapping[str, Any], progress: Progress | None
) -> None:
    """Refuse a decomposition or options that cannot run from several starts."""
    if inspect.isclass(method.function):
        raise TypeError(f"decomposition is {method.function!r}, expected a function")
    name = method.name
    parameters = method.defaults
    check_count(n_starts, "n_starts")
    if "random_state" not in parameters:
        raise ValueError(f"{name} has no random_state, expected one: every start would be the same")
    unknown = [option for option in options if option not in parameters]
    if unknown:
        raise TypeError(f"{name} has no option {unknown[0]!r}, expected some of {list(parameters)}")
    init = options.get("init", "random")
    if not isinstance(init, str) or init != "random":
        raise ValueError(f"init is {init!r}, expected 'random': every start would be the same")
    callback = options.get("callback")
    if isinstance(callback, Progress):
        raise ValueError("callback is a Progress, which is for one run: pass it as progress=")
    if progress is not None and callback is not None:
        raise ValueError("callback comes with progress, expected one of them")


def refuse_progress(function: str, options: Mapping[str, Any]) -> None:
    """Refuse a `progress` for several calls of `best_of`: Ctrl-C would end only one of them."""
    if "progress" in options:
        raise TypeError(f"{function} has no option 'progress', expected those of the decomposition")


def go_on(
    method: Method, x: Any, rank: Any, seed: int, model: Any, options: Mapping[str, Any]
) -> tuple[Any, Sequence[Any]]:
    """Go on from a model, without its biases; return the result and the new errors."""
    options = dict(options)
    mask = options.get("mask")
    if mask is not None and _suits_batch(method, x, rank, options):
        # A lone run would begin with zeros in place of what the model imputes.
        missing = find_missing(x, mask)
        if isinstance(missing, MissingEntries):
            (run,) = _run_together(
                method, x, rank, [seed], options, missing, keep_all=True, progress=None, model=model
            )
            if run.cp_tensor is not None:
                return run.cp_tensor, list(run.errors)
    options["init"] = take_components(model, rank)
    result, errors = run_once(method, x, rank, seed, options)
    return result, end_at_model(errors, options)


def keep_ridge(method: Method, model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the ridge that a run has chosen, for others: it depends on no start."""
    record = find_record(model)
    if record is None or "validation" not in method.defaults:
        return dict(options)
    return {**options, "l2_reg": record.l2_reg}


def _suits_batch(method: Method, x: Any, rank: Any, options: Mapping[str, Any]) -> bool:
    """Return whether `run_together` gives the same results."""
    if not method.runs_together or not is_sparse(x):
        return False
    if not isinstance(rank, int | np.integer) or isinstance(rank, bool) or rank < 1:
        return False  # which the decomposition refuses
    known = {"init", "mask", "return_errors", "linesearch", *Stopping._fields}
    linesearch = options.get("linesearch", False)
    if not set(options) <= known or linesearch not in (False, NESTEROV):
        return False
    if options.get("mask") is not None and linesearch:
        return False
    if options.get("n_iter_max", 1) < 1:
        return False
    # A lone run scales values that are far from 1.
    return not find_exponent(x._layout.norm, x.nnz, x.dtype, x.ndim)


def run_once(
    method: Method, x: Any, rank: Any, seed: int, options: dict[str, Any]
) -> tuple[Any, Sequence[Any]]:
    """Run a decomposition once; return its result and errors."""
    if "return_errors" in method.defaults:
        options = {**options, "return_errors": True}
        return method.function(x, rank, random_state=seed, **options)
    result = method.function(x, rank, random_state=seed, **options)
    if isinstance(result, CoupledCP):
        return result, result.errors
    if not isinstance(result, CPTensor) or not is_sparse(x):
        raise TypeError(
            f"{method.name} returns neither errors, to compare runs by, nor a CP model of a sparse "
            "tensor"
        )
    return result, [cp_fit(x, result).relative_error]

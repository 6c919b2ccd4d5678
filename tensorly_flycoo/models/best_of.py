"""The best run of a decomposition from several starts."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.checks import check_count
from ..base.fit_record import attach, find_record
from ..base.reporting import report
from ..decomposition.methods import METHODS, Method, find_method
from ..decomposition.recording import describe_fit
from ..loop.guarding import require_flycoo_backend
from ..loop.masks import MissingBlocks, find_missing
from ..loop.momentum import NESTEROV
from ..loop.scaling import find_exponent
from ..loop.unknown_cells import obey_unknown
from ..results.coupled_cp import CoupledCP
from ..results.cp_fit import cp_fit
from ..results.labelled_models import label_result
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import is_sparse, mirror
from ..tensor.labelled import LabelledTensor, number_modes
from .many_starts import Run, Stopping, run_together
from .match import factor_match_score

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
        For each run, the relative error after each iteration; only the final one if the
        decomposition returns no errors.
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
    _error: str = "error"  # what `errors` are

    @property
    def final_errors(self) -> np.ndarray:
        """The last error of each run, inf if there is none."""
        last = [float(errors[-1]) if errors else np.inf for errors in self.errors]
        return np.nan_to_num(last, nan=np.inf)

    @property
    def best_number(self) -> int:
        """The number of the run with the least error."""
        return int(np.argmin(self.final_errors))

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
            match += ": the runs found different components"
        error = f"{self.final_errors[best]:.6g}"
        return f"<Starts: {len(self.runs)} runs, least {self._error} {error} of run {best}{match}>"


@mirror
def best_of(
    decomposition: str | Callable[..., Any],
    x: Any,
    rank: Any,
    n_starts: int = 10,
    random_state: int | np.random.RandomState | None = None,
    keep_all: bool = False,
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
        If `n_starts` is below 1, `init` is not "random", `callback` is a `Progress`, or the
        decomposition is unknown or has no `random_state`. Other errors are the decomposition's.

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
    _check(method, n_starts, options)
    labelled = x if isinstance(x, LabelledTensor) else None
    options = obey_unknown(x, method.name, method.defaults, number_modes(x, options))
    options = method.prefer_momentum(x, options)
    x = as_flycoo(x, check_coords=True) if is_sparse(x) else x
    seeds = tl.check_random_state(random_state).randint(2**31 - 1, size=n_starts).tolist()
    runs = [Run() for _ in range(n_starts)]
    if _suits_batch(method, x, rank, n_starts, options):
        require_flycoo_backend()
        has_momentum = options.get("linesearch") == NESTEROV
        missing = None if options.get("mask") is None else find_missing(x, options["mask"])
        ends = Stopping(**{name: options[name] for name in Stopping._fields if name in options})
        if isinstance(missing, MissingBlocks):
            options["mask"] = missing  # one run after another, with one plan
        else:
            runs = run_together(x, rank, seeds, ends, has_momentum, missing, keep_all)
            record = describe_fit(method.name, method.defaults | options, x)
            for run in runs:
                if not run.is_active:
                    attach(run.cp_tensor, record)
    if "init" in method.defaults:
        options = options | {"init": "random"}
    for number, seed in enumerate(seeds):
        if runs[number].is_active:
            report(f"run {number + 1} of {n_starts}")
            runs[number] = run = Run(*run_once(method, x, rank, seed, options))
            found = find_record(run.cp_tensor)
            if found is not None and "validation" in method.defaults:
                # It depends on no start: the others would choose it too.
                options["l2_reg"] = found.l2_reg
    results = [run.cp_tensor for run in runs]
    errors = [list(run.errors) for run in runs]
    dropped = [number for number, run in enumerate(runs) if run.is_dropped]
    starts = Starts(results, errors, seeds, None, dropped, method.error_name)
    if all(isinstance(result, CPTensor | CoupledCP) for result in results):
        models = [take_components(result, rank) for result in results]
        best = models[starts.best_number]
        scores = np.array([factor_match_score(best, model) for model in models])
        leaders = np.array([n if run.leader is None else run.leader for n, run in enumerate(runs)])
        for _ in runs:  # a leader may have been dropped for another one
            leaders = leaders[leaders]
        starts = replace(starts, matches=scores[leaders])
    if labelled is not None:
        starts = replace(starts, runs=[label_result(result, labelled) for result in results])
    return starts


def take_components(model: CPTensor | CoupledCP, rank: Any) -> Any:
    """Return the CP model of the first `rank` components: all that are no biases."""
    if isinstance(model, CoupledCP):
        return None, [*model.factors.values()]
    if not isinstance(rank, int | np.integer) or model.rank <= rank:
        return model
    return model.weights[:rank], [factor[:, :rank] for factor in model.factors]


def _check(method: Method, n_starts: Any, options: dict[str, Any]) -> None:
    if inspect.isclass(method.function):
        raise TypeError(f"decomposition is {method.function!r}, expected a function")
    names = method.defaults
    name = method.name
    check_count(n_starts, "n_starts")
    if "random_state" not in names:
        raise ValueError(f"{name} has no random_state, expected one: every start would be the same")
    unknown = [option for option in options if option not in names]
    if unknown:
        raise TypeError(f"{name} has no option {unknown[0]!r}, expected some of {list(names)}")
    init = options.get("init", "random")
    if not isinstance(init, str) or init != "random":
        raise ValueError(f"init is {init!r}, expected 'random': every start would be the same")
    if hasattr(options.get("callback"), "n_iter_left"):
        raise ValueError("callback is a Progress, which is for one run: pass another, or none")


def _suits_batch(method: Method, x: Any, rank: Any, n_starts: int, options: dict[str, Any]) -> bool:
    """Return whether `run_together` gives the same results."""
    linesearch = options.get("linesearch", False)
    mask = options.get("mask")
    is_countable = isinstance(rank, int | np.integer) and not isinstance(rank, bool) and rank >= 1
    return bool(
        method.runs_together
        and is_sparse(x)
        and set(options) <= {"init", "mask", "return_errors", "linesearch", *Stopping._fields}
        and linesearch in (False, NESTEROV)
        and (mask is None or not linesearch)
        and is_countable
        and n_starts > 1
        and options.get("n_iter_max", 1) >= 1
        and not find_exponent(x._layout.norm, x.nnz, x.dtype, x.ndim)
    )


def run_once(
    method: Method, x: Any, rank: Any, seed: int, options: dict[str, Any]
) -> tuple[Any, Sequence[Any]]:
    """Run a decomposition once; return its result and errors."""
    if "return_errors" in method.defaults:
        return method.function(x, rank, random_state=seed, **{**options, "return_errors": True})
    result = method.function(x, rank, random_state=seed, **options)
    if isinstance(result, CoupledCP):
        return result, result.errors
    if not isinstance(result, CPTensor) or not is_sparse(x):
        text = "returns neither errors, to compare runs by, nor a CP model of a sparse tensor"
        raise TypeError(f"{method.name} {text}")
    return result, [cp_fit(x, result).relative_error]

"""What to minimise, by which decomposition; and the runs of "fit": one, or the best of several."""

import argparse
import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tensorly as tl

from .. import LabelledTensor, Progress, set_device
from ..base.watching import is_seen
from ..decomposition.methods import METHODS, Method
from ..models.best_of import Starts, best_of, end_at_model, run_once
from .options import NUM_STARTS
from .reading import is_table

#: Iterations between log lines.
_LOG_EVERY = 10

#: By default a run stops when its error changes by less, whatever the decomposition's own `tol`. An
#: error of all cells needs the smaller one: fits of very sparse data are small, and so is what they
#: gain. The rules themselves are the decompositions' (`loop/stopping.py`). Where a decomposition
#: has momentum, a run here has it on (`Method.prefer_momentum`), and so ends at another iteration
#: than a plain call in Python. Starts that run together end by `Stopping`, or are dropped, in
#: `models/many_starts.py`.
_TOL = 1e-6
_TOL_OF_ALL_CELLS = 1e-8


@contextlib.contextmanager
def use_device(arguments: argparse.Namespace) -> Iterator[None]:
    """Decompose sparse tensors inside the block, on the device of --device."""
    with contextlib.ExitStack() as settings:
        if arguments.device is not None:
            settings.enter_context(set_device(arguments.device))
        settings.enter_context(tl.backend_context("flycoo"))
        yield


def choose_loss(arguments: argparse.Namespace, suffix: str) -> str:
    """Return the loss that suits the values: "poisson_count" if the rows of a table are counted."""
    if arguments.loss is not None:
        return str(arguments.loss)
    are_counts = arguments.values is None or arguments.aggregate == "count"
    if is_table(suffix) and are_counts:
        return "poisson_count"
    return "gaussian"


def check_options(arguments: argparse.Namespace, suffix: str, loss: str) -> None:
    """Refuse options of a tensor and of models that do not go together."""
    refuse: Callable[[str], NoReturn] = arguments.refuse
    if not arguments.modes and is_table(suffix):
        refuse("--modes is missing: which columns, such as --modes user,item,day")
    if not arguments.observed and (arguments.biases or arguments.l2_reg is not None):
        refuse("--biases and --l2-reg are for --observed, which is missing")
    if arguments.observed and loss == "poisson_count":
        refuse("--observed is for --values, by --loss gaussian")


def choose_method(loss: str, is_observed: bool, is_non_negative: bool) -> Method:
    """Return the decomposition that minimises a loss, of all cells or of observed ones."""
    if is_observed:
        return METHODS["observed_parafac"]
    if loss == "poisson_count":
        return METHODS["generalized_parafac"]
    if is_non_negative:
        return METHODS["non_negative_parafac_hals"]
    return METHODS["parafac"]


def list_options(method: Method, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a decomposition that the command line sets."""
    options: dict[str, Any] = {
        "n_iter_max": arguments.iterations,
        "tol": _choose_tol(arguments.tol, method),
    }
    if arguments.observed:
        options["biases"] = arguments.biases
        options["non_negative"] = arguments.non_negative
        if arguments.l2_reg is not None:
            options["l2_reg"] = arguments.l2_reg
    return options


def decompose(
    x: LabelledTensor,
    method: Method,
    arguments: argparse.Namespace,
    held_out: LabelledTensor | None = None,
) -> Starts:
    """Run all starts, or until Ctrl-C those so far; `held_out` entries choose the ridge."""
    options = list_options(method, arguments)
    if held_out is not None:
        options["validation"] = held_out
    default_starts = NUM_STARTS if arguments.init == "random" else 1
    num_starts = arguments.starts or default_starts
    show = _choose_show()
    with Progress(arguments.iterations, show=show, log_every=_LOG_EVERY) as progress:
        if num_starts == 1:
            return _run_alone(x, method, arguments, options, progress)
        return best_of(
            method.function,
            x,
            arguments.rank,
            num_starts,
            arguments.seed,
            progress=progress,
            **options,
        )


def _run_alone(
    x: LabelledTensor,
    method: Method,
    arguments: argparse.Namespace,
    options: dict[str, Any],
    progress: Progress,
) -> Starts:
    """Run a single start, which may take Gauss-Newton steps; several starts take none."""
    progress.begin_run("start 1 of 1")
    options = method.prefer_momentum(x, options, one_by_one=True)
    options |= {"init": arguments.init, "callback": progress}
    model, errors = run_once(method, x, arguments.rank, arguments.seed, options)
    errors = end_at_model(errors, options)
    return Starts([model], [list(errors)], [arguments.seed], None)


def _choose_tol(tol: float | None, method: Method) -> float:
    """Return the tolerance of the command line, or the default of a method."""
    if tol is not None:
        return tol
    is_of_all_cells = method.knows_zeros and method.error_name == "error"
    return _TOL_OF_ALL_CELLS if is_of_all_cells else _TOL


def _choose_show() -> str | None:
    """Return how to show progress, if at all: by a bar, if tqdm is installed, else by lines."""
    if not is_seen():
        return None
    if importlib.util.find_spec("tqdm") is not None:
        return "bar"
    return "log"

"""Progress of a decomposition: a bar or log lines, checkpoints, and a clean stop at Ctrl-C."""

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self, SupportsFloat

from ..base.checks import check_choice, check_count, check_positive, require
from ..base.fit_record import FitRecord, find_record
from ..base.reporting import listen, report
from ..base.watching import describe_pace, unwatched
from ..decomposition.methods import METHODS
from ..io.checkpoint import (
    check_saveable,
    copy_model,
    load_checkpoint,
    save_checkpoint,
)
from ..io.files import try_writing
from ..io.places import FilePath

_logger = logging.getLogger(__name__)


class Progress:
    """A callback for decompositions: progress, checkpoints and a clean stop.

    Pass it as ``callback=`` inside its ``with`` block, to `tensorly.decomposition.parafac` or to
    any function in `tensorly_flycoo.decomposition` that iterates; to `coupled_parafac` without a
    checkpoint. Pass it as ``progress=`` to `best_of`, which says what it shows of several starts.

    The first Ctrl-C stops the run after the current iteration, and the decomposition returns the
    factors so far. The second, and one before there are any factors, raises KeyboardInterrupt
    immediately; `last` and `best` still have the factors. A stopped or killed run can resume from
    its last checkpoint as if it had never stopped.

    Parameters
    ----------
    n_iter_max : int
        The maximum number of iterations, counted over all runs that resume one another.
    show : {"bar", "log", None}
        A bar on standard error (by tqdm: ``pip install tensorly-flycoo[progress]``); or log lines
        for batch jobs, at level INFO of the logger "tensorly_flycoo", which go to standard error if
        logging is not set up; or nothing. Before the first iteration it shows the current stage,
        such as the mode whose singular vectors are computed; then the iteration, the fit
        (1 - error), or the loss of `generalized_parafac`, its change and the time left.
    log_every : int
        Iterations between log lines; the first and the last iteration are always logged.
    checkpoint : str or os.PathLike, optional
        The ``.npz`` file for the state, replaced atomically. Written when due, after iteration
        `n_iter_max`, at Ctrl-C and at the time limit, but not when the run converges (`tol`).
        Entering the block tries the folder. A later write that fails only warns, and the run goes
        on; the end of the block warns again unless another write has succeeded.
    every : int, optional
        Iterations between checkpoints.
    every_minutes : float, optional
        Minutes between checkpoints; 10 if `every` is not given either.
    time_limit_s : float, optional
        Stops the run as Ctrl-C does, after the iteration that ends later than so many seconds after
        the block was entered.

    Attributes
    ----------
    errors : list of float
        The relative errors at the start and after each iteration, including those before a resume.
    seconds : list of float
        How long each iteration of this run took, without those before a resume, and without what
        this callback does between them, such as writing a checkpoint.
    last, best : CPTensor, TuckerTensor or None
        The model of the last iteration, and of the one with the smallest error in this run, even if
        the run failed; the same one if no iteration increased the error. They have no labels:
        ``LabelledCP(progress.best, x.labels)`` adds them.

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described above.
    OSError
        On entering the block, if nothing can be written in the folder of `checkpoint`.
    ImportError
        On entering the block, if tqdm is missing and `show` is "bar".
    RuntimeError
        If it is called outside its block or used for a second run.

    Notes
    -----
    Ctrl-C is handled only inside the block, in the main thread, and not if SIGINT is ignored or its
    handler is not a Python one. Leaving the block restores the previous handler.

    The callback costs one MTTKRP at the start, and keeps the arrays of one model, or two if the
    best one is not the last. On a GPU the host waits for each iteration, as with `tol`. With any
    callback and a dense tensor, TensorLy's parafac needs ``tol`` or ``return_errors=True``.

    For sparse tensors on the CPU, with the same machine and number of threads, a resumed run gives
    the same bits as an uninterrupted one and stops at the same iteration. Options of parafac with
    state beyond the factors cannot resume: ``linesearch=True``, ``orthogonalise`` and ``mask``
    raise a ValueError. A checkpoint of a sparse tensor holds a digest of its nonzeros, the same for
    every layout, device and order of the nonzeros, and is refused for any other tensor. Checkpoints
    of dense tensors hold none, nor do those of a parafac that was imported before this package.

    For dense tensors, and under other backends, TensorLy uses the checkpoint as an initial guess:
    without those options and ``normalize_factors=True`` the bits are the same too, but `tol` never
    stops the run at the first new iteration.

    Examples
    --------
    >>> import sparse, tempfile, tensorly as tl
    >>> from tensorly.decomposition import parafac
    >>> from tensorly_flycoo import Progress
    >>> x = sparse.random((30, 40, 50), density=0.01, random_state=0)
    >>> path = tempfile.mkdtemp() + "/run.npz"
    >>> def run(n_iter_max):
    ...     with Progress(n_iter_max, show=None, checkpoint=path, every=2) as progress:
    ...         init = progress.resume(default="random")
    ...         return parafac(
    ...             x, 3, n_iter_max=progress.n_iter_left, init=init, random_state=0,
    ...             tol=1e-12, callback=progress,
    ...         ), progress
    >>> with tl.backend_context("flycoo"):
    ...     _ = run(4)
    ...     _, progress = run(10)
    >>> progress.iteration, len(progress.errors)
    (10, 11)
    """

    def __init__(
        self,
        n_iter_max: int,
        *,
        show: str | None = "bar",
        log_every: int = 1,
        checkpoint: FilePath | None = None,
        every: int | None = None,
        every_minutes: float | None = None,
        time_limit_s: float | None = None,
    ) -> None:
        check_count(n_iter_max, "n_iter_max")
        check_count(log_every, "log_every")
        check_choice(show, "show", ("bar", "log", None))
        if every is not None:
            check_count(every, "every")
        if every_minutes is not None:
            check_positive(every_minutes, "every_minutes")
        if time_limit_s is not None:
            check_positive(time_limit_s, "time_limit_s")
        if every is None and every_minutes is None:
            every_minutes = 10
        elif checkpoint is None:
            raise ValueError("every and every_minutes need checkpoint, the path of a file")
        self.n_iter_max = n_iter_max
        self.errors: list[float] = []
        self.seconds: list[float] = []
        self._show = show
        self._log_every = log_every
        self._every = every
        self._path = None if checkpoint is None else os.fspath(checkpoint)
        self._every_s = math.inf if every_minutes is None else 60 * every_minutes
        self._time_limit_s = math.inf if time_limit_s is None else time_limit_s
        self._entered_at = 0.0
        self.last: Any = None
        self.best: Any = None
        self._best_error = math.inf
        self._bar: Any = None
        self._title = ""  # of the run, if there are several
        self._first = 0  # the iteration from which this run goes on
        self._saved_at = 0.0
        self._begun_at = 0.0  # the iteration at hand
        self._failure: Exception | None = None  # of the last write
        self._resources = contextlib.ExitStack()  # of the block
        self._is_running = False  # inside the block
        self._is_started = False  # the run has called
        self._is_interrupted = False
        self._is_over_time = False

    @property
    def iteration(self) -> int:
        """The number of completed iterations, including those before a resume."""
        return max(len(self.errors) - 1, 0)

    @property
    def n_iter_left(self) -> int:
        """The number of iterations left, for the decomposition's ``n_iter_max``."""
        return self.n_iter_max - self.iteration

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C was pressed: the run stops, or has stopped, after its iteration."""
        return self._is_interrupted

    @property
    def is_stopped(self) -> bool:
        """Whether the run stops, or has stopped, after its iteration: by Ctrl-C or by the time."""
        return self._is_interrupted or self._is_over_time

    def begin_run(self, title: str) -> None:
        """Begin one of several runs, as `best_of` does: iterations and `errors` begin anew.

        `title` is shown beside the iterations, such as "run 2 of 5". `best` stays that of all runs,
        and so does the time limit.
        """
        report(title)
        self._title = title
        self._is_started = False
        self.errors = []
        self.seconds = []

    @property
    def checkpoint(self) -> str | None:
        """The path of the checkpoint, if one is written."""
        return self._path

    def resume(self, default: Any = "svd") -> Any:
        """Return the ``init`` to go on with: the checkpoint, or `default` if there is none yet.

        Parameters
        ----------
        default : str, CPTensor or TuckerTensor
            As for the decomposition's ``init``.

        Returns
        -------
        ResumedCP (a CPTensor with `errors`), ResumedTucker (a TuckerTensor with them) or default

        Raises
        ------
        RuntimeError
            If the decomposition has begun.
        ValueError
            If `checkpoint` was not given, or the file is damaged or not a checkpoint.

        Examples
        --------
        >>> Progress(10, show=None, checkpoint="/nowhere/run.npz").resume(default="random")
        'random'
        """
        if self._path is None:
            raise ValueError("checkpoint is None, expected the path of a file to resume from")
        if self._is_started:
            raise RuntimeError("resume must be called before the decomposition, which has begun")
        try:
            init = load_checkpoint(self._path)
        except FileNotFoundError:
            return default
        self.errors = list(init.errors)
        return init

    def __enter__(self) -> Self:
        """Begin to show the run, and to catch Ctrl-C; `_resources` undoes both at the end."""
        if self._is_started:
            raise RuntimeError("a Progress is for one run only: make a new one")
        if self._path is not None:
            _check_folder(self._path)
        if self._show == "bar":
            need = 'show="bar" needs tqdm: pip install "tensorly-flycoo[progress]", or show="log"'
            self._bar = self._resources.enter_context(require("tqdm.auto", need).tqdm(unit="it"))
        # Python calls handlers on the main thread only; another language's must not be replaced.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(signal.getsignal(signal.SIGINT)):
            previous = signal.signal(signal.SIGINT, self._interrupt)
            self._resources.callback(signal.signal, signal.SIGINT, previous)
        if self._show == "log":
            self._resources.enter_context(_show_log())
        self._resources.enter_context(unwatched())
        if self._show is not None:
            self._resources.enter_context(listen(self._show_stage))
        self._is_running = True
        self._entered_at = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_running = False
        if self._failure is not None:
            self._warn(
                f"the checkpoint {self._path} is older than iteration {self.iteration}, the last: "
                f"a write failed ({self._failure}); the last factors are in `last` of this Progress"
            )
        self._resources.close()

    def __call__(self, model: Any, error: SupportsFloat = math.nan) -> bool:
        """Record the model and the error, if it is known, of an iteration; return True to stop."""
        if not self._is_running:
            raise RuntimeError("a Progress must be called inside its `with` block")
        if not self._is_started:
            self._start(model, float(error))
            return False
        now = time.monotonic()
        self.errors.append(float(error))
        self.seconds.append(now - self._begun_at)
        self._is_over_time = now - self._entered_at > self._time_limit_s
        self._keep(model)
        is_last = self.is_stopped or self.iteration >= self.n_iter_max
        self._report(model, is_last)
        if self._path is not None and (is_last or self._is_due()):
            self._save(self._path, model)
        self._begun_at = time.monotonic()
        return self.is_stopped

    #: parafac need not compute anew, after each call, what it knows of the factors.
    __call__.only_reads = True  # type: ignore[attr-defined]

    def _is_due(self) -> bool:
        """Return whether it is time for a checkpoint."""
        if time.monotonic() - self._saved_at >= self._every_s:
            return True
        return self._every is not None and self.iteration % self._every == 0

    def _start(self, model: Any, error: float) -> None:
        """Take the first call, which comes before the first iteration."""
        if self._path is not None:
            check_saveable(model)
        self._is_started = True
        if not self.errors:  # a resumed run knows it
            self.errors.append(error)
        self._keep(model)
        self._first = self.iteration
        self._saved_at = time.monotonic()
        self._begun_at = self._saved_at
        if self._bar is not None:
            self._bar.set_description_str(self._title, refresh=False)
            self._bar.reset(total=self.n_iter_max)
            self._bar.initial = self._bar.n = self._first
            self._bar.refresh()

    def _keep(self, model: Any) -> None:
        """Keep the model as the last one, and as the best one if it is as good."""
        self.last = copy_model(model)
        error = self.errors[-1]
        # nan, the unknown error of the start, is better than nothing and worse than any other.
        if self.best is None or error <= self._best_error:
            self.best = self.last
            self._best_error = math.inf if math.isnan(error) else error

    def _save(self, path: str, model: Any) -> None:
        """Write a checkpoint; if that fails, warn and let the run go on."""
        self._failure = None
        try:
            save_checkpoint(path, model, self.errors)
        except (OSError, MemoryError) as error:
            self._failure = error
            self._warn(
                f"the checkpoint {path} could not be written after iteration {self.iteration}: "
                f"{error}; the run goes on"
            )
        self._saved_at = time.monotonic()

    def _show_stage(self, stage: str) -> None:
        """Show a stage before the first iteration."""
        if self._bar is not None:
            self._bar.set_description_str(stage)
        else:
            _logger.info(stage)

    def _report(self, model: Any, is_last: bool) -> None:
        """Show an iteration: in the bar, in the log, and on the dashboard of a cluster."""
        record = find_record(model) or FitRecord()
        state = self._describe_state(record.method)
        tensor = None if record.run is None else record.run.tensor
        cluster = getattr(tensor, "_cluster", None)
        if cluster is not None:
            cluster.log_event(record.method, iteration=self.iteration, state=state)
        if self._bar is not None:
            self._bar.set_description_str(self._title, refresh=False)
            self._bar.set_postfix_str(state, refresh=False)
            self._bar.update()
        num_done = self.iteration - self._first
        is_due = is_last or num_done == 1 or self.iteration % self._log_every == 0
        if self._show == "log" and is_due:
            times = self._describe_times(num_done)
            _logger.info(
                "iteration %d of %d, %s, %s", self.iteration, self.n_iter_max, state, times
            )

    def _describe_state(self, method_name: str) -> str:
        """Describe the last error, and how much it has improved."""
        error = self.errors[-1]
        improvement = self.errors[-2] - error
        method = METHODS.get(method_name)
        if method is not None and method.error_name == "loss":
            state = f"loss {error:.8g}"
            change = -improvement
        else:
            state = f"fit {1 - error:.6f}"
            change = improvement
        if math.isnan(change):  # the error of the start is unknown
            return state
        return f"{state}, change {change:+.1e}"

    def _describe_times(self, num_done: int) -> str:
        """Describe how long an iteration takes, and the time left."""
        if num_done == 1:
            return f"{self.seconds[0]:.3g} s"
        return describe_pace(self.seconds, self.n_iter_left)

    def _interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        """Stop the run after its iteration at the first Ctrl-C, immediately at the second.

        Before the first model, as while ridges are tried, the first one stops immediately too.
        """
        if self._is_interrupted or self.last is None:  # there is nothing to lose yet
            raise KeyboardInterrupt
        self._is_interrupted = True
        with contextlib.suppress(RuntimeError):  # the signal may interrupt another write
            self._warn("Ctrl-C: stopping after this iteration; again to stop immediately")

    def _warn(self, message: str) -> None:
        """Show a warning without breaking the bar."""
        if self._bar is not None:
            self._bar.write(message, file=sys.stderr)
        else:
            _logger.warning(message)


def _check_folder(path: str) -> None:
    """Refuse the path of a checkpoint where nothing can be written."""
    try:
        try_writing(path)
    except OSError as error:
        raise OSError(
            error.errno,
            f"checkpoint is {path!r}, where nothing can be written ({error.strerror}): make its "
            "folder, free some space, or give another path",
        ) from error


@contextlib.contextmanager
def _show_log() -> Iterator[None]:
    """Show the log lines of this package at level INFO, on standard error if nowhere else."""
    logger = logging.getLogger("tensorly_flycoo")
    handler = logging.StreamHandler()
    level = logger.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    if not logger.hasHandlers():
        logger.addHandler(handler)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)

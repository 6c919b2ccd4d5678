"""Progress of a running parafac: a bar or log lines, checkpoints, and a clean stop at Ctrl-C."""

import contextlib
import datetime
import logging
import math
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Self, SupportsFloat

from tensorly.cp_tensor import CPTensor

from ..io.checkpoint import ResumedCP, load_checkpoint, save_checkpoint
from ..io.files import FilePath
from ..reporting import listen

_SHOWN = ("bar", "log", None)

_logger = logging.getLogger(__name__)


class Progress:
    """A callback for `tensorly.decomposition.parafac`: progress, checkpoints and a clean stop.

    Pass it as ``callback=`` inside its ``with`` block. The first Ctrl-C stops the run after the
    current iteration, and parafac returns the factors so far, which are the best ones: alternating
    least squares never increases the error. The second Ctrl-C raises KeyboardInterrupt immediately.
    A run that was stopped or killed can resume from its last checkpoint as if it had never stopped.

    Parameters
    ----------
    n_iter_max : int
        The maximum number of iterations, counted over all runs that resume one another.
    show : {"bar", "log", None}
        A bar on standard error (by tqdm: ``pip install tensorly-flycoo[progress]``); or log lines
        for batch jobs, at level INFO of the logger "tensorly_flycoo"; or nothing. It shows what is
        done before the first iteration, such as the mode whose singular vectors are computed; then
        the iteration, the fit (1 - error), its change and the time left.
    log_every : int
        Iterations between log lines; the first and the last iteration are always logged.
    checkpoint : str or os.PathLike, optional
        The ``.npz`` file for the state, replaced atomically. Written when due, after iteration
        `n_iter_max` and at Ctrl-C, but not when parafac converges (`tol`).
    every : int, optional
        Iterations between checkpoints.
    every_minutes : float, optional
        Minutes between checkpoints; 10 if `every` is not given either.

    Attributes
    ----------
    errors : list of float
        The relative errors at the start and after each iteration, including those before a resume.

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described above.
    ImportError
        On entering the block, if tqdm is missing and `show` is "bar".
    RuntimeError
        If it is called outside its block or used for a second run.

    Notes
    -----
    Ctrl-C is handled only inside the block, only in the main thread (as in Python), and not if
    SIGINT is ignored or its handler is not a Python one. Leaving the block restores the previous
    handler.

    The callback costs one MTTKRP at the start. On a GPU it synchronises in each iteration, as
    parafac's own `tol` does. With any callback, TensorLy needs ``tol`` or ``return_errors=True``.

    For sparse tensors under "flycoo" on the CPU, with the same machine and number of threads, a
    resumed run gives the same bits as an uninterrupted one and stops at the same iteration, also
    with ``normalize_factors=True``. Options with state beyond the factors cannot resume:
    ``linesearch``, ``orthogonalise`` and ``mask`` raise a ValueError. For dense tensors, and under
    other backends, TensorLy uses the checkpoint as an initial guess: without those options and
    ``normalize_factors=True`` the bits are the same too, but `tol` never stops the run at the first
    new iteration. `randomised_parafac` shows progress, but does not resume its random numbers.

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
    ) -> None:
        _check_count("n_iter_max", n_iter_max)
        _check_count("log_every", log_every)
        if show not in _SHOWN:
            raise ValueError(f"show is {show!r}, expected one of {_SHOWN}")
        if every is not None:
            _check_count("every", every)
        if every_minutes is not None and not every_minutes > 0:
            raise ValueError(f"every_minutes is {every_minutes!r}, expected more than 0")
        if every is None and every_minutes is None:
            every_minutes = 10
        elif checkpoint is None:
            raise ValueError("every and every_minutes need checkpoint, the path of a file")
        self.n_iter_max = n_iter_max
        self.errors: list[float] = []
        self._show, self._log_every = show, log_every
        self._path = None if checkpoint is None else os.fspath(checkpoint)
        self._every = every
        self._every_s = math.inf if every_minutes is None else 60 * every_minutes
        self._bar: Any = None
        self._is_running = self._is_started = self._is_interrupted = False

    @property
    def iteration(self) -> int:
        """The number of completed iterations, including those before a resume."""
        return max(len(self.errors) - 1, 0)

    @property
    def n_iter_left(self) -> int:
        """The number of iterations left, for parafac's ``n_iter_max``."""
        return self.n_iter_max - self.iteration

    def resume(self, default: str | CPTensor = "svd") -> ResumedCP | str | CPTensor:
        """Return the ``init`` for parafac: the checkpoint, or `default` if there is none yet.

        Parameters
        ----------
        default : str or CPTensor
            As for parafac's ``init``.

        Returns
        -------
        ResumedCP or default
            A ResumedCP has `weights`, `factors` and `errors`.

        Raises
        ------
        RuntimeError
            If parafac has begun.
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
            raise RuntimeError("resume must be called before parafac, which has begun")
        try:
            init = load_checkpoint(self._path)
        except FileNotFoundError:
            return default
        self.errors = list(init.errors)
        return init

    def __enter__(self) -> Self:
        if self._is_started:
            raise RuntimeError("a Progress is for one run only: make a new one")
        self._resources = contextlib.ExitStack()
        if self._show == "bar":
            self._bar = self._resources.enter_context(_make_bar())
        if _may_take_signals():
            previous = signal.signal(signal.SIGINT, self._interrupt)
            self._resources.callback(signal.signal, signal.SIGINT, previous)
        if self._show is not None:
            self._resources.enter_context(listen(self._show_stage))
        self._is_running = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_running = False
        self._resources.close()

    def __call__(self, cp_tensor: CPTensor, error: SupportsFloat = math.nan) -> bool:
        """Record the factors and relative error of an iteration; return True to stop the run.

        `randomised_parafac` passes no error before its first iteration.
        """
        if not self._is_running:
            raise RuntimeError("a Progress must be called inside its `with` block")
        if not self._is_started:
            self._start(float(error))
            return False
        self.errors.append(float(error))
        is_last = self._is_interrupted or self.iteration >= self.n_iter_max
        self._report(is_last)
        if self._path is not None and (is_last or self._is_due()):
            save_checkpoint(self._path, cp_tensor, self.errors)
            self._saved_at = time.monotonic()
        return self._is_interrupted

    def _start(self, error: float) -> None:
        # parafac also calls back before its first iteration; after a resume that error is known.
        self._is_started = True
        if not self.errors:
            self.errors.append(error)
        self._first = self.iteration
        self._started_at = self._saved_at = time.monotonic()
        if self._bar is not None:
            self._bar.set_description_str("", refresh=False)
            self._bar.reset(total=self.n_iter_max)
            self._bar.initial = self._bar.n = self._first
            self._bar.refresh()

    def _show_stage(self, stage: str) -> None:
        if self._bar is not None:
            self._bar.set_description_str(stage)
        else:
            _logger.info(stage)

    def _is_due(self) -> bool:
        is_counted = self._every is not None and self.iteration % self._every == 0
        return is_counted or time.monotonic() - self._saved_at >= self._every_s

    def _report(self, is_last: bool) -> None:
        fit, change = 1 - self.errors[-1], self.errors[-2] - self.errors[-1]
        if self._bar is not None:
            self._bar.set_description_str("", refresh=False)
            self._bar.set_postfix_str(f"fit {fit:.6f}, change {change:+.1e}", refresh=False)
            self._bar.update()
        done = self.iteration - self._first
        if self._show == "log" and (is_last or done == 1 or self.iteration % self._log_every == 0):
            each_s = (time.monotonic() - self._started_at) / done
            left = datetime.timedelta(seconds=round(each_s * self.n_iter_left))
            _logger.info(
                "iteration %d of %d, fit %.6f, change %+.1e, %.3g s each, at most %s left",
                self.iteration, self.n_iter_max, fit, change, each_s, left,
            )  # fmt: skip

    def _interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        message = "Ctrl-C: stopping after this iteration; again to stop immediately"
        with contextlib.suppress(RuntimeError):  # the signal may interrupt another write
            if self._bar is not None:
                self._bar.write(message, file=sys.stderr)
            else:
                _logger.warning(message)


def _check_count(name: str, count: Any) -> None:
    is_count = isinstance(count, int) and not isinstance(count, bool)
    if not is_count or count < 1:
        kind = ValueError if is_count else TypeError
        raise kind(f"{name} is {count!r}, expected an integer of at least 1")


def _make_bar() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError(
            'show="bar" needs tqdm: pip install "tensorly-flycoo[progress]", or show="log"'
        ) from error
    return tqdm(unit="it", leave=True)


def _may_take_signals() -> bool:
    """Return whether this is the main thread and Python has a handler for Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return callable(signal.getsignal(signal.SIGINT))

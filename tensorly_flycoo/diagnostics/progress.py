"""What parafac says while it runs: a bar or log lines, checkpoints, and an end by Ctrl-C."""

import contextlib
import datetime
import logging
import math
import os
import signal
import sys
import threading
import time

from ..io.checkpoint import load_checkpoint, save_checkpoint

_SHOWN = ("bar", "log", None)

_logger = logging.getLogger(__name__)


class Progress:
    """Show the progress of `tensorly.decomposition.parafac`, keep checkpoints, end it by Ctrl-C.

    An object for its ``callback=``, in a ``with`` block around it. The first Ctrl-C ends the run
    after the iteration: parafac returns the factors so far, which are the best ones, as alternating
    least squares never gets worse. The second one raises KeyboardInterrupt at once. A run that
    was ended, or killed, goes on from its last checkpoint as if nothing had happened.

    Parameters
    ----------
    n_iter_max : int
        The most iterations, of all runs together that resume one another.
    show : {"bar", "log", None}
        A bar on standard error (by tqdm: ``pip install tensorly-flycoo[progress]``), or lines for
        batch jobs through `logging`, as INFO of the logger "tensorly_flycoo", or nothing.
        Iteration, fit (1 - error), its change and the time left.
    log_every : int
        Iterations from one log line to the next; the first and the last have one too.
    checkpoint : str or os.PathLike, optional
        Where the state is kept: a ``.npz`` file, replaced as a whole. Written when it is due, after
        iteration `n_iter_max` and at Ctrl-C; not where parafac ends by itself, by `tol`.
    every : int, optional
        Iterations from one checkpoint to the next.
    every_minutes : float, optional
        Minutes from one checkpoint to the next; 10, if `every` is not given either.

    Attributes
    ----------
    errors : list of float
        The relative errors at the start and after each iteration, also those before a resumption.

    Raises
    ------
    ValueError, TypeError
        If an argument is not as above.
    ImportError
        On entering the block, if tqdm is missing and there is to be a bar.
    RuntimeError
        If it is called outside its block, or used for a second run.

    Notes
    -----
    Signals are taken in the main thread only, where Python has them, inside the block, and not
    where a program that is not Python's handles or ignores SIGINT. The handler of before is put
    back at the block's end.

    The callback costs one MTTKRP at the start, and on a GPU waits for it in each iteration, as
    parafac's own `tol` does. TensorLy needs ``tol`` or ``return_errors=True`` with any callback.

    On one machine, with one number of threads, a resumed run gives the same bits on the CPU as one
    without a break, for sparse tensors under "flycoo", ``normalize_factors=True`` included, and
    stops at the same iteration. What counts iterations or remembers more than the factors cannot
    go on: ``linesearch``, ``orthogonalise`` and ``mask`` raise a ValueError there. For dense
    tensors, and under other backends, TensorLy takes the checkpoint for a guess: the same bits
    without those options and ``normalize_factors=True``, but the first new iteration is never
    the last. `randomised_parafac` shows progress, but its random numbers do not go on.

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
        self, n_iter_max, *, show="bar", log_every=1, checkpoint=None, every=None,
        every_minutes=None,
    ):  # fmt: skip
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
        self.errors = []
        self._show, self._log_every = show, log_every
        self._path = None if checkpoint is None else os.fspath(checkpoint)
        self._every = every
        self._every_s = math.inf if every_minutes is None else 60 * every_minutes
        self._bar = None
        self._is_running = self._is_started = self._is_interrupted = False

    @property
    def iteration(self):
        """The number of iterations that were done, also before a resumption."""
        return max(len(self.errors) - 1, 0)

    @property
    def n_iter_left(self):
        """The number of iterations that are left: ``n_iter_max`` of parafac."""
        return self.n_iter_max - self.iteration

    def resume(self, default="svd"):
        """Return what parafac begins with: the checkpoint, or `default` if there is none yet.

        Parameters
        ----------
        default : str or CPTensor
            As ``init`` of parafac.

        Returns
        -------
        ResumedCP, or default
            With its attributes `weights`, `factors` and `errors`.

        Raises
        ------
        RuntimeError
            If parafac has begun.
        ValueError
            If there is no path of a checkpoint, or the file is no checkpoint or damaged.

        Examples
        --------
        >>> Progress(10, show=None, checkpoint="/nowhere/run.npz").resume(default="random")
        'random'
        """
        if self._path is None:
            raise ValueError("checkpoint is None, expected the path of a file to resume from")
        if self._is_started:
            raise RuntimeError("resume comes before parafac, which has begun")
        try:
            init = load_checkpoint(self._path)
        except FileNotFoundError:
            return default
        self.errors = list(init.errors)
        return init

    def __enter__(self):
        if self._is_started:
            raise RuntimeError("a Progress is for one run: make another")
        self._resources = contextlib.ExitStack()
        if self._show == "bar":
            self._bar = self._resources.enter_context(_make_bar())
        if _may_take_signals():
            previous = signal.signal(signal.SIGINT, self._interrupt)
            self._resources.callback(signal.signal, signal.SIGINT, previous)
        self._is_running = True
        return self

    def __exit__(self, *exception):
        self._is_running = False
        self._resources.close()

    def __call__(self, cp_tensor, error=math.nan):
        """Take the factors and the relative error of an iteration; return True to end the run.

        `randomised_parafac` does not say the error of the start.
        """
        if not self._is_running:
            raise RuntimeError("a Progress is called inside its `with` block only")
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

    def _start(self, error):
        # Called before the first iteration too; after a resumption that is the last one of before.
        self._is_started = True
        if not self.errors:
            self.errors.append(error)
        self._first = self.iteration
        self._started_at = self._saved_at = time.monotonic()
        if self._bar is not None:
            self._bar.reset(total=self.n_iter_max)
            self._bar.initial = self._bar.n = self._first
            self._bar.refresh()

    def _is_due(self):
        is_counted = self._every is not None and self.iteration % self._every == 0
        return is_counted or time.monotonic() - self._saved_at >= self._every_s

    def _report(self, is_last):
        fit, change = 1 - self.errors[-1], self.errors[-2] - self.errors[-1]
        if self._bar is not None:
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

    def _interrupt(self, signal_number, frame):
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        message = "Ctrl-C: stopping after this iteration; again to stop at once"
        with contextlib.suppress(RuntimeError):  # the signal may have come while another is written
            if self._bar is not None:
                self._bar.write(message, file=sys.stderr)
            else:
                _logger.warning(message)


def _check_count(name, count):
    is_count = isinstance(count, int) and not isinstance(count, bool)
    if not is_count or count < 1:
        kind = ValueError if is_count else TypeError
        raise kind(f"{name} is {count!r}, expected an integer of at least 1")


def _make_bar():
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError(
            'show="bar" needs tqdm: pip install "tensorly-flycoo[progress]", or show="log"'
        ) from error
    return tqdm(unit="it", leave=True)


def _may_take_signals():
    """Say whether this is the main thread, and whether Python has a handler of Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return callable(signal.getsignal(signal.SIGINT))

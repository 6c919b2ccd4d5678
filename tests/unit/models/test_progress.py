"""Progress of parafac: what is shown, when it is saved, and what Ctrl-C does."""

import logging
import re
import signal
import sys
import threading
import types

import numpy as np
import pytest
import sparse
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, Progress
from tensorly_flycoo.base.reporting import report
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.io.checkpoint import load_checkpoint, save_checkpoint
from tensorly_flycoo.models import progress

CP = CPTensor((None, [np.ones((3, 2)), np.ones((4, 2))]))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


@pytest.fixture
def clock(monkeypatch):
    """A fake clock; each `call` of the callback advances it by two minutes."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def call(progress, errors, clock=None):
    """Call `progress` as parafac does; return its last result."""
    for error in errors:
        stop = progress(CP, np.float64(error))
        if clock is not None:
            clock.now += 120
    return stop


def run_dense(callback, n_iter_max=5):
    x = np.random.default_rng(0).random((4, 5, 6))
    options = {"init": "random", "random_state": 0, "tol": 1e-300}
    with tl.backend_context("numpy"):
        return parafac(x, 2, n_iter_max=n_iter_max, callback=callback, **options)


def test_log_lines(caplog, clock):
    caplog.set_level(logging.INFO, "tensorly_flycoo")
    with Progress(5, show="log", log_every=2) as shown:
        call(shown, [1.0], clock)
        clock.now += 480  # the first iteration compiles
        call(shown, [0.5, 0.25, 0.3, 0.2, 0.1], clock)
    assert [record.message for record in caplog.records] == [
        "iteration 1 of 5, fit 0.500000, change +5.0e-01, 600 s",
        "iteration 2 of 5, fit 0.750000, change +2.5e-01, 120 s each, at most 0:06:00 left",
        "iteration 4 of 5, fit 0.800000, change +1.0e-01, 120 s each, at most 0:02:00 left",
        "iteration 5 of 5, fit 0.900000, change +1.0e-01, 120 s each, at most 0:00:00 left",
    ]


def test_the_time_left_leaves_out_iterations_that_compile(caplog, clock):
    """Three of the first five, as in `generalized_parafac`."""
    caplog.set_level(logging.INFO, "tensorly_flycoo")
    with Progress(100, show="log", log_every=5) as shown:
        call(shown, [1.0])
        for seconds in (400, 410, 3, 420, 3):
            clock.now += seconds
            call(shown, [0.5])
    assert caplog.records[-1].message.endswith("3 s each, at most 0:04:45 left")


def test_seconds_of_each_iteration(path, clock, monkeypatch):
    """Without what the callback does in between, and without those before a resume."""

    def save(*arguments):
        clock.now += 1000
        return save_checkpoint(*arguments)

    monkeypatch.setattr(progress, "save_checkpoint", save)
    with Progress(4, show=None, checkpoint=path, every=1) as first:
        call(first, [1.0, 0.5, 0.4], clock)
    assert first.seconds == [120, 120]
    with Progress(4, show=None, checkpoint=path, every=1) as second:
        second.resume()
        call(second, [0.4, 0.3, 0.2], clock)
    assert second.seconds == [120, 120]
    assert len(second.errors) == 5


def test_the_time_limit_stops_after_the_iteration_that_passes_it(path, clock):
    with Progress(9, show=None, checkpoint=path, every=100, time_limit_s=300) as limited:
        clock.now += 100  # the start
        assert not call(limited, [1.0, 0.5], clock)
        assert not limited.is_stopped
        assert call(limited, [0.4])
    assert limited.is_stopped
    assert not limited.is_interrupted
    assert load_checkpoint(str(path)).errors == [1.0, 0.5, 0.4]


def test_a_run_that_the_time_limit_stops_returns_its_factors(path):
    with Progress(50, show=None, checkpoint=path, time_limit_s=1e-9) as limited:
        cp_tensor = run_dense(limited, 50)
    assert limited.iteration == 1
    np.testing.assert_array_equal(cp_tensor.factors[0], limited.last.factors[0])
    np.testing.assert_array_equal(cp_tensor.factors[0], load_checkpoint(str(path)).factors[0])


def test_bar(capsys):
    with Progress(5) as shown:
        run_dense(shown)
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.strip().rpartition("\r")[2]
    fit, change = re.search(r"5/5 \[.*, fit (\S+), change (\S+)\]", last).groups()
    assert float(fit) == pytest.approx(1 - shown.errors[-1], abs=1e-6)
    assert float(change) == pytest.approx(shown.errors[-2] - shown.errors[-1], rel=0.1)


def test_stages_before_the_first_iteration_are_logged(caplog):
    caplog.set_level(logging.INFO, "tensorly_flycoo")
    x = sparse.random((8, 9, 10), density=0.2, random_state=0)
    with tl.backend_context("flycoo"), Progress(1, show="log") as shown:
        parafac(x, 2, n_iter_max=1, tol=1e-300, callback=shown)
    lines = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert lines[:-1] == [
        "building a tensor of 144 nonzeros",
        *(f"singular vectors of mode {mode} of 3" for mode in (1, 2, 3)),
    ]
    assert lines[-1].startswith("iteration 1 of 1, ")


def test_a_bar_shows_stages_until_the_first_iteration(capsys):
    with Progress(1) as shown:
        report("singular vectors of mode 1 of 3")
        assert "\rsingular vectors of mode 1 of 3: 0it [" in capsys.readouterr().err
        call(shown, [1.0])
        call(shown, [0.5])
    assert "mode" not in capsys.readouterr().err


@pytest.mark.parametrize("show", ["bar", "log"])
def test_stages_are_shown_only_inside_the_block(caplog, capsys, show):
    caplog.set_level(logging.INFO, "tensorly_flycoo")
    with Progress(1, show=show):
        pass
    capsys.readouterr()
    report("a stage")
    assert capsys.readouterr().err == ""
    assert [record.name for record in caplog.records] == ["tensorly_flycoo"]


def test_a_resumed_bar_starts_where_it_stopped(path, capsys):
    with Progress(3, show=None, checkpoint=path) as shown:
        run_dense(shown, 3)
    with Progress(5, checkpoint=path) as shown:
        shown.resume()
        call(shown, shown.errors[-1:] * 2)
    assert "4/5 [" in capsys.readouterr().err


def test_without_tqdm_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ImportError, match=r"tensorly-flycoo\[progress\]"), Progress(5):
        pass
    assert signal.getsignal(signal.SIGINT) is before


def saved_iterations(path, shown, errors, clock=None):
    saved = []
    for error in errors:
        call(shown, [error], clock)
        iteration = load_checkpoint(path).iteration if path.exists() else None
        if iteration is not None and iteration not in saved:
            saved.append(iteration)
    return saved


def test_checkpoints_by_iterations_and_at_the_end(path):
    with Progress(7, show=None, checkpoint=path, every=3) as shown:
        assert saved_iterations(path, shown, np.linspace(1, 0.3, 8)) == [3, 6, 7]
    assert load_checkpoint(path).errors == np.linspace(1, 0.3, 8).tolist()


@pytest.mark.parametrize(("minutes", "expected"), [(5, [3, 6]), (None, [5])])
def test_checkpoints_by_minutes(path, clock, minutes, expected):
    options = {"checkpoint": path, "every_minutes": minutes}
    with Progress(100, show=None, **options) as shown:
        assert saved_iterations(path, shown, np.linspace(1, 0.3, 8), clock) == expected


class InterruptAt:
    """A callback that presses Ctrl-C in one iteration, `times` times, before `progress`."""

    def __init__(self, progress, iteration, times=1):
        self.progress, self.iteration, self.times = progress, iteration, times

    def __call__(self, cp_tensor, error):
        if self.progress.iteration == self.iteration - 1 and self.progress.errors:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)
        return self.progress(cp_tensor, error)


def test_ctrl_c_returns_the_factors_so_far(path, caplog):
    expected = run_dense(None, 3)
    before = signal.getsignal(signal.SIGINT)
    with Progress(100, show="log", checkpoint=path) as shown:
        result = run_dense(InterruptAt(shown, 3), 100)
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopping after this iteration" in caplog.text
    assert shown.iteration == load_checkpoint(path).iteration == 3
    for a, b, c in zip(
        result.factors, expected.factors, load_checkpoint(path).factors, strict=True
    ):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_ctrl_c_with_a_bar_says_so_on_standard_error(capsys):
    with Progress(100) as shown:
        run_dense(InterruptAt(shown, 3), 100)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Ctrl-C: stopping after this iteration" in captured.err


def test_a_second_ctrl_c_raises_immediately():
    before = signal.getsignal(signal.SIGINT)
    shown = Progress(100, show=None)
    with pytest.raises(KeyboardInterrupt), shown:
        run_dense(InterruptAt(shown, 3, times=2), 100)
    assert signal.getsignal(signal.SIGINT) is before
    assert shown.iteration == 2


def test_an_error_restores_the_handler():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), Progress(5, show=None):
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, signal.SIG_DFL])
def test_handlers_other_than_pythons_are_left_alone(theirs):
    before = signal.signal(signal.SIGINT, theirs)
    try:
        with Progress(5, show=None):
            assert signal.getsignal(signal.SIGINT) is theirs
        assert signal.getsignal(signal.SIGINT) is theirs
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_keep_the_handler():
    handlers = []

    def work():
        with Progress(5, show=None) as shown:
            handlers.append(signal.getsignal(signal.SIGINT))
            call(shown, [1.0, 0.5])

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]


# Log lines without logging.basicConfig


@pytest.fixture
def _root_level():
    before = logging.root.level
    yield
    logging.root.setLevel(before)


@pytest.mark.usefixtures("_root_level")
@pytest.mark.parametrize(
    ("level", "num_outside"), [(None, 0), (logging.WARNING, 0), (logging.INFO, 1)]
)
def test_log_lines_are_printed_once_however_logging_is_set_up(
    capsys, monkeypatch, level, num_outside
):
    """Not at all (None), or by `logging.basicConfig` with a level."""
    handlers = [] if level is None else [logging.StreamHandler()]
    monkeypatch.setattr(logging.root, "handlers", handlers)
    logging.root.setLevel(level or logging.WARNING)
    logger = logging.getLogger("tensorly_flycoo")
    before = (logger.level, list(logger.handlers))
    for _ in range(2):
        with Progress(2, show="log") as shown:
            call(shown, [1.0, 0.5, 0.4])
    assert (logger.level, logger.handlers) == before
    logger.info("outside")
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 4 + num_outside, lines
    assert sum("iteration 2 of 2, fit 0.600000" in line for line in lines) == 2


# The model in memory


def make_cp(number):
    return CPTensor((None, [np.full((3, 2), number), np.full((4, 2), number)]))


def test_the_last_and_the_best_model_are_kept_when_the_run_fails():
    shown = Progress(100, show=None)

    def fail():
        for number, error in enumerate([np.nan, 0.5, 0.3, 0.4]):
            model = make_cp(float(number))
            shown(model, error)
            model.factors[0] = None  # as a solver that writes to its list
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), shown:
        fail()
    assert [shown.last.factors[0][0, 0], shown.best.factors[0][0, 0]] == [3.0, 2.0]


def test_an_unknown_change_is_not_logged(caplog):
    with caplog.at_level("INFO"), Progress(100, show="log") as shown:
        for number, error in enumerate([np.nan, 0.5, 0.25]):
            shown(make_cp(float(number)), error)
    first, second = caplog.messages
    assert "change" not in first
    assert "fit 0.750000, change +2.5e-01, " in second


def test_one_model_is_kept_while_the_error_decreases():
    with Progress(100, show=None) as shown:
        for number, error in enumerate([1.0, 0.5, 0.5]):
            shown(make_cp(float(number)), error)
    assert shown.best is shown.last


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"n_iter_max": 0}, ValueError, "n_iter_max is 0"),
        ({"n_iter_max": 2.0}, TypeError, "n_iter_max is 2.0"),
        ({"n_iter_max": True}, TypeError, "n_iter_max is True"),
        ({"show": "text"}, ValueError, "show is 'text', expected one of"),
        ({"log_every": 0}, ValueError, "log_every is 0"),
        ({"every": 0, "checkpoint": "a.npz"}, ValueError, "every is 0"),
        ({"every_minutes": 0, "checkpoint": "a.npz"}, ValueError, "every_minutes is 0"),
        ({"time_limit_s": 0}, ValueError, "time_limit_s is 0"),
        ({"every": 5}, ValueError, "need checkpoint"),
        ({"every_minutes": 5}, ValueError, "need checkpoint"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        Progress(**{"n_iter_max": 5} | arguments)


def test_calls_in_the_wrong_order(path):
    shown = Progress(5, show=None)
    with pytest.raises(RuntimeError, match="inside its `with` block"):
        call(shown, [1.0])
    with pytest.raises(ValueError, match="checkpoint is None"):
        shown.resume()
    shown = Progress(5, show=None, checkpoint=path)
    with shown:
        call(shown, [1.0])
        with pytest.raises(RuntimeError, match="which has begun"):
            shown.resume()
    with pytest.raises(RuntimeError, match="for one run"), shown:
        pass


def test_what_is_no_model_has_no_checkpoint(path):
    shown = Progress(5, show=None, checkpoint=path, every=1)
    with shown, pytest.raises(TypeError, match="expected a CPTensor"):
        shown("no model", 1.0)


def test_the_loss_of_counts_is_not_called_a_fit(caplog):
    x = FlycooTensor([[0, 1, 2], [1, 0, 2]], [3, 4, 5], (3, 3))
    caplog.set_level("INFO", "tensorly_flycoo")
    with Progress(2, show="log", log_every=1) as progress:
        generalized_parafac(x, 2, 2, random_state=0, tol=0, callback=progress)
    line = next(line for line in caplog.messages if line.startswith("iteration 2"))
    assert f"loss {progress.errors[-1]:.8g}, change -" in line
    assert "fit" not in line


def test_ctrl_c_before_the_first_model_stops_at_once():
    """As while ridges are tried: there is nothing yet to return."""
    with pytest.raises(KeyboardInterrupt), Progress(5, show=None):
        signal.raise_signal(signal.SIGINT)

"""The line about a long call: what it says, where it is seen, and that it is erased."""

import io
import logging
import multiprocessing.process
import os
import re
import select
import sys
import threading
import time
import types

import numpy as np
import pytest
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import Progress, best_of, select_rank, set_progress
from tensorly_flycoo.base import watching
from tensorly_flycoo.base.checks import warn
from tensorly_flycoo.base.reporting import report
from tensorly_flycoo.base.watching import is_seen, note_iteration, unwatched, watch
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.models import rank_search
from tensorly_flycoo.testing import random_tensor

TIMEOUT_S = 20


class Terminal:
    """A pseudo-terminal, and what has been written on it.

    A thread reads it, as a real one is read: where nobody does, who writes waits.
    """

    def __init__(self, master, stream):
        self._master = master
        self._lock = threading.Lock()
        self._is_open = True
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self.stream = stream
        self.written = ""
        self._thread.start()

    def _drain(self):
        while self._is_open:
            if select.select([self._master], [], [], 0.01)[0]:
                self.read()

    def close(self):
        self._is_open = False
        self._thread.join()

    def read(self):
        with self._lock:
            while select.select([self._master], [], [], 0)[0]:
                self.written += os.read(self._master, 2**16).decode()
            return self.written

    def wait_for(self, pattern):
        """Return the first match of a pattern in what is written."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = re.search(pattern, self.read())
            if found:
                return found
            time.sleep(0.002)
        raise AssertionError(f"{pattern!r} is not in {self.written!r}")

    @property
    def lines(self):
        """The lines as they stand on the screen."""
        lines = []
        for line in self.read().replace("\r\n", "\n").split("\n"):
            shown = ""
            for text in line.split("\r"):
                shown = text + shown[len(text) :]
            lines.append(shown.rstrip())
        return lines


@pytest.fixture
def impatient(monkeypatch):
    """Each call is long."""
    monkeypatch.delenv("TENSORLY_FLYCOO_PROGRESS", raising=False)
    monkeypatch.setattr(watching, "_is_wanted", None)
    monkeypatch.setattr(watching, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(watching, "_INTERVAL_S", 0.002)
    wait_for_the_thread()


def wait_for_the_thread():
    deadline = time.monotonic() + TIMEOUT_S
    while watching._screen._thread is not None:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def set_stderr(monkeypatch, stream):
    """Replace standard error, which pytest would set again."""
    twin = types.SimpleNamespace(stderr=stream, modules=sys.modules)
    for module in (watching, rank_search):
        monkeypatch.setattr(module, "sys", twin)


@pytest.fixture
def terminal(monkeypatch, impatient):
    """Standard error is a terminal."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    with open(slave, "w") as stream:
        set_stderr(monkeypatch, stream)
        terminal = Terminal(master, stream)
        yield terminal
        wait_for_the_thread()
        terminal.close()
    os.close(master)


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(watching, "time", clock)
    return clock


@pytest.fixture(scope="module")
def x():
    return random_tensor((20, 30, 40), 2000, random_state=0)


def stop_when(terminal, pattern):
    """Return a callback that stops the run once a pattern is shown."""
    deadline = time.monotonic() + TIMEOUT_S

    def call(model, *error):
        is_shown = re.search(pattern, terminal.read()) is not None
        assert is_shown or time.monotonic() < deadline, terminal.written
        return is_shown

    return call


# What it says


def test_a_stage_and_how_long_the_call_takes(clock):
    call = watching._Call("parafac")
    clock.now = 7.4
    assert call.describe() == "parafac: 7 s so far"
    call.levels[0].stage = "singular vectors of mode 2 of 3"
    assert call.describe() == "parafac: singular vectors of mode 2 of 3, 7 s so far"


@pytest.fixture
def call(clock, monkeypatch):
    """An outermost call, which hears what is said."""
    call = watching._Call("select_rank")
    token = watching._watched.set(call)
    yield call
    watching._watched.reset(token)


def test_iterations_with_the_fit_and_the_time_left(call, clock):
    note_iteration(0, 100)
    clock.now = 8
    assert call.describe() == "select_rank: iteration 1 of 100, 8 s so far"
    note_iteration(1, 100, np.float32(0.75))  # which compiled
    assert call.describe() == "select_rank: iteration 1 of 100, fit 0.2500, 8 s so far"
    for number in range(2, 6):
        clock.now += 0.5
        note_iteration(number, 100, 0.5)
    text = "select_rank: iteration 5 of 100, fit 0.5000, 0.5 s each, at most 0:00:48 left"
    assert call.describe() == text
    clock.now += 10  # an iteration that takes longer
    assert call.describe().endswith("0.5 s each, at most 0:00:38 left")
    report("fit 2 of 3")
    assert call.describe() == "select_rank: fit 2 of 3, 20 s so far"


def test_a_loss_is_no_fit(call):
    note_iteration(2, 9, 3.5, is_loss=True)
    assert "iteration 2 of 9, loss 3.5" in call.describe()


def test_an_error_on_a_device_is_not_waited_for(call):
    class OnDevice:
        def __float__(self):
            raise AssertionError("the host waited")

    note_iteration(1, 9, OnDevice())
    assert "fit" not in call.describe()


def test_calls_inside_a_call_are_its_stages(call, clock):
    report("rank 4 (4 of 6): 5 runs")
    with watch("best_of"):
        report("runs 1 to 5 of 5 together")
        text = "rank 4 (4 of 6): 5 runs, runs 1 to 5 of 5 together, 0 s so far"
        assert call.describe() == f"select_rank: {text}"
        with watch("parafac"):
            note_iteration(37, 100, 0.5)
            text = "rank 4 (4 of 6): 5 runs, iteration 37 of 100, fit 0.5000, 0 s so far"
            assert call.describe() == f"select_rank: {text}"
    assert call.describe() == "select_rank: rank 4 (4 of 6): 5 runs, 0 s so far"


# Decompositions and searches


@pytest.mark.parametrize("tol", [1e-300, 0])
def test_tensorlys_own_loop(tol, x, terminal):
    """Its error is known if it is computed for the loop itself."""
    with tl.backend_context("flycoo", local_threadsafe=True):
        options = {"init": "random", "random_state": 0, "tol": tol}
        deadline = time.monotonic() + TIMEOUT_S
        while "each" not in terminal.read() and time.monotonic() < deadline:
            tl.decomposition.parafac(x, 3, n_iter_max=200, **options)
    fit = r", fit 0\.\d+" if tol else ""
    terminal.wait_for(rf"parafac: iteration \d+ of 200{fit}, \S+ s each, at most 0:\d\d:\d\d left")
    assert terminal.lines == [""]


def test_a_loop_of_ours(x, terminal):
    shown = r"generalized_parafac: iteration \d+ of 100000, loss \S+, \S+ s each"
    options = {"random_state": 0, "tol": 0, "callback": stop_when(terminal, shown)}
    generalized_parafac(x, 2, n_iter_max=100_000, **options)
    assert terminal.lines == [""]


def test_starts_that_run_together(x, terminal):
    with tl.backend_context("flycoo", local_threadsafe=True):
        deadline = time.monotonic() + TIMEOUT_S
        while "fit" not in terminal.read() and time.monotonic() < deadline:
            best_of("parafac", x, 2, 3, n_iter_max=200, tol=0)
    terminal.wait_for(r"best_of: iteration \d+ of 200, fit")
    assert terminal.lines == [""]


@pytest.mark.filterwarnings("ignore:the held-out entries are too few")
def test_the_lines_of_a_search_stay(x, terminal):
    with tl.backend_context("flycoo", local_threadsafe=True):
        select_rank(x, [1, 2], 2, n_iter_max=50, random_state=0)
    terminal.wait_for(r"select_rank: rank \d \(\d of 2\): 2 runs, iteration \d+ of \d+")
    *lines, last = terminal.lines
    assert last == ""
    assert lines
    assert all(re.match(r"rank \d \(\d of 2\): 2 runs, .* s$", line) for line in lines)


def test_the_bits_do_not_depend_on_the_line(x, terminal):
    with tl.backend_context("flycoo", local_threadsafe=True):
        options = {"random_state": 0, "return_errors": True, "n_iter_max": 30}
        shown = tl.decomposition.parafac(x, 3, **options)
        with set_progress(False):
            hidden = tl.decomposition.parafac(x, 3, **options)
    for array, same in zip([*shown[0][1], shown[1]], [*hidden[0][1], hidden[1]], strict=True):
        np.testing.assert_array_equal(array, same)


# Where it is seen


def assert_silent(terminal):
    with watch("long_call"):
        assert watching._screen._calls == []
        time.sleep(0.02)
    assert terminal.read() == ""


def test_nothing_is_started_in_a_pipe(impatient, capsys):
    with watch("long_call"):
        assert watching._screen._calls == []
        assert watching._screen._thread is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stream", [None, object()], ids=["none", "no file"])
def test_without_standard_error(stream, impatient, monkeypatch):
    set_stderr(monkeypatch, stream)
    assert not is_seen()


def test_a_closed_standard_error(impatient, monkeypatch):
    stream = io.StringIO()
    stream.close()
    set_stderr(monkeypatch, stream)
    assert not is_seen()


def test_in_a_notebook(impatient, monkeypatch):
    """Its stream is no terminal, and finds the cell by the context of the writer."""

    class OutStream(io.StringIO):
        def write(self, text):
            cells.add(watching._watched.get())
            return super().write(text)

    cells = set()
    OutStream.__module__ = "ipykernel.iostream"
    stream = OutStream()
    set_stderr(monkeypatch, stream)
    with watch("long_call"):
        report("a stage")
        deadline = time.monotonic() + TIMEOUT_S
        while "a stage, 0 s so far" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.002)
    assert "long_call: a stage, 0 s so far" in stream.getvalue()
    assert stream.getvalue().endswith(" \r")
    assert len(cells) == 1


def test_workers_of_a_pool_share_a_terminal_and_show_nothing(terminal, monkeypatch):
    monkeypatch.setattr(multiprocessing.process, "parent_process", object)
    assert_silent(terminal)


def test_the_switch(terminal):
    assert is_seen()
    with set_progress(False):
        assert_silent(terminal)
        set_progress(True)
        assert is_seen()
    assert is_seen()
    assert repr(set_progress(True)) == "<progress True>"
    with pytest.raises(TypeError, match="is_shown is None, expected True or False"):
        set_progress(None)


def test_the_environment(terminal, monkeypatch):
    monkeypatch.setenv("TENSORLY_FLYCOO_PROGRESS", "0")
    assert_silent(terminal)
    with set_progress(True):
        assert is_seen()
    monkeypatch.setenv("TENSORLY_FLYCOO_PROGRESS", "no")
    with pytest.raises(ValueError, match="TENSORLY_FLYCOO_PROGRESS is 'no', expected '0' or '1'"):
        tensorly_flycoo.stats(random_tensor((2, 3), 2, random_state=0))


@pytest.mark.parametrize("show", ["log", None])
def test_a_progress_shows_the_call_itself(show, x, terminal, caplog):
    with Progress(3, show=show) as progress, tl.backend_context("flycoo", local_threadsafe=True):
        assert_silent(terminal)
        tl.decomposition.parafac(x, 2, n_iter_max=3, callback=progress)
    assert "\r" not in terminal.read()


@pytest.mark.filterwarnings("ignore:the held-out entries are too few")
def test_calls_that_print_or_want_silence(x, terminal, capsys):
    with tl.backend_context("flycoo", local_threadsafe=True):
        tl.decomposition.parafac(x, 2, n_iter_max=100, tol=1e-300, verbose=1)
        select_rank(x, [1], 1, n_iter_max=100, quiet=True)
    assert terminal.read() == ""
    assert "reconstruction error" in capsys.readouterr().out


# The line itself


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_call_that_fails_leaves_no_line(error, terminal):
    def fail():
        with watch("long_call"):
            terminal.wait_for("long_call")
            raise error

    with pytest.raises(error):
        fail()
    assert terminal.lines == [""]
    assert watching._screen._calls == []


def test_a_shorter_line_leaves_nothing_of_a_longer_one(terminal):
    with watch("long_call"):
        report("a stage with a long name")
        terminal.wait_for("long name")
        report("short")
        terminal.wait_for("short")
        assert terminal.lines == ["long_call: short, 0 s so far"]


def test_a_line_is_no_longer_than_the_terminal_is_wide(terminal):
    with watch("long_call"):
        report("x" * 500)
        terminal.wait_for("x{9}")
        (line,) = terminal.lines
        assert len(line) == watching._WIDTH - 1
    assert terminal.lines == [""]


def test_other_lines_are_not_cut(terminal):
    handler = logging.StreamHandler(terminal.stream)
    logger = logging.getLogger("tensorly_flycoo")
    logger.addHandler(handler)
    try:
        with watch("long_call"):
            terminal.wait_for("long_call")
            logger.warning("a line of the log")
            terminal.wait_for("long_call.*\n.*long_call")
            with pytest.warns(UserWarning, match="careful"):
                warn("careful")
    finally:
        logger.removeHandler(handler)
    assert terminal.lines == ["a line of the log", ""]


def test_of_several_threads_the_oldest_call_is_shown(terminal):
    is_over = threading.Event()

    def run():
        with watch("younger"):
            is_over.wait(TIMEOUT_S)

    with watch("older"):
        thread = threading.Thread(target=run)
        thread.start()
        terminal.wait_for("older")
    terminal.wait_for("younger")
    assert "younger" not in terminal.written.partition("older")[0]
    is_over.set()
    thread.join()
    assert terminal.lines == [""]


def test_the_thread_ends_with_the_calls(terminal):
    for _ in range(2):
        with watch("long_call"):
            assert watching._screen._thread.is_alive()
        wait_for_the_thread()


def test_short_calls_show_nothing(terminal, monkeypatch):
    monkeypatch.setattr(watching, "_PATIENCE_S", 60.0)
    with watch("short_call"):
        time.sleep(0.02)
    assert terminal.read() == ""


def test_unwatched_blocks(terminal):
    with unwatched():
        assert_silent(terminal)
    assert is_seen()

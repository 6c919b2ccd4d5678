"""Loops on several threads: each part runs once; errors propagate after all parts have ended."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextvars import copy_context

import numba
import numpy as np
import pytest
from interrupting import for_each_place
from numba.core import types

from tensorly_flycoo.engines.cpu import threads
from tensorly_flycoo.engines.cpu.compiling import allocating_kernel, kernel
from tensorly_flycoo.engines.cpu.threads import launch

get_thread = types.ExternalFunction("PyThread_get_thread_ident", types.uint64())

ENOUGH_NS = 1e7  # work that is worth all threads


@kernel
def visit(first, last, visits, step):
    for i in range(first, last):
        visits[i] += step


@kernel
def note_parts(first, last, parts, idents):
    parts[first], idents[first] = last - first, get_thread()


@kernel
def wait_for_each_other(first, last, counts, idents):
    """Wait in items 0 and 1 until both have begun."""
    threads._store(counts, first, 1)
    while first < 2 and threads._load(counts, 1 - first) == 0:
        threads._rest()
    idents[first] = get_thread()


@kernel
def write_slowly(first, last, stages, num_rests):
    """Write 1 when an item begins, and 2 when it ends."""
    for i in range(first, last):
        threads._store(stages, i, 1)
        for _ in range(num_rests):
            threads._rest()
        threads._store(stages, i, 2)


@allocating_kernel
def fail_one(first, last, stages, failing):
    """Fail to allocate memory in one item; the others take a while."""
    size = 2**40 if first <= failing < last else 1
    scratch = np.empty((size, size))
    scratch[0, 0] = 1
    write_slowly(first, last, stages, 10_000)


def set_threads(monkeypatch, number):
    """Use this many threads, whatever the machine has."""
    monkeypatch.setattr(numba, "get_num_threads", lambda: number)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", number)
    monkeypatch.setattr(threads, "_helpers", None)


@pytest.fixture(params=[1, 2, 5])
def num_threads(request, monkeypatch):
    set_threads(monkeypatch, request.param)
    return request.param


@pytest.fixture
def two_threads(monkeypatch):
    set_threads(monkeypatch, 2)


@pytest.mark.parametrize("work_ns", [0, 1e5, ENOUGH_NS, 1e13])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 100, 1001])
def test_each_item_once(num_threads, count, work_ns):
    visits = np.zeros(count, int)
    for _ in range(20):
        launch(visit, count, visits, 2, work_ns=work_ns)
    assert (visits == 40).all()


@pytest.mark.parametrize("count", [1001, 50])
def test_parts_are_about_equal(num_threads, count):
    parts, idents = np.zeros(count, int), np.zeros(count, np.uint64)
    launch(note_parts, count, parts, idents, work_ns=ENOUGH_NS)
    sizes = parts[parts > 0]
    assert sizes.sum() == count
    assert sizes[:-1].min() == sizes.max()  # the last part is what is left
    assert len(sizes) >= min(count, 8 * num_threads)  # lest the threads' shares differ much


def test_all_threads_take_part(two_threads):
    """Two items wait for each other, so one thread could not finish."""
    idents = np.zeros(8, np.uint64)
    launch(wait_for_each_other, 8, np.zeros(8, int), idents, work_ns=ENOUGH_NS)
    assert len(set(idents)) == 2


@pytest.mark.parametrize(("number", "work_ns"), [(1, ENOUGH_NS), (5, 100)])
def test_a_single_thread_is_the_callers(monkeypatch, number, work_ns):
    """Little work is not worth waking another thread."""
    set_threads(monkeypatch, number)
    parts, idents = np.zeros(50, int), np.zeros(50, np.uint64)
    launch(note_parts, 50, parts, idents, work_ns=work_ns)
    assert set(idents[parts > 0]) == {threading.get_ident()}


def test_more_threads_are_called_while_they_are_awake(monkeypatch):
    set_threads(monkeypatch, 4)
    choose = threads._choose_threads
    assert [choose(50, 3e4, are_awake) for are_awake in (False, True)] == [1, 3]
    assert [choose(count, ENOUGH_NS, False) for count in (0, 1, 2, 50)] == [1, 1, 2, 4]


@pytest.mark.parametrize("failing", [0, 3, 7])
def test_an_error_propagates_after_all_parts_have_ended(num_threads, failing):
    stages = np.zeros(8, int)
    with pytest.raises(MemoryError, match="fail_one"):
        launch(fail_one, 8, stages, failing, work_ns=ENOUGH_NS)
    assert not (stages == 1).any()
    assert stages[failing] == 0
    launch(visit, 8, stages, 1, work_ns=ENOUGH_NS)  # the threads still work


@pytest.fixture
def interruptible():
    """Handle SIGINT even in a process started in the background, which ignores it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def test_an_interrupt_ends_a_loop_early(num_threads, interruptible, monkeypatch):
    """The user presses Ctrl-C while all threads are at work."""
    monkeypatch.setattr(threads, "_INTERRUPTIBLE_NS", 1e6)
    stages, caller = np.zeros(100_000, int), threading.get_ident()

    def interrupt():
        while stages[0] == 0:
            time.sleep(0.001)
        signal.pthread_kill(caller, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        launch(write_slowly, len(stages), stages, 10_000, work_ns=1e9)
    seen = stages.copy()
    thread.join(30)
    assert not (seen == 1).any()
    assert (seen == 0).any()
    time.sleep(0.01)
    np.testing.assert_array_equal(stages, seen)


def test_an_interrupt_anywhere_propagates_after_all_parts_have_ended(num_threads, monkeypatch):
    """Also while the caller starts helpers."""
    num_places = 0
    monkeypatch.setattr(threads, "_INTERRUPTIBLE_NS", 1e8)

    def task():
        monkeypatch.setattr(threads, "_helpers", None)
        stages[:] = 0
        launch(write_slowly, 100, stages, 10, work_ns=1e9)

    stages = np.zeros(100, int)
    # In a context of its own: the reporting of an interrupted call does not reach other tests.
    for interrupt in for_each_place(lambda: copy_context().run(task)):
        num_places += 1
        assert not (stages == 1).any(), interrupt
        seen = stages.copy()
        time.sleep(0.002)
        np.testing.assert_array_equal(stages, seen, str(interrupt))
    assert num_places > 20


def test_many_callers_at_once(two_threads):
    """Callers share the helpers, and none waits for one that another caller holds."""
    totals = np.zeros(20, int)

    def call(k):
        for _ in range(200):
            visits = np.zeros(50, int)
            launch(visit, 50, visits, 1, work_ns=ENOUGH_NS)
            totals[k] += visits.sum()

    callers = [threading.Thread(target=call, args=(k,)) for k in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert (totals == 200 * 50).all()


def test_after_helpers_fell_asleep(num_threads):
    """A launch reaches helpers that spin, that fall asleep and that sleep."""
    for pause_s in [0, 0, 1e-6, 1e-5, 3e-5, 1e-4, 1e-3, 1e-2] * 50:
        time.sleep(pause_s)
        visits = np.zeros(50, int)
        launch(visit, 50, visits, 1, work_ns=ENOUGH_NS)
        assert (visits == 1).all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork(two_threads):
    """A child has none of its parent's threads, and starts its own."""
    launch(visit, 8, np.zeros(8, int), 1, work_ns=ENOUGH_NS)
    assert threads._helpers is not None
    child = os.fork()
    if child == 0:
        idents = np.zeros(8, np.uint64)
        launch(wait_for_each_other, 8, np.zeros(8, int), idents, work_ns=ENOUGH_NS)
        os._exit(0 if len(set(idents)) == 2 else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


EXITING = """
import threading
import numpy as np
from tensorly_flycoo.engines.cpu import mttkrp, threads

def run():
    words, hashes = np.zeros(1000, np.uint64), np.zeros(1000, np.uint64)
    for _ in range(100):
        threads.launch(mttkrp.hash_words, 1000, words, 1, hashes, work_ns=1e9)

run()
threading.Thread(target=run).start()
"""


@pytest.mark.parametrize("repeats", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_process_ends_while_helpers_wait(repeats):
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", EXITING], timeout=60, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")

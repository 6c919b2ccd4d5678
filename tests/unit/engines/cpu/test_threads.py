"""Loops on several threads: each part runs once; errors propagate after all parts have ended."""

import os
import signal
import threading
import time

import numba
import numpy as np
import pytest
from interrupting import for_each_place

from tensorly_flycoo.engines.cpu import threads
from tensorly_flycoo.engines.cpu.threads import run_parallel


@pytest.fixture(params=[1, 2, 5])
def num_threads(request, monkeypatch):
    """Use this many threads, whatever the machine has."""
    monkeypatch.setattr(numba, "get_num_threads", lambda: request.param)
    return request.param


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)


class Loop:
    """A loop body that runs `action` and counts the running parts."""

    def __init__(self, action):
        self.action, self.lock, self.num_running = action, threading.Lock(), 0

    def __call__(self, first, last, *arguments):
        with self.lock:
            self.num_running += 1
        try:
            self.action(first, last, *arguments)
        finally:
            with self.lock:
                self.num_running -= 1


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 100, 1001])
def test_each_item_once(num_threads, count):
    visits = np.zeros(count, int)

    def visit(first, last, visits, step):
        assert 0 <= first < last <= count
        visits[first:last] += step

    run_parallel(visit, count, visits, 2)
    assert (visits == 2).all()


def test_parts_are_about_equal(num_threads):
    sizes = []
    run_parallel(lambda first, last: sizes.append(last - first), 1001)
    assert sum(sizes) == 1001
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) >= num_threads


def test_all_threads_take_part(two_threads):
    """Two parts wait for each other, so one thread could not finish."""
    barrier, names = threading.Barrier(2), set()

    def meet(first, last):
        if first < 2:
            barrier.wait(timeout=30)
        names.add(threading.current_thread().name)

    run_parallel(meet, 8)
    assert len(names) == 2


def test_a_single_thread_is_the_callers(monkeypatch):
    monkeypatch.setattr(numba, "get_num_threads", lambda: 1)
    names = set()
    run_parallel(lambda first, last: names.add(threading.current_thread().name), 50)
    assert names == {threading.current_thread().name}


@pytest.mark.parametrize("failing", [0, 3, 7])
def test_an_error_propagates_after_all_parts_have_ended(num_threads, failing):
    def fail_one(first, last):
        if first <= failing < last:
            raise MemoryError("one part failed")
        time.sleep(0.01)

    loop = Loop(fail_one)
    with pytest.raises(MemoryError, match="one part failed"):
        run_parallel(loop, 8)
    assert loop.num_running == 0
    run_parallel(loop, failing)  # the threads still work


@pytest.fixture
def interruptible():
    """Handle SIGINT even in a process started in the background, which ignores it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def test_an_interrupt_propagates_after_all_parts_have_ended(two_threads, interruptible):
    """The user presses Ctrl-C while the caller's thread waits for a helper."""
    caller, helper_is_busy = threading.current_thread(), threading.Event()

    def interrupt(first, last):
        if threading.current_thread() is caller:
            assert helper_is_busy.wait(30)
        elif not helper_is_busy.is_set():
            helper_is_busy.set()
            time.sleep(0.1)
            signal.pthread_kill(caller.ident, signal.SIGINT)
            time.sleep(0.2)

    loop = Loop(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_parallel(loop, 8)
    assert loop.num_running == 0


def test_an_interrupt_anywhere_propagates_after_all_parts_have_ended(num_threads):
    """Also while the caller starts helpers or waits for them."""
    loop = Loop(lambda first, last: time.sleep(0.001))
    num_places = 0
    for interrupt in for_each_place(lambda: run_parallel(loop, 16)):
        num_places += 1
        assert loop.num_running == 0, interrupt
        time.sleep(0.002)
        assert loop.num_running == 0, interrupt
    assert num_places > 20


def test_many_callers_at_once(two_threads):
    """No caller waits for a helper that another caller holds."""
    totals = np.zeros(20, int)

    def call(k):
        for _ in range(20):
            visits = np.zeros(50, int)

            def visit(first, last, visits=visits):
                visits[first:last] += 1

            run_parallel(visit, 50)
            totals[k] += visits.sum()

    callers = [threading.Thread(target=call, args=(k,)) for k in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert (totals == 20 * 50).all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork(two_threads):
    """A child has none of its parent's threads, and starts its own."""
    run_parallel(lambda first, last: None, 8)
    assert threads._pool is not None
    child = os.fork()
    if child == 0:
        visits = np.zeros(8, int)

        def visit(first, last):
            visits[first:last] += 1

        run_parallel(visit, 8)
        os._exit(0 if (visits == 1).all() else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0

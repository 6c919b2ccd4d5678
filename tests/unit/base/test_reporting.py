"""Stages go to the listener or the log, and what a call compiles makes one log line."""

import logging
import threading
import types
from contextvars import ContextVar, copy_context

import pytest

from tensorly_flycoo.base import reporting
from tensorly_flycoo.base.reporting import add_compiled, listen, log_compilation, report


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.INFO, "tensorly_flycoo")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def clock(monkeypatch):
    for name, start in {"total_count": 0, "total_s": 0.0, "is_said": False}.items():
        monkeypatch.setattr(reporting._Compilation, name, start)
    # Ctrl-C in an earlier test may have left a call open.
    monkeypatch.setattr(reporting, "_compilation", ContextVar("compilation", default=None))
    clock = types.SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(reporting, "time", clock)
    return clock


def compile_for(clock, seconds, count=1):
    start_s = clock.now
    clock.now += seconds
    add_compiled(start_s, count)


def raise_after(function, *arguments):
    function(*arguments)
    raise ZeroDivisionError


def test_without_a_listener_stages_are_logged(messages):
    report("mode 1 of 3")
    assert messages() == ["mode 1 of 3"]


def test_the_innermost_listener_hears_stages(messages):
    outer, inner = [], []
    with listen(outer.append):
        with pytest.raises(ZeroDivisionError), listen(inner.append):
            raise_after(report, "a")
        report("b")
    assert (outer, inner, messages()) == (["b"], ["a"], [])


def test_other_threads_are_not_heard(messages):
    heard = []
    with listen(heard.append):
        thread = threading.Thread(target=report, args=["elsewhere"])
        thread.start()
        thread.join()
    assert (heard, messages()) == ([], ["elsewhere"])


def test_one_line_for_all_that_a_call_compiles(messages, clock):
    with log_compilation():
        with log_compilation():
            compile_for(clock, 1.5)
        clock.now += 1
        compile_for(clock, 2, count=3)
    assert messages() == ["compiled 4 kernels in 3.5 s; cached on disk for the next time"]
    with log_compilation():
        pass
    assert len(messages()) == 1


def test_it_is_said_once_and_only_if_it_took_a_second(messages, clock):
    for seconds, num_messages in [(0.4, 0), (0.4, 0), (0.4, 1), (5, 1)]:
        with log_compilation():
            compile_for(clock, seconds)
        assert len(messages()) == num_messages
    assert messages() == ["compiled 3 kernels in 1.2 s; cached on disk for the next time"]


def test_each_call_is_logged_at_debug(caplog, clock):
    caplog.set_level(logging.DEBUG, "tensorly_flycoo")
    with log_compilation():
        compile_for(clock, 0.2, count=2)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert caplog.messages == ["compiled 2 kernels in 0.2 s"]


def test_a_progress_bar_is_not_cut(messages, clock):
    with listen(lambda stage: None), log_compilation():
        compile_for(clock, 2)
    assert messages() == []
    with log_compilation():
        compile_for(clock, 0.1)
    assert messages() == ["compiled 2 kernels in 2.1 s; cached on disk for the next time"]


def test_functions_that_a_kernel_calls_belong_to_it(messages, clock):
    with log_compilation():
        compile_for(clock, 1)
        start_s = clock.now
        compile_for(clock, 2)
        compile_for(clock, 3)
        add_compiled(start_s)
    assert messages() == ["compiled 2 kernels in 6.0 s; cached on disk for the next time"]


def test_a_long_call_does_not_keep_its_line_to_the_end(messages, clock):
    with log_compilation():
        with log_compilation():
            compile_for(clock, 1)
        clock.now += 6
        assert messages() == []
        with log_compilation():
            pass
        assert messages() == ["compiled 1 kernel in 1.0 s; cached on disk for the next time"]
    assert len(messages()) == 1


def test_threads_of_a_call_count(messages, clock):
    with log_compilation():
        thread = threading.Thread(target=copy_context().run, args=[compile_for, clock, 1])
        thread.start()
        thread.join()
    assert len(messages()) == 1


def test_a_call_that_fails_logs_too(messages, clock):
    with pytest.raises(ZeroDivisionError), log_compilation():
        raise_after(compile_for, clock, 1)
    assert len(messages()) == 1


def test_outside_a_call_nothing_is_logged(messages, clock):
    compile_for(clock, 1)
    assert messages() == []

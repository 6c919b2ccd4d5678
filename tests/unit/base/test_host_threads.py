import os
import threading

import numpy as np
import pytest

from tensorly_flycoo.base import host_threads
from tensorly_flycoo.base.host_threads import map_in_threads


@pytest.fixture(params=[1, 2, 5])
def num_threads(request, monkeypatch):
    monkeypatch.setattr(host_threads, "count_threads", lambda: request.param)
    return request.param


def test_results_keep_the_order_of_the_items(num_threads):
    assert map_in_threads(divmod, range(50), [7] * 50) == [divmod(item, 7) for item in range(50)]
    assert map_in_threads(abs, []) == []


def test_the_error_of_the_first_item_that_has_one_is_raised(num_threads):
    with pytest.raises(ValueError, match="'x3'"):
        map_in_threads(int, ["1", "2", "x3", "4", "x5"])


def test_items_are_shared_by_as_many_threads(num_threads):
    meeting = threading.Barrier(num_threads, timeout=60)  # passed once all threads are there
    map_in_threads(lambda _: meeting.wait(), range(num_threads))


def test_a_single_item_is_left_to_this_thread(num_threads):
    assert map_in_threads(lambda _: threading.get_ident(), [0]) == [threading.get_ident()]


def test_after_an_error_no_further_item_is_begun(monkeypatch):
    monkeypatch.setattr(host_threads, "count_threads", lambda: 2)
    begun = []
    is_over = threading.Event()

    def call(item):
        begun.append(item)
        if item == 0:
            raise KeyError(item)
        is_over.wait(0.1)

    with pytest.raises(KeyError):
        map_in_threads(call, range(1000))
    assert len(begun) < 1000
    assert sorted(begun) == [*range(len(begun))]


def test_threads_write_to_parts_of_one_array(num_threads):
    numbers = np.arange(1000)
    squares = np.empty_like(numbers)
    map_in_threads(np.square, np.split(numbers, 10), np.split(squares, 10))
    np.testing.assert_array_equal(squares, numbers**2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_a_process_on_one_core_takes_no_further_thread():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])
    try:
        assert host_threads.count_threads() == 1
    finally:
        os.sched_setaffinity(0, cores)
    assert host_threads.count_threads() == min(host_threads.MAX_THREADS, len(cores))

"""Two workers' threads that exchange arrays, without a cluster."""

import mmap
import queue
import sys

import numpy as np
import psutil
import pytest
from simulated_links import SimulatedLink

from tensorly_flycoo.dask.machine import Machine, Site
from tensorly_flycoo.dask.messages import MACHINE, Call, Dropped, Free, Message, Ref
from tensorly_flycoo.engines import select_engine


def seal(*fields):
    return Call.of(*fields)


def order(method, *args):
    return seal(method, [MACHINE, *args], {}, ())


def send(key, peer, key_there):
    return order(Machine.post, [[Ref(key), peer, key_there]], [])


def receive(key):
    return order(Machine.post, [], [[key]])


def join(number):
    return order(Machine.join, 9, number, 2)


class Pair:
    """Two machines that deliver to each other at once."""

    def __init__(self):
        self.is_held, self._number = True, [0, 0]
        self.machines = [
            Machine(
                Site(select_engine("cpu"), lambda: None, SimulatedLink),
                lambda: None,
                lambda: self.is_held,
            )
            for _ in range(2)
        ]
        for machine in self.machines:
            machine.connect(
                lambda peer, *parcel: self.machines[peer].deliver(*parcel), lambda: self.is_held
            )

    def run(self, number, commands, wanted=(), epoch=0):
        """Give a machine commands; return a queue for the reply."""
        replies = queue.Queue()
        message = Message(epoch, self._number[number], commands, list(wanted))
        self._number[number] += 1
        self.machines[number].add(message, replies.put)
        return replies

    def abort(self, epoch):
        self._number = [0, 0]
        for machine in self.machines:
            machine.abort(epoch)


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.is_held = False


def test_an_array_is_waited_for_when_it_is_used(pair):
    def make(factor):
        return seal(np.multiply, [factor, np.arange(3)], {}, (1,))

    commands = [receive(2), send(1, 1, 2), seal(np.add, [Ref(1), Ref(2)], {}, (3,))]
    first = pair.run(0, [make(1), *commands], [3])
    commands = [receive(2), send(1, 0, 2), seal(np.add, [Ref(1), Ref(2)], {}, (3,))]
    second = pair.run(1, [make(10), *commands], [3])
    for replies in (first, second):
        np.testing.assert_array_equal(replies.get(timeout=10).values[0], 11 * np.arange(3))


def test_an_array_that_nobody_uses_is_forgotten(pair):
    received = pair.run(0, [receive(1), Free(1)])
    pair.run(1, [seal(np.ones, [2], {}, (5,)), send(5, 0, 1)])
    assert received.get(timeout=10).error is None
    assert not pair.machines[0]._inbox


def test_an_array_of_an_earlier_epoch_was_lost(pair):
    assert pair.run(0, [receive(1)]).get(timeout=10).error is None
    pair.abort(1)
    error = pair.run(0, [], [1], epoch=1).get(timeout=10).error
    assert "the call that made it has failed" in str(error)
    assert pair.run(0, [Free(1)], epoch=1).get(timeout=10).error is None


# From device to device

KIND = ((3,), np.dtype("float64"))


def swap(number, first=1, second=2):
    """Return a command that sends an array to the other worker and receives its one."""
    sent, received = [Ref(first), 1 - number, second, *KIND], [second, 1 - number, *KIND]
    return order(Machine.exchange, [sent], [received])


def make_and_swap(number):
    make = seal(np.multiply, [10.0**number, np.arange(3)], {}, (1,))
    return [join(number), make, swap(number)]


def test_an_exchange_between_devices(pair):
    replies = [pair.run(number, [*make_and_swap(number)], [2]) for number in range(2)]
    for replied, factor in zip(replies, (10, 1), strict=True):
        reply = replied.get(timeout=10)
        np.testing.assert_array_equal(reply.values[0], factor * np.arange(3))


def test_parcels_that_a_peer_needs_before_an_exchange_are_sent(pair):
    """Worker 1 waits for the parcel before it comes to the exchange."""
    use = seal(np.negative, [Ref(5)], {}, (1,))
    second = pair.run(1, [join(1), receive(5), use, swap(1)], [2])
    first = pair.run(0, [*make_and_swap(0)[:2], send(1, 1, 5), swap(0)], [2])
    np.testing.assert_array_equal(first.get(timeout=10).values[0], -np.arange(3))
    assert second.get(timeout=10).error is None


def test_what_a_failed_exchange_may_have_spoilt_is_lost(pair):
    """Worker 0 waits for one that does not come; what it computed before is lost too."""
    with_sum = [*make_and_swap(0), seal(np.add, [Ref(1), Ref(2)], {}, (3,))]
    waiting = pair.run(0, with_sum, [3])
    failed = pair.run(1, [join(1), seal(np.zeros, [-1], {}, (1,)), swap(1)])
    assert isinstance(failed.get(timeout=10).error, ValueError)
    pair.abort(1)
    assert isinstance(waiting.get(timeout=10).error, Dropped)
    error = pair.run(0, [], [3], epoch=1).get(timeout=10).error
    assert "the call that made it has failed" in str(error)
    pair.abort(2)
    replies = [pair.run(number, make_and_swap(number), [2], epoch=2) for number in range(2)]
    assert [replied.get(timeout=10).error for replied in replies] == [None, None]


def test_what_has_arrived_is_kept(pair):
    replies = [pair.run(number, make_and_swap(number), [2]) for number in range(2)]
    assert [replied.get(timeout=10).error for replied in replies] == [None, None]
    pair.abort(1)
    reply = pair.run(0, [], [2], epoch=1).get(timeout=10)
    np.testing.assert_array_equal(reply.values[0], 10 * np.arange(3))


def test_a_worker_that_waits_for_a_link_can_be_stopped(pair):
    waiting = pair.run(0, make_and_swap(0), [2])
    pair.abort(1)
    assert isinstance(waiting.get(timeout=10).error, Dropped)


def test_an_array_of_another_shape_is_not_sent(pair):
    make = seal(np.ones, [4], {}, (1,))
    failed = pair.run(0, [join(0), make, swap(0)])
    pair.run(1, make_and_swap(1))
    assert "an array has (4,), float64, expected (3,)" in str(failed.get(timeout=10).error)
    pair.abort(1)


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident pages of a file by /proc")
def test_pages_of_mapped_files_are_given_back(tmp_path):
    """Dask counts them as memory of the process, and its nanny would kill it."""

    def count_resident():
        maps = psutil.Process().memory_maps()
        return sum(of_file.rss for of_file in maps if of_file.path == str(tmp_path / "x"))

    nbytes, room = 2**25, [None]
    (tmp_path / "x").write_bytes(bytes(nbytes))
    with open(tmp_path / "x", "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.ndarray((2, nbytes // 2), np.uint8, mapping)[1:]
    site = Site(select_engine("cpu"), lambda: room[0])
    site.add_mapping(array)
    assert not array.any()
    for room[0] in (None, nbytes):
        site.give_back_pages()
        assert count_resident() > nbytes // 3
    room[0] = nbytes - 1
    site.give_back_pages()
    assert count_resident() < nbytes // 6
    assert not array.any()
    del array, mapping  # a file is closed although the site knows it
    assert not site.mappings

"""Two workers' threads that exchange arrays, without a cluster."""

import queue

import numpy as np
import pytest

from tensorly_flycoo.dask.machine import Machine
from tensorly_flycoo.dask.messages import Call, Free, Message, Receive, Ref, Send
from tensorly_flycoo.dask.site import Site
from tensorly_flycoo.engines import select_engine


class Pair:
    """Two machines that deliver to each other at once."""

    def __init__(self):
        self.is_held, self._number = True, [0, 0]
        self.machines = [
            Machine(Site(select_engine("cpu"), lambda: None), lambda: None, lambda: self.is_held)
            for _ in range(2)
        ]
        for machine in self.machines:
            machine.connect(
                lambda peer, parcel: self.machines[peer].deliver(parcel), lambda: self.is_held
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
        return Call(np.multiply, [factor, np.arange(3)], {}, (1,))

    commands = [Receive(2), Send(1, 1, 2), Call(np.add, [Ref(1), Ref(2)], {}, (3,))]
    first = pair.run(0, [make(1), *commands], [3])
    commands = [Receive(2), Send(1, 0, 2), Call(np.add, [Ref(1), Ref(2)], {}, (3,))]
    second = pair.run(1, [make(10), *commands], [3])
    for replies in (first, second):
        np.testing.assert_array_equal(replies.get(timeout=10).values[0], 11 * np.arange(3))


def test_an_array_that_nobody_uses_is_forgotten(pair):
    received = pair.run(0, [Receive(1), Free(1)])
    pair.run(1, [Call(np.ones, [2], {}, (5,)), Send(5, 0, 1)])
    assert received.get(timeout=10).error is None
    assert not pair.machines[0]._inbox


def test_an_array_of_an_earlier_epoch_was_lost(pair):
    assert pair.run(0, [Receive(1)]).get(timeout=10).error is None
    pair.abort(1)
    error = pair.run(0, [], [1], epoch=1).get(timeout=10).error
    assert "the call that made it has failed" in str(error)
    assert pair.run(0, [Free(1)], epoch=1).get(timeout=10).error is None

"""The actor that each worker holds for a tensor."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import psutil
from distributed import get_worker
from distributed.protocol import to_serialize
from distributed.worker import Worker

from ..engines import select_engine
from .machine import Machine
from .messages import Message, Parcel, Peer, Reply
from .partitions import Partition
from .site import Site

_logger = logging.getLogger("tensorly_flycoo")

#: Parcels that are on their way: the event loop itself holds its tasks weakly.
_tasks: set[asyncio.Task] = set()


class SlabActor:
    """Holds a client's slabs and blocks of rows on a worker.

    Its coroutines answer while its `Machine` computes. When the client lets go of the actor, or is
    gone, Dask forgets it, and everything is freed. `gpu` is numbered as CuPy does there.
    """

    def __init__(self, gpu: int | None = None) -> None:
        self._worker = get_worker()
        if gpu is not None:
            self._site, start_thread = _make_gpu_site(gpu)
        else:
            room = functools.partial(_count_room, self._worker)
            self._site = Site(select_engine("cpu"), room)
            start_thread = functools.partial(_limit_threads, self._worker.state.nthreads)
        # An actor is never connected if another one is lost while they start.
        own = weakref.ref(self)
        self._machine = Machine(self._site, start_thread, lambda: own() is not None)

    async def connect(self, peers: Sequence[Peer], number: int) -> Reply:
        """Tell where the actors of all workers are, and which of them this is."""
        loop, worker, key = asyncio.get_running_loop(), self._worker, peers[number].key

        def send(number: int, parcel: Parcel) -> None:
            _call_soon(loop, lambda: _start(_deliver(worker, peers[number], parcel)))

        self._machine.connect(send, lambda: key in worker.state.actors)
        return Reply()

    async def run(self, message: Message) -> Reply:
        """Run commands, after those of earlier messages."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()

        def settle(value: Reply) -> None:
            if not reply.done():  # as it is if the call was cancelled
                reply.set_result(value)

        self._machine.add(message, functools.partial(_call_soon, loop, settle))
        return await reply

    async def deliver(self, parcel: Parcel) -> None:
        """Take arrays from a peer."""
        self._machine.deliver(parcel)

    def keep(self, number: int, partition: Partition) -> None:
        """Take a partition from a task on this worker."""
        self._site.partitions[number] = partition

    async def abort(self, epoch: int) -> None:
        """Drop the messages of earlier epochs."""
        self._machine.abort(epoch)

    async def ping(self) -> None:
        """Show that the worker is there."""


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable, *args: Any) -> None:
    """Call a function in the event loop, from another thread; a worker that closes has none."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def _start(coroutine: Any) -> None:
    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _deliver(worker: Worker, peer: Peer, parcel: Parcel) -> None:
    """Send a parcel. If the peer is gone, the client sees that by its own message."""
    call = {"function": "deliver", "actor": peer.key, "args": [to_serialize(parcel)], "kwargs": {}}
    try:
        await worker.rpc(peer.address).actor_execute(**call, reply=False)
    except OSError as error:
        _logger.warning("worker %s did not receive an array: %s", peer.address, error)


def _make_gpu_site(gpu: int) -> tuple[Site, Callable[[], None]]:
    """Return a GPU's site, and what its thread calls first."""
    from ..engines.cuda.processes import NcclLink, ThreadStream

    return Site(select_engine("cuda"), lambda: None, NcclLink), ThreadStream(gpu).use


def _count_room(worker: Worker) -> int | None:
    """Count the bytes that Dask lets a worker use yet."""
    limit = worker.memory_manager.memory_limit
    return None if limit is None else limit - psutil.Process().memory_info().rss


def _limit_threads(count: int) -> None:
    """Let the kernels of this thread use as many threads as Dask gives the worker."""
    import numba

    numba.set_num_threads(min(count, numba.get_num_threads()))

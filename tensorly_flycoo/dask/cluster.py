"""The client's side of the actors that hold a tensor."""

from __future__ import annotations

import asyncio
import copy
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from distributed import Client, Future
from distributed.actor import ProxyRPC
from distributed.protocol.serialize import to_serialize

from ..base.devices import LinkBroken
from ..base.reporting import report
from ..engines.out_of_memory import out_of_memory
from . import messages as msg
from .machine import Machine
from .waiting import WorkerLost, wait_for

#: Seconds within which actors must have dropped their work.
_ABORT_TIMEOUT = 8.0

#: Seconds within which Dask notices that a worker is gone, if that has broken a link.
_NOTICE_TIMEOUT = 5.0

#: Commands for one worker that are sent before anybody needs a result.
_MANY_COMMANDS = 1024

#: Numbers for keys and epochs, of all clusters of this process.
_numbers = itertools.count()

#: The workers that hold a tensor, or are to.
Workers: TypeAlias = "Sequence[WorkerHandle]"

#: The shape and the dtype of an array.
Kind: TypeAlias = tuple[tuple[int, ...], np.dtype]


class RemoteObject:
    """A stand-in for an object that a worker holds, and frees when the stand-in is freed."""

    kind: Kind | None = None  # not known here

    def __init__(self, worker: WorkerHandle, key: int) -> None:
        self.worker = worker
        self.key = key

    def __del__(self) -> None:
        self.worker.queue.append(msg.Free(self.key))

    def copy_at(self, worker: WorkerHandle, key: int) -> Self:
        """Return the stand-in for a copy that another worker holds."""
        copied = copy.copy(self)
        copied.worker = worker
        copied.key = key
        return copied


class Gpus(NamedTuple):
    """The GPUs that a worker can use, by UUID, and whether NCCL is installed there."""

    uuids: Sequence[str]
    has_nccl: bool


class WorkerHandle:
    """One worker's actor, and the commands that it has not been sent."""

    def __init__(self, address: str, future: Future) -> None:
        self.address = address
        self.key = str(future.key)  # of the actor
        self.gpus = Gpus([], has_nccl=False)  # the one that it uses, if it uses one
        self.link: str | None = None  # the UUID of that, if NCCL can link it to the others
        self.is_lost = False  # whether a call has found that it is gone
        self._future = future
        # Finalizers append to it at any time, in any thread.
        self.queue: deque[msg.Command] = deque()
        self.num_sent = 0  # messages of this epoch

    @property
    def is_there(self) -> bool:
        """Whether neither Dask nor a call has noticed that the actor is gone."""
        return not self.is_lost and self._future.status == "finished"

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the actor; raise `WorkerLost` if that is gone.

        Dask's own stand-in for an actor would hold itself in a circle after each call.
        """
        client: Client = self._future.client
        worker: Any
        if client.direct_to_workers:
            worker = client.rpc(self.address)
        else:
            worker = ProxyRPC(client.scheduler, self.address)
        try:
            if not self.is_there:
                raise WorkerLost([self.address])
            reply = await worker.actor_execute(
                actor=self.key,
                function=method,
                args=[to_serialize(arg) for arg in args],
                kwargs={},
            )
        except Exception as error:  # a worker that has started anew does not know the actor
            raise WorkerLost([self.address]) from error
        if reply["status"] != "OK":
            raise reply["exception"]
        return reply["result"]

    async def run(self, message: msg.Message) -> dict[int, Any]:
        """Have the actor run a message; return the values that it asks for, by key."""
        reply = await self.call("run", message)
        if isinstance(reply.error, msg.Dropped):  # by a worker that closes, and forgets its actors
            raise WorkerLost([self.address])
        if isinstance(reply.error, MemoryError):
            raise out_of_memory("a call", f"worker {self.address}", str(reply.error))
        if reply.error is not None:
            reply.error.add_note(f"on worker {self.address}")
            raise reply.error
        return dict(zip(message.wanted, reply.values, strict=True))

    def drop(self) -> None:
        """Number from 0 again; drop all commands but `Free`: they may wait for a lost worker."""
        commands = self.pack(0, []).commands
        self.num_sent = 0
        self.queue.extend(command for command in commands if isinstance(command, msg.Free))

    def pack(self, epoch: int, wanted: list[int]) -> msg.Message:
        """Take all commands from the queue, as the next message; `wanted` are keys of values."""
        # Not until it is empty: a finalizer may append to it meanwhile.
        commands = [self.queue.popleft() for _ in range(len(self.queue))]
        self.num_sent += 1
        return msg.Message(epoch, self.num_sent - 1, commands, wanted)


class Cluster:
    """Workers that run commands in order, like streams of a GPU.

    Commands are collected, and sent when somebody needs a result. All methods may be called from
    any thread; threads wait for each other.
    """

    def __init__(self, client: Client, workers: Workers) -> None:
        self.client = client
        self.workers = list(workers)
        self._lock = threading.RLock()
        self._epoch = next(_numbers)  # see `Message`
        self._can_link = all(worker.link is not None for worker in workers)
        self._is_linked = False  # whether the workers' GPUs are, in this epoch
        peers = [(worker.address, worker.key) for worker in workers]
        self._start_epoch()
        with self._lock:
            self._wait([worker.call("connect", peers, n) for n, worker in enumerate(workers)])

    # Commands

    def call(
        self,
        worker: WorkerHandle,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        num_results: int = 1,
    ) -> tuple[int, ...]:
        """Have a worker call a function; return the keys of its results.

        Remote objects among the arguments, which must be on that worker, stand for what it holds.
        Raises what an earlier command has raised, and a WorkerLost if a worker is gone.
        """
        keys = tuple(next(_numbers) for _ in range(num_results))
        command = msg.Call.of(function, _refer([*args], worker), _refer(kwargs or {}, worker), keys)
        with self._lock:
            self.check()
            if len(worker.queue) > _MANY_COMMANDS:
                self._converse({})
            worker.queue.append(command)
        return keys

    def run(
        self, worker: WorkerHandle, function: Callable[..., Any], *args: Any, num_results: int = 1
    ) -> list[RemoteObject]:
        """Have a worker call a function; return its results, which it holds. See `call`."""
        keys = self.call(worker, function, args, num_results=num_results)
        return [RemoteObject(worker, key) for key in keys]

    def transfer(self, moves: Sequence[tuple[RemoteObject, WorkerHandle]]) -> list[int]:
        """Have workers send arrays, never written to again, to others; return the keys there."""
        keys = [next(_numbers) for _ in moves]
        # For each worker what it sends and receives, by the host and from device to device.
        posts = defaultdict[WorkerHandle, _Plan](_Plan)
        exchanges = defaultdict[WorkerHandle, _Plan](_Plan)
        for (x, target), key in zip(moves, keys, strict=True):
            sender = self.workers.index(x.worker)
            receiver = self.workers.index(target)
            if self._can_link and x.kind is not None:
                exchanges[x.worker].sent.append([msg.Ref(x.key), receiver, key, *x.kind])
                exchanges[target].received.append([key, sender, *x.kind])
            else:
                posts[x.worker].sent.append([msg.Ref(x.key), receiver, key])
                posts[target].received.append([key, sender])
        with self._lock:  # both or neither: a worker that receives waits for one that sends
            self.check()
            for worker, plan in posts.items():
                _order(worker, Machine.post, plan.sent, plan.received)
            if exchanges and not self._is_linked:
                name_key = next(_numbers)  # of the link's name, which the first worker sends
                for number, worker in enumerate(self.workers):
                    _order(worker, Machine.join, name_key, number, len(self.workers))
                self._is_linked = True
            for worker, plan in exchanges.items():
                _order(worker, Machine.exchange, plan.sent, plan.received)
        return keys

    # Messages

    def fetch(self, objects: Sequence[RemoteObject]) -> list[Any]:
        """Wait for the values of objects, on any workers; raises the error of a failed command."""
        wanted: dict[WorkerHandle, list[int]] = {}
        for x in objects:
            wanted.setdefault(x.worker, []).append(x.key)
        with self._lock:
            self.check()
            values = self._converse(wanted)
        return [values[x.key] for x in objects]

    def report(self, stage: str) -> None:
        """Report a stage, here and as an event of Dask."""
        report(stage)
        self.log_event(stage)

    def log_event(self, action: str, **facts: Any) -> None:
        """Leave an event with the scheduler, for `Client.get_events`, without waiting."""
        client: Any = self.client
        topics = ["tensorly_flycoo", "all"]  # the dashboard shows the latter
        event = {"action": action, **facts}
        client.loop.add_callback(client.scheduler.log_event, topic=topics, msg=event)

    # Lost workers, and calls that fail

    def check(self) -> None:
        """Raise `WorkerLost` if a call has found a worker gone, or refuse a closed client."""
        self.check_client()
        lost = [worker.address for worker in self.workers if worker.is_lost]
        if lost:
            raise WorkerLost(lost)

    def check_client(self) -> None:
        """Refuse a client that is closed: its workers seem to be gone, and may be there."""
        if self.client.status == "closed":
            raise RuntimeError("the client of this tensor is closed: load it with another client")

    def _converse(self, wanted: dict[WorkerHandle, list[int]]) -> dict[int, Any]:
        """Send all commands, and wait for the replies; return values by key.

        If it fails, so that not all may be sent, workers drop pending commands.
        """
        messages: list[tuple[WorkerHandle, msg.Message]] = []
        try:
            self.check_there()
            for worker in self.workers:
                keys = wanted.get(worker, [])
                if worker.queue or keys:
                    messages.append((worker, worker.pack(self._epoch, keys)))
            values: dict[int, Any] = {}
            for reply in self._wait([worker.run(message) for worker, message in messages]):
                values |= reply
            return values
        except BaseException:  # Ctrl-C too
            for worker, message in messages:
                worker.queue.extend(message.commands)
            self._start_epoch()
            raise

    def _wait(self, calls: Sequence[Awaitable[Any]]) -> list[Any]:
        """Wait for calls of workers, begun together."""
        addresses = [worker.address for worker in self.workers]
        try:
            return wait_for(_gather(calls), self.client, addresses, self.check_there)
        except WorkerLost as lost:
            for worker in self.workers:
                worker.is_lost |= worker.address in lost.addresses
            raise
        except LinkBroken:  # Dask may notice later than NCCL that a worker is gone
            until = time.monotonic() + _NOTICE_TIMEOUT
            while time.monotonic() < until:
                self.check_there()
                time.sleep(0.05)
            raise

    def check_there(self) -> None:
        """Raise `WorkerLost` if Dask has noticed that a worker is gone."""
        for worker in self.workers:
            worker.is_lost |= not worker.is_there
        self.check()

    def _start_epoch(self) -> None:
        """Have all workers drop pending commands, but still free released objects."""
        self._epoch = next(_numbers)
        self._is_linked = False
        for worker in self.workers:
            worker.drop()
        workers = [worker for worker in self.workers if worker.is_there]
        aborts = [worker.call("abort", self._epoch) for worker in workers]
        errors = self.client.sync(_gather, aborts, _ABORT_TIMEOUT)
        for worker, error in zip(workers, errors, strict=True):
            worker.is_lost = error is not None  # it may wait for ever


@dataclass
class _Plan:
    """The arrays that a worker sends and receives in one step; see `Machine.post`."""

    sent: list[list] = field(default_factory=list)
    received: list[list] = field(default_factory=list)


def _order(worker: WorkerHandle, method: Callable[..., None], *args: Any) -> None:
    """Have a worker's machine call one of its methods."""
    worker.queue.append(msg.Call.of(method, [msg.MACHINE, *args], {}, ()))


def _refer(x: Any, worker: WorkerHandle) -> Any:
    """Replace the remote objects in an argument of a command by their keys."""
    if isinstance(x, RemoteObject):
        if x.worker is not worker:
            raise RuntimeError(f"an array on {x.worker.address} is used on {worker.address}")
        return msg.Ref(x.key)
    if isinstance(x, dict):
        return {name: _refer(item, worker) for name, item in x.items()}
    if isinstance(x, list):
        return [_refer(item, worker) for item in x]
    return x


async def _gather(calls: Iterable[Awaitable[Any]], timeout: float | None = None) -> list[Any]:
    """Return the results of calls; with a timeout, the error of a call in place of its result."""
    if timeout is not None:
        calls = [asyncio.wait_for(call, timeout) for call in calls]
    return await asyncio.gather(*calls, return_exceptions=timeout is not None)

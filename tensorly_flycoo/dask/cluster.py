"""The client's side of the actors that hold a tensor."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from distributed import Client

from ..tensor.memory import out_of_memory
from .handles import Kind, RemoteObject, WorkerHandle, WorkerLost
from .messages import Call, Exchange, Join, Message, Receive, Ref, Reply, Sealed, Send, Transfer

#: Seconds within which a worker must show that it is there; it answers while it computes.
_PING_TIMEOUT = 60.0

#: Seconds after which it is checked whether workers are there that have not answered, and the
#: number of checks after which they are asked.
_CHECK_INTERVAL, _CHECKS_PER_PING = 0.5, 20

#: Seconds within which actors must have dropped their work.
_ABORT_TIMEOUT = 8.0

#: Commands for one worker that are sent before anybody needs a result.
_MANY_COMMANDS = 256

#: Numbers of keys, of all clusters of this process.
_numbers = itertools.count()

#: A message's receiver, the keys of the values that it asks for, and the call that is under way.
_Sent: TypeAlias = "tuple[WorkerHandle, list[int], Any]"

#: Messages that are not under way yet, each with its receiver.
_Messages: TypeAlias = "list[tuple[WorkerHandle, Message]]"

#: A worker's replies, each with the keys of the values that it brings; values by key.
_Replies: TypeAlias = "list[tuple[list[int], Reply]]"
_Values: TypeAlias = dict[int, Any]


class Cluster:
    """Workers that run commands in order, like streams of a GPU.

    Commands are collected, and sent when somebody needs a result. All methods may be called from
    any thread; threads wait for each other.
    """

    def __init__(self, client: Client, workers: Sequence[WorkerHandle]) -> None:
        self.client = client
        self.workers = list(workers)
        self._lock = threading.RLock()
        self._of_thread = threading.local()
        self._epoch = next(_numbers)
        self._calls: list[_Sent] = []
        self._is_linked = False
        self._can_link = all(worker.gpu is not None for worker in workers)
        peers = [worker.peer for worker in workers]
        self._start_epoch()
        with self._lock:
            self._calls = [(w, [], w.call("connect", peers, n)) for n, w in enumerate(workers)]
            self._converse({})

    @property
    def current(self) -> WorkerHandle:
        """The worker on which this thread makes new arrays."""
        return self.workers[getattr(self._of_thread, "number", 0)]

    @contextlib.contextmanager
    def use(self, number: int) -> Iterator[None]:
        """Make a worker the current one."""
        previous = getattr(self._of_thread, "number", 0)
        self._of_thread.number = number
        try:
            yield
        finally:
            self._of_thread.number = previous

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
        named = {name: _refer(x, worker) for name, x in (kwargs or {}).items()}
        command = Sealed.of(Call(function, [_refer(x, worker) for x in args], named, keys))
        with self._lock:
            self.check()
            if len(worker.queue) > _MANY_COMMANDS:
                self._post()
            worker.queue.append(command)
        return keys

    def run(
        self, worker: WorkerHandle, function: Callable[..., Any], *args: Any, num_results: int = 1
    ) -> list[RemoteObject]:
        """Have a worker call a function; return its results, which it holds. See `call`."""
        keys = self.call(worker, function, args, num_results=num_results)
        return [RemoteObject(worker, key) for key in keys]

    def transfer(self, moves: Sequence[tuple[RemoteObject, WorkerHandle]]) -> list[int]:
        """Have workers send arrays to others; return the keys there.

        All arrays are sent before a worker waits for any; nobody may write to them any more.
        """
        keys = [next(_numbers) for _ in moves]
        with self._lock:  # both or neither: a worker that receives waits for one that sends
            self.check()
            direct: list[tuple[RemoteObject, WorkerHandle, int, Kind]] = []
            received = []
            for (x, target), key in zip(moves, keys, strict=True):
                if self._can_link and x.kind is not None:
                    direct.append((x, target, key, x.kind))
                else:
                    x.worker.queue.append(Send(x.key, self.workers.index(target), key))
                    received.append((target, Receive(key)))
            for target, command in received:
                target.queue.append(command)
            if direct:
                self._exchange_directly(direct)
        return keys

    def _exchange_directly(
        self, moves: Sequence[tuple[RemoteObject, WorkerHandle, int, Kind]]
    ) -> None:
        """Have workers send arrays from device to device, in one exchange of all."""
        if not self._is_linked:
            key, count = next(_numbers), len(self.workers)
            for number, worker in enumerate(self.workers):
                worker.queue.append(Join(key, number, count))
            self._is_linked = True
        exchanges: dict[WorkerHandle, Exchange] = {}
        for x, target, key, kind in moves:
            for worker in (x.worker, target):
                exchanges.setdefault(worker, Exchange([], []))
            exchanges[x.worker].sent.append(Transfer(x.key, self.workers.index(target), *kind))
            exchanges[target].received.append(Transfer(key, self.workers.index(x.worker), *kind))
        for worker, exchange in exchanges.items():
            worker.queue.append(exchange)

    # Messages

    def fetch(self, objects: Sequence[RemoteObject]) -> list[Any]:
        """Wait for the values of objects, on any workers; raises what a command has raised."""
        wanted: dict[WorkerHandle, list[int]] = {}
        for x in objects:
            wanted.setdefault(x.worker, []).append(x.key)
        with self._lock:
            self.check()
            values = self._converse(wanted)
        return [values[x.key] for x in objects]

    def check(self) -> None:
        """Raise `WorkerLost` if a call has found a worker gone, or refuse a closed client."""
        self.check_client()
        if lost := [worker.address for worker in self.workers if worker.is_lost]:
            raise WorkerLost(lost)

    def check_client(self) -> None:
        """Refuse a client that is closed: its workers seem to be gone, and may be there."""
        if self.client.status == "closed":
            raise RuntimeError(
                "the client that loaded this tensor is closed, and the tensor with it: load it "
                "again with another client"
            )

    def _pack(self, wanted: dict[WorkerHandle, list[int]]) -> _Messages:
        """Take all commands from the queues, if all workers are there."""
        self.check_there()
        return [
            (worker, worker.pack(self._epoch, wanted.get(worker, [])))
            for worker in self.workers
            if worker.queue or worker in wanted
        ]

    def _post(self) -> None:
        """Send all commands, and wait for the replies to what was sent before.

        So the workers have something to do, and this process is never far ahead of them: each call
        that is under way has a connection of its own.
        """
        earlier = self._calls
        messages: _Messages = []
        with self._restart_on_error(messages):
            messages += self._pack({})
            self._calls = self._begin(messages)
            if earlier:
                self.client.sync(self._gather_replies, earlier, [])

    def _converse(self, wanted: dict[WorkerHandle, list[int]]) -> _Values:
        """Send all commands, and wait for the replies to all messages; return values by key."""
        messages: _Messages = []
        with self._restart_on_error(messages):
            messages += self._pack(wanted)
            calls, self._calls = self._calls, []
            return self.client.sync(self._gather_replies, calls, messages)

    @contextlib.contextmanager
    def _restart_on_error(self, messages: _Messages) -> Iterator[None]:
        """Have workers drop what they have not done if something fails; not all may be sent."""
        try:
            yield
        except BaseException:  # Ctrl-C too
            for worker, message in messages:
                worker.queue.extend(message.commands)
            self._start_epoch()
            raise

    def _begin(self, messages: _Messages) -> list[_Sent]:
        return [(worker, m.wanted, worker.call("run", m)) for worker, m in messages]

    async def _gather_replies(self, calls: list[_Sent], messages: _Messages) -> _Values:
        """Wait for the replies to calls and, after them, messages; return values by key."""
        # Begun in the event loop, each call costs less than from another thread.
        calls = [*calls, *self._begin(messages)]
        by_worker: dict[WorkerHandle, list[tuple[list[int], Any]]] = {}
        for worker, keys, call in calls:
            by_worker.setdefault(worker, []).append((keys, call))
        tasks = {asyncio.ensure_future(_take_replies(own)): w for w, own in by_worker.items()}
        for (
            task
        ) in tasks:  # asyncio would report the error of a call that nobody waits for any more
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await self._wait_for_all(tasks)
        finally:
            for task in tasks:
                task.cancel()  # those that are left would keep the workers' actors

    async def _wait_for_all(self, tasks: dict[asyncio.Task[_Replies], WorkerHandle]) -> _Values:
        """Wait for all workers' replies; remove the tasks that are done."""
        values: _Values = {}
        for count in itertools.count(1):
            done, _ = await asyncio.wait(
                tasks, timeout=_CHECK_INTERVAL, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                worker = tasks.pop(task)
                if isinstance(task.exception(), (OSError, RuntimeError)):
                    self._lose([worker])
                for keys, reply in task.result():
                    if isinstance(reply.error, MemoryError):
                        raise out_of_memory("a call", f"worker {worker.address}", str(reply.error))
                    if reply.error is not None:
                        reply.error.add_note(f"on worker {worker.address}")
                        raise reply.error
                    values |= dict(zip(keys, reply.values, strict=True))
            if not tasks:
                break
            if not done:
                self.check_there(tasks.values())
                if count % _CHECKS_PER_PING == 0:
                    await self._ping(tasks.values())
        return values

    def check_there(self, workers: Iterable[WorkerHandle] | None = None) -> None:
        """Raise `WorkerLost` if Dask has noticed that a worker, of all or of some, is gone."""
        workers = self.workers if workers is None else workers
        lost = [worker for worker in workers if not worker.is_there]
        if lost:
            self._lose(lost)

    async def _ping(self, workers: Iterable[WorkerHandle]) -> None:
        """Look whether workers are there that have not answered for a while."""
        tasks = {w: asyncio.ensure_future(_wait_for(w.call("ping"))) for w in workers}
        await asyncio.wait(tasks.values(), timeout=_PING_TIMEOUT)
        lost = [w for w, task in tasks.items() if not task.done() or task.exception()]
        if lost:
            self._lose(lost)

    def _lose(self, workers: Iterable[WorkerHandle]) -> None:
        for worker in workers:
            worker.is_lost = True
        self.check()

    def _start_epoch(self) -> None:
        """Have all workers drop what they have not done, except to free what would be freed."""
        self._epoch, self._calls, self._is_linked = next(_numbers), [], False
        aborts = {}
        for worker in self.workers:
            worker.drop()
            if worker.is_there:
                with contextlib.suppress(WorkerLost):
                    aborts[worker] = worker.call("abort", self._epoch)
        done = self.client.sync(_attempt, list(aborts.values()))
        for worker, is_done in zip(aborts, done, strict=True):
            worker.is_lost = not is_done  # it may wait for ever


def _refer(x: Any, worker: WorkerHandle) -> Any:
    """Return what stands for an argument in a command."""
    if isinstance(x, RemoteObject):
        if x.worker is not worker:
            raise RuntimeError(f"an array on {x.worker.address} is used on {worker.address}")
        return Ref(x.key)
    return [_refer(item, worker) for item in x] if isinstance(x, list) else x


async def _attempt(calls: Sequence[Any]) -> list[bool]:
    """Wait until calls are done or fail, but not for long; return whether each is done."""
    tasks = [asyncio.ensure_future(_wait_for(call)) for call in calls]
    if tasks:
        await asyncio.wait(tasks, timeout=_ABORT_TIMEOUT)
    return [task.done() and task.exception() is None for task in tasks]


async def _wait_for(call: Any) -> Any:
    return await call


async def _take_replies(calls: Sequence[tuple[list[int], Any]]) -> _Replies:
    """Wait for a worker's replies in their order, up to an error: it would cause later ones."""
    replies: _Replies = []
    for keys, call in calls:
        replies.append((keys, await call))
        if replies[-1][1].error is not None:
            break
    return replies

"""The client's side of the actors that hold a tensor."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from distributed import Actor, Client, Future

from ..tensor.memory import RefusedMemory
from .actor import SlabActor
from .errors import WorkerLost
from .messages import Call, Command, Free, Message, Peer, Receive, Ref, Reply, Send
from .sealing import seal

#: Seconds within which a worker must show that it is there; it answers while it computes.
_PING_TIMEOUT = 60.0

#: Seconds after which it is checked whether workers are there that have not answered, and the
#: number of checks after which they are asked.
_CHECK_INTERVAL, _CHECKS_PER_PING = 0.5, 20

#: Seconds within which actors must have been started, between looks whether they are, and within
#: which they must have dropped their work.
_START_TIMEOUT, _START_INTERVAL, _ABORT_TIMEOUT = 120.0, 0.02, 8.0

#: Commands that are sent without waiting for anybody who needs a result.
_MANY_COMMANDS = 256

#: Numbers of keys, of all clusters of this process.
_numbers = itertools.count()


#: A message's receiver, the keys of the values that it asks for, and the call that is under way.
_Sent: TypeAlias = "tuple[WorkerHandle, list[int], Any]"


class RemoteObject:
    """What a worker holds; freed there when this object is.

    Attributes
    ----------
    worker : WorkerHandle
    key : int
    """

    def __init__(self, worker: WorkerHandle, key: int) -> None:
        self.worker = worker
        self.key = key
        weakref.finalize(self, worker.queue.append, Free(key)).atexit = False

    def copy_at(self, worker: WorkerHandle, key: int) -> RemoteObject:
        """Return what stands for a copy that another worker holds."""
        return RemoteObject(worker, key)


class WorkerHandle:
    """One worker's actor, and the commands that it has not been sent.

    Attributes
    ----------
    queue : collections.deque
        Finalizers append to it at any time, in any thread.
    is_lost : bool
        Whether a call has found that it is gone.
    """

    def __init__(self, address: str, future: Future) -> None:
        self.address = address
        self.actor: Actor = future.result()
        self.is_lost = False
        self._future = future
        self.queue: deque[Command] = deque()
        self.num_sent = 0

    @property
    def is_there(self) -> bool:
        """Whether neither Dask nor a call has noticed that the actor is gone."""
        return not self.is_lost and self._future.status == "finished"

    @property
    def peer(self) -> Peer:
        return Peer(self.address, str(self.actor.key))

    def call(self, method: str, *args: Any) -> Any:
        """Begin a call of the actor; raise `WorkerLost` if Dask has noticed that it is gone."""
        try:
            return getattr(self.actor, method)(*args)
        except RuntimeError:
            self.is_lost = True
            raise WorkerLost([self.address]) from None

    def drop(self) -> None:
        """Forget the commands but for those that free something, and begin to number anew.

        Some may wait for arrays of a lost worker, or be for a place that is another one's now.
        """
        self.num_sent = 0
        for _ in range(len(self.queue)):
            command = self.queue.popleft()
            if isinstance(command, Free):
                self.queue.append(command)

    def pack(self, epoch: int, wanted: Sequence[int]) -> Message:
        """Take all commands from the queue."""
        commands = [self.queue.popleft() for _ in range(len(self.queue))]
        self.num_sent += 1
        return Message(epoch, self.num_sent - 1, commands, list(wanted))


class Cluster:
    """Workers that run commands in order, like streams of a GPU.

    Commands are collected, and sent when somebody needs a result. All methods may be called from
    any thread; threads wait for each other.

    Parameters
    ----------
    client : distributed.Client
    workers : sequence of WorkerHandle
    """

    def __init__(self, client: Client, workers: Sequence[WorkerHandle]) -> None:
        self.client = client
        self.workers = list(workers)
        self._lock = threading.RLock()
        self._of_thread = threading.local()
        self._epoch = next(_numbers)
        self._calls: list[_Sent] = []
        peers = [worker.peer for worker in workers]
        self._start_epoch()
        with self._lock:
            self._calls = [(w, [], w.call("connect", peers, n)) for n, w in enumerate(workers)]
            self._exchange({})

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

        Raises
        ------
        TypeError
            If the function or an argument cannot be sent.
        WorkerLost
            If a worker is gone.
        """
        keys = tuple(next(_numbers) for _ in range(num_results))
        named = {name: _refer(x, worker) for name, x in (kwargs or {}).items()}
        command = Call(*seal(function, [_refer(x, worker) for x in args], named), keys)
        with self._lock:
            self.check()
            worker.queue.append(command)
            if len(worker.queue) > _MANY_COMMANDS:
                self._post()
        return keys

    def transfer(self, moves: Sequence[tuple[RemoteObject, WorkerHandle]]) -> list[int]:
        """Have workers send arrays to others; return the keys there.

        All are sent before a worker waits for any. They must not be written to any more.
        """
        keys = []
        with self._lock:  # both or neither: a worker that receives waits for one that sends
            self.check()
            for x, target in moves:
                keys.append(next(_numbers))
                x.worker.queue.append(Send(x.key, self.workers.index(target), keys[-1]))
            for (_, target), key in zip(moves, keys, strict=True):
                target.queue.append(Receive(key))
        return keys

    # Messages

    def fetch(self, objects: Sequence[RemoteObject]) -> list[Any]:
        """Wait for the values of objects, on any workers.

        Raises
        ------
        WorkerLost
            If a worker is gone.
        Exception
            What a command has raised.
        """
        wanted: dict[WorkerHandle, list[int]] = {}
        for x in objects:
            wanted.setdefault(x.worker, []).append(x.key)
        with self._lock:
            self.check()
            values = self._exchange(wanted)
        return [values[x.key] for x in objects]

    def check(self) -> None:
        """Raise `WorkerLost` if a call has found that a worker is gone."""
        if lost := [worker.address for worker in self.workers if worker.is_lost]:
            raise WorkerLost(lost)

    def _pack(self, wanted: dict[WorkerHandle, list[int]]) -> list[tuple[WorkerHandle, Message]]:
        """Take all commands from the queues, if all workers are there."""
        self.check_there()
        return [
            (worker, worker.pack(self._epoch, wanted.get(worker, [])))
            for worker in self.workers
            if worker.queue or worker in wanted
        ]

    def _post(self) -> None:
        """Send all commands, without waiting for replies."""
        for worker, message in self._pack({}):
            self._calls.append((worker, message.wanted, worker.call("run", message)))

    def _exchange(self, wanted: dict[WorkerHandle, list[int]]) -> dict[int, Any]:
        """Send all commands, and wait for the replies to all messages; return values by key."""
        messages: list[tuple[WorkerHandle, Message]] = []
        try:
            messages = self._pack(wanted)
            return self.client.sync(self._gather_replies, messages)
        except BaseException:  # Ctrl-C too
            for worker, message in messages:
                worker.queue.extend(message.commands)  # not all may have been sent
            self._start_epoch()
            raise

    async def _gather_replies(self, messages: list[tuple[WorkerHandle, Message]]) -> dict[int, Any]:
        calls, self._calls = self._calls, []
        # Called in the event loop, each costs less than from another thread.
        calls += [(worker, m.wanted, worker.call("run", m)) for worker, m in messages]
        tasks = {asyncio.ensure_future(_wait_for(call)): (w, keys) for w, keys, call in calls}
        values: dict[int, Any] = {}
        for count in itertools.count(1):
            done, _ = await asyncio.wait(
                tasks, timeout=_CHECK_INTERVAL, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                worker, keys = tasks.pop(task)
                reply = self._check_reply(worker, task)
                values |= dict(zip(keys, reply.values, strict=True))
            if not tasks:
                break
            if not done:
                waiting = {worker for worker, _ in tasks.values()}
                self.check_there(waiting)
                if count % _CHECKS_PER_PING == 0:
                    await self._ping(waiting)
        return values

    def _check_reply(self, worker: WorkerHandle, task: asyncio.Task[Reply]) -> Reply:
        if isinstance(task.exception(), (OSError, RuntimeError)):
            self._lose([worker])
        reply = task.result()
        if reply.error is not None:
            if isinstance(reply.error, MemoryError):
                raise self._explain(worker, reply.error)
            reply.error.add_note(f"on worker {worker.address}")
            raise reply.error
        return reply

    def _explain(self, worker: WorkerHandle, error: MemoryError) -> RefusedMemory:
        count = len(self.workers)
        return RefusedMemory(
            f"worker {worker.address} has too little memory: {error}. {2 * count} workers of its "
            f"kind instead of {count} would each hold half as much; a smaller rank, and a tensor "
            "of float32, take less too"
        )

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
        self._epoch, self._calls = next(_numbers), []
        aborts = {}
        for worker in self.workers:
            worker.drop()
            if worker.is_there:
                with contextlib.suppress(WorkerLost):
                    aborts[worker] = worker.call("abort", self._epoch)
        done = self.client.sync(_attempt, list(aborts.values()))
        for worker, is_done in zip(aborts, done, strict=True):
            worker.is_lost = not is_done  # it may wait for ever


def start_workers(
    client: Client, addresses: Iterable[str], device: str | None = None
) -> list[WorkerHandle]:
    """Start an actor on each worker."""
    options: dict[str, Any] = {"actor": True, "pure": False, "allow_other_workers": False}
    futures = {}
    for address in addresses:
        key = f"tensorly-flycoo-{uuid.uuid4().hex}"
        futures[address] = client.submit(SlabActor, device, workers=[address], key=key, **options)
    _wait_for_actors(client, futures)
    workers = []
    for address, future in futures.items():
        try:
            workers.append(WorkerHandle(address, future))
        except RuntimeError:  # Dask's, if the actor is gone already
            raise WorkerLost([address]) from None
    return workers


def _wait_for_actors(client: Client, futures: dict[str, Future]) -> None:
    """Wait until actors have been started; Dask would wait for a worker that is gone."""
    deadline = time.monotonic() + _START_TIMEOUT
    while any(future.status in ("pending", "lost") for future in futures.values()):
        if missing := futures.keys() - client.nthreads().keys():
            raise WorkerLost(sorted(missing))
        if time.monotonic() > deadline:
            late = [address for address, future in futures.items() if future.status == "pending"]
            raise TimeoutError(f"{late} have not started an actor in {_START_TIMEOUT:.0f} s")
        time.sleep(_START_INTERVAL)


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

"""The client's side of the actors that hold a tensor."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from distributed import Actor, Client, Future

from ..tensor.memory import out_of_memory
from . import messages as msg

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

#: The workers that hold a tensor, or are to.
Workers: TypeAlias = "Sequence[WorkerHandle]"

#: The shape and the dtype of an array.
Kind: TypeAlias = tuple[tuple[int, ...], np.dtype]

#: A message's receiver, the keys of the values that it asks for, and the call that is under way.
_Sent: TypeAlias = "tuple[WorkerHandle, list[int], Any]"

#: Messages that are not under way yet, each with its receiver.
_Messages: TypeAlias = "list[tuple[WorkerHandle, msg.Message]]"

#: A worker's replies, each with the keys of the values that it brings; values by key.
_Replies: TypeAlias = "list[tuple[list[int], msg.Reply]]"
_Values: TypeAlias = dict[int, Any]


class WorkerLost(ConnectionError):
    """A worker that held part of a tensor is gone; `ClusterTensor.recover` replaces it.

    Attributes
    ----------
    addresses : tuple of str
        The workers that are lost.
    """

    def __init__(self, addresses: Iterable[str], was_loading: bool = False) -> None:
        self.addresses = tuple(addresses)
        self._was_loading = was_loading  # so that there is no tensor yet
        super().__init__(self.addresses)

    def __str__(self) -> str:
        lost = f"lost {', '.join(self.addresses)}"
        if self._was_loading:
            return f"{lost} while the tensor was loaded: load it again, on other workers"
        return (
            f"{lost}, and with it slabs and rows of factors: call x.recover(), which loads the "
            "slabs on other workers, then start from a checkpoint (Progress.resume) or anew"
        )


class RemoteObject:
    """A stand-in for an object that a worker holds, and frees when the stand-in is freed."""

    kind: Kind | None = None  # not known here

    def __init__(self, worker: WorkerHandle, key: int) -> None:
        self.worker = worker
        self.key = key
        weakref.finalize(self, worker.queue.append, msg.Free(key)).atexit = False

    def copy_at(self, worker: WorkerHandle, key: int) -> RemoteObject:
        """Return the stand-in for a copy that another worker holds."""
        return RemoteObject(worker, key)


class WorkerHandle:
    """One worker's actor, and the commands that it has not been sent."""

    def __init__(self, address: str, future: Future, gpu: str | None = None) -> None:
        self.address = address
        self.gpu = gpu  # the UUID of its GPU, if that can be linked to others
        self.actor: Actor = future.result()
        self.peer = msg.Peer(address, str(self.actor.key))
        self.is_lost = False  # whether a call has found that it is gone
        self._future = future
        # Finalizers append to it at any time, in any thread.
        self.queue: deque[msg.Command] = deque()
        self.num_sent = 0

    @property
    def is_there(self) -> bool:
        """Whether neither Dask nor a call has noticed that the actor is gone."""
        return not self.is_lost and self._future.status == "finished"

    def call(self, method: str, *args: Any) -> Any:
        """Begin a call of the actor; raise `WorkerLost` if Dask has noticed that it is gone."""
        try:
            return getattr(self.actor, method)(*args)
        except RuntimeError:
            self.is_lost = True
            raise WorkerLost([self.address]) from None

    def drop(self) -> None:
        """Number from 0 again; drop all commands but `Free`: they may wait for a lost worker."""
        commands = self.pack(0, []).commands
        self.num_sent = 0
        self.queue.extend(command for command in commands if isinstance(command, msg.Free))

    def pack(self, epoch: int, wanted: list[int]) -> msg.Message:
        """Take all commands from the queue."""
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
        self._epoch = next(_numbers)
        self._calls: list[_Sent] = []
        self._is_linked = False
        self._can_link = all(worker.gpu is not None for worker in workers)
        peers = [worker.peer for worker in workers]
        self._start_epoch()
        with self._lock:
            self._calls = [(w, [], w.call("connect", peers, n)) for n, w in enumerate(workers)]
            self._converse({})

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
        own_args, own_kwargs = _refer([*args], worker), _refer(kwargs or {}, worker)
        command = msg.Call.of(function, own_args, own_kwargs, keys)
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
        """Have workers send arrays, never written to again, to others; return the keys there."""
        keys = [next(_numbers) for _ in moves]
        received: list[tuple[WorkerHandle, int]] = []
        exchanges: dict[WorkerHandle, msg.Exchange] = defaultdict(lambda: msg.Exchange([], []))
        with self._lock:  # both or neither: a worker that receives waits for one that sends
            self.check()
            for (x, target), key in zip(moves, keys, strict=True):
                sender, receiver = self.workers.index(x.worker), self.workers.index(target)
                if self._can_link and x.kind is not None:  # from device to device, all in one
                    exchanges[x.worker].sent.append(msg.Transfer(x.key, receiver, *x.kind))
                    exchanges[target].received.append(msg.Transfer(key, sender, *x.kind))
                else:
                    x.worker.queue.append(msg.Send(x.key, receiver, key))
                    received.append((target, key))
            for target, key in received:
                target.queue.append(msg.Receive(key))
            if exchanges and not self._is_linked:
                key = next(_numbers)
                for number, worker in enumerate(self.workers):
                    worker.queue.append(msg.Join(key, number, len(self.workers)))
                self._is_linked = True
            for worker, exchange in exchanges.items():
                worker.queue.append(exchange)
        return keys

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
            raise RuntimeError("the client of this tensor is closed: load it with another client")

    def _post(self) -> None:
        """Send all commands, so that workers have work; wait for the replies to earlier ones."""
        earlier = self._calls
        with self._pack({}) as messages:
            self._calls = self._begin(messages)
            if earlier:
                self.client.sync(self._gather_replies, earlier, [])

    def _converse(self, wanted: dict[WorkerHandle, list[int]]) -> _Values:
        """Send all commands, and wait for the replies to all messages; return values by key."""
        with self._pack(wanted) as messages:
            calls, self._calls = self._calls, []
            return self.client.sync(self._gather_replies, calls, messages)

    @contextlib.contextmanager
    def _pack(self, wanted: dict[WorkerHandle, list[int]]) -> Iterator[_Messages]:
        """Take all commands from the queues, for a block that sends them, if all workers are there.

        If it fails, so that not all may be sent, workers drop pending commands.
        """
        messages: _Messages = []
        try:
            self.check_there()
            messages += [
                (worker, worker.pack(self._epoch, wanted.get(worker, [])))
                for worker in self.workers
                if worker.queue or worker in wanted
            ]
            yield messages
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
        for task in tasks:
            # Else asyncio would report the error of a call that nobody waits for any more.
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
        if lost := [worker for worker in workers if not worker.is_there]:
            self._lose(lost)

    async def _ping(self, workers: Iterable[WorkerHandle]) -> None:
        """Look whether workers are there that have not answered for a while."""
        calls = {worker: worker.call("ping") for worker in workers}
        done = await _attempt(calls.values(), _PING_TIMEOUT)
        if lost := [worker for worker, is_done in zip(calls, done, strict=True) if not is_done]:
            self._lose(lost)

    def _lose(self, workers: Iterable[WorkerHandle]) -> None:
        for worker in workers:
            worker.is_lost = True
        self.check()

    def _start_epoch(self) -> None:
        """Have all workers drop pending commands, but still free released objects."""
        self._epoch, self._calls, self._is_linked = next(_numbers), [], False
        aborts = {}
        for worker in self.workers:
            worker.drop()
            if worker.is_there:
                with contextlib.suppress(WorkerLost):
                    aborts[worker] = worker.call("abort", self._epoch)
        done = self.client.sync(_attempt, aborts.values(), _ABORT_TIMEOUT)
        for worker, is_done in zip(aborts, done, strict=True):
            worker.is_lost = not is_done  # it may wait for ever


def _refer(x: Any, worker: WorkerHandle) -> Any:
    """Replace the remote objects in an argument of a command by their keys."""
    if isinstance(x, RemoteObject):
        if x.worker is not worker:
            raise RuntimeError(f"an array on {x.worker.address} is used on {worker.address}")
        return msg.Ref(x.key)
    if isinstance(x, dict):
        return {name: _refer(item, worker) for name, item in x.items()}
    return [_refer(item, worker) for item in x] if isinstance(x, list) else x


async def _attempt(calls: Iterable[Any], timeout: float) -> list[bool]:
    """Wait until calls are done or fail, but not for longer; return whether each is done."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)
    for task in tasks:
        task.cancel()  # unless it is done: nobody waits for it any more
    return [task.done() and task.exception() is None for task in tasks]


async def _take_replies(calls: Sequence[tuple[list[int], Any]]) -> _Replies:
    """Wait for a worker's replies in their order, up to an error: it would cause later ones."""
    replies: _Replies = []
    for keys, call in calls:
        replies.append((keys, await call))
        if replies[-1][1].error is not None:
            break
    return replies

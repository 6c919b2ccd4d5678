"""The actor that each worker holds for a tensor, on a device of its own, and how it is started."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import psutil
from distributed import Client, Future, get_worker
from distributed.core import Status
from distributed.protocol.serialize import to_serialize
from distributed.worker import Worker

from ..engines import select_engine
from .cluster import Gpus, WorkerHandle, Workers
from .machine import Machine, Site
from .messages import Message, Reply
from .partitions import Partition
from .waiting import WorkerLost, wait_for_tasks

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
            self._site = Site(select_engine("cpu"), functools.partial(_count_room, self._worker))
            start_thread = functools.partial(_limit_threads, self._worker.state.nthreads)
        # An actor is never connected if another one is lost while they start: until then its thread
        # lives as long as the actor, of which it therefore holds a weak reference only.
        reference = weakref.ref(self)
        self._machine = Machine(self._site, start_thread, lambda: reference() is not None)

    async def connect(self, peers: Sequence[tuple[str, str]], number: int) -> None:
        """Tell the addresses and keys of all workers' actors, and which of them this is."""
        loop = asyncio.get_running_loop()
        worker = self._worker
        _, own_key = peers[number]

        def send(peer: int, *parcel: Any) -> None:
            address, key = peers[peer]
            _call_soon(loop, lambda: _start(_deliver(worker, address, key, *parcel)))

        self._machine.connect(send, lambda: own_key in worker.state.actors)

    async def run(self, message: Message) -> Reply:
        """Run commands, after those of earlier messages."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()

        def settle(value: Reply) -> None:
            if not reply.done():  # as it is if the call was cancelled
                reply.set_result(value)

        self._machine.add(message, functools.partial(_call_soon, loop, settle))
        return await reply

    async def deliver(self, epoch: int, arrays: dict[int, np.ndarray]) -> None:
        """Take arrays that another actor has sent."""
        self._machine.deliver(epoch, arrays)

    def keep(self, number: int, partition: Partition) -> None:
        """Take a partition from a task on this worker."""
        self._site.partitions[number] = partition

    async def abort(self, epoch: int) -> None:
        """Drop the messages of earlier epochs."""
        self._machine.abort(epoch)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable, *args: Any) -> None:
    """Call a function in the event loop, from another thread; a worker that closes has none."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def _start(coroutine: Any) -> None:
    """Run a coroutine as a task, and hold that until it is done."""
    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _deliver(worker: Worker, address: str, key: str, *parcel: Any) -> None:
    """Send an actor a parcel. If it is gone, the client sees that by its own message."""
    try:
        await worker.rpc(address).actor_execute(
            function="deliver",
            actor=key,
            args=[to_serialize(part) for part in parcel],
            kwargs={},
            reply=False,
        )
    except (OSError, RuntimeError) as error:
        if worker.status == Status.running:  # one that closes has no connections any more
            _logger.warning("worker %s did not receive an array: %s", address, error)


def _make_gpu_site(gpu: int) -> tuple[Site, Callable[[], None]]:
    """Return a GPU's site, and a function that its thread calls first."""
    from ..engines.cuda.processes import NcclLink, ThreadStream

    return Site(select_engine("cuda"), lambda: None, NcclLink), ThreadStream(gpu).use


def _count_room(worker: Worker) -> int | None:
    """Count the bytes that Dask lets a worker use yet."""
    limit = worker.memory_manager.memory_limit
    if limit is None:
        return None
    return limit - psutil.Process().memory_info().rss


def _limit_threads(count: int) -> None:
    """Let the kernels of this thread use as many threads as Dask gives the worker."""
    import numba

    numba.set_num_threads(min(count, numba.get_num_threads()))


# In the client


def start_workers(
    client: Client, addresses: Iterable[str], device: str | None = None, others: Workers = ()
) -> list[WorkerHandle]:
    """Start an actor at each address; return the new workers after `others`, which run already."""
    addresses = list(addresses)
    tasks = [_submit(client, address, list_gpus, device) for address in addresses]
    gpus = [worker.gpus for worker in others] + wait_for_tasks(client, tasks, addresses)
    _refuse_mixture([worker.address for worker in others] + addresses, gpus)
    numbers = choose_gpus(gpus)
    workers = [*others, *_start_actors(client, addresses, numbers[len(others) :])]
    links = list_links(gpus, numbers)
    for worker, listed, number, link in zip(workers, gpus, numbers, links, strict=True):
        chosen = [] if number is None else [listed.uuids[number]]
        worker.gpus = listed._replace(uuids=chosen)
        worker.link = link
    return workers


def _refuse_mixture(addresses: Sequence[str], gpus: Sequence[Gpus]) -> None:
    """Refuse workers with a GPU beside workers without: the records of slabs would differ."""
    without = [address for address, listed in zip(addresses, gpus, strict=True) if not listed.uuids]
    if 0 < len(without) < len(gpus):
        raise ValueError(
            f"workers {without} have no GPU, but others have, expected workers of one kind: give "
            "device='cpu', or the addresses of workers of one kind as workers="
        )


def _start_actors(
    client: Client, addresses: Sequence[str], numbers: Sequence[int | None]
) -> list[WorkerHandle]:
    """Start an actor on each worker, with the GPU of a number there, and wait for all."""
    futures = [
        _submit(client, address, SlabActor, number, actor=True)
        for address, number in zip(addresses, numbers, strict=True)
    ]
    try:
        wait_for_tasks(client, futures, addresses)
    except RuntimeError as error:  # Dask's own, if a worker ends just after its actor starts
        if "Actor was lost" not in str(error):
            raise
        pairs = zip(addresses, futures, strict=True)
        lost = [address for address, future in pairs if future.status == "error"]
        raise WorkerLost(lost) from None
    return list(map(WorkerHandle, addresses, futures))


def _submit(client: Client, address: str, function: Any, *args: Any, actor: bool = False) -> Future:
    """Have a worker call a function as a task, or start an actor of a class."""
    return client.submit(
        function,
        *args,
        workers=[address],
        key=f"tensorly-flycoo-{uuid.uuid4().hex}",
        actor=actor,
        pure=False,
        allow_other_workers=False,
    )


# GPUs


def list_gpus(device: str | None) -> Gpus:
    """List the GPUs of the worker that calls this; none if its device is a CPU."""
    if select_engine(device).name == "cpu":
        return Gpus([], has_nccl=False)
    from ..engines.cuda import processes

    return Gpus(processes.list_gpus(), processes.has_nccl())


def choose_gpus(gpus: Sequence[Gpus]) -> list[int | None]:
    """Choose a GPU for each worker, by its number there: the first that the fewest others use.

    Examples
    --------
    >>> choose_gpus([Gpus(["a", "b"], True), Gpus(["a", "b"], True), Gpus([], True)])
    [0, 1, None]
    """
    numbers: list[int | None] = []
    num_users: Counter[str] = Counter()  # of each GPU, by its UUID
    for uuids, _ in gpus:
        number = min(range(len(uuids)), key=lambda n: num_users[uuids[n]], default=None)
        if number is not None:
            num_users[uuids[number]] += 1
        numbers.append(number)
    return numbers


def list_links(gpus: Sequence[Gpus], numbers: Sequence[int | None]) -> list[str | None]:
    """Return the UUID of each worker's GPU if NCCL can link it to the others, else None."""
    no_links: list[str | None] = [None] * len(gpus)
    if len(gpus) == 1 or None in numbers:
        return no_links
    uuids: list[str | None] = []
    for listed, number in zip(gpus, numbers, strict=True):
        assert number is not None
        uuids.append(listed.uuids[number])
    if len(set(uuids)) < len(uuids):
        reason = "some workers share a GPU; start one for each"
    elif not all(listed.has_nccl for listed in gpus):
        reason = "some workers have no NCCL; install nvidia-nccl-cu13 (or -cu12) there"
    else:
        return uuids
    _logger.warning("arrays pass through the memory of the workers' hosts, slowly: %s", reason)
    return no_links

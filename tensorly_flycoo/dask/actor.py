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
from distributed.protocol import to_serialize
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
        # An actor is never connected if another one is lost while they start.
        own = weakref.ref(self)
        self._machine = Machine(self._site, start_thread, lambda: own() is not None)

    async def connect(self, peers: Sequence[tuple[str, str]], number: int) -> None:
        """Tell the addresses and keys of all workers' actors, and which of them this is."""
        loop, worker, (_, key) = asyncio.get_running_loop(), self._worker, peers[number]

        def send(number: int, *parcel: Any) -> None:
            _call_soon(loop, lambda: _start(_deliver(worker, *peers[number], *parcel)))

        self._machine.connect(send, lambda: key in worker.state.actors)

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
        self._machine.deliver(epoch, arrays)

    def keep(self, number: int, partition: Partition) -> None:
        """Take a partition from a task on this worker."""
        self._site.partitions[number] = partition

    async def abort(self, epoch: int) -> None:
        self._machine.abort(epoch)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable, *args: Any) -> None:
    """Call a function in the event loop, from another thread; a worker that closes has none."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def _start(coroutine: Any) -> None:
    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _deliver(worker: Worker, address: str, key: str, *parcel: Any) -> None:
    """Send an actor a parcel. If it is gone, the client sees that by its own message."""
    args = list(map(to_serialize, parcel))
    call = {"function": "deliver", "actor": key, "args": args, "kwargs": {}}
    try:
        await worker.rpc(address).actor_execute(**call, reply=False)
    except (OSError, RuntimeError) as error:
        if worker.status == Status.running:  # one that closes has no connections any more
            _logger.warning("worker %s did not receive an array: %s", address, error)


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


# In the client


def start_workers(
    client: Client, addresses: Iterable[str], device: str | None = None, others: Workers = ()
) -> list[WorkerHandle]:
    """Start an actor on each of some workers, beside others; return all, the others first."""
    addresses = list(addresses)
    tasks = [_submit(client, address, list_gpus, device) for address in addresses]
    gpus = [own.gpus for own in others] + wait_for_tasks(client, tasks, addresses)
    names = [own.address for own in others] + addresses
    without = [address for address, own in zip(names, gpus, strict=True) if not own.uuids]
    if 0 < len(without) < len(gpus):  # their records would differ
        raise ValueError(
            f"workers {without} have no GPU, but others have, expected workers of one kind: give "
            "device='cpu', or the addresses of workers of one kind as workers="
        )
    numbers = choose_gpus(gpus)
    started = list(zip(addresses, numbers[len(others) :], strict=True))
    futures = [_submit(client, a, SlabActor, number, actor=True) for a, number in started]
    try:
        wait_for_tasks(client, futures, addresses)
    except RuntimeError as error:  # Dask's own, if a worker ends just after its actor starts
        if "Actor was lost" not in str(error):
            raise
        pairs = zip(addresses, futures, strict=True)
        raise WorkerLost([address for address, own in pairs if own.status == "error"]) from None
    workers = [*others, *map(WorkerHandle, addresses, futures)]
    for worker, own, number in zip(workers, gpus, numbers, strict=True):
        worker.gpus = own._replace(uuids=[] if number is None else [own.uuids[number]])
    for worker, link in zip(workers, list_links(gpus, numbers), strict=True):
        worker.link = link
    return workers


def _submit(client: Client, address: str, function: Any, *args: Any, **options: Any) -> Future:
    key = f"tensorly-flycoo-{uuid.uuid4().hex}"
    options = {"pure": False, "allow_other_workers": False, **options}
    return client.submit(function, *args, workers=[address], key=key, **options)


def list_gpus(device: str | None) -> Gpus:
    """List the GPUs of a worker, there; none if its device is a CPU."""
    if select_engine(device).name == "cpu":
        return Gpus([], has_nccl=False)
    from ..engines.cuda import processes

    return Gpus(processes.list_gpus(), processes.has_nccl())


def choose_gpus(gpus: Sequence[Gpus]) -> list[int | None]:
    """Choose a GPU for each worker, by its number there: the first that the fewest others use."""
    numbers: list[int | None] = []
    num_workers: Counter[str] = Counter()
    for uuids, _ in gpus:
        number = min(range(len(uuids)), key=lambda n: num_workers[uuids[n]], default=None)
        if number is not None:
            num_workers[uuids[number]] += 1
        numbers.append(number)
    return numbers


def list_links(gpus: Sequence[Gpus], numbers: Sequence[int | None]) -> list[str | None]:
    """Return the UUID of each worker's GPU if NCCL can link it to the others, else None."""
    chosen = [None if n is None else own.uuids[n] for own, n in zip(gpus, numbers, strict=True)]
    if len(chosen) == 1 or None in chosen:
        return [None for _ in chosen]
    if len(set(chosen)) < len(chosen):
        reason = "some workers share a GPU; start one for each"
    elif not all(own.has_nccl for own in gpus):
        reason = "some workers have no NCCL; install nvidia-nccl-cu13 (or -cu12) there"
    else:
        return chosen
    _logger.warning("arrays pass through the memory of the workers' hosts, slowly: %s", reason)
    return [None for _ in chosen]

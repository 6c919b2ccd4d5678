"""Start the actors of a tensor, each on a device of its worker."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from distributed import Client, Future

from ..engines import select_engine
from .actor import SlabActor
from .handles import WorkerHandle, WorkerLost

#: Seconds within which actors must have been started, and between looks whether they are.
_TIMEOUT, _INTERVAL = 120.0, 0.02

_logger = logging.getLogger("tensorly_flycoo")


class Gpus(NamedTuple):
    """The GPUs that a worker can use, by UUID, and whether NCCL is installed there."""

    uuids: Sequence[str]
    has_nccl: bool


def start_workers(
    client: Client, addresses: Iterable[str], device: str | None = None
) -> list[WorkerHandle]:
    """Start an actor on each worker."""
    addresses = list(addresses)
    if device == "cpu":
        gpus = [Gpus([], False) for _ in addresses]
    else:
        tasks = {a: _submit(client, a, list_gpus, device) for a in addresses}
        _wait_for_all(client, tasks)
        gpus = [task.result() for task in tasks.values()]
    without = [address for address, own in zip(addresses, gpus, strict=True) if not own.uuids]
    if 0 < len(without) < len(addresses):  # their records would differ
        raise ValueError(
            f"workers {without} have no GPU, but others have, expected workers of one kind: give "
            "device='cpu', or the addresses of workers of one kind as workers="
        )
    numbers = choose_gpus(gpus)
    links = list_links(gpus, numbers)
    futures = {
        address: _submit(client, address, SlabActor, number, actor=True)
        for address, number in zip(addresses, numbers, strict=True)
    }
    _wait_for_all(client, futures)
    workers = []
    for (address, future), gpu in zip(futures.items(), links, strict=True):
        try:
            workers.append(WorkerHandle(address, future, gpu))
        except RuntimeError:  # Dask's, if the actor is gone already
            raise WorkerLost([address]) from None
    return workers


def _submit(client: Client, address: str, function: Any, *args: Any, **options: Any) -> Future:
    key = f"tensorly-flycoo-{uuid.uuid4().hex}"
    options = {"pure": False, "allow_other_workers": False, **options}
    return client.submit(function, *args, workers=[address], key=key, **options)


def _wait_for_all(client: Client, futures: Mapping[str, Future]) -> None:
    """Wait until tasks of workers are done; Dask would wait for a worker that is gone."""
    deadline = time.monotonic() + _TIMEOUT
    while any(future.status in ("pending", "lost") for future in futures.values()):
        if missing := futures.keys() - client.nthreads().keys():
            raise WorkerLost(sorted(missing))
        if time.monotonic() > deadline:
            late = [address for address, future in futures.items() if future.status == "pending"]
            raise TimeoutError(f"{late} have not started an actor in {_TIMEOUT:.0f} s")
        time.sleep(_INTERVAL)


# GPUs


def list_gpus(device: str | None) -> Gpus:
    """List the GPUs of a worker, there; none if its device is a CPU."""
    if select_engine(device).name == "cpu":
        return Gpus([], False)
    from ..engines.cuda import processes

    return Gpus(processes.list_gpus(), processes.has_nccl())


def choose_gpus(gpus: Sequence[Gpus]) -> list[int | None]:
    """Choose a GPU for each worker, by its number there: the first that the fewest others use.

    Workers may be on one machine, and may number its GPUs differently.
    """
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

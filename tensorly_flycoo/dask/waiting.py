"""Waits for workers, all of them here: one that does not come is named, with what to do."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from distributed import Client, Future

from ..engines.out_of_memory import format_nbytes

#: Seconds between looks at what Dask has noticed here.
_LOOK_INTERVAL = 0.5

#: How many such looks precede a question to the scheduler.
_LOOKS_PER_QUESTION = 4

#: Seconds for which a worker may be silent: a function may keep its heart from beating as long.
_PATIENCE = 50.0

#: Seconds for which no worker may have worked on a task.
_IDLE_TIMEOUT = 15.0

#: The states of tasks on which a worker works.
_BUSY = ("executing", "long-running", "flight")


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


@contextlib.contextmanager
def free_after_error() -> Iterator[None]:
    """Free at once what the functions of a block held when one of them failed.

    Else it would stay on the workers while somebody keeps the error, as an interactive session
    does.
    """
    try:
        yield
    except BaseException as error:
        context: BaseException | None = error
        while context is not None:
            traceback.clear_frames(context.__traceback__)
            context = context.__context__
        raise


def wait_for(
    awaited: Awaitable[Any],
    client: Client,
    addresses: Sequence[str],
    check: Callable[[], None] = lambda: None,
    *,
    needs_tasks: bool = False,
) -> Any:
    """Wait for what workers do.

    Raises what `check` raises, a `WorkerLost` if a worker is gone or has been silent for long, and
    if that needs tasks of Dask, a MemoryError or a TimeoutError if none of the workers runs one.
    """
    # No error passes through Dask's function: its closures would hold all arguments.
    watch = _watch(client, addresses, check, needs_tasks)
    result, errors = client.sync(_wait_for_first, awaited, watch)
    if errors:
        traceback.clear_frames(errors[0].__traceback__)  # which hold it, and workers
        raise errors.pop()  # so that this frame does not
    return result


def check_limits(client: Client, addresses: Sequence[str], nbytes: int, purpose: str) -> None:
    """Raise a MemoryError, before anything is read, if a worker's limit is below `nbytes`."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    for address in addresses:
        limit = workers.get(address, {}).get("memory_limit")  # None or 0: there is none
        if limit and nbytes > limit:
            raise MemoryError(
                f"worker {address} needs {format_nbytes(nbytes)} for {purpose}, but its memory "
                f"limit is {format_nbytes(limit)}: give workers more memory, start more of them, "
                "or name others by workers="
            )


def wait_for_tasks(
    client: Client,
    tasks: Sequence[Future],
    addresses: Sequence[str],
    check: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Return the results of tasks of workers; see `wait_for`."""
    results = client.gather(list(tasks), asynchronous=True)
    return wait_for(results, client, addresses, check, needs_tasks=True)


async def _wait_for_first(*awaited: Awaitable[Any]) -> tuple[Any, list[Exception]]:
    """Return the result of the awaitable that ends first, and cancel the rest.

    Its error, if it fails, is returned in a list, which the caller can empty: see `wait_for`.
    """
    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return await next(task for task in tasks if task in done), []
    except Exception as error:
        return None, [error]
    finally:
        for task in tasks:
            task.cancel()


async def _watch(
    client: Any, addresses: Sequence[str], check: Callable[[], None], needs_tasks: bool
) -> Any:
    """Look at workers until there is an error."""
    busy_at = time.monotonic()  # when a worker was last seen to work on a task
    heartbeats = _Heartbeats()
    while True:
        for _ in range(_LOOKS_PER_QUESTION):
            await asyncio.sleep(_LOOK_INTERVAL)
            check()
        try:
            identity = await asyncio.wait_for(client.scheduler.identity(), _PATIENCE)
        except TimeoutError:
            raise WorkerLost(addresses) from None
        except OSError:  # a client that is connecting again finds out what it has lost
            continue
        workers = identity["workers"]  # by address, all that the scheduler has
        now = time.monotonic()
        late = heartbeats.find_late(addresses, workers, now)
        lost = [address for address in addresses if address not in workers or address in late]
        if lost:
            raise WorkerLost(lost)
        paused = [address for address in addresses if workers[address]["status"] == "paused"]
        awaited = addresses
        if not paused:  # they may wait for what other workers compute for them
            awaited = list(workers)
        if _is_any_busy(workers, awaited):
            busy_at = now
        if needs_tasks and now - busy_at > _IDLE_TIMEOUT:
            raise _explain_wait(addresses, paused, workers)


class _Heartbeats:
    """Knows when each worker has last given a sign of life to the scheduler."""

    def __init__(self) -> None:
        # By address: the scheduler's time of the last heartbeat, and when we first saw it, by our
        # clock, from which the scheduler's may differ.
        self._last: dict[str, tuple[float, float]] = {}

    def find_late(self, addresses: Sequence[str], workers: Any, now: float) -> set[str]:
        """Return the workers that have been silent for too long."""
        for address in workers.keys() & set(addresses):
            beat = workers[address]["last_seen"]
            last_beat, _ = self._last.get(address, (None, now))
            if beat != last_beat:
                self._last[address] = (beat, now)
        return {address for address, (_, seen) in self._last.items() if now - seen > _PATIENCE}


def _is_any_busy(workers: Any, addresses: Iterable[str]) -> bool:
    """Return whether any of the workers runs a task."""
    for address in addresses:
        counts = workers[address]["metrics"].get("task_counts", {})
        if any(counts.get(state) for state in _BUSY):
            return True
    return False


def _explain_wait(addresses: Sequence[str], paused: Sequence[str], workers: Any) -> Exception:
    """Say why no worker runs a task that waits for it."""
    if not paused:
        return TimeoutError(
            f"none of {', '.join(addresses)} has worked on a task for {_IDLE_TIMEOUT:.0f} s, but "
            "tasks wait for them: look at Dask's dashboard, or name others by workers="
        )
    first = workers[paused[0]]
    used = format_nbytes(first["metrics"]["memory"])
    limit = format_nbytes(first["memory_limit"])
    return MemoryError(
        f"Dask has paused {', '.join(paused)}, where tasks wait: a process uses {used} of its "
        f"memory limit of {limit}. Delete what it holds, give workers more memory, start more of "
        "them, or name others by workers="
    )

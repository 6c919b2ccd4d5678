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

#: Seconds between looks at what Dask has noticed, and how many of them ask the scheduler once.
_LOOK_INTERVAL = 0.5
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


def check_limits(client: Client, addresses: Sequence[str], nbytes: int, what: str) -> None:
    """Refuse what surely does not fit workers' memory limits, before anything is read."""
    known = client.scheduler_info(n_workers=-1)["workers"]
    for address in addresses:
        limit = known.get(address, {}).get("memory_limit") or nbytes
        if nbytes > limit:
            raise MemoryError(
                f"worker {address} needs {format_nbytes(nbytes)} for {what}, but its memory limit "
                f"is {format_nbytes(limit)}: give workers more memory, start more of them, or name "
                "others by workers="
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
    """Return the result or the error of what is done first, and cancel the rest."""
    tasks = [asyncio.ensure_future(own) for own in awaited]
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
    busy = time.monotonic()  # when a worker was last seen to work on a task
    beats: dict[str, tuple[float, float]] = {}  # each worker's last heartbeat, and when it came
    while True:
        for _ in range(_LOOKS_PER_QUESTION):
            await asyncio.sleep(_LOOK_INTERVAL)
            check()
        try:
            known = (await asyncio.wait_for(client.scheduler.identity(), _PATIENCE))["workers"]
        except TimeoutError:
            raise WorkerLost(addresses) from None
        except OSError:  # a client that is connecting again finds out what it has lost
            continue
        now = time.monotonic()
        for address in known.keys() & set(addresses):
            beat = known[address]["last_seen"]
            if address not in beats or beats[address][0] != beat:
                beats[address] = beat, now
        late = {address for address, (_, since) in beats.items() if now - since > _PATIENCE}
        if lost := [address for address in addresses if address not in known or address in late]:
            raise WorkerLost(lost)
        paused = [address for address in addresses if known[address]["status"] == "paused"]
        # Without any, workers may wait for what others compute for them.
        names = addresses if paused else known
        counts = [known[name]["metrics"].get("task_counts", {}) for name in names]
        if any(count.get(state) for count in counts for state in _BUSY):
            busy = now
        if needs_tasks and now - busy > _IDLE_TIMEOUT:
            raise _explain_wait(addresses, paused, known)


def _explain_wait(addresses: Sequence[str], paused: Sequence[str], known: Any) -> Exception:
    """Say why no worker runs a task that waits for it."""
    if not paused:
        return TimeoutError(
            f"none of {', '.join(addresses)} has worked on a task for {_IDLE_TIMEOUT:.0f} s, but "
            "tasks wait for them: look at Dask's dashboard, or name others by workers="
        )
    first = known[paused[0]]
    used, limit = map(format_nbytes, (first["metrics"]["memory"], first["memory_limit"]))
    return MemoryError(
        f"Dask has paused {', '.join(paused)}, where tasks wait: a process uses {used} of its "
        f"memory limit of {limit}. Delete what it holds, give workers more memory, start more of "
        "them, or name others by workers="
    )

"""What stands in the client for a worker, and for what it holds."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from distributed import Actor, Future

from .messages import Command, Free, Message, Peer

#: The shape and the dtype of an array.
Kind: TypeAlias = tuple[tuple[int, ...], np.dtype]


class WorkerLost(ConnectionError):
    """A worker that held part of a tensor is gone; `ClusterTensor.recover` replaces it.

    Attributes
    ----------
    addresses : tuple of str
        The workers that are lost.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = tuple(addresses)
        super().__init__(self.addresses)

    def __str__(self) -> str:
        return (
            f"lost {', '.join(self.addresses)}, and with it slabs and rows of factors: call "
            "x.recover(), which loads the slabs on other workers, then start from a checkpoint "
            "(Progress.resume) or anew"
        )


class RemoteObject:
    """What a worker holds; freed there when this object is."""

    def __init__(self, worker: WorkerHandle, key: int) -> None:
        self.worker = worker
        self.key = key
        weakref.finalize(self, worker.queue.append, Free(key)).atexit = False

    def copy_at(self, worker: WorkerHandle, key: int) -> RemoteObject:
        """Return what stands for a copy that another worker holds."""
        return RemoteObject(worker, key)

    @property
    def kind(self) -> Kind | None:
        """The shape and the dtype of an array; None if they are not known here."""
        return None


class WorkerHandle:
    """One worker's actor, and the commands that it has not been sent."""

    def __init__(self, address: str, future: Future, gpu: str | None = None) -> None:
        self.address = address
        self.gpu = gpu  # the UUID of its GPU, if that can be linked to others
        self.actor: Actor = future.result()
        self.is_lost = False  # whether a call has found that it is gone
        self._future = future
        self.queue: deque[Command] = deque()  # Finalizers append to it at any time, in any thread.
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
        """Drop all commands but those that free something, and number from 0 again.

        Dropped commands may wait for a lost worker, or address a slot now used by another.
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

"""A worker: its device and memory, and the thread that runs the client's commands in order."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import numpy as np

from ..base.array_modules import Array, move
from ..engines.out_of_memory import format_nbytes
from ..engines.protocol import Engine
from ..format.layout import Layout
from ..format.packing import RecordFormat
from . import messages as msg
from .freed_memory import keep_freed_memory
from .partitions import Partition

if TYPE_CHECKING:
    from ..engines.cuda.processes import NcclLink

#: Bytes for one peer that are sent before more commands are run.
_PARCEL_NBYTES = 2**22

#: How often a thread that waits looks whether Dask still holds the actor.
_POLL_SECONDS = 2.0

#: Packages whose errors the client can surely make again.
_SENDABLE = ("builtins", "numpy", "tensorly_flycoo")

_Answer = Callable[[msg.Reply], None]


@dataclass(eq=False)
class Site:
    """A worker's engine, its memory, and the partitions that are being loaded."""

    engine: Engine
    count_room: Callable[[], int | None]  # bytes of host memory that may still be used, if known
    link_type: type[NcclLink] | None = None  # connects its device to those of other workers
    partitions: dict[int, Partition] = field(default_factory=dict)
    mappings: WeakSet[mmap.mmap] = field(default_factory=WeakSet)  # of files of slabs

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Return an array on the engine's device whose elements are not set."""
        return self.engine.xp.empty(shape, dtype)

    def count_free_nbytes(self) -> int | None:
        """Count the bytes that may still be allocated; None if that is unknown."""
        counts = [self.engine.count_free_nbytes(), self.count_room()]
        return min((count for count in counts if count is not None), default=None)

    def check_room(self, nbytes: int, task: str) -> None:
        """Refuse to begin what needs more memory than there is."""
        free = self.count_free_nbytes()
        if free is not None and nbytes > free:
            raise MemoryError(f"{task} needs {format_nbytes(nbytes)}")

    def add_mapping(self, array: Any) -> None:
        """Remember the mapped file that an array is part of."""
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        if hasattr(base, "madvise"):  # not on Windows
            self.mappings.add(base)

    def give_back_pages(self) -> None:
        """Release the pages of mapped files if they may not all fit into the free memory."""
        if not self.mappings:
            return
        room = self.count_room()
        if room is not None and sum(map(len, self.mappings)) > room:
            for mapping in self.mappings:
                mapping.madvise(mmap.MADV_DONTNEED)


class SlabFacts(NamedTuple):
    """Facts of a slab that the client keeps."""

    name: str
    nnz: int
    norm: float
    nbytes: int
    record_format: RecordFormat


def describe_slab(x: Layout) -> SlabFacts:
    """Return the facts of a slab, on its worker."""
    return SlabFacts(x.name, x.nnz, x.norm, x.nbytes, x.record_format)


class _Awaited(NamedTuple):
    """Stands for an array that another worker sends in an epoch."""

    epoch: int


#: Stands for what is not held: earlier than all epochs, so that nobody waits for it.
_LOST = _Awaited(-1)


class Machine:
    """Holds a client's objects by key, and runs its commands in a thread of its own.

    Arrays that arrive are copied to the device of the site's engine. The new thread calls
    `start_thread` before any command. Until `connect` is called, `is_held` says whether the actor
    is still there.

    All methods may be called from any thread. Only `_wait_for_message`, `_take` and `join` wait:
    until there is what they wait for, an abort, or Dask does not hold the actor any more. Work on a
    GPU may wait for other workers' too: then an abort closes the link between them.
    """

    _send: Callable[[int, int, dict[int, np.ndarray]], None]  # `connect` gives it

    def __init__(
        self, site: Site, start_thread: Callable[[], None], is_held: Callable[[], bool]
    ) -> None:
        self._site = site
        self._is_held = is_held
        self._changed = threading.Condition()  # notified of messages, arrays and aborts
        # Objects by key; an `_Awaited` in place of an array that has not come yet.
        self._store: dict[int, Any] = {
            msg.SITE.key: site,
            msg.ENGINE.key: site.engine,
            msg.MACHINE.key: self,
        }
        self._epoch = 0  # the client's, as far as known
        self._running = 0  # the epoch of the message that runs
        self._next_number = 0  # of the next message in this epoch
        self._messages: dict[tuple[int, int], tuple[msg.Message, _Answer]] = {}  # by epoch, number
        self._inbox: dict[tuple[int, int], np.ndarray] = {}  # by epoch and key
        self._outbox: dict[int, dict[int, np.ndarray]] = {}  # by the peer's number, then key there
        self._link: NcclLink | None = None
        self._unproven: set[int] = set()  # keys of objects that a failed exchange would spoil
        thread = threading.Thread(
            target=self._run, args=[start_thread], name="tensorly_flycoo", daemon=True
        )
        thread.start()

    # From the event loop

    def connect(self, send: Callable[..., None], is_held: Callable[[], bool]) -> None:
        """Give a function that sends a peer, by number, what `deliver` takes, and `is_held`."""
        with self._changed:
            self._send = send
            self._is_held = is_held

    def add(self, message: msg.Message, answer: _Answer) -> None:
        """Run a message when its turn comes, and call ``answer(reply)``."""
        with self._changed:
            self._messages[message.epoch, message.number] = message, answer
            if message.epoch > self._epoch:
                self.abort(message.epoch)
            self._changed.notify_all()

    def deliver(self, epoch: int, arrays: dict[int, np.ndarray]) -> None:
        """Take arrays that a peer has sent, by their keys here."""
        with self._changed:
            if epoch >= self._epoch:
                for key, array in arrays.items():
                    self._inbox[epoch, key] = array
                self._changed.notify_all()

    def abort(self, epoch: int) -> None:
        """Drop all messages of earlier epochs, even one that waits; a function runs to its end."""
        with self._changed:
            self._epoch = epoch
            self._next_number = 0
            self._inbox = {key: x for key, x in self._inbox.items() if key[0] >= epoch}
            if self._link is not None:
                self._link.close()
            self._changed.notify_all()

    # In the thread

    def _run(self, start_thread: Callable[[], None]) -> None:
        """Run messages until Dask does not hold the actor any more; then free all."""
        start_thread()
        while (taken := self._wait_for_message()) is not None:
            message, answer = taken
            answer(self._answer(message))
            del taken, message, answer  # what they hold is freed while this waits
        if self._link is not None:
            self._link.close()
        self._store.clear()
        self._inbox.clear()
        keep_freed_memory(is_kept=False)
        for _, answer in self._messages.values():
            answer(msg.Reply(error=msg.Dropped("the tensor was closed")))

    def _wait_for_message(self) -> tuple[msg.Message, _Answer] | None:
        """Wait for the next message, or an outdated one; None if there will be no more."""
        with self._changed:
            keeps_memory = True
            while self._is_held():
                # An outdated message is taken too: it frees what it would, and is answered.
                outdated = next((key for key in self._messages if key[0] < self._epoch), None)
                key = outdated or (self._epoch, self._next_number)
                if key in self._messages:
                    if outdated is None:
                        self._next_number += 1
                    keep_freed_memory(is_kept=True)
                    return self._messages.pop(key)
                if not self._changed.wait(_POLL_SECONDS) and keeps_memory:
                    keep_freed_memory(is_kept=False)
                    keeps_memory = False
        return None

    def _answer(self, message: msg.Message) -> msg.Reply:
        """Run a message's commands. If one fails, run only the later ones that free objects."""
        if message.epoch != self._running:
            self._forget_unproven()
        self._running = message.epoch
        self._outbox = {}
        try:
            for command in message.commands:
                self._check()
                if isinstance(command, msg.Call):
                    self._call(command)
                else:
                    self._free(command)
            self._flush()
            values = [self._fetch(key) for key in message.wanted]
            if values and self._link is not None:
                self._prove_exchanges(self._link)
            return msg.Reply(values)
        except Exception as error:
            for command in message.commands:
                if isinstance(command, msg.Free):
                    self._store.pop(command.key, None)
            if isinstance(error, MemoryError):
                error = self._explain_memory(error)
            return msg.Reply(error=_strip(error))

    def _forget_unproven(self) -> None:
        """Drop objects that a failed exchange may have spoilt, or that were computed from such."""
        for key in self._unproven & self._store.keys():
            self._store[key] = _LOST
        self._unproven.clear()
        self._link = None

    def _prove_exchanges(self, link: NcclLink) -> None:
        """Wait for all work on the GPU: if no exchange has failed, none can any more."""
        link.synchronize()
        link.check()
        self._check()
        self._unproven.clear()

    def _explain_memory(self, error: MemoryError) -> MemoryError:
        """Say how much memory the tensor takes here, and how much is free."""
        used_nbytes = sum(getattr(x, "nbytes", 0) for x in self._store.values())
        used = format_nbytes(used_nbytes)
        free = format_nbytes(self._site.count_free_nbytes())
        task = str(error) or "an operation"
        return MemoryError(f"{task}; {used} is in use for this tensor, {free} is free")

    def _check(self) -> None:
        """Stop if another call has failed meanwhile, or the actor is not held any more."""
        if self._running < self._epoch or not self._is_held():
            raise msg.Dropped("another call has failed")

    def _free(self, command: msg.Free) -> None:
        """Delete the object under a key."""
        value = self._store.pop(command.key, None)
        self._unproven.discard(command.key)
        if isinstance(value, _Awaited) and value.epoch == self._running:
            self._take(command.key)  # else it would stay in the inbox

    def _call(self, call: msg.Call) -> None:
        """Call a function, and hold its results under their keys."""
        function, args, kwargs = call.open()
        result = function(*self._resolve(args), **self._resolve(kwargs))
        if len(call.keys) == 1:
            self._store[call.keys[0]] = result
        elif call.keys:
            self._store.update(zip(call.keys, result, strict=True))
        self._site.give_back_pages()
        if self._link is not None:
            self._unproven.update(call.keys)
            if "out" in kwargs:
                self._unproven.add(kwargs["out"].key)

    def _resolve(self, x: Any) -> Any:
        """Replace references in an argument by their objects; bring NumPy arrays to the device."""
        if isinstance(x, msg.Ref):
            return self._get(x.key)
        if isinstance(x, np.ndarray):
            return move(x, self._site.engine.xp)
        if isinstance(x, dict):
            return {name: self._resolve(item) for name, item in x.items()}
        if isinstance(x, list):
            return [self._resolve(item) for item in x]
        return x

    def _get(self, key: int) -> Any:
        """Look up a held object; wait for an array that another worker sends."""
        value = self._store.get(key, _LOST)
        if isinstance(value, _Awaited):
            if value.epoch < self._running:
                raise RuntimeError("an array was lost, since the call that made it has failed")
            array = self._take(key)
            if not array.flags.writeable:  # for which numba would compile kernels anew
                array = array.copy()
            value = move(array, self._site.engine.xp)
            self._store[key] = value
        return value

    def _fetch(self, key: int) -> Any:
        """Return a value for the client, on the host."""
        value = self._get(key)
        if hasattr(value, "__array__"):
            # A copy: later commands may write to the array while the reply is on its way.
            return np.array(move(value, np))
        return value

    def post(self, sent: Sequence[list], received: Sequence[list]) -> None:
        """Send arrays through the host; a received array is waited for when it is used.

        No later command writes to an array that is sent. An item of `sent` is an array, the peer
        and the key there; an item of `received` is the key here and the peer.
        """
        for array, peer, key in sent:
            parcel = self._outbox.setdefault(peer, {})
            parcel[key] = np.asarray(move(array, np), order="C")
            if sum(waiting.nbytes for waiting in parcel.values()) > _PARCEL_NBYTES:
                self._flush()
        for key, *_ in received:
            self._store[key] = _Awaited(self._running)

    def _flush(self) -> None:
        """Send the arrays that wait in the outbox."""
        for peer, arrays in self._outbox.items():
            self._send(peer, self._running, arrays)
        self._outbox = {}

    def _take(self, key: int) -> np.ndarray:
        """Wait for an array from a peer, and take it from the inbox."""
        self._flush()  # the peer may wait for it
        with self._changed:
            while (self._running, key) not in self._inbox:
                self._check()
                self._changed.wait(_POLL_SECONDS)
            return self._inbox.pop((self._running, key))

    # From device to device

    def join(self, key: int, number: int, num_workers: int) -> None:
        """Link the device with those of all workers; the first sends the link's name."""
        link_type = self._site.link_type
        epoch = self._running
        assert link_type is not None
        if number == 0:
            name = link_type.make_name()
            for peer in range(1, num_workers):
                self._send(peer, epoch, {key: name})
        else:
            name = self._take(key)

        def is_needed() -> bool:
            return self._epoch == epoch and self._is_held()

        self._link = link_type(number, num_workers, name, is_needed)
        while not self._link.wait(_POLL_SECONDS):
            self._check()

    def exchange(self, sent: Sequence[list], received: Sequence[list]) -> None:
        """Send and receive arrays as `post` does, but directly between devices.

        Items are as of `post`, with the shape and dtype of the array at their ends.
        """
        assert self._link is not None
        self._flush()  # a peer may wait for it before it comes
        outgoing = []
        for array, peer, _, shape, dtype in sent:
            if (array.shape, array.dtype) != (shape, dtype):  # the receiver would not expect it
                raise RuntimeError(
                    f"an array has {array.shape}, {array.dtype}, expected {shape}, {dtype}"
                )
            # Of a number, ascontiguousarray makes an array with one axis.
            contiguous = self._site.engine.xp.ascontiguousarray(array).reshape(array.shape)
            outgoing.append((contiguous, peer))
        arrays = {key: self._site.empty(shape, dtype) for key, _, shape, dtype in received}
        incoming = [(arrays[key], peer) for key, peer, _, _ in received]
        self._link.check()
        self._link.exchange(outgoing, incoming)
        self._store |= arrays
        self._unproven |= arrays.keys()


def _strip(error: Exception) -> Exception:
    """Return an error that can be sent, without the frames that hold arrays."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    if type(error).__module__.partition(".")[0] not in _SENDABLE:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

"""Messages between the client and workers."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import cloudpickle


class Ref(NamedTuple):
    """Stands for the object that a worker holds under a key."""

    key: int


#: The `Site` of the worker, its engine, and its `Machine`.
SITE = Ref(-1)
ENGINE = Ref(-2)
MACHINE = Ref(-3)


class Call(NamedTuple):
    """Call a function; keep its result, or each of its results, under the keys.

    It is pickled, with its arrays apart: Dask would never answer a call that it cannot pickle, and
    would drop the connection to a worker that cannot unpickle one.
    """

    pickled: bytes
    arrays: list[Any]
    keys: tuple[int, ...]

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        args: list[Any],
        kwargs: dict[str, Any],
        keys: tuple[int, ...],
    ) -> Call:
        """Pickle a call; raise a TypeError if an argument cannot be pickled."""
        try:
            pickled, arrays = _pickle((function, args, kwargs))
            return cls(pickled, arrays, keys)
        except Exception:  # find out what is to blame
            for x in (function, *args, *kwargs.values()):
                try:
                    _pickle(x)
                except Exception as error:
                    raise TypeError(f"{x!r:.200} cannot be sent to workers: {error}") from None
            raise

    def open(self) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """Unpickle the function and its arguments, on a worker."""
        return cloudpickle.loads(self.pickled, buffers=self.arrays)


def _pickle(x: Any) -> tuple[bytes, list[Any]]:
    """Pickle without Dask, which would log what cannot be pickled; arrays come apart.

    What workers cannot import goes by value, which takes much longer.
    """
    with contextlib.suppress(Exception):
        arrays: list[Any] = []
        pickled = pickle.dumps(x, protocol=5, buffer_callback=arrays.append)
        if b"__main__" not in pickled:  # the module of the client's script is not that of workers
            return pickled, arrays
    arrays = []
    pickled = cloudpickle.dumps(x, protocol=5, buffer_callback=arrays.append)
    return pickled, arrays


class Free(NamedTuple):
    """Delete the object under a key."""

    key: int


Command: TypeAlias = Call | Free


@dataclass(frozen=True)
class Message:
    """Commands for one worker, which runs them in order."""

    epoch: int  # goes up whenever a call has failed: earlier messages are dropped
    number: int  # from 0 up in each epoch: the order to run in, however they arrive
    commands: list[Command]
    wanted: list[int]  # the keys of what the reply brings


@dataclass(frozen=True)
class Reply:
    """A worker's answer to a message: values, or an error."""

    values: list[Any] = field(default_factory=list)
    error: Exception | None = None


class Dropped(RuntimeError):
    """A message was not run, since another call has failed."""

"""Small arrays that each worker computes for itself, so that the client need not wait for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .cluster import Cluster
from .handles import WorkerHandle
from .remote_array import RemoteArray, find_kind_of_ufunc


class Replicated(NDArrayOperatorsMixin):
    """A small array that the client and each worker compute for themselves, when they use it.

    It is ``function(*args)``, where arguments may be others of this class, or, given by worker,
    arrays there. Elementwise functions and the transpose make another one; anything else computes
    it here.
    """

    def __init__(
        self,
        function: Callable,
        args: Sequence[Any] | dict[WorkerHandle, list[RemoteArray]],
        shape: tuple,
        dtype: np.dtype,
    ) -> None:
        self._function = function
        self._args = args
        self.shape = shape
        self.dtype = dtype

    def compute_on(self, cluster: Cluster, worker: WorkerHandle) -> RemoteArray:
        """Have a worker compute it."""
        (key,) = cluster.call(worker, _evaluate, [self._express(worker)])
        return RemoteArray(cluster, worker, key, self.shape, self.dtype)

    def _express(self, worker: WorkerHandle | None) -> list[Any]:
        """Return the function and its arguments on a worker, or here; of these the same."""
        args = self._args
        if isinstance(args, dict):
            first = next(iter(args.values()))
            args = first[0].cluster.fetch(first) if worker is None else args[worker]
        expressed = (x._express(worker) if isinstance(x, Replicated) else x for x in args)
        return [self._function, *expressed]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def T(self) -> Replicated:
        return Replicated(np.transpose, [self], self.shape[::-1], self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(_evaluate(self._express(None)), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        # ``x *= y`` makes another array.
        if set(options) == {"out"} and all(out is inputs[0] for out in options["out"]):
            options = {}
        if ufunc.signature is not None or method != "__call__" or options:
            inputs = tuple(np.asarray(x) if isinstance(x, Replicated) else x for x in inputs)
            return getattr(ufunc, method)(*inputs, **options)
        return Replicated(ufunc, inputs, *find_kind_of_ufunc(ufunc, inputs))

    def transpose(self, axes: None = None) -> Replicated:  # numpy.transpose calls it
        return self.T


def _evaluate(x: Any) -> Any:
    """Call the function, of evaluated arguments, in a list; return anything else as it is."""
    return x[0](*map(_evaluate, x[1:])) if isinstance(x, list) else x

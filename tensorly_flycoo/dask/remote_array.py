"""Arrays on workers, which look like NumPy's: each operation becomes a command."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..linalg import hals, tall_skinny
from .cluster import Cluster
from .handles import Kind, RemoteObject, WorkerHandle


class RemoteArray(RemoteObject, NDArrayOperatorsMixin):
    """An array on a worker; blocks of `RowShards` are such arrays.

    Operations return at once with another one, whose shape and dtype are known. Operands are
    numbers, NumPy arrays, and arrays on the same worker.
    """

    def __init__(
        self, cluster: Cluster, worker: WorkerHandle, key: int, shape: tuple, dtype: Any
    ) -> None:
        super().__init__(worker, key)
        self.cluster = cluster
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)

    @classmethod
    def put(cls, cluster: Cluster, worker: WorkerHandle, array: np.ndarray) -> RemoteArray:
        """Copy a NumPy array to a worker."""
        (key,) = cluster.call(worker, np.copy, [array.copy()])
        return cls(cluster, worker, key, array.shape, array.dtype)

    def copy_at(self, worker: WorkerHandle, key: int) -> RemoteArray:
        return RemoteArray(self.cluster, worker, key, self.shape, self.dtype)

    @property
    def kind(self) -> Kind:
        return self.shape, self.dtype

    def fetch(self) -> np.ndarray:
        """Wait for the array, and return it."""
        return self.cluster.fetch([self])[0]

    def _call(
        self, function: Callable, args: Sequence[Any], kwargs: dict[str, Any], kind: Kind
    ) -> RemoteArray:
        args = [x.copy() if isinstance(x, np.ndarray) else x for x in args]
        (key,) = self.cluster.call(self.worker, function, args, kwargs)
        return RemoteArray(self.cluster, self.worker, key, *kind)

    def call_remotely(self, function: Callable, *args: Any) -> Any:
        """Call one of our own functions of arrays on the worker; see `remote_aware`."""
        kinds = _find_kinds[function](*args)
        keys = self.cluster.call(self.worker, function, args, num_results=len(kinds))
        results = [
            RemoteArray(self.cluster, self.worker, key, *kind)
            for key, kind in zip(keys, kinds, strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        (out,) = options.pop("out", (None,))
        if method != "__call__" or options or (out is not None and out is not self):
            _refuse(f"{ufunc.__name__}.{method} with {', '.join(options) or 'out'}")
        if out is not None:
            args = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
            self.cluster.call(self.worker, ufunc, args, {"out": self}, num_results=0)
            return self
        return self._call(ufunc, inputs, {}, find_kind_of_ufunc(ufunc, inputs))

    def __array_function__(
        self, function: Callable, types: Any, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        if function not in _KINDS:
            _refuse(function.__name__)
        kind = _KINDS[function](*args, **kwargs)
        args = tuple(list(x) if isinstance(x, tuple) else x for x in args)
        return self._call(function, args, kwargs, kind)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("asarray")

    # Methods of arrays

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> RemoteArray:
        return self._call(np.transpose, [self], {}, (self.shape[::-1], self.dtype))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<RemoteArray: shape={self.shape}, dtype={self.dtype}, on {self.worker.address}>"

    def __getitem__(self, index: Any) -> RemoteArray:
        shape = np.broadcast_to(np.empty((), self.dtype), self.shape)[index].shape
        return self._call(operator.getitem, [self, index], {}, (shape, self.dtype))

    def __setitem__(self, index: Any, value: Any) -> None:
        value = value.copy() if isinstance(value, np.ndarray) else value
        self.cluster.call(self.worker, operator.setitem, [self, index, value], num_results=0)

    def copy(self) -> RemoteArray:
        return self._call_method("copy", (self.shape, self.dtype))

    def astype(self, dtype: Any, copy: bool = True) -> RemoteArray:
        if not copy and self.dtype == dtype:
            return self
        return self._call_method("astype", (self.shape, np.dtype(dtype)), np.dtype(dtype))

    def sum(self, axis: int | None = None, dtype: Any = None) -> RemoteArray:
        kind = _reduce(self, axis, dtype or np.empty(0, self.dtype).sum().dtype)
        return self._call_method("sum", kind, axis=axis, dtype=dtype)

    def clip(self, a_min: Any, a_max: Any) -> RemoteArray:
        return self._call_method("clip", (self.shape, self.dtype), a_min, a_max)

    def _call_method(self, name: str, kind: Kind, *args: Any, **kwargs: Any) -> RemoteArray:
        return self._call(call_method, [self, name, *args], kwargs, kind)

    __hash__ = object.__hash__


def call_method(array: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of an array."""
    return getattr(array, name)(*args, **kwargs)


def send_all(cluster: Cluster, wanted: Sequence[tuple[RemoteObject, WorkerHandle]]) -> list[Any]:
    """Return each array on a worker; copy those that are on other ones, all at once."""
    keys = iter(cluster.transfer([(x, worker) for x, worker in wanted if x.worker is not worker]))
    return [x if x.worker is worker else x.copy_at(worker, next(keys)) for x, worker in wanted]


# Shapes and dtypes of results


def _stand_in(x: Any) -> Any:
    """Return an operand without elements, which has the same dtype."""
    return np.empty(0 if x.ndim else (), x.dtype) if hasattr(x, "ndim") else x


def find_kind_of_ufunc(ufunc: np.ufunc, inputs: Sequence[Any]) -> Kind:
    """Find the shape and the dtype of a result."""
    if ufunc is np.matmul:
        first, second = inputs
        return first.shape[:-1] + second.shape[1:], np.result_type(first.dtype, second.dtype)
    with np.errstate(all="ignore"):
        dtype = ufunc(*map(_stand_in, inputs)).dtype
    return np.broadcast_shapes(*(getattr(x, "shape", ()) for x in inputs)), dtype


def _reduce(x: Any, axis: int | None, dtype: Any) -> Kind:
    if axis is None:
        return (), dtype
    return x.shape[:axis] + x.shape[axis:][1:], dtype


def _concatenate(arrays: Sequence[Any], axis: int = 0) -> Kind:
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    return tuple(shape), np.result_type(*(x.dtype for x in arrays))


def _where(condition: Any, x: Any, y: Any) -> Kind:
    shapes = (getattr(operand, "shape", ()) for operand in (condition, x, y))
    dtype = np.where(*map(_stand_in, (condition, x, y))).dtype
    return np.broadcast_shapes(*shapes), dtype


#: NumPy's functions, and what they return.
_KINDS: dict[Callable, Callable[..., Kind]] = {
    np.copy: lambda x, order="K": (x.shape, x.dtype),
    np.max: lambda x, axis=None: _reduce(x, axis, x.dtype),
    np.min: lambda x, axis=None: _reduce(x, axis, x.dtype),
    np.sum: lambda x, axis=None: _reduce(x, axis, x.dtype),
    np.concatenate: _concatenate,
    np.where: _where,
}


#: Our own functions, and what they return.
_find_kinds: dict[Callable, Callable[..., list[Kind]]] = {
    tall_skinny.sum_columns: lambda x: [((x.shape[1],), np.dtype(np.float64))],
    tall_skinny.transposed_product: lambda a, b: [
        ((a.shape[1], b.shape[1]), np.result_type(a.dtype, b.dtype))
    ],
    tall_skinny.solve: lambda a, b: [(b.shape, b.dtype)],
    tall_skinny.qr: lambda a: [
        ((a.shape[0], min(a.shape)), a.dtype),
        ((min(a.shape), a.shape[1]), a.dtype),
    ],
    hals.sweep_block: lambda targets, gram, rows, *_: [((2,), np.dtype(np.float64))],
}


def _refuse(name: str) -> NoReturn:
    raise TypeError(f"numpy.{name} is not done for arrays on workers")

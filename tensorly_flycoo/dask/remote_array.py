"""Arrays on workers, which look like NumPy's: each operation becomes a command."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, Self

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..engines import tall
from ..engines.narrow_rows import NARROW_FORMATS
from ..engines.row_rules import NUM_MEASURES, Method, RowRule
from ..spread import array_admm, row_shards
from .cluster import Cluster, Kind, RemoteObject, WorkerHandle
from .messages import SITE


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
        self.kind = self.shape, self.dtype

    @classmethod
    def empty(
        cls, cluster: Cluster, worker: WorkerHandle, shape: tuple[int, int], dtype: np.dtype
    ) -> RemoteArray:
        """Allocate a matrix on a worker."""
        (key,) = cluster.call(worker, call_method, [SITE, "empty", shape, dtype])
        return cls(cluster, worker, key, shape, dtype)

    def call_remotely(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call a function of arrays on the worker: NumPy's, or our own; see `remote_aware`."""
        if isinstance(function, np.ufunc):
            kinds: Kind | list[Kind] = _find_kind(function, *args)
        elif function in _KINDS:
            kinds = _KINDS[function](*args, **kwargs)
        else:
            _refuse(function.__name__)
        # Copies: the caller may write to its arrays before they are sent.
        args = tuple(x.copy() if isinstance(x, np.ndarray) else x for x in args)
        if not isinstance(kinds, list):
            (key,) = self.cluster.call(self.worker, function, args, kwargs)
            return RemoteArray(self.cluster, self.worker, key, *kinds)
        keys = self.cluster.call(self.worker, function, args, kwargs, num_results=len(kinds))
        return tuple(
            RemoteArray(self.cluster, self.worker, key, *kind)
            for key, kind in zip(keys, kinds, strict=True)
        )

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            _refuse(f"{ufunc.__name__}.{method} with {', '.join(options)}")
        return self.call_remotely(ufunc, *inputs)

    def __array_function__(self, function: Callable, types: Any, args: tuple, kwargs: dict) -> Any:
        return self.call_remotely(function, *args, **kwargs)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("asarray")

    # Methods of arrays

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<RemoteArray: shape={self.shape}, dtype={self.dtype}, on {self.worker.address}>"

    def __getitem__(self, index: Any) -> RemoteArray:
        return self.call_remotely(operator.getitem, self, index)

    def __iadd__(self, other: RemoteArray) -> Self:  # type: ignore[misc]
        # By `out`, so that the worker knows what a failed exchange may have spoilt.
        self.cluster.call(self.worker, np.add, [self, other], {"out": self}, num_results=0)
        return self

    def copy(self) -> RemoteArray:
        return self.call_remotely(np.copy, self, order="C")

    def astype(self, dtype: Any, copy: bool = True) -> RemoteArray:
        if not copy and self.dtype == dtype:
            return self
        return self.call_remotely(call_method, self, "astype", np.dtype(dtype))

    __hash__ = object.__hash__


@dataclass(eq=False, repr=False)
class Replicated(NDArrayOperatorsMixin):
    """A small array that the client and each worker compute for themselves, when they use it.

    It is ``function(*args)``, where arguments may be others of this class, or, given by worker,
    arrays there. Elementwise functions and the transpose make another one; anything else computes
    it here.
    """

    function: Callable
    args: Sequence[Any] | dict[WorkerHandle, list[RemoteArray]]
    shape: tuple
    dtype: np.dtype

    def compute_on(self, cluster: Cluster, worker: WorkerHandle) -> RemoteArray:
        """Have a worker compute it."""
        (key,) = cluster.call(worker, _evaluate, [self._express(worker)])
        return RemoteArray(cluster, worker, key, self.shape, self.dtype)

    def _express(self, worker: WorkerHandle | None) -> list[Any]:
        """Return the function and its arguments on a worker, or here if it is None.

        Arguments of this class are such lists, too: `_evaluate` computes them.
        """
        if not isinstance(self.args, dict):
            args = self.args
        elif worker is not None:
            args = self.args[worker]
        else:
            first = next(iter(self.args.values()))
            args = first[0].cluster.fetch(first)
        expressed: list[Any] = [self.function]
        for x in args:
            if isinstance(x, Replicated):
                expressed.append(x._express(worker))
            else:
                expressed.append(x)
        return expressed

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
        if row_shards.is_in_place(inputs, options):
            options = {}
        if ufunc.signature is not None or method != "__call__" or options:
            plain = [np.asarray(x) if isinstance(x, Replicated) else x for x in inputs]
            return getattr(ufunc, method)(*plain, **options)
        return Replicated(ufunc, inputs, *_find_kind(ufunc, *inputs))

    def transpose(self, axes: None = None) -> Replicated:  # numpy.transpose calls it
        return self.T


def _evaluate(x: Any) -> Any:
    """Call the function, of evaluated arguments, in a list; return anything else as it is.

    Examples
    --------
    >>> _evaluate([max, 1, [min, 2, 3]])
    2
    """
    if not isinstance(x, list):
        return x
    function, *args = x
    return function(*map(_evaluate, args))


def call_method(array: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of an array."""
    return getattr(array, name)(*args, **kwargs)


def send_all(cluster: Cluster, wanted: Sequence[tuple[RemoteObject, WorkerHandle]]) -> list[Any]:
    """Return each array on its worker; copy arrays from other workers, all at once."""
    moves = [(x, worker) for x, worker in wanted if x.worker is not worker]
    keys = iter(cluster.transfer(moves))
    placed = []
    for x, worker in wanted:
        if x.worker is worker:
            placed.append(x)
        else:
            placed.append(x.copy_at(worker, next(keys)))
    return placed


# Shapes and dtypes of results


def _find_kind(function: Callable, *inputs: Any) -> Kind:
    """Find the shape and the dtype that an elementwise function, or `numpy.matmul`, returns."""
    if function is np.matmul:
        first, second = inputs
        return first.shape[:-1] + second.shape[1:], np.result_type(first.dtype, second.dtype)
    with np.errstate(all="ignore"):
        dtype = function(*map(_make_stand_in, inputs)).dtype
    shapes = [getattr(x, "shape", ()) for x in inputs]
    return np.broadcast_shapes(*shapes), dtype


def _make_stand_in(x: Any) -> Any:
    """Return an operand without elements, which has the same dtype; numbers are as they are."""
    if not hasattr(x, "ndim"):
        return x
    if x.ndim == 0:
        return np.empty((), x.dtype)
    return np.empty(0, x.dtype)


def _take(x: Any, index: Any) -> Kind:
    """Find the shape and dtype of ``x[index]``, by indexing an array that takes no memory."""
    stand_in = np.broadcast_to(np.empty((), x.dtype), x.shape)
    return stand_in[index].shape, x.dtype


def _split(x: Any, places: Sequence[int]) -> list[Kind]:
    """Find the shapes and dtypes of `numpy.split`."""
    edges = (0, *places, x.shape[0])
    return [_take(x, slice(start, stop)) for start, stop in pairwise(edges)]


def _reduce(x: Any, axis: int | None = None, keepdims: bool = False) -> Kind:
    """Find the shape and dtype of a maximum or minimum."""
    if axis is not None:
        return x.shape[:axis] + x.shape[axis:][1:], x.dtype
    if keepdims:
        return (1,) * x.ndim, x.dtype
    return (), x.dtype


def _concatenate(arrays: Sequence[Any], axis: int = 0) -> Kind:
    """Find the shape and dtype of `numpy.concatenate`."""
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    return tuple(shape), np.result_type(*(x.dtype for x in arrays))


def _factorise(a: Any) -> list[Kind]:
    """Find the shapes and dtypes of Q and R."""
    least = min(a.shape)
    return [((a.shape[0], least), a.dtype), ((least, a.shape[1]), a.dtype)]


def _multiply_transposed(a: Any, b: Any) -> Kind:
    """Find the shape and dtype of ``a.T @ b``."""
    return (a.shape[1], b.shape[1]), np.result_type(a.dtype, b.dtype)


def _update_rows(
    targets: Any, rows: Any, dual: Any, rule: RowRule, num_steps: int, *_: Any
) -> list[Kind]:
    """Find the shapes and dtypes of updated rows, of their dual variable, and of measures."""
    num_dual_rows = 0 if dual is None else rows.shape[0]
    return [
        (rows.shape, rows.dtype),
        ((num_dual_rows, rows.shape[1]), rows.dtype),
        ((num_steps, NUM_MEASURES[rule.method]), np.dtype(np.float64)),
    ]


def _find_peaks(targets: RemoteArray, rows: RemoteArray, dual: Any, rule: RowRule, *_: Any) -> Kind:
    return (len(rule.levels), rows.shape[1]), np.dtype(np.float64)


def _step_rows(
    targets: Any, rows: Any, dual: Any, project: Any, num_steps: int, *_: Any
) -> list[Kind]:
    """Find the same of steps of ADMM with an operator of a user's own."""
    rule = RowRule(Method.ADMM)
    return _update_rows(targets, rows, dual, rule, num_steps)


#: NumPy's functions and our own, and what they return.
_KINDS: dict[Callable, Callable[..., Kind | list[Kind]]] = {
    operator.getitem: _take,
    np.copy: lambda x, order="K": (x.shape, x.dtype),
    np.clip: lambda x, a_min, a_max: (x.shape, x.dtype),
    np.max: _reduce,
    np.min: _reduce,
    np.concatenate: _concatenate,
    np.split: _split,
    np.where: functools.partial(_find_kind, np.where),
    call_method: lambda x, name, dtype: (x.shape, dtype),  # of `astype`
    tall.sum_columns: lambda x: ((x.shape[1],), np.dtype(np.float64)),
    tall.transposed_product: _multiply_transposed,
    row_shards.solve_block: lambda rows, matrix: (rows.shape, rows.dtype),
    tall.qr: _factorise,
    row_shards.update_block: _update_rows,
    row_shards.find_block_peaks: _find_peaks,
    row_shards.find_block_scales: lambda block: ((block.shape[1],), block.dtype),
    row_shards.round_block: lambda block, scales: (block.shape, block.dtype),
    row_shards.narrow_block: lambda block, scales: (
        block.shape,
        NARROW_FORMATS[block.dtype].dtype,
    ),
    array_admm.step_shard: _step_rows,
}


def _refuse(name: str) -> NoReturn:
    """Refuse a function that would gather an array, or that has no entry in the table."""
    raise TypeError(f"numpy.{name} is not supported for arrays on workers")

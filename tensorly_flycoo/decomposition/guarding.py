"""What surrounds a whole call: labels, one log line for all kernels, a useful MemoryError."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from tensorly.cp_tensor import CPTensor, validate_cp_rank

from ..checks import LAYOUTS, check_dtype
from ..engines import select_engine
from ..ops.call_memory import count_call_nbytes
from ..ops.views import find_sparse
from ..reporting import log_compilation
from ..tensor.coo_cache import find_cached, is_table, not_sparse_error
from ..tensor.labelled import LabelledTensor
from ..tensor.memory import DTYPES, attempt, count_own_nbytes, describe, format_nbytes
from ..tensor.tensor import FlycooTensor
from .cp_model import warn_of_zeros
from .labelled_cp import label_result

if TYPE_CHECKING:
    from ..engines.protocol import Engine

_P = ParamSpec("_P")
_R = TypeVar("_R")


def guard(
    function: Callable[_P, _R],
    dense: Callable[_P, _R] | None = None,
    label: Callable[[Any, Mapping[str, np.ndarray]], Any] = label_result,
) -> Callable[_P, _R]:
    """Let a function log all that it compiles in one line, and a MemoryError say what would fit.

    A CP model with components that are zero is returned with a warning.

    The error says what the whole call needs, what is free, and which other layout, dtype, initial
    guess or device would fit. Calls without a sparse tensor go to `dense`, by default `function`,
    and raise what it raises; but a table is refused. The function gets the tensor of a
    `LabelledTensor`; then `label` turns its result and the labels into that of the call.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        x = find_sparse((*args, *kwargs.values()))
        if x is None:
            for table in filter(is_table, args[:1] or [kwargs.get("tensor")]):
                raise not_sparse_error(table)
            with log_compilation():
                return (dense or function)(*args, **kwargs)
        for labelled in (*args, *kwargs.values()):
            if isinstance(labelled, LabelledTensor):
                plain = [_drop_labels(argument) for argument in args]
                named = {name: _drop_labels(argument) for name, argument in kwargs.items()}
                return label(call(*plain, **named), labelled.labels)

        def explain() -> str:
            given = inspect.signature(function).bind(*args, **kwargs)
            given.apply_defaults()
            return _explain_call(function.__name__, x, given.arguments)

        with log_compilation():
            result = attempt(lambda: function(*args, **kwargs), explain)
        model = result[0] if isinstance(result, tuple) else result
        if isinstance(model, CPTensor):
            warn_of_zeros(model)
        return result

    return call


def _drop_labels(argument: Any) -> Any:
    return argument.tensor if isinstance(argument, LabelledTensor) else argument


@dataclass(frozen=True)
class _Work:
    """What a call does, as far as its memory depends on it; the model is that of `parafac`.

    Without a rank nothing but the tensor is known.
    """

    shape: tuple[int, ...]
    nnz: int
    layout: str
    dtype: np.dtype
    rank: int | None = None
    init: str = "random"
    slabs: int | None = None  # by default as many as the engine chooses

    def count_nbytes(self, engine: Engine) -> int:
        num_slabs = self.slabs or engine.choose_num_slabs(self.nnz)
        sizes = (self.nnz, self.shape, self.dtype, num_slabs)
        nbytes, peak_nbytes = engine.estimate_layout(self.layout, *sizes)
        nbytes = engine.share_nbytes(nbytes, num_slabs)
        if self.rank is None:
            return nbytes
        arguments = (self.shape, self.nnz, self.dtype, self.rank, self.init, num_slabs)
        return max(peak_nbytes, nbytes + count_call_nbytes(engine, *arguments))

    def describe(self) -> str:
        model = "" if self.rank is None else f" of rank {self.rank} with init={self.init!r},"
        return f"{model or ' with'} layout={self.layout!r} and dtype='{self.dtype}'"

    def list_cheaper(self) -> Iterator[tuple[frozenset[str], _Work]]:
        """Yield each set of changes, the small ones first, and the work with them."""
        inits = [self.init] if self.init == "random" else [self.init, "random"]
        dtypes = DTYPES[DTYPES.index(self.dtype) :]
        works = [
            replace(self, layout=layout, dtype=dtype, init=init)
            for layout, dtype, init in itertools.product(LAYOUTS, dtypes, inits)
        ]
        options = [(self._list_changes(work), work) for work in works]
        yield from sorted(options, key=lambda option: len(option[0]))

    def _list_changes(self, other: _Work) -> frozenset[str]:
        names = ("layout", "init", "dtype")
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return frozenset(f"{name}='{new}'" for name, old, new in pairs if new != old)


def _explain_call(name: str, x: Any, given: Mapping[str, Any]) -> str:
    x = getattr(x, "tensor", x)  # of a view
    held = x if isinstance(x, FlycooTensor) else find_cached(x)
    engine = select_engine() if held is None else held._engine
    held_nbytes = 0 if held is None else count_own_nbytes(held)
    work = _find_work(x, "remap" if held is None else held.layout, given)
    if held is not None:
        work = replace(work, slabs=held.slabs)
    needed, free = work.count_nbytes(engine), engine.count_free_nbytes()
    room = needed if free is None else free + held_nbytes
    is_known = work.rank is not None and needed >= room
    if not is_known:  # the model leaves something out; more than there is room for was needed
        needed = max(needed, room)
    fits = _list_fitting(work, engine, needed, room)
    needs = f"{name}{work.describe()} needs {'' if is_known else 'more than '}"
    would = "would fit" if is_known else "would need less"
    return describe(needs + format_nbytes(needed), engine, held_nbytes, free, fits, would)


def _find_work(x: Any, layout: str, given: Mapping[str, Any]) -> _Work:
    """Find what is computed from the arguments of a call."""
    work = _Work(tuple(x.shape), x.nnz, layout, check_dtype(x.dtype))
    is_cp = {"tensor", "rank", "init"} <= given.keys() and np.ndim(given["rank"]) == 0
    if not is_cp:
        return work
    init = given["init"] if given["init"] == "svd" else "random"
    return replace(work, rank=validate_cp_rank(work.shape, given["rank"]), init=init)


def _list_fitting(work: _Work, engine: Engine, needed_nbytes: int, room: int) -> list[str]:
    """List the smallest sets of changes with which the work fits, and the CPU."""
    fits: dict[frozenset[str], int] = {}
    for changes, other in work.list_cheaper():
        nbytes = other.count_nbytes(engine)
        is_less = nbytes <= room and nbytes < min(needed_nbytes, work.count_nbytes(engine))
        if changes and is_less and not any(known <= changes for known in fits):
            fits[changes] = nbytes
    texts = [f"{' and '.join(sorted(changes))} ({format_nbytes(n)})" for changes, n in fits.items()]
    if engine.name != "cpu":
        host = select_engine("cpu")
        nbytes, free = work.count_nbytes(host), host.count_free_nbytes()
        if free is not None and nbytes <= free:
            texts.append(f"device='cpu' ({format_nbytes(nbytes)})")
    return texts

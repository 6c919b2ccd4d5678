"""How a model was made: one record that travels with it as `model.flycoo`.

Each function is right by itself. What makes a number wrong is what the next function does not
know: that cells were unknown, not zeros; that some were weighted; what the ridge was. So each
decomposition gives its model a `FitRecord`, files and checkpoints keep it, and each function that
takes a model asks it. A pair of arrays that a user rebuilt has none; functions then take it for the
plain model that it looks like.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from .array_modules import Array

_M = TypeVar("_M")

#: How a decomposition treats cells that the tensor does not store.
ABSENT = ("zero", "unknown", "weighted")


class RunState(NamedTuple):
    """The state that a checkpoint saves beside the model; solvers pass it to callbacks."""

    tensor: Any  # a `FlycooTensor`; None for several
    arrays: Mapping[str, Array] = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class FitRecord:
    """How a decomposition made a model: ``model.flycoo``.

    Attributes
    ----------
    method : str
        The name of the decomposition; "" if it is unknown.
    loss : str
        "gaussian" for least squares, or the loss of `generalized_parafac`; "custom" if the user
        wrote it.
    absent : {"zero", "unknown", "weighted"}
        What a cell without a row is: a zero, as to most decompositions; unknown, as to
        `observed_parafac`; or a zero that counts with the weight `unobserved`.
    unobserved : float
        The weight of each cell that is not stored, if they are "weighted".
    is_weighted : bool
        Whether the stored cells had weights of their own, a `confidence`.
    mask : sparse.COO, list of sparse.COO, or None
        The missing cells, as `parafac` takes them: stored zeros, fill_value 1, size 1 in modes
        whose indices are all alike. Of `parafac2` one for each slice.
    l2_reg : float
        The ridge.
    non_negative : tuple of int
        The modes whose factors, or rows, were kept non-negative.
    constraints : mapping of int to mapping of str to float
        For each mode with one, the names of its constraints and penalties, and their strengths.
    is_centred : bool
        Whether the slices of `parafac2` were taken less the means of their columns, which no model
        keeps.
    bias_modes : tuple of int
        For each component the mode of which it is a bias, the number of modes for the mean, and -1
        for others. Empty without biases.
    scale : float or None
        The root mean square of the values, less their mean if there are biases: to this the ridge
        of `observed_parafac` is relative.
    value_column : str or None
        The column of the table from which the values came; None if rows were counted, or if there
        was no table.
    dtype : str
        That of the factors when they were fitted.
    intervals : sequence of pair of array (I_n, R)
        The lower and the upper ends of the factors' intervals, if `uncertainty` made the model.
    run : RunState or None
        Only in a callback: the tensor, and what the solver needs to go on.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     cp = tl.decomposition.parafac(x, 3, n_iter_max=2, l2_reg=0.1)
    >>> cp.flycoo.method, cp.flycoo.absent, cp.flycoo.l2_reg
    ('parafac', 'zero', 0.1)
    """

    method: str = ""
    loss: str = "gaussian"
    absent: str = "zero"
    unobserved: float = 0.0
    is_weighted: bool = False
    mask: Any = None
    l2_reg: float = 0.0
    non_negative: tuple[int, ...] = ()
    constraints: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    is_centred: bool = False
    bias_modes: tuple[int, ...] = ()
    scale: float | None = None
    value_column: str | None = None
    dtype: str = ""
    intervals: Sequence[tuple[Array, Array]] = ()
    run: RunState | None = dataclasses.field(default=None, repr=False)

    def __repr__(self) -> str:
        """Show the facts that differ from those of a plain model of all cells."""
        shown = []
        for field in dataclasses.fields(self):
            fact = getattr(self, field.name)
            if field.repr and not _is_plain(fact, field.default):
                shown.append(f"{field.name}={_shorten(fact)}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def replace(self, **changes: Any) -> "FitRecord":
        """Return a record with other facts."""
        return dataclasses.replace(self, **changes)


class _Call(NamedTuple):
    """A decomposition that runs."""

    method: str
    describe: Callable[[], FitRecord]  # the record of its models


#: In `call`: the `_Call` that this thread runs. No ContextVar: tasks of an event loop copy those,
#: and would keep the tensor alive.
_running = threading.local()


@contextlib.contextmanager
def recording(method: str, describe: Callable[[], FitRecord]) -> Iterator[None]:
    """Let the models that a decomposition makes in a block have the record that it describes.

    It is described when it is first asked for: by then the decomposition has checked its options.
    """
    outer_call = getattr(_running, "call", None)
    _running.call = _Call(method, functools.cache(describe))
    try:
        yield
    finally:
        _running.call = outer_call


def current_record(method: str) -> FitRecord:
    """Return the record of the decomposition `method` that runs; if it does not, just its name."""
    call: _Call | None = getattr(_running, "call", None)
    if call is None or call.method != method:
        return FitRecord(method=method)
    return call.describe()


def find_record(model: Any) -> FitRecord | None:
    """Return the record of a model, None if it has none, as a pair that a user rebuilt."""
    record = getattr(model, "flycoo", None)
    return record if isinstance(record, FitRecord) else None


def attach(model: _M, record: FitRecord | None) -> _M:
    """Set the record of a model, and return the model."""
    if record is not None:
        setattr(model, "flycoo", record)  # noqa: B010 (TensorLy's classes do not declare it)
    return model


def _is_plain(fact: Any, default: Any) -> bool:
    """Return whether a fact is its default, or empty."""
    if fact is None or isinstance(fact, str | bool | int | float):
        return bool(fact == default)
    return not len(fact)


def _shorten(fact: Any) -> str:
    """Show a fact in one short line: only the type of a long one, such as an array."""
    if isinstance(fact, Mapping):  # of a mapping for each mode, whatever their types
        fact = {mode: dict(constraints) for mode, constraints in fact.items()}
    text = repr(fact)
    if len(text) >= 60:
        return f"<{type(fact).__name__}>"
    return text

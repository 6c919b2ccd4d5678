"""The loop that decompositions share: a sweep improves a model until a rule stops it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np

from ..base.array_modules import Array
from ..base.fit_record import FitRecord, RunState, attach, current_record
from ..base.watching import note_iteration
from ..io.checkpoint import Resumed
from .stopping import Stop

#: Called with a model and its error; returns True to stop.
Callback: TypeAlias = Callable[..., bool | None]


@dataclass
class RunModel:
    """A model that a run improves in place.

    Its list of factors stays the run's: new factors replace the old ones in it, which are then
    free.
    """

    weights: Any  # (R,), or None for ones; Tucker's core
    factors: list[Array]  # (I_n, R) each
    errors: list[Any] = field(default_factory=list)  # after each iteration; a checkpoint's first


class Sweep(ABC):
    """One plain iteration of a decomposition, over all parts of its model."""

    solver: str  # the name of the decomposition
    is_loss = False  # whether its errors are those of a loss, not relative ones
    model: RunModel

    @abstractmethod
    def update(self, iteration: int) -> Any:
        """Improve the model in place; return its error, None if that is not needed."""

    @abstractmethod
    def measure_start(self) -> Any:
        """Return the error of the model before the first iteration."""

    @abstractmethod
    def make(self) -> Any:
        """Make TensorLy's kind of model, with a list of factors of its own."""

    @abstractmethod
    def save_state(self) -> Mapping[str, Array]:
        """Return the arrays that a resumed run needs besides the model."""


class Accelerator(ABC):
    """A way to get further with each iteration of a sweep."""

    @abstractmethod
    def step(self, iteration: int) -> Any:
        """Improve the sweep's model in place; return its error."""

    @abstractmethod
    def save_state(self) -> Mapping[str, Array]:
        """Return the arrays that a resumed run needs besides the model."""


def only_reads(callback: Any) -> bool:
    """Return whether a callback, or none, is known to leave the factors as they are."""
    return callback is None or getattr(type(callback).__call__, "only_reads", False)


def find_state(init: Any) -> Mapping[str, np.ndarray]:
    """Return the state that the checkpoint `init` holds; no arrays for another initial guess."""
    if isinstance(init, Resumed):
        return init.state
    return {}


@final
@dataclass(kw_only=True)
class Run:
    """A run of a decomposition: it iterates until its model is good enough.

    What an iteration does is up to `sweep`, or to what accelerates it. Each keeps its own state,
    and its part of a checkpoint.
    """

    sweep: Sweep
    tensor: Any  # what checkpoints are of
    n_iter_max: int
    stop: Stop
    accelerate: Accelerator | None = None
    callback: Callback | None = None
    verbose: int = 0
    return_errors: bool = False
    normalize: Callable[[RunModel], None] | None = None  # after each iteration but the last
    finish: Callable[[], Any] | None = None  # makes the result, if that is not `sweep.make()`
    clean_up: Callable[[], None] | None = None  # after each iteration, and after one that fails
    facts: Mapping[str, Any] = field(default_factory=dict)  # what only the run can say of its model

    def iterate(self) -> Any:
        """Improve the model until a rule stops the run; return it, with errors if asked for.

        The errors of a checkpoint count for `stop`, but are not returned. The callback gets the
        model, whose record has the tensor and the state, and its error: before the first iteration
        that of the start or checkpoint. The arrays never change.
        """
        model = self.sweep.model
        num_past = len(model.errors)
        is_resumed = num_past > 0
        if self.callback is not None:
            error = model.errors[-1] if is_resumed else self.sweep.measure_start()
            self._call(error)
        if not (is_resumed and self.stop.is_over(model.errors)):
            self._iterate(is_resumed)
        finish = self.finish or self.sweep.make
        result = attach(finish(), self._describe())
        if self.return_errors:
            return result, model.errors[num_past:]
        return result

    def _iterate(self, is_resumed: bool) -> None:
        """Improve the model until a rule or the callback stops the run."""
        model = self.sweep.model
        # The run that wrote the checkpoint would have done so before its next iteration.
        if is_resumed and self.normalize is not None:
            self.normalize(model)
        self._note(0)
        for iteration in range(self.n_iter_max):
            if self.verbose > 1:
                print(f"iteration {iteration} begins")
            error = self._step(iteration)
            if error is not None:
                model.errors.append(error)
                if self.verbose:
                    print(f"iteration {iteration}, reconstruction error: {error}")
            self._note(iteration + 1, error)
            if self._call(*model.errors[-1:]) or self.stop.is_over(model.errors):
                break
            if self.normalize is not None:
                self.normalize(model)

    def _note(self, num_done: int, error: Any = None) -> None:
        """Let somebody who watches see how far the run has come."""
        note_iteration(num_done, self.n_iter_max, error, is_loss=self.sweep.is_loss)

    def _step(self, iteration: int) -> Any:
        """Do one iteration, accelerated or not; return the error."""
        step = self.sweep.update if self.accelerate is None else self.accelerate.step
        try:
            return step(iteration)
        finally:
            if self.clean_up is not None:
                self.clean_up()

    def _call(self, *error: Any) -> bool:
        """Call the callback with a model and its error, if it is known; return whether to stop."""
        if self.callback is None:
            return False
        state = dict(self.sweep.save_state())
        if self.accelerate is not None:
            state |= self.accelerate.save_state()
        record = self._describe().replace(run=RunState(self.tensor, state))
        return self.callback(attach(self.sweep.make(), record), *error) is True

    def _describe(self) -> FitRecord:
        """Return the record of the model, with facts from the options and from this run."""
        return current_record(self.sweep.solver).replace(**self.facts)

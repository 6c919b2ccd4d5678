"""One table of the decompositions and their abilities, to choose, compare or describe them."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorly.decomposition

from .. import decomposition
from ..loop.gauss_newton import AUTO
from ..loop.momentum import NESTEROV
from ..tensor.entrance import is_sparse


@dataclass(frozen=True)
class Method:
    """A decomposition, and its abilities without further options."""

    function: Callable[..., Any]
    model: str = "CP"  # what it makes: "CP", "Tucker", "PARAFAC2", or "coupled" CP models
    loss: str = "gaussian"  # what it minimises; the default if it has an option `loss`
    non_negative: bool = False  # whether its model is
    takes_mask: bool = False  # whether `mask` holds entries out
    knows_zeros: bool = True  # whether cells that are not stored are zeros to it, not unknown
    has_momentum: bool = False  # whether ``linesearch="nesterov"`` is on where one does not say
    runs_together: bool = False  # whether `run_together` iterates many of its runs at once
    is_ours: bool = True  # whether it takes a `MissingEntries` for a mask

    @property
    def name(self) -> str:
        """The name of the function; a `functools.partial` has none."""
        return str(getattr(self.function, "__name__", repr(self.function)))

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """All parameters and their default values."""
        parameters = inspect.signature(self.function).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters}

    @property
    def can_hold_out(self) -> bool:
        """Whether entries of its data can be held out."""
        return self.takes_mask or not self.knows_zeros

    @property
    def error_name(self) -> str:
        """Name of what `return_errors` adds: "loss" if that is an option, else "error"."""
        if "loss" in self.defaults:
            return "loss"
        return "error"

    def find_loss(self, options: Mapping[str, Any]) -> Any:
        """Return the loss that these options choose."""
        if "loss" not in self.defaults:
            return self.loss
        return options.get("loss", self.loss)

    def prefer_momentum(
        self, x: Any, options: Mapping[str, Any], one_by_one: bool = False
    ) -> dict[str, Any]:
        """Return options with momentum, where there is some and they do not say.

        Runs that are iterated one by one get Gauss-Newton steps too, where there are some.
        """
        is_possible = self.has_momentum and is_sparse(x)
        has_mask = options.get("mask") is not None  # such runs go together without momentum
        is_smooth = np.any(options.get("smoothness"))  # momentum does not see this penalty
        if not is_possible or has_mask or is_smooth:
            return dict(options)
        has_steps = one_by_one and self.runs_together and not options.get("orthogonalise")
        linesearch = AUTO if has_steps else NESTEROV
        return {"linesearch": linesearch} | dict(options)  # what options say stays


#: All decompositions by name.
METHODS = {
    method.name: method
    for method in (
        Method(decomposition.parafac, takes_mask=True, has_momentum=True, runs_together=True),
        Method(decomposition.non_negative_parafac, non_negative=True, takes_mask=True),
        Method(decomposition.non_negative_parafac_hals, non_negative=True, has_momentum=True),
        Method(decomposition.constrained_parafac),
        Method(decomposition.observed_parafac, knows_zeros=False),
        Method(decomposition.generalized_parafac, loss="poisson_count", takes_mask=True),
        Method(decomposition.shared_parafac),
        Method(decomposition.coupled_parafac, "coupled"),
        Method(decomposition.parafac2, "PARAFAC2", takes_mask=True),
        Method(decomposition.tucker, "Tucker", takes_mask=True),
        Method(decomposition.shared_tucker, "Tucker"),
        Method(decomposition.non_negative_tucker, "Tucker", non_negative=True, takes_mask=True),
        Method(decomposition.non_negative_tucker_hals, "Tucker", non_negative=True),
    )
}

CP_METHODS = tuple(name for name, method in METHODS.items() if method.model == "CP")


def find_method(
    method: str | Callable[..., Any], name: str = "method", known: Sequence[str] = CP_METHODS
) -> Method:
    """Return a method by its name, one of `known`, or that of a function.

    A function that is not in the table takes what its signature says.
    """
    if not callable(method):
        if method not in known:
            raise ValueError(f"{name} is {method!r}, expected one of {known}, or a function")
        return METHODS[method]
    unlisted = Method(method, is_ours=False)
    row = METHODS.get(unlisted.name)
    if row is not None and method is row.function:
        return row
    if row is not None and _is_tensorly_function(method, row.name):
        if row.runs_together or row.model == "PARAFAC2":  # ours gives its numbers, and more
            return row
        return replace(row, function=method, has_momentum=False, is_ours=False)
    loss = unlisted.defaults.get("loss", "gaussian")
    return replace(unlisted, loss=loss, takes_mask="mask" in unlisted.defaults)


def _is_tensorly_function(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function is TensorLy's decomposition of that name."""
    of_tensorly = getattr(tensorly.decomposition, name, None)
    if of_tensorly is None:
        return False
    return inspect.unwrap(function) is inspect.unwrap(of_tensorly)

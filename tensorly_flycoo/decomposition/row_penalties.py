"""Penalties of the rows of a factor: l1 and group lasso, for Tucker and PARAFAC2 models.

With everything else fixed, the best rows of a factor minimise

.. math:: f(x) = \\tfrac12 x G x^T - m x^T + s \\, p(x)

each for itself. G is the Gram matrix, and m a row of the MTTKRP, or of the targets of a Tucker
factor. `constrained_parafac` has the same penalties in units of TensorLy's, which change with G.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..base.array_modules import Array, array_module
from ..base.checks import read_strengths, warn
from ..engines import engine_of
from ..engines.row_rules import Method, Operator, RowRule
from ..engines.tall import inner_product, multiply
from ..loop.row_updates import run_rule
from .proximal import project_rows

#: The option: one strength for all modes, one per mode, or a dict for some modes.
RowStrengths: TypeAlias = (
    float | Sequence[float | None] | Mapping[int, float] | Mapping[str, float] | None
)

#: The ridge of each part of a model that has no penalty of its own: it counts with ``|part|**2``,
#: lest it grow while the penalised parts shrink. Another weight would only change the unit of the
#: strengths.
RIDGE = 2.0  # the factor of the identity that is added to the Gram matrix

#: The options, with the operators of the kernels that minimise them.
_OPERATORS = {"l1_reg": Operator.L1, "group_lasso": Operator.GROUP_LASSO}

#: Steps of ADMM for an update, and the tolerance that ends them: those of `constrained_parafac`.
_NUM_STEPS = 10
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class RowPenalty:
    """A penalty of each row of a factor."""

    operator: Operator
    strength: float

    def measure(self, rows: Array) -> float:
        """Return the penalty of all rows, strength included.

        >>> RowPenalty(Operator.GROUP_LASSO, 2.0).measure(np.array([[3.0, 4.0], [0.0, 1.0]]))
        12.0
        """
        if self.operator is Operator.L1:
            sizes = np.abs(rows)
        else:
            sizes = np.sqrt((rows * rows).sum(axis=1))
        return self.strength * float(sizes.sum(dtype=np.float64))

    def project(self, rows: Array, step: float = 1.0) -> Array:
        """Apply the proximal operator of the penalty times `step`."""
        return project_rows(rows, self.operator, self.strength * step)


def read_row_penalties(options: Mapping[str, Any], ndim: int) -> list[RowPenalty | None]:
    """Return the penalty of each mode, None where it has none; refuse two of one mode.

    >>> read_row_penalties({"l1_reg": {1: 0.5}}, 2)
    [None, RowPenalty(operator=<Operator.L1: 2>, strength=0.5)]
    """
    penalties: list[RowPenalty | None] = [None] * ndim
    for name, operator in _OPERATORS.items():
        for mode, strength in enumerate(read_strengths(options.get(name), ndim, name)):
            if not strength:
                continue
            if penalties[mode] is not None:
                raise ValueError(
                    f"l1_reg and group_lasso are both given for mode {mode}, expected one penalty "
                    "for a mode: leave one of them out"
                )
            penalties[mode] = RowPenalty(operator, strength)
    return penalties


def name_row_penalties(
    function: str, options: Mapping[str, Any], ndim: int
) -> list[dict[str, float]]:
    """Return the penalties of each mode by name, the ridges of PARAFAC2 among them, for a record.

    >>> name_row_penalties("parafac2", {"l1_reg": {2: 0.5}}, 3)
    [{'l2_square_reg': 1.0}, {'l2_square_reg': 1.0}, {'l1_reg': 0.5}]
    """
    penalties = read_row_penalties(options, ndim)
    names = {operator: name for name, operator in _OPERATORS.items()}
    has_ridges = function == "parafac2" and any(penalties)
    named: list[dict[str, float]] = []
    for penalty in penalties:
        if penalty is not None:
            named.append({names[penalty.operator]: penalty.strength})
        elif has_ridges:
            named.append({"l2_square_reg": RIDGE / 2})
        else:
            named.append({})
    return named


def warn_if_zero(function: str, part: Array, strengths: Mapping[str, Any]) -> None:
    """Warn if a part of a model is zero, as all of it is then, and name the penalties to blame."""
    if np.any(part):
        return
    given = {name: strength for name, strength in strengths.items() if strength is not None}
    causes = ", ".join(f"{name}={strength!r}" for name, strength in given.items())
    warn(
        f"{function} ended in all zeros: {causes} is too strong for this tensor. Try a tenth of "
        "it, and less until some factors remain; how strong a penalty is depends on the size of "
        "the tensor's values"
    )


def add_ridge(gram: Array) -> Array:
    """Return the Gram matrix of the systems of a factor that has no penalty but a ridge."""
    return gram + RIDGE * array_module(gram).eye(len(gram), dtype=gram.dtype)


def update_rows(penalty: RowPenalty, factor: Array, targets: Array, gram: Array) -> Array:
    """Return a factor (I, R) whose rows have a lower f in all, or the same but for rounding.

    It takes steps of ADMM from the factor and the dual variable that goes with it best, so that a
    minimiser stays. Where they have not lowered f, a proximal gradient step does: an alternating
    method of such steps ends in critical points (Bolte, Sabach and Teboulle, "Proximal alternating
    linearized minimization", Mathematical Programming 146, 2014).
    """
    xp = array_module(factor)
    dtype = factor.dtype
    # Multiplied by the mean of G's diagonal, rows meet a Gram matrix whose mean is 1, the same
    # targets and the same strength: so the host need not know the mean.
    exact_gram = gram.astype(np.float64)
    rank = len(exact_gram)
    mean = exact_gram.trace() / rank
    exact_unit = xp.where(mean > 0, mean, 1.0)
    exact_unit_gram = exact_gram / exact_unit
    unit = exact_unit.astype(dtype)
    unit_gram = exact_unit_gram.astype(dtype)
    # Kernels read rows whose elements are neighbours.
    rows = xp.ascontiguousarray(factor * unit)
    targets = xp.ascontiguousarray(targets)
    product = multiply(rows, unit_gram)
    gradient = product - targets
    # The part of the gradient that the penalty balances.
    dual = gradient - penalty.project(gradient)

    inverse, weight = engine_of(gram).invert_penalized(exact_unit_gram)
    stepped = run_rule(
        RowRule(Method.ADMM, penalty.operator, penalty.strength),
        targets,
        inverse,
        weight,
        rows,
        dual,
        _NUM_STEPS,
        _TOLERANCE,
        wants_measures=False,
    ).rows
    updated = stepped / unit
    before = _measure(penalty, factor, product, targets)
    after = _measure(penalty, updated, multiply(stepped, unit_gram), targets)
    if after <= before:
        return updated
    # No eigenvalue is larger than the trace, R.
    return penalty.project(rows - gradient / rank, 1 / rank) / unit


def _measure(penalty: RowPenalty, rows: Array, product: Array, targets: Array) -> float:
    """Return the sum of f over all rows; `product` is ``rows @ G``."""
    quadratic = float(inner_product(rows, product)) / 2 - float(inner_product(rows, targets))
    return quadratic + penalty.measure(rows)

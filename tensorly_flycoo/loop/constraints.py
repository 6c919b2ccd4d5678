"""The constraints of `constrained_parafac`: their names, and which of them each mode has.

They are TensorLy's, which checks them, and `prox`. What depends on the name of one:

- its parameter and its proximal operator: `decomposition/constrained_parafac.py`, whose
  `_choose_constraints` takes operators of the kernels, of `decomposition/proximal.py` and of
  `smoothness.py` in place of TensorLy's;
- whether it holds for multiples of a factor too: `CONES`, for `scaling.py`;
- the record of it: ``non_negative`` and ``constraints`` in `decomposition/recording.py`, by which
  `fold_in` and `models/refitting.py` refuse modes whose constraint they would not meet.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from tensorly.tenalg.proximal import validate_constraints

#: The constraints that TensorLy knows: the options of its function that checks them.
_OF_TENSORLY = sorted({*inspect.signature(validate_constraints).parameters} - {"n_const", "order"})

#: The names of all constraints and penalties; TensorLy 0.9 has no group lasso.
CONSTRAINTS = {*_OF_TENSORLY, "group_lasso", "prox"}

#: Those that hold for a multiple of a factor too.
CONES = ("non_negative", "unimodality", "monotonicity")


#: Those that a factor meets or not; the others are penalties, or unknown.
SETS = (
    "non_negative",
    "unimodality",
    "normalize",
    "simplex",
    "normalized_sparsity",
    "soft_sparsity",
    "monotonicity",
    "hard_sparsity",
)


def name_constraints(options: Mapping[str, Any], ndim: int) -> list[tuple[Any, Any]]:
    """Return the name and the parameter of each mode's constraint, None where it has none.

    >>> name_constraints({"rank": 5, "l1_reg": 0.1}, 2)
    [('l1_reg', 0.1), ('l1_reg', 0.1)]
    >>> name_constraints({"prox": {1: abs}}, 2)
    [(None, None), ('prox', <built-in function abs>)]
    """
    constraints = {name: options[name] for name in CONSTRAINTS if options.get(name) is not None}
    # A name that TensorLy's function does not know is checked under another one.
    free = [name for name in _OF_TENSORLY if name not in constraints]
    aliases = {name if name in _OF_TENSORLY else free.pop(): name for name in constraints}
    checked = {alias: constraints[name] for alias, name in aliases.items()}
    named = []
    for mode in range(ndim):
        alias, parameter = validate_constraints(**checked, n_const=ndim, order=mode)
        named.append((aliases.get(alias), parameter))
    return named

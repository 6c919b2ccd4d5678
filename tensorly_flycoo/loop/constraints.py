"""The constraints of `constrained_parafac`: their names, and which of them each mode has.

They are TensorLy's, which checks them. What depends on the name of one:

- its parameter and its proximal operator: `decomposition/constrained_parafac.py`, whose
  `_choose_projections` takes three operators of `decomposition/proximal.py` and `smoothness.py` in
  place of TensorLy's;
- whether it holds for multiples of a factor too: `CONES`, for `scaling.py`;
- the record of it: ``non_negative`` and ``constraints`` in `decomposition/recording.py`, by which
  `fold_in` and `models/refitting.py` refuse modes whose constraint they would not meet.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from tensorly.tenalg.proximal import validate_constraints

#: The names of all constraints and penalties: the options of TensorLy's function that checks them.
CONSTRAINTS = {*inspect.signature(validate_constraints).parameters} - {"n_const", "order"}

#: Those that hold for a multiple of a factor too.
CONES = ("non_negative", "unimodality", "monotonicity")


def name_constraints(options: Mapping[str, Any], ndim: int) -> list[tuple[Any, Any]]:
    """Return the name and the parameter of each mode's constraint, None where it has none.

    >>> name_constraints({"rank": 5, "l1_reg": 0.1}, 2)
    [('l1_reg', 0.1), ('l1_reg', 0.1)]
    >>> name_constraints({"non_negative": {1: True}}, 2)
    [(None, None), ('non_negative', True)]
    """
    constraints = {name: options[name] for name in CONSTRAINTS if options.get(name) is not None}
    return [validate_constraints(**constraints, n_const=ndim, order=mode) for mode in range(ndim)]

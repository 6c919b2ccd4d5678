"""Decompositions of sparse tensors, with TensorLy's names and parameters.

They work however and whenever TensorLy was imported, and pass dense tensors on to TensorLy. Those
that run TensorLy's own loop or proximal operators need its backend "flycoo". All that iterate take
a ``callback=``, such as a `Progress`, where TensorLy's functions have none, too. Values times c
give models times c and the same errors, but for what `scaling` and docs/accuracy.md except.
"""

import functools
from typing import Any

from ..loop.guarding import guard
from ..results.labelled_models import label_result
from .constrained_parafac import constrained_parafac
from .coupled_parafac import coupled_parafac
from .generalized_parafac import generalized_parafac
from .non_negative_parafac import non_negative_parafac
from .non_negative_parafac_hals import non_negative_parafac_hals
from .non_negative_tucker import non_negative_tucker, non_negative_tucker_hals
from .observed_parafac import observed_parafac
from .parafac import parafac
from .parafac2 import parafac2
from .recording import describe_fit
from .shared_parafac import shared_parafac
from .shared_tucker import shared_tucker
from .tucker import tucker

#: The algorithms, without the guard that users' have around them: all but `coupled_parafac`.
UNGUARDED = {
    function.__name__: function
    for function in (
        constrained_parafac,
        generalized_parafac,
        non_negative_parafac,
        non_negative_parafac_hals,
        non_negative_tucker,
        non_negative_tucker_hals,
        observed_parafac,
        parafac,
        parafac2,
        shared_parafac,
        shared_tucker,
        tucker,
    )
}

#: What surrounds a decomposition that users call.
guard_labelled: Any = functools.partial(guard, label=label_result, describe=describe_fit)

# Type checkers read the names, so they are listed.
__all__ = [
    "constrained_parafac",
    "coupled_parafac",
    "generalized_parafac",
    "non_negative_parafac",
    "non_negative_parafac_hals",
    "non_negative_tucker",
    "non_negative_tucker_hals",
    "observed_parafac",
    "parafac",
    "parafac2",
    "shared_parafac",
    "shared_tucker",
    "tucker",
]

for _name, _function in UNGUARDED.items():
    globals()[_name] = guard_labelled(_function)
    globals()[_name].__module__ = __name__  # where pickle looks for it


def __dir__() -> list[str]:
    return __all__

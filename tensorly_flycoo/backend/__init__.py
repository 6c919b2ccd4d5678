"""The seam with TensorLy: the only room that changes anything there.

`arrays`
    The backend "flycoo": TensorLy's array functions, for dense arrays and sparse tensors.
`tensor_algebra`
    Hooks on five methods of TensorLy's tensor algebra, for sparse tensors.
`replacements`
    The table of TensorLy's functions that are replaced for sparse tensors.
"""

from .registration import register

__all__ = ["register"]

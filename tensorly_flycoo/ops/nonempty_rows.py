"""The non-empty rows of a mode: its indices that have nonzeros.

Hypersparse modes have millions of empty rows, which matrices with a row for each index leave out.
"""

from typing import Any

from ..base.array_modules import Array
from ..format.primitives import index_dtype
from ..tensor.tensor import FlycooTensor


def count_nonempty_rows(x: FlycooTensor, mode: int) -> int:
    """Count the indices of a mode that have nonzeros.

    >>> x = FlycooTensor([[0, 3], [2, 0]], [2.0, 3.0], shape=(5, 3))
    >>> count_nonempty_rows(x, 0)
    2
    """
    return x.shape[mode] - x._layout.find_empty_rows(mode).size


def find_nonempty_rows(
    x: FlycooTensor, mode: int, dtype: Any = None
) -> tuple[Array | slice, Array | None]:
    """Find and number the indices of a mode that have nonzeros.

    Returns these indices, ascending, and `slots` (I_mode,): the position of each index among them,
    undefined for one without nonzeros; ``slice(None)`` and None if all have nonzeros. `slots` has
    the smallest unsigned type that fits, unless `dtype` says otherwise.

    >>> x = FlycooTensor([[0, 3], [2, 0]], [2.0, 3.0], shape=(5, 3))
    >>> numbers, slots = find_nonempty_rows(x, 0)
    >>> numbers, slots[numbers]
    (array([0, 3]), array([0, 1], dtype=uint32))
    """
    xp, empty_rows = x._engine.xp, x._layout.find_empty_rows(mode)
    if empty_rows.size == 0:
        return slice(None), None
    is_used = xp.ones(x.shape[mode], bool)
    is_used[empty_rows] = False
    slots = xp.cumsum(is_used, dtype=dtype or index_dtype(x.shape[mode])) - 1
    return xp.flatnonzero(is_used), slots

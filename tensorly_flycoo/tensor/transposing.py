"""Transposes of a sparse tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..array_modules import Array
from .pieces import Piece, read_nonzeros, rebuild
from .reductions import check_axes

if TYPE_CHECKING:
    from .tensor import FlycooTensor


def transpose(x: FlycooTensor, *axes: Any) -> FlycooTensor:
    """Reorder the modes; `tl.transpose` makes a lazy view instead.

    Parameters
    ----------
    *axes : int, or one sequence of int
        Mode n of the result is mode ``axes[n]`` of this one; by default reversed, as in ``x.T``.

    Returns
    -------
    FlycooTensor
        With this one's layout and device; this tensor itself if the order is unchanged.

    Raises
    ------
    TypeError, ValueError
        If `axes` are not all modes, each once.

    Notes
    -----
    Costs as much as building the tensor.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 4, 2))
    >>> x.T.shape, x.transpose(1, 0, 2).shape, x.transpose((-1, 0, 1)).shape
    ((2, 4, 3), (4, 3, 2), (2, 3, 4))
    """
    order = check_order(axes[0] if len(axes) == 1 else axes or None, x.ndim)
    if order == list(range(x.ndim)):
        return x
    shape = [x.shape[mode] for mode in order]
    return x._derive(lambda x: rebuild(x._layout, x, _permute, order, shape=shape))


def _permute(piece: Piece, order: Sequence[int]) -> tuple[Array, Array]:
    coords, values = read_nonzeros(piece)
    return coords[order], values


def check_order(axes: int | Sequence[int] | None, ndim: int) -> list[int]:
    """Return `axes`, by default reversed, as a list of all modes from 0 to ndim - 1."""
    if axes is None:
        return list(reversed(range(ndim)))
    order = check_axes(axes, ndim)
    if len(order) != ndim:
        raise ValueError(f"axes is {tuple(order)}, expected each of the {ndim} axes once")
    return order

"""TensorLy's reshape, transpose, dot, sum and mean for sparse tensors and lazy views of them.

A view that changes nothing becomes the tensor itself; one that unfolds it along a mode becomes a
`LazyUnfolding`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..base.array_modules import Array
from ..base.checks import densify_error, num_cells
from ..tensor.coo_cache import SparseData, as_flycoo, unwrap
from ..tensor.entrance import find_sparse, is_lazy_or_sparse, is_sparse, mirror
from ..tensor.labelled import LabelledTensor
from ..tensor.lazy_array import LazyArray
from ..tensor.tensor import FlycooTensor, check_axes, check_order
from .contraction import join_modes
from .lazy import LazyUnfolding, ModeView

#: A sparse tensor, or a view of one.
Viewable: TypeAlias = "SparseData | LazyArray"


def permute(x: Viewable, axes: Sequence[int] | None = None) -> FlycooTensor | ModeView:
    """Reorder the axes of a sparse tensor or view; by default reverse them."""
    groups = _groups(x, "tl.transpose")
    order = check_order(axes, len(groups))
    return _make_view(x, [groups[axis] for axis in order])


def move_axis(x: Viewable, source: int, destination: int) -> FlycooTensor | ModeView:
    """Move one axis of a sparse tensor or view."""
    ndim = len(_groups(x, "tl.moveaxis"))
    (start,) = check_axes(source, ndim)
    (end,) = check_axes(destination, ndim)
    axes = [axis for axis in range(ndim) if axis != start]
    axes.insert(end, start)
    return permute(x, axes)


def reshape(x: Viewable, shape: int | Sequence[int]) -> FlycooTensor | ModeView:
    """Reshape a sparse tensor or view by joining consecutive modes; none can be split.

    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 4, 2))
    >>> reshape(x, (-1, 2))
    <ModeView: modes (0, 1), (2,) of shape (3, 4, 2)>
    """
    groups = _groups(x, "tl.reshape")
    sizes = unwrap(x).shape
    new_shape = _complete_shape(shape, num_cells(sizes))
    modes = [mode for group in groups for mode in group]
    regrouped = _regroup(modes, sizes, new_shape)
    if regrouped is None:
        instead = "a view can join consecutive modes, not split them"
        raise densify_error(f"tl.reshape of {sizes} to {new_shape}", new_shape, instead)
    is_matrix = len(regrouped) == 2 and not isinstance(x, LazyUnfolding)
    return _make_view(x, regrouped, prefers_unfolding=is_matrix)


@mirror
def dot(a: Any, b: Any) -> Array:
    """Multiply a sparse matrix or view by a dense array, from either side.

    Refuses products larger than a factor, and vectorised tensors, for which there is `inner`.
    """
    a = _unfold_matrix(a)
    b = _unfold_matrix(b)
    if np.ndim(a) == np.ndim(b) == 1:
        instead = "pass the tensors themselves to tl.tenalg.inner"
        raise densify_error("tl.dot of vectorised tensors", np.shape(a), instead)
    lazy = next(x for x in (a, b) if is_lazy_or_sparse(x))
    if not isinstance(lazy, ModeView):
        instead = "unfold the tensor, or use tl.tenalg.mode_dot"
        raise densify_error("tl.dot", (*np.shape(a)[:-1], *np.shape(b)[1:]), instead)
    return a @ b


def _unfold_matrix(x: Any) -> Any:
    """Return a sparse matrix as an unfolding, which can be multiplied, and others as they are."""
    if is_sparse(x) and x.ndim == 2:
        return LazyUnfolding(x, 0)
    return x


def apply_ufunc(ufunc: np.ufunc, *args: Any, **kwargs: Any) -> FlycooTensor:
    """Apply a ufunc to a sparse tensor and numbers; a lazy view refuses it."""
    operands = [_convert(operand) for operand in args]
    x = find_sparse((*operands, *kwargs.values()))
    if isinstance(x, FlycooTensor):
        return x._apply_ufunc(ufunc, "__call__", *operands, **kwargs)
    return ufunc(*operands, **kwargs)


def _convert(x: Any) -> Any:
    """Return a sparse tensor as a FlycooTensor, and anything else as it is."""
    if is_sparse(x):
        return as_flycoo(x, check_coords=True)
    return x


@mirror
def reduce_axes(
    name: str, x: Viewable, /, axis: int | Iterable[int] | None = None, *args: Any, **options: Any
) -> Any:
    """Reduce a sparse tensor or view over all axes or some by a method of `FlycooTensor`: "sum".

    The result is dense if one axis of one mode is left, a number if none is, else sparse.
    """
    if args or options:
        first_option = [*options, *args][0]
        raise TypeError(f"tl.{name} of a sparse tensor has no option {first_option!r}")
    reduce_modes = getattr(FlycooTensor, name)
    if isinstance(x, LabelledTensor) and x.unknown is not None:
        return getattr(x, name)(axis)  # which skips unknown cells
    if is_sparse(x):
        return reduce_modes(as_flycoo(x, check_coords=True), axis)
    groups = _groups(x, f"tl.{name}")
    gone_axes = check_axes(axis, len(groups))
    gone_modes = [mode for n in gone_axes for mode in groups[n]]
    result = reduce_modes(unwrap(x), gone_modes)
    if not isinstance(result, FlycooTensor):
        return result
    # The modes that are left are numbered anew, in the order of the tensor.
    kept_groups = [group for n, group in enumerate(groups) if n not in gone_axes]
    kept_modes = sorted(mode for group in kept_groups for mode in group)
    return _make_view(result, [map(kept_modes.index, group) for group in kept_groups])


def make_tensor(view: Viewable) -> FlycooTensor:
    """Make a FlycooTensor from a view or a raw COO; no axis may be longer than 2**32."""
    if is_sparse(view):
        return as_flycoo(view, check_coords=True)
    groups = _groups(view, "tl.tensor")
    x = unwrap(view)
    coords, values = x._sorted_nonzeros()
    joined = x._engine.xp.zeros((view.ndim, x.nnz), coords.dtype)
    if max(view.shape) <= 2**32:  # else FlycooTensor refuses the shape
        for axis, group in enumerate(groups):
            joined[axis] = join_modes(x.shape, coords, group)
    return FlycooTensor(joined, values, view.shape, layout=x.layout, device=x.device)


def _groups(x: Any, name: str) -> Sequence[tuple[int, ...]]:
    """Return the modes of each axis; refuse the operation `name` if `x` is not a view."""
    if isinstance(x, ModeView):
        return x.groups
    if is_sparse(x):
        return [(mode,) for mode in range(x.ndim)]
    raise densify_error(f"{name} of {x!r}", x.shape, x._instead)


def _make_view(
    x: Any, axes: Iterable[Iterable[int]], prefers_unfolding: bool = False
) -> FlycooTensor | ModeView:
    """Return the view, as the tensor itself or as a `LazyUnfolding` if it is one."""
    tensor = unwrap(x)
    is_view = isinstance(x, LazyArray)
    groups = [tuple(group) for group in axes]
    is_unchanged = groups == [(mode,) for mode in range(tensor.ndim)]
    if is_unchanged and not prefers_unfolding:
        if is_view:
            return tensor
        return x
    view: ModeView
    if _is_unfolding(groups):
        (mode,) = groups[0]
        view = LazyUnfolding(tensor, mode)
    else:
        view = ModeView(tensor, groups)
    view.source = x
    if is_view:
        view.source = x.source  # of a view of a view, what the caller has
    return view


def _is_unfolding(groups: Sequence[Sequence[int]]) -> bool:
    """Return whether the axes are one mode, and all others in their order."""
    if len(groups) != 2:
        return False
    row_modes, column_modes = groups
    return len(row_modes) == 1 and list(column_modes) == sorted(column_modes)


def _complete_shape(shape: int | Sequence[int], size: int) -> tuple[int, ...]:
    """Return a shape of `size` cells, with a number for a -1.

    >>> _complete_shape((-1, 4), 24)
    (6, 4)
    """
    if not isinstance(shape, Iterable):
        shape = [shape]
    sizes = list(shape)
    known_size = math.prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and known_size > 0:
        unknown_axis = sizes.index(-1)
        sizes[unknown_axis] = size // known_size
    if math.prod(sizes) != size or any(n < 0 for n in sizes):
        raise ValueError(f"cannot reshape array of size {size} into shape {tuple(sizes)}")
    return tuple(sizes)


def _regroup(
    modes: Iterable[int], sizes: Sequence[int], shape: Iterable[int]
) -> list[list[int]] | None:
    """Assign the modes, in order, to the new axes; return None if a mode must be split.

    >>> _regroup([0, 1, 2], (3, 4, 2), (12, 2))
    [[0, 1], [2]]
    """
    groups: list[list[int]] = []
    modes_left = list(modes)
    for size in shape:
        group: list[int] = []
        count = 1  # cells of the modes in the group
        # Each axis takes a mode at least, even if that has size 1 as the axis has.
        while modes_left and (count < size or not group):
            mode = modes_left[0]
            if count * sizes[mode] > size:
                break
            group.append(modes_left.pop(0))
            count *= sizes[mode]
        if count != size:
            return None
        groups.append(group)
    groups[-1].extend(modes_left)  # of size 1
    return groups

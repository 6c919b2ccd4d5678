"""Reshape, transpose and multiply sparse tensors as TensorLy does, by views that are never formed.

Where a view is the tensor as it was, or an unfolding along one mode, it is returned as such.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..checks import densify_error, num_cells
from ..tensor.coo_cache import is_sparse
from ..tensor.tensor import FlycooTensor
from .contraction import average_modes, check_axes, inner, join_modes, sum_modes
from .lazy import LazyArray, ModeView
from .unfolding_svd import Unfolding


def is_lazy_or_sparse(x):
    """Say whether `x` is a sparse tensor, or stands for an array made of one."""
    return is_sparse(x) or isinstance(x, LazyArray)


def find_sparse(arguments: Iterable[Any]) -> Any:
    """Return the first argument that is sparse or a lazy view of a sparse tensor, or None.

    The items of lists and tuples count as well.
    """
    for argument in arguments:
        if type(argument) is np.ndarray:
            continue
        for x in argument if isinstance(argument, list | tuple) else (argument,):
            if is_lazy_or_sparse(x):
                return x
    return None


def permute(x, axes=None):
    """Reorder the axes of a sparse tensor or view; without `axes` reverse them.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 4, 2))
    >>> permute(x, (2, 0, 1)).shape, permute(permute(x)) is x
    ((2, 3, 4), True)
    """
    groups = _groups(x, "tl.transpose")
    axes = range(len(groups))[::-1] if axes is None else check_axes(axes, len(groups))
    if len(axes) != len(groups):
        raise ValueError(f"axes is {tuple(axes)}, expected each of the {len(groups)} axes once")
    return _make_view(x, [groups[axis] for axis in axes])


def move_axis(x, source, destination):
    """Move one axis of a sparse tensor or view."""
    ndim = len(_groups(x, "tl.moveaxis"))
    (source,), (destination,) = check_axes(source, ndim), check_axes(destination, ndim)
    axes = [axis for axis in range(ndim) if axis != source]
    axes.insert(destination, source)
    return permute(x, axes)


def reshape(x, shape):
    """Reshape a sparse tensor or view, where each new axis is some modes that follow each other.

    Raises
    ------
    DensifyError
        If a mode would have to be split.
    ValueError
        If the number of cells is another.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 4, 2))
    >>> reshape(x, (3, -1)), reshape(x, (-1,)), reshape(reshape(x, (-1,)), (3, 4, 2)) is x
    (<Unfolding: mode 0 of shape (3, 4, 2)>, <ModeView: modes (0, 1, 2) of shape (3, 4, 2)>, True)
    """
    groups = _groups(x, "tl.reshape")
    tensor = x if is_sparse(x) else x.tensor
    modes = [mode for group in groups for mode in group]
    shape = _complete(shape, num_cells(tensor.shape))
    regrouped = _regroup(modes, tensor.shape, shape)
    if regrouped is None:
        instead = "a view can join modes that follow each other, not split them"
        raise densify_error(f"tl.reshape of {tensor.shape} to {shape}", shape, instead)
    is_matrix = len(regrouped) == 2 and not isinstance(x, Unfolding)
    return _make_view(x, regrouped, prefers_unfolding=is_matrix)


def dot(a, b):
    """Multiply where one is a sparse matrix or a view, and the result is of the size of a factor.

    The product of two vectorised tensors is a number; see `inner`.
    """
    a, b = (Unfolding(x, 0) if is_sparse(x) and x.ndim == 2 else x for x in (a, b))
    if np.ndim(a) == np.ndim(b) == 1:
        return _dot_vectors(a, b)
    lazy = next(x for x in (a, b) if is_lazy_or_sparse(x))
    if not isinstance(lazy, ModeView):
        instead = "unfold the tensor, or use tl.tenalg.mode_dot"
        raise densify_error("tl.dot", (*np.shape(a)[:-1], *np.shape(b)[1:]), instead)
    return a @ b


def _dot_vectors(a, b):
    """Multiply two vectors, of which one at least is a vectorised tensor."""
    if isinstance(b, ModeView):
        a, b = b, a
    if not isinstance(a, ModeView):
        raise densify_error("tl.dot", a.shape, "use tl.tenalg.mode_dot")
    modes = a.groups[0]
    other = b.tensor if isinstance(b, ModeView) else b
    if isinstance(b, ModeView):
        if b.groups != a.groups:
            raise densify_error(f"the product of {a!r} and {b!r}", (), "vectorise both alike")
    elif num_cells(a.tensor.shape) == b.size:
        back = sorted(range(len(modes)), key=modes.__getitem__)
        other = b.reshape([a.tensor.shape[mode] for mode in modes]).transpose(back)
    return inner(a.tensor, other)


def sum_axes(x, axis=None):
    """Sum a sparse tensor or view over all axes or some; what is left is like `x`."""
    return _reduce(x, axis, sum_modes, "tl.sum")


def average_axes(x, axis=None):
    """Average a sparse tensor or view over all axes or some; what is left is like `x`."""
    return _reduce(x, axis, average_modes, "tl.mean")


def _reduce(x, axis, reduce_modes, name):
    if is_sparse(x):
        return reduce_modes(x, axis)
    groups = _groups(x, name)
    gone = range(len(groups)) if axis is None else check_axes(axis, len(groups))
    result = reduce_modes(x.tensor, [mode for n in gone for mode in groups[n]])
    if not isinstance(result, FlycooTensor):
        return result
    kept = [group for n, group in enumerate(groups) if n not in gone]
    numbers = {mode: n for n, mode in enumerate(sorted(mode for group in kept for mode in group))}
    return _make_view(result, [[numbers[mode] for mode in group] for group in kept])


def make_tensor(view):
    """Make a FlycooTensor of a view; no axis may be longer than 2**32.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 4, 2))
    >>> make_tensor(reshape(x, (3, -1))).nonzeros()[0]
    array([[0, 1],
           [5, 1]])
    """
    _groups(view, "tl.tensor")
    x = view.tensor
    coords, values = x._sorted_nonzeros()
    joined = x._engine.xp.zeros((view.ndim, x.nnz), coords.dtype)
    if max(view.shape) <= 2**32:  # else FlycooTensor says so
        for axis, group in enumerate(view.groups):
            joined[axis] = join_modes(x, coords, group)
    return FlycooTensor(joined, values, view.shape, layout=x.layout, device=x.device)


def _groups(x, name):
    if is_sparse(x):
        return [(mode,) for mode in range(x.ndim)]
    if not isinstance(x, ModeView):
        raise densify_error(f"{name} of {x!r}", x.shape, x._instead)
    return x.groups


def _make_view(x, groups, prefers_unfolding=False):
    """Return the tensor itself or an Unfolding where it is that, else a ModeView."""
    tensor = x if is_sparse(x) else x.tensor
    groups = [tuple(group) for group in groups]
    is_unchanged = groups == [(mode,) for mode in range(tensor.ndim)]
    if is_unchanged and not prefers_unfolding:
        return tensor
    if len(groups) == 2 and len(groups[0]) == 1 and list(groups[1]) == sorted(groups[1]):
        return Unfolding(tensor, groups[0][0])
    return ModeView(tensor, groups)


def _complete(shape, size):
    """Replace -1 in a new shape for `size` cells."""
    shape = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known > 0:
        shape = tuple(size // known if n == -1 else n for n in shape)
    if math.prod(shape) != size or any(n < 0 for n in shape):
        raise ValueError(f"cannot reshape array of size {size} into shape {shape}")
    return shape


def _regroup(modes, sizes, shape):
    """Give each new axis the next modes, at least one that fits; None if a mode must be split."""
    groups, rest = [], list(modes)
    for size in shape:
        group, count = [], 1
        while rest and (count < size or not group) and count * sizes[rest[0]] <= size:
            group.append(rest.pop(0))
            count *= sizes[group[-1]]
        if count != size:
            return None
        groups.append(group)
    groups[-1].extend(rest)  # of size 1
    return groups

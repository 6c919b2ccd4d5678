"""Arrays that are never formed: unfoldings and other views of a sparse tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from ..base.array_modules import Array
from ..base.checks import densify_error, num_cells
from ..svd.unfolding import Unfolding
from ..tensor.coo_cache import SparseData, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.lazy_array import LazyArray
from .contraction import multiply_matricized


class ModeView(LazyArray):
    """A view of a sparse tensor with its modes reordered, and some joined into one axis.

    Unfoldings, transposes and reshapes are such views. `groups` are the modes joined to each axis,
    the last one varying fastest; an axis without modes has size 1. A view with two axes can be
    multiplied by a dense array if the axis that remains is a single mode.
    """

    _instead = "tl.tensor makes it a sparse tensor, if no axis is longer than 2**32"

    def __init__(self, x: SparseData, groups: Iterable[Iterable[int]]) -> None:
        self.source = x  # what the caller has, where results go
        self.tensor = as_flycoo(x, check_coords=True)
        self.groups = tuple(map(tuple, groups))
        sizes = self.tensor.shape
        sizes_of_groups = [[sizes[mode] for mode in group] for group in self.groups]
        self.shape = tuple(map(num_cells, sizes_of_groups))
        self.ndim = len(self.groups)
        self.dtype = self.tensor.dtype

    def __repr__(self) -> str:
        groups = ", ".join(map(str, self.groups))
        return f"<ModeView: modes {groups} of shape {self.tensor.shape}>"

    def reshape(self, *shape: Any) -> NoReturn:
        """Refuse NumPy's method: `tl.reshape` makes a view."""
        raise densify_error(f"reshape of {self!r}", self.shape, "use tl.reshape")

    @mirror
    def __matmul__(self, dense: Array) -> Array:
        """Multiply by a dense array (C, R) or (C,); see `multiply_matricized`."""
        self._check_product(0, dense)
        (mode,), column_modes = self.groups
        return multiply_matricized(self.tensor, mode, column_modes, dense)

    @mirror
    def __rmatmul__(self, dense: Array) -> Array:
        """Multiply a dense array (R, C) or (C,) by the view: ``dense @ view``."""
        self._check_product(1, dense)
        row_modes, (mode,) = self.groups
        return multiply_matricized(self.tensor, mode, row_modes, dense.T).T

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Array:
        # NumPy's and CuPy's arrays call this for `dense @ view`.
        if ufunc is np.matmul and method == "__call__" and not kwargs and inputs[1] is self:
            return self.__rmatmul__(inputs[0])
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)

    def _check_product(self, axis: int, operand: Array) -> None:
        """Refuse a product in which `axis` remains, unless that axis is a single mode."""
        operation = f"a product with {self!r}"
        if not hasattr(operand, "strides"):
            instead = "multiply it by a dense factor; truncated_svd works, symeig_svd does not"
            raise densify_error(operation, self.shape, instead)
        if self.ndim == 2 and len(self.groups[axis]) == 1:
            return
        kept: Any = self.shape
        if self.ndim == 2:
            kept = self.shape[axis]
        instead = "tl.tenalg.mode_dot with a vector stays sparse"
        raise densify_error(operation, (kept, *operand.shape[1:]), instead)


class LazyUnfolding(Unfolding, ModeView):
    """An unfolding that is also a view: dense factors can be multiplied by it."""

    def __init__(self, x: SparseData, mode: int) -> None:
        Unfolding.__init__(self, x, mode)
        column_modes = [n for n in range(self.tensor.ndim) if n != mode]
        ModeView.__init__(self, self.tensor, [(mode,), column_modes])

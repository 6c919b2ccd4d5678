"""Stand for arrays that are never formed: unfoldings and other views of a sparse tensor."""

import numpy as np

from ..checks import densify_error, num_cells
from ..tensor.coo_cache import as_flycoo
from .contraction import multiply_matricized


class LazyArray:
    """Stand for an array that is never formed; anything that needs its elements says so."""

    ndim = 2

    #: Above CuPy's, whose arrays then leave operators to us; NumPy asks `__array_ufunc__`.
    __array_priority__ = 1000

    def __array__(self, dtype=None, copy=None):
        raise densify_error(f"using the elements of {self!r}", self.shape, self._instead)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        operation = f"numpy.{ufunc.__name__} of {self!r}"
        raise densify_error(operation, self.shape, self._instead)


class ModeView(LazyArray):
    """Stand for a sparse tensor whose modes are in another order, and some of them one axis.

    Unfoldings, transposes and reshapes are such views. Two axes can be multiplied with a dense
    array from the side where the result has a row, or column, for each index of one mode; from the
    other side it would have one for each cell of several modes.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    groups : sequence of sequence of int
        The modes that each axis runs over; of one axis the last mode varies fastest. Each mode of
        `x` occurs once. An axis without modes has size 1.

    Attributes
    ----------
    tensor : FlycooTensor
    groups : tuple of tuple of int
    shape : tuple of int
    ndim : int
    dtype : numpy.dtype

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> view = ModeView(x, [(2, 1), (0,)])
    >>> view, view.shape
    (<ModeView: modes (2, 1), (0,) of shape (3, 3, 2)>, (6, 3))
    >>> np.arange(6.0) @ view
    array([10.,  9.,  0.])
    """

    _instead = "tl.tensor of it makes a sparse tensor, if no axis is longer than 2**32"

    def __init__(self, x, groups):
        self.tensor = as_flycoo(x, check_coords=True)
        self.groups = tuple(map(tuple, groups))
        sizes = self.tensor.shape
        self.shape = tuple(num_cells([sizes[mode] for mode in group]) for group in self.groups)
        self.ndim = len(self.groups)
        self.dtype = self.tensor.dtype

    def __repr__(self):
        groups = ", ".join(map(str, self.groups))
        return f"<ModeView: modes {groups} of shape {self.tensor.shape}>"

    def __matmul__(self, dense):
        """Multiply with a dense array (C, R) or (C,); see `multiply_matricized`."""
        self._check_product(0, dense)
        (mode,), columns = self.groups
        return multiply_matricized(self.tensor, mode, columns, dense)

    def __rmatmul__(self, dense):
        self._check_product(1, dense)
        rows, (mode,) = self.groups
        return multiply_matricized(self.tensor, mode, rows, dense.T).T

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        # What `dense @ view` comes to where `dense` is an array of NumPy or CuPy.
        if ufunc is np.matmul and method == "__call__" and not kwargs and inputs[1] is self:
            return self.__rmatmul__(inputs[0])
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)

    def _check_product(self, axis, other):
        """Refuse a product with a row or column for each index of this axis, if not of one mode."""
        operation = f"a product with {self!r}"
        if not hasattr(other, "strides"):
            instead = "expected a dense array: multiply factors or vectors with it"
            raise densify_error(operation, self.shape, instead)
        if self.ndim != 2 or len(self.groups[axis]) != 1:
            kept = self.shape[axis] if self.ndim == 2 else self.shape
            raise densify_error(
                operation, (kept, *other.shape[1:]), "tl.tenalg.mode_dot with a vector stays sparse"
            )

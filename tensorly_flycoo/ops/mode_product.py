"""A sparse tensor times the factors of several modes at once, as Tucker decompositions need it.

A tensor times one factor is much larger than the tensor: each nonzero becomes a row of columns. So
it is never formed: it stands for itself until it is known what of it is wanted.
"""

import math

import numpy as np

from ..checks import check_matrix, check_mode, densify_error
from .lazy import LazyArray
from .nonempty_rows import count_nonempty_rows
from .ttmc import check_free_modes, find_leading_pairs, merge_modes, multiply_nonempty_rows
from .unfolding_svd import LazyMatrix


class ModeProduct(LazyArray):
    """Stand for a sparse tensor times the transposed factors of some of its modes.

    Parameters
    ----------
    x : FlycooTensor
    factors : dict of int to array (I_n, K_n)
        By mode; of the dtype and on the device of `x`.

    Attributes
    ----------
    shape : tuple of int
        K_n where a mode has a factor, else I_n.
    free_modes : list of int
        Those without a factor.

    Raises
    ------
    TypeError, ValueError
        If a factor is no matrix of that shape and dtype, or elsewhere.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> product = ModeProduct(x, {1: np.ones((3, 1)), 2: np.eye(2)})
    >>> product
    <ModeProduct of shape (3, 1, 2)>
    >>> product.to_array()[:, 0]
    array([[0., 2.],
           [0., 3.],
           [0., 0.]])
    """

    _instead = "tl.unfold of it along a mode without a factor, and the svd of that, never form it"

    def __init__(self, x, factors):
        self.tensor = x
        self.factors = dict(sorted(factors.items()))
        array_type = x._engine.array_type
        for n, factor in self.factors.items():
            check_matrix(factor, f"the factor of mode {n}", x.shape[n], x.dtype, array_type)
        sizes = {n: factor.shape[1] for n, factor in self.factors.items()}
        self.shape = tuple(sizes.get(n, size) for n, size in enumerate(x.shape))
        self.ndim, self.dtype = x.ndim, x.dtype
        self.free_modes = [n for n in range(x.ndim) if n not in self.factors]

    def __repr__(self):
        return f"<ModeProduct of shape {self.shape}>"

    def unfold(self, mode):
        """Unfold along a mode without a factor; lazily."""
        return ProductUnfolding(self, mode)

    def move_axis(self, source, destination):
        """Move one axis; lazily that of a mode without a factor to the front, as to unfold it."""
        source = check_mode(source, self.ndim)
        if destination == 0 and source in self.free_modes:
            return ProductModeFirst(self, source)
        return np.moveaxis(self.to_array(), source, destination)

    def norm(self):
        """Return the Frobenius norm, as `to_array` would have it but without its empty rows."""
        if len(self.free_modes) != 1:
            return np.linalg.norm(self.to_array())
        rows, _ = multiply_nonempty_rows(self.tensor, *self.free_modes, self.factors)
        return np.linalg.norm(rows)

    def to_array(self):
        """Compute all of it.

        Returns
        -------
        array
            Of `shape`, on the device of x.

        Raises
        ------
        DensifyError
            If two or more modes have no factor and together more indices than x has nonzeros.

        Notes
        -----
        ``nnz * prod K_n`` multiplications and additions. With factors for all modes the workspace
        is that of one TTMc: of the mode for which that is smallest.
        """
        x, free_modes = self.tensor, self.free_modes
        check_free_modes(x, free_modes)
        if not free_modes:
            return self._contract()
        merged, mode, places = merge_modes(x, free_modes, x.dtype)
        inputs = {places[n]: factor for n, factor in self.factors.items()}
        num_columns = math.prod(self.shape[n] for n in self.factors)
        array = x._engine.xp.zeros((merged.shape[mode], num_columns), x.dtype)
        x._engine.ttmc(merged._layout, mode, inputs, array)
        return self._order_modes(array, [*free_modes, *self.factors])

    def _contract(self):
        """Multiply with all factors: with those of all modes but one, then with its own."""
        x, num_cells = self.tensor, math.prod(self.shape)
        sizes = [count_nonempty_rows(x, n) * (num_cells // self.shape[n]) for n in range(x.ndim)]
        mode = int(np.argmin(sizes))
        inputs = {n: factor for n, factor in self.factors.items() if n != mode}
        rows, numbers = multiply_nonempty_rows(x, mode, inputs)
        return self._order_modes(np.dot(self.factors[mode][numbers].T, rows), [mode, *inputs])

    def _order_modes(self, array, modes):
        """Shape an array whose items count the indices of `modes`, the last ones' fastest."""
        array = array.reshape([self.shape[n] for n in modes])
        return array.transpose([modes.index(n) for n in range(self.ndim)])


class ProductUnfolding(LazyMatrix):
    """Stand for the unfolding of a `ModeProduct` along a mode without a factor.

    Its singular vectors are those of `Unfolding`, with the same options and precision.

    Parameters
    ----------
    product : ModeProduct
    mode : int
    """

    def __init__(self, product, mode):
        self.product, self.tensor = product, product.tensor
        self.mode = product.free_modes[product.free_modes.index(mode)]
        size = product.shape[mode]
        self.shape = (size, math.prod(product.shape) // size)
        self.dtype = product.dtype

    def __repr__(self):
        return f"<ProductUnfolding: mode {self.mode} of {self.product!r}>"

    def _find_leading_pairs(self, rank):
        others = [n for n in self.product.free_modes if n != self.mode]
        return find_leading_pairs(self.tensor, self.mode, others, self.product.factors, rank)


class ProductModeFirst(LazyArray):
    """Stand for a `ModeProduct` with one mode moved to the front, on its way to an unfolding."""

    _instead = "tl.unfold of the product is a lazy view"

    def __init__(self, product, mode):
        self._unfolding = product.unfold(mode)
        sizes = list(product.shape)
        self.shape = (sizes.pop(mode), *sizes)
        self.ndim, self.dtype = product.ndim, product.dtype

    def __repr__(self):
        return f"<{self._unfolding!r} before reshaping>"

    def unfold(self, shape):
        """Reshape to the unfolding's shape."""
        if tuple(shape) not in [(self.shape[0], -1), self._unfolding.shape]:
            raise densify_error(f"tl.reshape to {shape}", self.shape, self._instead)
        return self._unfolding

"""Lazy products of a sparse tensor with the factors of several modes, for Tucker decompositions.

A tensor times one factor is much larger than the tensor, since each nonzero becomes a row of
numbers. So the product is not formed until it is clear which result is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..base.array_modules import Array, share
from ..base.checks import check_matrix, check_mode, densify_error
from ..format.primitives import TTMC, LeadingPairs
from ..svd import eigen
from ..svd.unfolding import LazyMatrix
from ..tensor.coo_cache import as_flycoo
from ..tensor.lazy_array import LazyArray
from ..tensor.tensor import FlycooTensor
from . import ttmc


class ModeProduct(LazyArray):
    """A lazy product of a sparse tensor with the transposed factors (I_n, K_n) of some modes.

    Axis i of the product is mode ``axes[i]``, of size K_n if the mode has a factor, else I_n.
    """

    _instead = "tl.unfold along a mode without a factor, and the SVD of that, do not form it"

    def __init__(
        self, x: FlycooTensor, factors: Mapping[int, Array], axes: Sequence[int] | None = None
    ) -> None:
        self.source = x  # what the caller has, where results go
        x = as_flycoo(x)
        self.tensor = x
        self.factors = {n: share(factors[n]) for n in sorted(factors)}
        self._sizes = list(x.shape)  # of the product's modes
        for n, factor in self.factors.items():
            name = f"the factor of mode {n}"
            check_matrix(factor, name, x.shape[n], x.dtype, x._engine.array_type)
            self._sizes[n] = factor.shape[1]
        if axes is None:
            axes = range(x.ndim)
        self._axes = list(axes)
        self.shape = tuple(self._sizes[n] for n in self._axes)
        self.ndim = x.ndim
        self.dtype = x.dtype
        self.free_modes = [n for n in range(x.ndim) if n not in self.factors]

    def __repr__(self) -> str:
        return f"<ModeProduct of shape {self.shape}>"

    def move_axis(self, source: int, destination: int) -> ModeProduct | Array:
        """Move one axis, lazily if it is a mode without a factor and moves to the front."""
        mode = self._axes[check_mode(source, self.ndim)]
        if destination == 0 and mode in self.free_modes:
            other_modes = [n for n in self._axes if n != mode]
            return ModeProduct(self.source, self.factors, [mode, *other_modes])
        return np.moveaxis(self.to_array(), source, destination)

    def reshape(self, shape: Sequence[int]) -> ProductUnfolding:
        """Return the lazy unfolding along the first axis, if that is a mode without a factor."""
        mode = self._axes[0]
        num_rows = self.shape[0]
        num_columns = math.prod(self.shape[1:])
        unfolds = tuple(shape) in [(num_rows, num_columns), (num_rows, -1)]
        if mode in self.factors or not unfolds:
            raise densify_error(f"tl.reshape to {shape}", self.shape, self._instead)
        return ProductUnfolding(self, mode)

    def norm(self) -> Array:
        """Return the Frobenius norm; with one free mode, only its non-empty rows are formed."""
        if len(self.free_modes) != 1:
            return np.linalg.norm(self.to_array())
        (mode,) = self.free_modes
        rows, _ = ttmc.multiply_nonempty_rows(self.tensor, mode, self.factors)
        return np.linalg.norm(rows)

    def to_array(self) -> Array:
        """Form the product, in ``nnz * prod K_n`` multiplications and additions.

        With factors for all modes, the workspace is the smallest that TTMc takes for any mode.
        Raises a DensifyError if several modes without a factor have more cells together than `x`
        has nonzeros.
        """
        x = self.tensor
        free_modes = self.free_modes
        ttmc.check_free_modes(x, free_modes)
        if not free_modes:
            return self._contract()
        # TTMc has rows for one mode: the free modes are merged into one.
        merged, mode, places = ttmc.merge_modes(x, free_modes, x.dtype)
        inputs = {places[n]: factor for n, factor in self.factors.items()}
        num_columns = math.prod(self._sizes[n] for n in self.factors)
        array = x._engine.xp.empty((merged.shape[mode], num_columns), x.dtype)
        merged._layout.apply(TTMC, x._engine, inputs, mode, array)
        return self._order_axes(array, [*free_modes, *self.factors])

    def _contract(self) -> Array:
        """Multiply by the factors of all modes but one, and then by the last factor."""
        x = self.tensor
        # The last factor is that of the smallest workspace, which is the number of non-empty rows
        # times the product of all other ranks.
        shares = [ttmc.count_nonempty_rows(x, n) / rank for n, rank in enumerate(self._sizes)]
        mode = int(np.argmin(shares))
        inputs = {n: factor for n, factor in self.factors.items() if n != mode}
        rows, numbers = ttmc.multiply_nonempty_rows(x, mode, inputs)
        last_factor = self.factors[mode][numbers]
        return self._order_axes(np.dot(last_factor.T, rows), [mode, *inputs])

    def _order_axes(self, array: Array, modes: list[int]) -> Array:
        """Turn an array over `modes`, the last one fastest, into one over the axes."""
        by_mode = array.reshape([self._sizes[n] for n in modes])
        return by_mode.transpose([modes.index(n) for n in self._axes])


class ProductUnfolding(LazyMatrix, LazyArray):
    """The unfolding of a `ModeProduct` along a mode without a factor, as precise as `Unfolding`."""

    def __init__(self, product: ModeProduct, mode: int) -> None:
        self.product = product
        self.source = product.source
        self.tensor = product.tensor
        place = product.free_modes.index(mode)  # which refuses a mode with a factor
        self.mode = product.free_modes[place]
        size = self.tensor.shape[mode]
        self.shape = (size, math.prod(product.shape) // size)
        self.dtype = product.dtype

    def __repr__(self) -> str:
        return f"<ProductUnfolding: mode {self.mode} of {self.product!r}>"

    def _find_leading_pairs(self, rank: int) -> LeadingPairs:
        x = self.tensor
        mode = self.mode
        factors = self.product.factors
        column_modes = [n for n in self.product.free_modes if n != mode]
        matrix: eigen.Multipliable
        if column_modes:
            ttmc.check_free_modes(x, column_modes)
            rows, _ = ttmc.find_nonempty_rows(x, mode)
            matrix = ttmc.Operator(x, mode, rows, column_modes, factors)
        else:
            array, rows = ttmc.multiply_nonempty_rows(x, mode, factors)
            matrix = ttmc.Matrix(array)
        num_pairs = min(rank, *matrix.shape)
        vectors, values = eigen.find_singular_pairs(matrix, num_pairs, x._engine.xp)
        if isinstance(rows, slice):
            rows = None  # the vectors have all rows
        return LeadingPairs(vectors, values, rows, np.arange(values.size))

"""The interface of kernels for tall matrices, which an engine may have."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..array_modules import Array

#: A float32 matrix (R, R), or one row or column that repeats; and its strides, in numbers, from row
#: to row and from column to column: 0 where it repeats.
Scale: TypeAlias = tuple[Array, int, int]


class Blocks(Protocol):
    """Sums over blocks of rows, float64 (n, ...), on the engine's device."""

    def to_array(self) -> Array:
        """Return them as an array, whose first axis is to be summed over."""


class FactorKernels(Protocol):
    """What `TallKernels` compute of whole factors (I_n, R), which may be row-sharded."""

    def suits_tensor_cores(self, x: Array) -> bool:
        """Return whether the kernels other than `inner_blocks` suit `x` and its device."""

    def gram_blocks(self, x: Array) -> Any:
        """Compute ``x.T @ x`` of some blocks of rows, `Blocks` (n, R, R)."""

    def inner_blocks(self, a: Array, b: Array) -> Any:
        """Compute the inner product of some blocks of rows, `Blocks` (n,)."""

    def solve_rows(self, x: Array, inverse: Any) -> tuple[Array, Any, Any]:
        """Compute ``y = x @ inverse`` with rows aligned for MTTKRP.

        Return it, ``y.T @ y`` as from `gram_blocks`, and the inner product of `x` and `y` as from
        `inner_blocks`.
        """


class TallKernels(FactorKernels, Protocol):
    """Products of tall matrices (I_n, R) that an engine computes faster than its array module."""

    #: The most Gram matrices, and other matrices, of a product.
    MAX_GRAMS: int
    MAX_SCALES: int

    def suits_rank(self, rank: int, dtype: np.dtype) -> bool:
        """Return whether they suit a rank, and the current device."""

    def as_blocks(self, array: Array) -> Any:
        """Return a contiguous float64 array as `Blocks`."""

    def invert(self, matrix: Array) -> Any:
        """Return the inverse of a small matrix, `Blocks` (1, R, R).

        If the matrix is singular to rounding, return its pseudo-inverse.
        """

    def invert_product(self, grams: Sequence[Any], scales: Sequence[Scale], rank: int) -> Any:
        """Invert an elementwise product of Gram matrices, as `Blocks`, and of small matrices."""

    def compute_fit(
        self,
        grams: Sequence[Any],
        scales: Sequence[Scale],
        rank: int,
        inner: Any,
        norm_square: float,
    ) -> float:
        """Compute the norm of a residual from the product of all Gram matrices."""

    def multiply_blocks(self, a: Array, b: Array, num_blocks: int) -> Array:
        """Compute ``a.T @ b`` of each block of rows, (num_blocks, a's columns, b's columns)."""

    def add_product(self, out: Array, a: Array, b: Array, factor: float = 1) -> None:
        """Add ``factor * a @ b`` to `out`, in place."""

    def find_extremes(self, x: Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and the smallest element of each column, on the host."""

    def choose_row_nbytes(self, row_nbytes: int) -> int:
        """Choose the row pitch in bytes that MTTKRP reads fastest."""

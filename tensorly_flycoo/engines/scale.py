"""A factor of the elementwise products that `TallKernels` invert."""

from typing import NamedTuple

from ..array_modules import Array


class Scale(NamedTuple):
    """A small matrix (R, R), or the same row or column for all rows or columns.

    Attributes
    ----------
    array : float32 array
    row_stride, column_stride : int
        In numbers; 0 where an axis repeats the same numbers.
    """

    array: Array
    row_stride: int
    column_stride: int

"""Matrices to write to whose blocks of rows are apart, each where it is needed."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..base.array_modules import Array


class RowBlocks(NamedTuple):
    """A matrix (I, R) whose blocks of rows may be on several devices.

    Each block is contiguous, and has as many rows as the first one; but the last ones may have
    fewer, or none.

    >>> rows = RowBlocks([np.empty((2, 5)), np.empty((1, 5))])
    >>> rows.shape
    (3, 5)
    """

    blocks: Sequence[Array]

    @property
    def shape(self) -> tuple[int, int]:
        num_rows = sum([block.shape[0] for block in self.blocks])
        return (num_rows, self.blocks[0].shape[1])

    @property
    def dtype(self) -> np.dtype:
        return self.blocks[0].dtype

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def fill(self, value: float) -> None:
        for block in self.blocks:
            block.fill(value)


#: What an operation writes its rows to.
Rows: TypeAlias = Array | RowBlocks


def list_blocks(rows: Rows) -> Sequence[Any]:
    """Return the blocks of a matrix, which is one block if it is an array."""
    return rows.blocks if isinstance(rows, RowBlocks) else (rows,)

"""A tall matrix minus a product with a small one, in one pass over its rows."""

from typing import Any

import numpy as np
from numpy import ndarray as Array

from . import threads
from .compiling import kernel
from .mttkrp import count_lanes
from .records import make_readable
from .vectors import VECTOR_NBYTES, fused, load, spread, store


def subtract_product(out: Array, rows: Array, matrix: Array) -> None:
    """Subtract ``rows @ matrix`` from a C-contiguous `out` in place, all of one dtype."""
    negative = make_readable(-matrix)
    lanes = (0,) * count_lanes(out, VECTOR_NBYTES)
    work_ns = out.size * matrix.shape[0] / 8
    threads.launch(
        _add_product, len(out), out, make_readable(rows), negative, lanes, work_ns=work_ns
    )


@kernel
def _add_product(first: int, last: int, out: Array, rows: Array, matrix: Array, lanes: Any) -> None:
    """Add ``rows @ matrix`` to rows `first` to `last` - 1 of `out`."""
    num_terms = np.uint64(matrix.shape[0])
    num_columns = np.uint64(matrix.shape[1])
    num_in_steps = num_columns - num_columns % np.uint64(len(lanes))
    for i in range(np.uint64(first), np.uint64(last)):
        for step in range(0, num_in_steps, len(lanes)):
            column = np.uint64(step)
            total = load(out, i, column, lanes)
            for k in range(num_terms):
                number = spread(rows[i, k], lanes)
                total = fused(number, load(matrix, k, column, lanes), total)
            store(total, out, i, column)
        for r in range(num_in_steps, num_columns):
            for k in range(num_terms):
                out[i, r] += rows[i, k] * matrix[k, r]

"""Small solvers for the columns of factors, compiled by numba."""

from typing import NamedTuple

import numpy as np

from ...base.array_modules import Array
from .compiling import kernel


class LeastSquares(NamedTuple):
    """The problem that a sweep minimises: see `ops.hals.solve_nonnegative`."""

    targets: Array
    gram: Array
    shift: float
    ridge: float
    smallest: float


@kernel
def fit_ascending(first_column: int, last_column: int, columns: Array, fitted: Array) -> None:
    """Write to `fitted` (I, R) the ascending sequences nearest to some of the columns (I, R).

    Neighbouring blocks of elements, each replaced by its mean, are merged while one is larger than
    the next (pool adjacent violators): O(I * R). Means are computed in float64.
    """
    size = columns.shape[0]
    sums, counts = np.empty(size, np.float64), np.empty(size, np.int64)
    for r in range(first_column, last_column):
        num_blocks = 0
        for i in range(size):
            total, count = np.float64(columns[i, r]), 1
            while num_blocks and sums[num_blocks - 1] * count > total * counts[num_blocks - 1]:
                num_blocks -= 1
                total += sums[num_blocks]
                count += counts[num_blocks]
            sums[num_blocks], counts[num_blocks] = total, count
            num_blocks += 1
        end = 0
        for block in range(num_blocks):
            start, end = end, end + counts[block]
            fitted[start:end, r] = sums[block] / counts[block]


@kernel
def sweep_nonnegative(
    first_block: int,
    last_block: int,
    block_size: int,
    problem: LeastSquares,
    rows: Array,
    errors: Array,
    changes: Array,
) -> None:
    """Update all columns of some blocks of `rows` (I, R), one after the other, by HALS.

    A block is transposed, so that its rows are computed side by side. `errors` and `changes`
    receive, for each block, the sum of squares that TensorLy compares with its tolerance (of the
    distances of all columns from each new one), and the number of elements that changed.
    """
    targets, gram, shift, ridge, smallest = problem
    rank = rows.shape[1]
    old = np.empty((rank, block_size), rows.dtype)
    new = np.empty(block_size, rows.dtype)
    squares = np.empty(block_size, rows.dtype)
    for block in range(first_block, last_block):
        start = block * block_size
        size = min(block_size, rows.shape[0] - start)
        for b in range(size):
            for k in range(rank):
                old[k, b] = rows[start + b, k]
        squares[:] = 0
        changes[block] = 0
        for k in range(rank):
            if gram[k, k] == 0:
                continue
            for b in range(size):
                new[b] = targets[start + b, k] - shift
            for other in range(rank):
                if other != k:
                    for b in range(size):
                        new[b] -= gram[k, other] * old[other, b]
            for b in range(size):
                new[b] = max(new[b] / (gram[k, k] + 2 * ridge), smallest)
            for other in range(rank):
                for b in range(size):
                    squares[b] += (old[other, b] - new[b]) ** 2
            for b in range(size):
                changes[block] += new[b] != old[k, b]
                old[k, b] = new[b]
        for b in range(size):
            for k in range(rank):
                rows[start + b, k] = old[k, b]
        errors[block] = np.sum(squares[:size])

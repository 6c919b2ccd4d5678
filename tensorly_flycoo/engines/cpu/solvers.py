"""Small solvers for columns of factors on the host, compiled by numba.

Compiled functions call none of another file; `cpu_kernels` says why.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, error_model="numpy")
def fit_ascending(first_column, last_column, columns, fitted):
    """Write to `fitted` (I, R) the ascending sequences nearest to some of the columns (I, R).

    Blocks of equal elements, each the mean of what it covers, are merged while one is larger than
    the block that follows (pool adjacent violators): O(I * R). Means are taken in float64.
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


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_nonnegative(
    first_block, last_block, block_size, targets, gram, rows, shift, ridge, smallest,
    errors, changes,
):  # fmt: skip
    """Update all columns of some blocks of `rows` (I, R), one after the other, by HALS.

    A block is turned, so that its rows lie side by side and are computed with at once. `errors` and
    `changes` receive, for each block, the sum of squares that TensorLy compares with its tolerance
    (distances of all columns from each new one), and how many elements changed.
    """
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

"""Small solvers for columns of factors on the host, compiled by numba.

Compiled functions call none of another file; `cpu_kernels` says why.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def fit_rising(columns, fitted):
    """Write to `fitted` (I, R) the rising sequence nearest to each of the columns (I, R).

    Blocks of equal elements, each the mean of what it covers, are merged while one is larger than
    the block that follows (pool adjacent violators): O(I * R). Means are taken in float64.
    """
    size = columns.shape[0]
    sums, counts = np.empty(size, np.float64), np.empty(size, np.int64)
    for r in range(columns.shape[1]):
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

"""What a CP model has at given entries of its tensor, which is never formed."""

import numpy as np

from .array_modules import array_module, is_cupy

#: Numbers in an array with a row for each entry: few enough for the caches of a core, or many
#: enough to fill a GPU.
_CPU_BLOCK_NUMBERS = 2**16
_GPU_BLOCK_NUMBERS = 2**24


def choose_block_size(array, row_numbers):
    """Choose how many rows, of that many numbers each, are computed with at once, one at least."""
    numbers = _GPU_BLOCK_NUMBERS if is_cupy(array) else _CPU_BLOCK_NUMBERS
    return max(1, numbers // row_numbers)


def evaluate_model(coords, weights, factors):
    r"""Evaluate a CP model at some entries.

    .. math:: y_k = \sum_r w_r \prod_n F_n[c_{n,k}, r]

    Parameters
    ----------
    coords : integer array (ndim, count)
        On the device of the factors.
    weights : array (R,) or None
    factors : sequence of array (I_n, R)

    Returns
    -------
    array (count,)
        In the dtype of ``factors[0]``.

    Notes
    -----
    ``count * R * ndim`` operations; in blocks of entries, with a row of R numbers for each.

    Examples
    --------
    >>> factors = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 1.0], [5.0, 0.0]])]
    >>> evaluate_model(np.array([[0, 1], [0, 1]]), None, factors)
    array([ 3., 15.])
    """
    first, *others = factors
    values = array_module(first).empty(coords.shape[1], first.dtype)
    block_size = choose_block_size(first, first.shape[1])
    for start in range(0, coords.shape[1], block_size):
        block = coords[:, start : start + block_size]
        rows = first[block[0]]
        for factor, row_ids in zip(others, block[1:], strict=True):
            rows *= factor[row_ids]
        values[start : start + block_size] = np.sum(rows, 1) if weights is None else rows @ weights
    return values

"""The paper's format: partitions by Algorithm 1, remap ids, and elements.

Arrays are NumPy's or CuPy's, as `xp` says. Only Algorithm 1 itself, one index after the other, runs
on the host.
"""

import heapq

import numba
import numpy as np

#: Elements are as long as a multiple of so many 32-bit words, as in `thread_block.cu`.
_ALIGNMENT = 4


def count_words(ndim):
    """Return the 32-bit words of an element: remap ids, coordinates, a value, and padding.

    >>> [count_words(ndim) for ndim in (3, 4, 5)]
    [8, 12, 12]
    """
    return -(-(2 * ndim + 1) // _ALIGNMENT) * _ALIGNMENT


def partition_mode(row_nnz, num_partitions, xp=np):
    """Assign each index of a mode to a partition by Algorithm 1, as `reference.partition_mode`.

    Parameters
    ----------
    row_nnz : xp int array (num_rows,)
        Nonzeros of each index: the hyperedges of a vertex.
    num_partitions : int
        The paper's kappa.

    Returns
    -------
    xp int32 array (num_rows,)
    """
    fullest_first = xp.argsort(-row_nnz, kind="stable")
    descending = row_nnz[fullest_first]
    descending = descending if xp is np else descending.get()
    partition = xp.empty(row_nnz.size, np.int32)
    partition[fullest_first] = xp.asarray(fill_partitions(descending, num_partitions))
    return partition


@numba.njit  # no cache: it would hold the module's name, which in tests is another
def fill_partitions(row_nnz, num_partitions):
    """Give each index in turn to the least filled partition; if there are several, to the first."""
    partition = np.empty(row_nnz.size, np.int32)
    fills = [(0, number) for number in range(num_partitions)]  # a heap: the least is first
    for j in range(row_nnz.size):
        fill, least_filled = fills[0]
        partition[j] = least_filled
        heapq.heapreplace(fills, (fill + row_nnz[j], least_filled))
    return partition


def deal_mode(row_nnz, num_partitions, xp=np):
    """Assign the indices, fullest first, to the partitions in turn: "in a cyclic fashion".

    That is what the paper's text says where its Algorithm 1 says "least filled".
    """
    partition = xp.empty(row_nnz.size, np.int32)
    partition[xp.argsort(-row_nnz, kind="stable")] = xp.arange(row_nnz.size) % num_partitions
    return partition


def bound_optimum(row_nnz, num_partitions, xp=np):
    """Return a lower bound of the fullest partition's nonzeros, however rows are assigned.

    The largest of the mean, the fullest row, and, since of the kappa + 1 fullest rows two must
    share a partition, the sum of the last two of them.
    """
    fullest = -xp.sort(-row_nnz)[: num_partitions + 1]
    last_two = int(fullest[-2:].sum()) if fullest.size > num_partitions else 0
    return max(int(row_nnz.sum()) / num_partitions, int(fullest[0]), last_two)


def make_elements(coords, values, shape, num_partitions, xp=np, assign=partition_mode, by_row=True):
    """Make the elements in the order of mode 0, which is Algorithm 5's input.

    Parameters
    ----------
    coords : xp int32 array (ndim, nnz)
    values : xp float32 array (nnz,)
    shape : tuple of int
    num_partitions : int
    assign : function
        `partition_mode` or `deal_mode`.
    by_row : bool
        Whether the nonzeros of a partition are ordered by index, as "ordered according to the
        indices" says, or stay as they come, as "based on the partition IDs" does.

    Returns
    -------
    elements : xp uint32 array (nnz, count_words(ndim))
    starts : list of xp int64 arrays (num_partitions + 1,)
        Where the partitions of each mode begin, in that mode's order.
    """
    ndim, nnz = coords.shape
    elements, starts = xp.zeros((nnz, count_words(ndim)), np.uint32), []
    elements[:, ndim : 2 * ndim] = coords.T
    elements[:, 2 * ndim] = values.view(np.uint32)
    for mode, rows in enumerate(coords):
        row_nnz = xp.bincount(rows, minlength=shape[mode])
        partition = assign(row_nnz, num_partitions, xp)
        order = order_nonzeros(rows, partition, by_row, xp)
        elements[order, mode] = xp.arange(nnz, dtype=np.uint32)  # the remap ids b_d
        ends = xp.cumsum(xp.bincount(partition[rows], minlength=num_partitions))
        starts.append(xp.concatenate([xp.zeros(1, np.int64), ends]))
        if mode == 0:
            first_order = order
    return elements[first_order], starts


def order_nonzeros(rows, partition, by_row, xp=np):
    """Return the nonzeros in the order of their partition and, if asked for, row."""
    if not by_row:
        return xp.argsort(partition[rows], kind="stable")
    place = xp.empty(partition.size, np.int32)  # of a row, in the order of partitions
    place[xp.argsort(partition, kind="stable")] = xp.arange(partition.size, dtype=np.int32)
    return xp.argsort(place[rows], kind="stable")

"""State FLYCOO as an executable NumPy specification, in the paper's terms and in float64.

The engines are tested against this module, so each function follows one algorithm of [1]_ and
none is written for speed. Arguments are taken as valid: checks belong to the floors above.

A tensor element is one record of `element_dtype`: `alpha` holds its remap ids (one a mode),
`beta` its coordinates and `value` its value. Where the paper speaks of vertices and hyperedges,
the names here are indices (of one mode) and nonzeros.

References
----------
.. [1] S. Wijeratne, R. Kannan, V. Prasanna, "Sparse MTTKRP Acceleration for Tensor Decomposition
   on GPU", Computing Frontiers 2024, doi 10.1145/3649153.3649187.
"""

import numpy as np


def count_row_nnz(rows, num_rows):
    """Count the nonzeros of each index of one mode.

    Parameters
    ----------
    rows : (nnz,) int array
        Coordinate of each nonzero in the mode.
    num_rows : int
        Size of the mode.

    Returns
    -------
    (num_rows,) int64 array

    References
    ----------
    Section "Hypergraph Representation": the hyperedges incident on each vertex.

    Examples
    --------
    >>> count_row_nnz([0, 1, 2, 2], 4)
    array([1, 1, 2, 0])
    """
    return np.bincount(np.asarray(rows, dtype=np.int64), minlength=num_rows)


def partition_mode(rows, num_rows, num_partitions):
    """Give each index of one mode to a partition.

    Indices come in order of falling nonzero count (ties: lower index first); each goes to the
    partition that has the fewest nonzeros so far (ties: lower partition first).

    Parameters
    ----------
    rows : (nnz,) int array
        Coordinate of each nonzero in the mode.
    num_rows : int
        Size of the mode.
    num_partitions : int
        The paper's kappa, at least 1.

    Returns
    -------
    (num_rows,) int64 array
        Partition of each index, also of those with no nonzero.

    References
    ----------
    Algorithm 1, for one mode.

    Examples
    --------
    >>> partition_mode([0, 1, 2, 2], 3, num_partitions=2)
    array([1, 1, 0])
    """
    row_nnz = count_row_nnz(rows, num_rows)
    partition = np.empty(num_rows, dtype=np.int64)
    load = np.zeros(num_partitions, dtype=np.int64)
    for row in np.argsort(-row_nnz, kind="stable"):
        least_filled = np.argmin(load)
        partition[row] = least_filled
        load[least_filled] += row_nnz[row]
    return partition


def partition_sizes(rows, partition, num_partitions):
    """Count the nonzeros in each partition of one mode.

    Parameters
    ----------
    rows : (nnz,) int array
        Coordinate of each nonzero in the mode.
    partition : (num_rows,) int array
        Partition of each index, from `partition_mode`.
    num_partitions : int
        The paper's kappa.

    Returns
    -------
    (num_partitions,) int64 array

    References
    ----------
    Section "Tensor Partitioning Scheme".

    Examples
    --------
    >>> partition_sizes([0, 1, 2, 2], np.array([1, 1, 0]), num_partitions=2)
    array([2, 2])
    """
    return np.bincount(partition[np.asarray(rows)], minlength=num_partitions)


def bound_max_load(optimum, num_partitions):
    """Bound the nonzeros of the fullest partition by Graham's theorem.

    ``max(partition_sizes) <= (4/3 - 1/(3 kappa)) * optimum``, where `optimum` is the smallest
    possible fullest partition. It is no less than the mean load and no less than the largest row;
    it may exceed both, so the bound does not hold with either in place of `optimum`.

    Parameters
    ----------
    optimum : int
        Nonzeros of the fullest partition in the best partitioning.
    num_partitions : int
        The paper's kappa.

    Returns
    -------
    float

    References
    ----------
    Section "Load Balancing"; R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969.

    Examples
    --------
    >>> bound_max_load(6, num_partitions=2)
    7.0
    """
    return (4 * num_partitions - 1) * optimum / (3 * num_partitions)


def remap_ids(coords, shape, num_partitions):
    """Number the nonzeros partition by partition, for every mode.

    ``b_d`` of a nonzero is its position once the nonzeros are ordered by partition of mode d,
    then by index of mode d, then by their original number.

    Parameters
    ----------
    coords : (ndim, nnz) int array
    shape : tuple of int
    num_partitions : int
        The paper's kappa.

    Returns
    -------
    (ndim, nnz) int64 array
        Each row is a permutation of ``range(nnz)``.

    References
    ----------
    Sections "Tensor Partitioning Scheme" and "Tensor Element Representation".

    Examples
    --------
    >>> remap_ids(np.array([[2, 0, 1, 2]]), (3,), num_partitions=2)
    array([[0, 2, 3, 1]])
    """
    ids = np.empty(np.shape(coords), dtype=np.int64)
    for rows, num_rows, mode_ids in zip(coords, shape, ids, strict=True):
        partition = partition_mode(rows, num_rows, num_partitions)
        order = np.lexsort((rows, partition[rows]))  # last key first; stable
        mode_ids[order] = np.arange(len(order))
    return ids


def element_dtype(ndim):
    """Describe a tensor element: ``x_i = <alpha_i, beta_i, value_i>``.

    Parameters
    ----------
    ndim : int

    Returns
    -------
    numpy.dtype
        Fields `alpha` (ndim remap ids), `beta` (ndim coordinates) and `value`.

    References
    ----------
    Section "Tensor Element Representation".

    Examples
    --------
    >>> element_dtype(3).names
    ('alpha', 'beta', 'value')
    """
    return np.dtype(
        [("alpha", np.int64, (ndim,)), ("beta", np.int64, (ndim,)), ("value", np.float64)]
    )


def make_elements(coords, values, shape, num_partitions):
    """Make the tensor elements, in the order of mode 0: the first ``T_in``.

    Parameters
    ----------
    coords : (ndim, nnz) int array
    values : (nnz,) array
    shape : tuple of int
    num_partitions : int
        The paper's kappa.

    Returns
    -------
    (nnz,) array of `element_dtype`
        The element at place p has ``alpha[0] == p``.

    References
    ----------
    Section "Tensor Element Representation"; input of Algorithm 5.

    Examples
    --------
    >>> make_elements(np.array([[2, 0, 1, 2]]), [5.0, 6.0, 7.0, 8.0], (3,), 2)["value"]
    array([5., 8., 6., 7.])
    """
    elements = np.empty(len(values), dtype=element_dtype(len(shape)))
    elements["alpha"] = remap_ids(coords, shape, num_partitions).T
    elements["beta"] = np.asarray(coords).T
    elements["value"] = values
    t_in = np.empty_like(elements)
    remap_elements(elements, elements["alpha"][:, 0], t_in)
    return t_in


def elementwise_computation(coordinates, value, factors, mode):
    """Compute what one nonzero adds to its output row.

    ``l(r) = value * prod over w != mode of factors[w][c_w, r]``. It is vectorised: trailing axes
    of `coordinates` run over nonzeros. The sum into ``Y_d(c_d, :)`` is left to the caller.

    Parameters
    ----------
    coordinates : (ndim,) or (ndim, nnz) int array
        ``c_0 .. c_{ndim-1}`` of the nonzero, or of each nonzero.
    value : float or (nnz,) array
    factors : list of (I_n, R) arrays
        ``factors[mode]`` is not read, save for the number of its columns.
    mode : int
        Output mode, from 0 to ndim - 1.

    Returns
    -------
    (R,) or (nnz, R) float64 array

    Raises
    ------
    ValueError
        If `mode` is no mode of the tensor (a negative one would multiply all factors).

    References
    ----------
    Algorithm 2.

    Examples
    --------
    >>> factors = [np.full((2, 2), 9.0), np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])]
    >>> elementwise_computation([1, 0, 0], 10.0, factors, mode=0)
    array([30., 80.])
    """
    if not 0 <= mode < len(factors):
        raise ValueError(f"mode is {mode}, expected 0 to {len(factors) - 1}")
    rank = factors[0].shape[1]
    ell = np.multiply.outer(np.asarray(value, dtype=np.float64), np.ones(rank))
    for w, factor in enumerate(factors):
        if w != mode:
            ell *= factor[coordinates[w]]
    return ell


def remap_elements(elements, places, t_out):
    """Write each element to its place of the next mode (dynamic remapping).

    Places are distinct, so the writes may come in any order and need no atomics (Observation 1).

    Parameters
    ----------
    elements : (n,) array of `element_dtype`
    places : (n,) int array
        ``b_{(d+1) mod ndim}`` of each element.
    t_out : (nnz,) array of `element_dtype`
        Written in place, at `places` only.

    References
    ----------
    Algorithm 3.

    Examples
    --------
    >>> t_out = np.zeros(3, dtype=element_dtype(1))
    >>> remap_elements(np.array([([2], [7], 5.0)], dtype=element_dtype(1)), [2], t_out)
    >>> t_out["value"]
    array([0., 0., 5.])
    """
    t_out[places] = elements


def thread_block(elements, factors, mode, output, t_out):
    """Run one partition: elementwise computation into ``Y_d``, dynamic remapping into ``T_out``.

    The paper's P columns of threads share the elements among themselves; that changes no result
    but the order of sums, and is left out.

    Parameters
    ----------
    elements : (n,) array of `element_dtype`
        ``B_{d,z}``: all nonzeros of every index of the partition.
    factors : list of (I_n, R) arrays
    mode : int
        Output mode d.
    output : (I_d, R) float64 array
        ``Y_d``; the rows that have nonzeros in the partition are written in place.
    t_out : (nnz,) array of `element_dtype`
        Written in place, at the remap ids of the next mode.

    References
    ----------
    Algorithm 4.

    Examples
    --------
    >>> t_in = make_elements(np.array([[1, 1]]), [2.0, 3.0], (2,), num_partitions=1)
    >>> output, t_out = np.zeros((2, 1)), np.empty_like(t_in)
    >>> thread_block(t_in, [np.ones((2, 1))], 0, output, t_out)
    >>> output.ravel(), t_out["value"]
    (array([0., 5.]), array([2., 3.]))
    """
    ell = elementwise_computation(elements["beta"].T, elements["value"], factors, mode)
    rows, local_rows = np.unique(elements["beta"][:, mode], return_inverse=True)
    sums = np.zeros((len(rows), ell.shape[1]))
    np.add.at(sums, local_rows, ell)
    # Stored, not added: no other thread block has a nonzero of these rows (Observation 2).
    output[rows] = sums
    next_mode = (mode + 1) % len(factors)
    remap_elements(elements, elements["alpha"][:, next_mode], t_out)


def sweep_modes(t_in, shape, factors, num_partitions):
    """Compute the MTTKRP of every mode while the tensor is remapped from mode to mode.

    Every mode reads the same `factors`, which are not overwritten. In CP-ALS the caller solves
    for ``factors[d]`` after mode d, and mode d + 1 reads the new one.

    Parameters
    ----------
    t_in : (nnz,) array of `element_dtype`
        In the order of mode 0, from `make_elements`. May be overwritten: it becomes one of the
        two copies.
    shape : tuple of int
    factors : list of (I_n, R) arrays
    num_partitions : int
        The paper's kappa.

    Returns
    -------
    outputs : list of (I_n, R) float64 arrays
        Rows of indices without nonzeros are zero.
    t_in : (nnz,) array of `element_dtype`
        The tensor, again in the order of mode 0.

    References
    ----------
    Algorithm 5.

    Examples
    --------
    >>> coords, factors = np.array([[0, 1], [1, 0]]), [np.eye(2), np.eye(2)]
    >>> outputs, t_in = sweep_modes(make_elements(coords, [5.0, 6.0], (2, 2), 2), (2, 2), factors, 2)
    >>> outputs[0].tolist(), t_in["alpha"][:, 0]
    ([[0.0, 5.0], [6.0, 0.0]], array([0, 1]))
    """
    t_out = np.zeros_like(t_in)
    t_out["value"] = np.nan  # a place that the first remapping misses shows in the result
    outputs = []
    for mode, num_rows in enumerate(shape):
        rows = t_in["beta"][:, mode]
        partition = partition_mode(rows, num_rows, num_partitions)
        ends = np.cumsum(partition_sizes(rows, partition, num_partitions))
        output = np.zeros((num_rows, factors[0].shape[1]))
        for elements in np.split(t_in, ends[:-1]):  # in parallel on the GPU
            thread_block(elements, factors, mode, output, t_out)
        # The end of the loop is the global barrier: only now is T_out complete.
        outputs.append(output)
        t_in, t_out = t_out, t_in
    return outputs, t_in


def mttkrp_all_modes(coords, values, shape, factors, num_partitions):
    """Compute the MTTKRP of every mode by FLYCOO, from the same input factors.

    Parameters
    ----------
    coords : (ndim, nnz) int array
    values : (nnz,) array
    shape : tuple of int
    factors : list of (I_n, R) arrays
        Not overwritten; see `sweep_modes` for what CP-ALS does between the modes.
    num_partitions : int
        The paper's kappa.

    Returns
    -------
    list of (I_n, R) float64 arrays
        Element n equals ``mttkrp(coords, values, shape, factors, n)`` but for rounding.

    References
    ----------
    Algorithm 1, then Algorithm 5.

    Examples
    --------
    >>> factors = [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])]
    >>> mttkrp_all_modes(np.array([[0, 1], [1, 1]]), [1.0, 10.0], (2, 2), factors, 2)
    [array([[ 4.],
           [40.]]), array([[ 0.],
           [21.]])]
    """
    t_in = make_elements(coords, values, shape, num_partitions)
    outputs, _ = sweep_modes(t_in, shape, factors, num_partitions)
    return outputs


def mttkrp(coords, values, shape, factors, mode):
    """Compute the MTTKRP of one mode straight from its formula, without partitions.

    ``Y(c_d, :) += value * prod over w != d of factors[w][c_w, :]`` over all nonzeros. With one
    mode the product is empty, and each column is the vector itself.

    Parameters
    ----------
    coords : (ndim, nnz) int array
        Repeated coordinates add up.
    values : (nnz,) array
    shape : tuple of int
    factors : list of (I_n, R) arrays
        ``factors[mode]`` is not read, save for the number of its columns.
    mode : int
        Output mode d, from 0 to ndim - 1.

    Returns
    -------
    (I_mode, R) float64 array

    Raises
    ------
    ValueError
        If `mode` is no mode of the tensor.

    References
    ----------
    Section "Elementwise computation".

    Examples
    --------
    >>> factors = [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])]
    >>> mttkrp(np.array([[0, 1], [1, 1]]), [1.0, 10.0], (2, 2), factors, mode=1)
    array([[ 0.],
           [21.]])
    """
    ell = elementwise_computation(coords, values, factors, mode)
    output = np.zeros((shape[mode], ell.shape[1]))
    np.add.at(output, coords[mode], ell)
    return output


def mttkrp_error_bound(coords, values, shape, factors, mode, dtype):
    """Bound the rounding error of an MTTKRP computed in `dtype`, entry by entry.

    ``(row_nnz + ndim) * (eps * MTTKRP(|X|, |Y|) + smallest_subnormal)``. A product takes ndim - 1
    roundings and a row's sum row_nnz - 1 more, in whatever order, each of at most eps / 2; so the
    bound covers the difference of two such results as well.

    Parameters
    ----------
    coords : (ndim, nnz) int array
    values : (nnz,) array
    shape : tuple of int
    factors : list of (I_n, R) arrays
    mode : int
    dtype : dtype
        Floating-point type in which the result under test was computed.

    Returns
    -------
    (I_mode, R) float64 array

    Notes
    -----
    The inputs must be exact in `dtype`. The subnormal term allows for gradual underflow of
    products whose further factors are at most 1 in magnitude; it does not allow for hardware
    that flushes subnormals to zero, nor for overflow.

    References
    ----------
    N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, sections 3.1 and 4.2.

    Examples
    --------
    >>> factors = [np.ones((1, 1)), np.array([[-4.0]])]
    >>> bound = mttkrp_error_bound(np.array([[0], [0]]), [2.0], (1, 1), factors, 0, np.float32)
    >>> (bound / np.finfo(np.float32).eps).round(6)
    array([[24.]])
    """
    limits = np.finfo(dtype)
    magnitudes = [np.abs(factor) for factor in factors]
    magnitude = mttkrp(coords, np.abs(values), shape, magnitudes, mode)
    num_roundings = count_row_nnz(coords[mode], shape[mode])[:, np.newaxis] + len(shape)
    return num_roundings * (float(limits.eps) * magnitude + float(limits.smallest_subnormal))

"""An executable specification of FLYCOO in NumPy, in the paper's terms and in float64.

The engines are tested against this module, so each function follows one algorithm of [1]_ and
none is written for speed. The paper's vertices are the indices of one mode here, its hyperedges are
nonzeros, its kappa is `num_partitions`. Arguments are not checked. Their names mean the same
throughout: `coords` and `values` are the nonzeros, in any order, and repeated coordinates add up;
`rows` are the coordinates in one mode; modes are numbered from 0. An element is a record with the
fields `alpha` (its remap ids), `beta` (its coordinates) and `value`.

References
----------
.. [1] S. Wijeratne, R. Kannan, V. Prasanna, "Sparse MTTKRP Acceleration for Tensor Decomposition
   on GPU", Computing Frontiers 2024, doi 10.1145/3649153.3649187.
"""

import numpy as np

Array = np.ndarray
Values = np.ndarray | list[float]
Shape = tuple[int, ...]


def partition_mode(rows: Array, num_rows: int, num_partitions: int) -> Array:
    """Assign each index of one mode to a partition.

    Each index, in descending order of its number of nonzeros (ties: lower index first), goes to the
    partition with the fewest nonzeros so far (ties: lower partition first).

    Parameters
    ----------
    rows : (nnz,) int array
    num_rows, num_partitions : int

    Returns
    -------
    (num_rows,) int64 array
        The partition of each index, including those without nonzeros.

    References
    ----------
    Algorithm 1, for one mode.

    Examples
    --------
    >>> partition_mode(np.array([0, 1, 2, 2]), 3, num_partitions=2)
    array([1, 1, 0])
    """
    row_nnz = np.bincount(rows, minlength=num_rows)
    partition = np.empty(num_rows, dtype=np.int64)
    load = np.zeros(num_partitions, dtype=np.int64)
    for row in np.argsort(-row_nnz, kind="stable"):
        partition[row] = np.argmin(load)
        load[partition[row]] += row_nnz[row]
    return partition


def partition_sizes(rows: Array, partition: Array, num_partitions: int) -> Array:
    """Count the nonzeros in each partition of one mode.

    Graham's bound: ``max(sizes) <= 4/3 optimum - 1/(3 kappa) optimum``, where the optimum is the
    size of the largest partition of the best partitioning. The optimum is at least the mean size
    and at least the largest row, but may exceed both: neither can replace it in the bound.

    Parameters
    ----------
    rows : (nnz,) int array
    partition : (num_rows,) int array
    num_partitions : int

    Returns
    -------
    (num_partitions,) int64 array

    References
    ----------
    Section "Load Balancing"; R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969.

    Examples
    --------
    >>> partition_sizes(np.array([0, 1, 2, 2]), np.array([1, 1, 0]), num_partitions=2)
    array([2, 2])
    """
    return np.bincount(partition[rows], minlength=num_partitions)


def remap_ids(coords: Array, shape: Shape, num_partitions: int) -> Array:
    """Number the nonzeros partition by partition, for every mode.

    ``b_d`` is the position of a nonzero after sorting by partition of mode d, then by index of mode
    d, then by original position.

    Parameters
    ----------
    coords : (ndim, nnz) int array
    shape : tuple of int
    num_partitions : int

    Returns
    -------
    (ndim, nnz) int64 array
        Row d holds ``b_d``, a permutation of ``range(nnz)``.

    References
    ----------
    Sections "Tensor Partitioning Scheme" and "Tensor Element Representation".

    Examples
    --------
    >>> remap_ids(np.array([[2, 0, 1, 2]]), (3,), num_partitions=2)
    array([[0, 2, 3, 1]])
    """
    ids = np.empty(coords.shape, dtype=np.int64)
    for mode, rows in enumerate(coords):
        partition = partition_mode(rows, shape[mode], num_partitions)
        order = np.lexsort((rows, partition[rows]))  # the last key leads; the sort is stable
        ids[mode, order] = np.arange(len(order))
    return ids


def make_elements(coords: Array, values: Values, shape: Shape, num_partitions: int) -> Array:
    """Make the elements ``<alpha, beta, value>`` in the order of mode 0, Algorithm 5's input."""
    ids = [(name, "i8", (len(shape),)) for name in ("alpha", "beta")]
    elements = np.empty(coords.shape[1], dtype=[*ids, ("value", "f8")])
    elements["alpha"] = remap_ids(coords, shape, num_partitions).T
    elements["beta"] = coords.T
    elements["value"] = values
    return elements[np.argsort(elements["alpha"][:, 0])]


def elementwise_computation(
    coordinates: Array | list[int], value: Values | float, factors: list[Array], mode: int
) -> Array:
    """Compute the contribution of one nonzero to its output row, or of many nonzeros to theirs.

    ``l(r) = value * prod over w != mode of factors[w][c_w, r]``. A second axis of `coordinates`
    runs over nonzeros. The caller adds l to ``Y_d(c_d, :)``.

    Parameters
    ----------
    coordinates : (ndim,) or (ndim, nnz) int array
    value : float or (nnz,) array
    factors : list of (I_n, R) arrays
        Only the shape of ``factors[mode]`` is read.
    mode : int

    Returns
    -------
    (R,) or (nnz, R) float64 array

    Raises
    ------
    ValueError
        If `mode` is not in ``range(ndim)``: -1 would silently multiply all the factors.

    References
    ----------
    Algorithm 2.

    Examples
    --------
    >>> factors = [np.full((2, 2), 9.0), np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])]
    >>> elementwise_computation([1, 0, 0], 10.0, factors, mode=0)
    array([30., 80.])
    """
    if mode not in range(len(factors)):
        raise ValueError(f"mode is {mode}, expected 0 to {len(factors) - 1}")
    ell = np.multiply.outer(np.asarray(value, dtype=np.float64), np.ones(factors[0].shape[1]))
    for w, factor in enumerate(factors):
        if w != mode:
            ell *= factor[np.asarray(coordinates)[w]]
    return ell


def remap_elements(elements: Array, places: Array, t_out: Array) -> None:
    """Write each element to its place in ``T_out``, in the order of the next mode (Algorithm 3).

    Places are remap ids, so distinct: the writes need no order and no atomics (Observation 1).
    """
    t_out[places] = elements


def thread_block(
    elements: Array, factors: list[Array], mode: int, output: Array, t_out: Array
) -> None:
    """Run one partition: elementwise computation into ``Y_d``, remapping into ``T_out``.

    The P columns of threads are left out: they affect only the order of sums.

    Parameters
    ----------
    elements : (n,) array of elements
        ``B_{d,z}``: all nonzeros of its indices.
    factors : list of (I_n, R) arrays
    mode : int
    output : (I_d, R) float64 array
        ``Y_d``; the rows that have nonzeros here are written.
    t_out : (nnz,) array of elements
        Written at the remap ids of mode ``(d + 1) mod ndim``.

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
    remap_elements(elements, elements["alpha"][:, (mode + 1) % len(factors)], t_out)


def sweep_modes(
    t_in: Array, shape: Shape, factors: list[Array], num_partitions: int
) -> tuple[list[Array], Array]:
    """Compute the MTTKRP of each mode in turn, remapping from mode to mode (Algorithm 5).

    `t_in` is in the order of mode 0; as one of the two copies it is overwritten. Returns the list
    of MTTKRPs, and the tensor in the order of mode 0 again. All modes read the same `factors`;
    CP-ALS would update ``factors[d]`` before mode d + 1.
    """
    t_out = np.zeros_like(t_in)
    t_out["value"] = np.nan  # a place that remapping misses then shows in the result
    outputs = []
    for mode, num_rows in enumerate(shape):
        rows = t_in["beta"][:, mode]
        partition = partition_mode(rows, num_rows, num_partitions)
        ends = np.cumsum(partition_sizes(rows, partition, num_partitions))
        output = np.zeros((num_rows, factors[0].shape[1]))
        for elements in np.split(t_in, ends[:-1]):  # in parallel on the GPU
            thread_block(elements, factors, mode, output, t_out)
        # Here is the global barrier: T_out is complete only once every partition is done.
        outputs.append(output)
        t_in, t_out = t_out, t_in
    return outputs, t_in


def mttkrp_all_modes(
    coords: Array, values: Values, shape: Shape, factors: list[Array], num_partitions: int
) -> list[Array]:
    """Compute the MTTKRP of each mode by FLYCOO, all from the same factors.

    Parameters
    ----------
    coords, values, shape, factors
        As for `mttkrp`. CP-ALS would update the factors between the modes.
    num_partitions : int

    Returns
    -------
    list of (I_n, R) float64 arrays
        Item n is ``mttkrp(coords, values, shape, factors, n)`` up to rounding.

    References
    ----------
    Algorithm 1, then Algorithm 5.

    Examples
    --------
    >>> factors = [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])]
    >>> outputs = mttkrp_all_modes(np.array([[0, 1], [1, 1]]), [1.0, 10.0], (2, 2), factors, 2)
    >>> [output.ravel().tolist() for output in outputs]
    [[4.0, 40.0], [0.0, 21.0]]
    """
    t_in = make_elements(coords, values, shape, num_partitions)
    return sweep_modes(t_in, shape, factors, num_partitions)[0]


def mttkrp(coords: Array, values: Values, shape: Shape, factors: list[Array], mode: int) -> Array:
    """Compute the MTTKRP of one mode from its formula, without partitions.

    ``Y(c_d, :) += value * prod over w != d of factors[w][c_w, :]``, summed over the nonzeros. With
    one mode the product is empty, so 1: each column is the vector itself.

    Parameters
    ----------
    coords : (ndim, nnz) int array
    values : (nnz,) array
    shape : tuple of int
    factors : list of (I_n, R) arrays
        Only the shape of ``factors[mode]`` is read.
    mode : int

    Returns
    -------
    (I_mode, R) float64 array
        Rows of indices without nonzeros are zero.

    Raises
    ------
    ValueError
        If `mode` is not in ``range(ndim)``.

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


def group_mttkrp(
    coords: Array, values: Values, shape: Shape, factors: list[Array], group: tuple[int, ...]
) -> Array:
    """Compute T, the MTTKRP of a group of modes: it has a row for each combination of indices.

    ``T(c_a, c_b, ..., :) += value * prod over w not in the group of factors[w][c_w, :]``, where a,
    b, ... are the modes of the group. T depends on no factor of the group. Not in the paper.

    Parameters
    ----------
    coords, values, shape, factors
        As for `mttkrp`. Only the shape of the group's factors is read.
    group : tuple of int

    Returns
    -------
    (I_a, I_b, ..., R) float64 array

    Examples
    --------
    >>> factors = [np.ones((2, 1)), np.ones((2, 1)), np.array([[3.0], [4.0]])]
    >>> coords = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 1]])
    >>> group_mttkrp(coords, [1.0, 10.0, 100.0], (2, 2, 2), factors, (0, 1))[:, :, 0]
    array([[  0.,   3.],
           [430.,   0.]])
    """
    ell = np.multiply.outer(np.asarray(values, dtype=np.float64), np.ones(factors[0].shape[1]))
    for w, factor in enumerate(factors):
        if w not in group:
            ell *= factor[coords[w]]
    rows = np.zeros((*(shape[w] for w in group), ell.shape[1]))
    np.add.at(rows, tuple(coords[list(group)]), ell)
    return rows


def contract_group(rows: Array, factors: list[Array], group: tuple[int, ...], mode: int) -> Array:
    """Compute the MTTKRP of a mode from that of its group, and the group's other factors.

    ``Y(i, :) = sum over j, k, ... of T(i, j, k, ..., :) * B(j, :) * C(k, :) * ...``, for any place
    of i. Changed factors of the group need no new T: it serves all modes of the group in a sweep.

    Examples
    --------
    >>> rows = np.array([[[0.0], [3.0]], [[430.0], [0.0]]])
    >>> factors = [np.array([[1.0], [2.0]]), np.array([[5.0], [6.0]])]
    >>> contract_group(rows, factors, (0, 1), mode=0).ravel()
    array([  18., 2150.])
    >>> contract_group(rows, factors, (0, 1), mode=1).ravel()
    array([860.,   3.])
    """
    for place in reversed(range(len(group))):
        if group[place] != mode:
            other = factors[group[place]]
            rows = (np.moveaxis(rows, place, -2) * other).sum(axis=-2)
    return rows


def mttkrp_error_bound(
    coords: Array,
    values: Values,
    shape: Shape,
    factors: list[Array],
    mode: int,
    dtype: np.dtype | type | str,
    *,
    flush_to_zero: bool = False,
) -> Array:
    """Bound the rounding error of an MTTKRP computed in `dtype`, entry by entry.

    ``(row_nnz + ndim) * (eps * MTTKRP(|X|, |Y|) + smallest_subnormal)``. A product takes ndim - 1
    roundings and the sum of a row row_nnz - 1 more, in any order, each of at most eps / 2: the
    bound covers the difference of two results computed in `dtype` or a wider type. The terms for
    underflow suffice if factors are at most 1 in magnitude; overflow is not covered.

    Parameters
    ----------
    coords, values, shape, factors, mode
        As for `mttkrp`.
    dtype : dtype
        Floating type of the result under test; it represents `values` and `factors` exactly.
    flush_to_zero : bool
        Whether the code under test flushes subnormals to zero, as our CUDA kernels do. Each of its
        row_nnz * ndim operations may then lose up to the smallest normal number, too.

    Returns
    -------
    (I_mode, R) float64 array

    References
    ----------
    N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapters 3 and 4.

    Examples
    --------
    >>> factors = [np.ones((1, 1)), np.array([[-4.0]])]
    >>> bound = mttkrp_error_bound(np.array([[0], [0]]), [2.0], (1, 1), factors, 0, np.float32)
    >>> (bound / np.finfo(np.float32).eps).round(6)
    array([[24.]])
    """
    limits = np.finfo(np.dtype(dtype))
    row_nnz = np.bincount(coords[mode], minlength=shape[mode])
    magnitude = mttkrp(coords, np.abs(values), shape, [np.abs(f) for f in factors], mode)
    per_rounding = float(limits.eps) * magnitude + float(limits.smallest_subnormal)
    flushed = row_nnz[:, np.newaxis] * len(shape) * float(limits.tiny) if flush_to_zero else 0.0
    return (row_nnz[:, np.newaxis] + len(shape)) * per_rounding + flushed


def ttmc(coords: Array, values: Values, shape: Shape, factors: list[Array], mode: int) -> Array:
    """Multiply a tensor with the transposed factors of all modes but one, and unfold along that.

    Not in the paper. Each nonzero adds to row ``c_mode`` its value times the Kronecker product of
    the rows of all other factors; the last mode's columns vary fastest.

    Parameters
    ----------
    coords, values, shape, mode
        As for `mttkrp`.
    factors : list of (I_n, K_n) arrays
        ``factors[mode]`` is not read.

    Returns
    -------
    (I_mode, prod of the other K_n) float64 array

    Examples
    --------
    >>> factors = [None, np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])]
    >>> ttmc(np.array([[1], [0], [0]]), [10.0], (2, 1, 1), factors, mode=0)
    array([[ 0.,  0.,  0.,  0.],
           [30., 40., 60., 80.]])
    """
    rows = np.asarray(values, dtype=np.float64)[:, np.newaxis]
    for n, factor in enumerate(factors):
        if n != mode:
            outer = rows[:, :, np.newaxis] * factor[coords[n], np.newaxis]
            rows = outer.reshape(len(rows), rows.shape[1] * factor.shape[1])
    output = np.zeros((shape[mode], rows.shape[1]))
    np.add.at(output, coords[mode], rows)
    return output

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

#: Rows of tall matrices that are multiplied in float64.
_BLOCK_ROWS = 1024


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
    return add_rows(coords[mode], ell, shape[mode])


def add_rows(rows: Array, terms: Array, num_rows: int) -> Array:
    """Add the terms of each row in extended precision, and round the sums to float64.

    Parameters
    ----------
    rows : (n,) int array
        The row of each term, in any order.
    terms : (n, R) float64 array
    num_rows : int

    Returns
    -------
    (num_rows, R) float64 array
        Rows without terms are zero.

    Examples
    --------
    >>> add_rows(np.array([2, 0, 2]), np.array([[1.0], [2.0], [3.0]]), 3).ravel()
    array([2., 0., 4.])
    """
    output = np.zeros((num_rows, terms.shape[1]))
    if len(rows) > 0:
        order = np.argsort(rows, kind="stable")
        ascending = np.asarray(rows)[order]
        starts = np.flatnonzero(np.diff(ascending, prepend=-1))
        sums = np.add.reduceat(terms[order].astype(np.longdouble), starts, axis=0)
        output[ascending[starts]] = sums
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


def count_additions(num_terms: Array, widths: tuple[int, ...] = ()) -> Array:
    """Count the additions between a term and the sum of its row, at most, for sums cut into parts.

    All rows' terms, one row after the other, are cut into parts of ``widths[0]``. The terms of a
    row in one part are added one after the other. The sums of a row's later parts are carries: they
    are cut into parts of ``widths[1]``, and so on. The carries that the last width leaves are added
    one after the other. The row, its first part, receives the sum of each step's first carries. A
    row may begin at the end of a part, so n terms leave up to ``ceil((n - 1) / width)`` carries.

    The fewer additions, the smaller the error of the sum: see `rounding_bound`.

    Parameters
    ----------
    num_terms : (n,) int array
        Of each row.
    widths : tuple of int
        Without any, terms may be added in any order.

    Returns
    -------
    (n,) int64 array

    Examples
    --------
    A million terms in tiles of 2048, whose sums are added one after the other; and in runs of 64,
    the 32 runs of a tile, and segments of 512 tiles:

    >>> count_additions(np.array([1, 1_000_000]), (2048,))
    array([   1, 2537])
    >>> count_additions(np.array([1_000_000]), (64, 32, 512))
    array([586])
    """
    left = np.asarray(num_terms, dtype=np.int64)
    additions = np.zeros_like(left)
    for width in widths:
        additions += np.minimum(left, width)
        left = -(-np.maximum(left - 1, 0) // width)
    return additions + left


def rounding_bound(
    num_roundings: Array | int, magnitude: Array, dtype: np.dtype | type | str
) -> Array:
    """Bound the error of sums of products by the roundings that each term goes through.

    With n roundings, each of relative size u at most, a term has a relative error of at most
    ``gamma_n = n u / (1 - n u)``, and so has the sum, relative to `magnitude`, that of the terms'
    magnitudes. u is half the machine epsilon of `dtype`.

    Parameters
    ----------
    num_roundings : int or int array
    magnitude : float64 array
    dtype : dtype

    Returns
    -------
    float64 array

    Raises
    ------
    ValueError
        If there are so many roundings that nothing is left of the sum: n u is 1 or more.

    References
    ----------
    N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, lemma 3.1 and section 4.2.

    Examples
    --------
    >>> float(rounding_bound(4, np.array(10.0), "float64") / np.finfo("float64").eps)
    20.000000000000007
    """
    unit = np.asarray(num_roundings) * float(np.finfo(np.dtype(dtype)).eps) / 2
    if (unit >= 1).any():
        raise ValueError(f"{np.max(num_roundings)} roundings are too many for {np.dtype(dtype)}")
    return unit / (1 - unit) * magnitude


def oracle_bound(num_terms: Array | int, ndim: int, magnitude: Array) -> Array:
    """Bound the error of this module's own sums of products of `ndim` numbers.

    Products are rounded to float64, their sums to extended precision (float64, where there is
    none), and the result to float64.
    """
    products = rounding_bound(ndim + 1, magnitude, np.float64)
    return products + rounding_bound(num_terms, magnitude, np.longdouble)


def mttkrp_error_bound(
    coords: Array,
    values: Values,
    shape: Shape,
    factors: list[Array],
    mode: int,
    dtype: np.dtype | type | str,
    *,
    additions: Array | None = None,
    flush_to_zero: bool = False,
) -> Array:
    """Bound the difference of `mttkrp` and a result computed in `dtype`, entry by entry.

    A product takes ndim - 1 roundings; its sum takes one for each addition between it and the
    result, and weights one more. The error of `mttkrp` itself is added.

    Each of the row's products may also lose the smallest subnormal number ndim - 1 times, if
    factors are at most 1 in magnitude: otherwise, underflow is not covered, nor is overflow.

    Parameters
    ----------
    coords, values, shape, factors, mode
        As for `mttkrp`.
    dtype : dtype
        Floating type of the result under test; it represents `values` and `factors` exactly.
    additions : (I_mode,) int array, optional
        Between a term and the sum of its row, at most: see `count_additions`, and `sum_orders` for
        the engines' orders. Without it, terms may be added in any order: one for each nonzero.
    flush_to_zero : bool
        Whether the code under test flushes subnormals to zero, as our CUDA kernels do. Each of its
        row_nnz * ndim operations may then lose up to the smallest normal number, too.

    Returns
    -------
    (I_mode, R) float64 array

    References
    ----------
    N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapters 2 to 4.

    Examples
    --------
    >>> factors = [np.ones((1, 1)), np.array([[-4.0]])]
    >>> bound = mttkrp_error_bound(np.array([[0], [0]]), [2.0], (1, 1), factors, 0, np.float32)
    >>> (bound / np.finfo(np.float32).eps).round(4)
    array([[12.]])
    """
    magnitude = mttkrp(coords, np.abs(values), shape, [np.abs(f) for f in factors], mode)
    row_nnz = np.bincount(coords[mode], minlength=shape[mode])
    return _bound_rows(row_nnz, len(shape), magnitude, dtype, additions, flush_to_zero)


def _bound_rows(
    row_nnz: Array,
    ndim: int,
    magnitude: Array,
    dtype: np.dtype | type | str,
    additions: Array | None,
    flush_to_zero: bool,
) -> Array:
    """Bound the errors of rows that are sums of products of `ndim` numbers."""
    limits = np.finfo(np.dtype(dtype))
    additions = row_nnz if additions is None else additions
    bound = rounding_bound((additions + ndim)[:, np.newaxis], magnitude, dtype)
    bound += oracle_bound(row_nnz[:, np.newaxis], ndim, magnitude)
    num_operations = row_nnz[:, np.newaxis] * ndim
    bound += num_operations * float(limits.smallest_subnormal)
    if flush_to_zero:
        bound += num_operations * float(limits.tiny)
    return bound


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
    return add_rows(coords[mode], rows, shape[mode])


def ttmc_error_bound(
    coords: Array,
    values: Values,
    shape: Shape,
    factors: list[Array],
    mode: int,
    dtype: np.dtype | type | str,
    *,
    additions: Array | None = None,
    flush_to_zero: bool = False,
) -> Array:
    """Bound the difference of `ttmc` and a result computed in `dtype`: see `mttkrp_error_bound`.

    Returns
    -------
    (I_mode, prod of the other K_n) float64 array

    Examples
    --------
    >>> factors = [None, np.array([[1.0, 2.0]])]
    >>> bound = ttmc_error_bound(np.array([[0], [0]]), [10.0], (1, 1), factors, 0, np.float32)
    >>> (bound / np.finfo(np.float32).eps).round(4)
    array([[15., 30.]])
    """
    sizes = [None if n == mode else np.abs(factor) for n, factor in enumerate(factors)]
    magnitude = ttmc(coords, np.abs(values), shape, sizes, mode)
    row_nnz = np.bincount(coords[mode], minlength=shape[mode])
    return _bound_rows(row_nnz, len(shape), magnitude, dtype, additions, flush_to_zero)


def product_of_columns(a: Array, b: Array) -> Array:
    """Multiply the transpose of a tall matrix by another, as a Gram matrix: float64.

    Blocks of rows are multiplied in float64, and their products added in extended precision.

    Examples
    --------
    >>> product_of_columns(np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    total = np.zeros((a.shape[1], b.shape[1]), np.longdouble)
    for start in range(0, len(a), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        total += a[rows].astype(np.float64).T @ b[rows].astype(np.float64)
    return total.astype(np.float64)


def columns_error_bound(
    a: Array,
    b: Array,
    dtype: np.dtype | type | str,
    widths: tuple[int, ...] = (),
    *,
    in_dtype: int = 0,
) -> Array:
    """Bound the difference of `product_of_columns` and a result rounded to `dtype`.

    Parameters
    ----------
    a, b : (I, K) and (I, L) arrays
    dtype : dtype
    widths : tuple of int
        How the engine cuts the sums: see `count_additions`.
    in_dtype : int
        So many rows are added in `dtype`, the rest in float64.

    Examples
    --------
    >>> bound = columns_error_bound(np.ones((4, 1)), np.ones((4, 1)), np.float32, in_dtype=2)
    >>> (bound / np.finfo(np.float32).eps).round(4)
    array([[8.]])
    """
    magnitude = product_of_columns(np.abs(a), np.abs(b))
    additions = int(count_additions(np.array([len(a)]), widths)[0])
    bound = rounding_bound(min(len(a), in_dtype) + 2, magnitude, dtype)
    of_oracle = min(len(a), _BLOCK_ROWS) + 2
    return bound + rounding_bound(additions + of_oracle, magnitude, np.float64)

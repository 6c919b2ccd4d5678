"""Sums and products that contract modes of a sparse tensor; what stays of it is sparse.

A contraction leaves out the coordinates of the modes that are gone and adds up what then falls
together, as building a `FlycooTensor` does anyway: the cost is that of building one. With one mode
left the result is a dense vector, like a column of a factor, and with none a number.
"""

import math
import operator

import numpy as np

from ..checks import check_place
from ..format.packing import RecordFormat
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .mttkrp import mttkrp


def sum_modes(x, axis=None):
    """Sum the elements of a sparse tensor over all modes, or over some.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    axis : int or sequence of int, optional
        The modes that go; negative ones count from the last. By default all.

    Returns
    -------
    FlycooTensor, array (I,) or scalar
        Of the modes that stay: a sparse tensor of two or more, on the device of `x`, a dense
        vector of one, or a number.

    Raises
    ------
    TypeError, ValueError
        If an axis is not an integer, out of range, or named twice.

    Notes
    -----
    Numbers are added up in float64; what falls together in a vector or a tensor in the dtype of
    `x`, with an error of at most ``count * eps`` times the sum of absolute values, in an order of
    its own: the result is the same in every run. Costs what building the result does.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1, 1], [2, 0, 0], [1, 1, 0]], [2.0, 3.0, 4.0], shape=(3, 3, 2))
    >>> sum_modes(x), sum_modes(x, axis=(1, 2))
    (np.float64(9.0), array([2., 7., 0.]))
    >>> sum_modes(x, axis=2).nonzeros()[1]
    array([2., 7.])
    """
    x = as_flycoo(x, check_coords=True)
    gone = range(x.ndim) if axis is None else check_axes(axis, x.ndim)
    coords, values = x._sorted_nonzeros()
    return _collect(x, coords, values, gone)


def average_modes(x, axis=None):
    """Average the elements of a sparse tensor, zeros included, over all modes or over some.

    Parameters, results and errors are those of `sum_modes`.

    Examples
    --------
    >>> average_modes(FlycooTensor([[0, 1], [2, 0]], [2.0, 4.0], shape=(3, 4)))
    np.float64(0.5)
    """
    x = as_flycoo(x, check_coords=True)
    axes = range(x.ndim) if axis is None else check_axes(axis, x.ndim)
    return sum_modes(x, axes) / float(math.prod(x.shape[mode] for mode in axes))


def contract_vectors(x, vectors, modes):
    r"""Contract modes of a sparse tensor with a vector each.

    .. math:: Y[c_{rest}] = \sum_k v_k \prod_{n \in modes} u_n[c_{n,k}]

    over the nonzeros :math:`v_k` of `x` that have these coordinates in the modes that stay.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    vectors : sequence of array (I_n,)
        On the device of `x`.
    modes : sequence of int
        Of each vector, from ``-ndim`` to ``ndim - 1``, all different.

    Returns
    -------
    FlycooTensor, array (I,) or scalar
        As from `sum_modes`, in NumPy's common dtype of `x` and the vectors.

    Raises
    ------
    TypeError
        If a vector is on another device.
    ValueError
        If a mode is out of range or named twice, or a vector does not fit.

    Notes
    -----
    Costs what building the result does; no intermediate tensor of one mode at a time is made.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1, 1], [2, 0, 0], [1, 1, 0]], [2.0, 3.0, 4.0], shape=(3, 3, 2))
    >>> contract_vectors(x, [np.array([1.0, 10.0])], [2]).to_coo().todense()
    array([[ 0.,  0., 20.],
           [34.,  0.,  0.],
           [ 0.,  0.,  0.]])
    """
    x = as_flycoo(x, check_coords=True)
    modes = check_axes(modes, x.ndim)
    for vector, mode in zip(vectors, modes, strict=True):
        check_place(vector, f"the vector of mode {mode}", x.device == "cuda", "x")
        if vector.shape != (x.shape[mode],):
            raise ValueError(
                f"the vector of mode {mode} has shape {vector.shape}, expected ({x.shape[mode]},): "
                f"x has shape {x.shape}"
            )
    coords, values = x._sorted_nonzeros()
    for vector, mode in zip(vectors, modes, strict=True):
        values = values * vector[coords[mode]]
    return _collect(x, coords, values, modes)


def inner(x, y):
    """Compute the inner product of a sparse tensor with another, or with a dense array.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    y : FlycooTensor, sparse.COO or array
        Of the shape of `x`, and on its device. An array is read at the nonzeros of `x` only.

    Returns
    -------
    scalar
        Added up in float64, in NumPy's common dtype of both.

    Raises
    ------
    TypeError
        If the two are on different devices.
    ValueError
        If their shapes differ.

    Notes
    -----
    Two sparse tensors are sorted together, a pass for each mode; an array takes one pass.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0]], [2.0, 3.0], shape=(3, 3))
    >>> inner(x, FlycooTensor([[0, 2], [2, 2]], [5.0, 7.0], shape=(3, 3)))
    np.float64(10.0)
    >>> inner(x, np.full((3, 3), 2.0))
    np.float64(10.0)
    """
    x = as_flycoo(x, check_coords=True)
    if x.shape != tuple(y.shape):
        raise ValueError(f"inner: the shapes {x.shape} and {tuple(y.shape)} differ")
    if hasattr(y, "strides"):  # an array of NumPy or CuPy
        check_place(y, "y", x.device == "cuda", "x")
        coords, values = x._sorted_nonzeros()
        return _total(values * y[tuple(coords)])
    y = as_flycoo(y, check_coords=True)
    if x.device != y.device:
        raise TypeError(f"inner: devices {x.device!r} and {y.device!r} differ")
    return _total(_multiply_common(x, y))


def _multiply_common(x, y):
    """Multiply the values at coordinates that both have."""
    xp, primitives = x._engine.xp, x._engine
    pairs = x._sorted_nonzeros(), y._sorted_nonzeros()
    coords, values = (xp.concatenate(parts, axis=-1) for parts in zip(*pairs, strict=True))
    word_dtype = x._layout.record_format.word_dtype
    record_format = RecordFormat.of(x.shape, values.dtype, word_dtype)
    records = record_format.pack(coords, values, xp, primitives.block_size)
    places = primitives.sort_places(records, record_format, reversed(range(x.ndim)))
    records = primitives.gather(records, places)
    is_equal = primitives.find_duplicates(records, record_format)
    values = record_format.values(records)
    return values[:-1][is_equal] * values[1:][is_equal]


def multiply_matricized(x, row_mode, column_modes, dense):
    """Multiply a matricised sparse tensor, whose rows are those of one mode, with a dense array.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    row_mode : int
    column_modes : sequence of int
        All other modes; the last one varies fastest.
    dense : array (C, R) or (C,)
        In the dtype and on the device of `x`, C being the product of the sizes of `column_modes`.

    Returns
    -------
    array (I_row, R) or (I_row,)

    Raises
    ------
    TypeError
        If `dense` has another dtype, or is on another device.
    ValueError
        If its shape does not fit.

    Notes
    -----
    An MTTKRP of a matrix. With several column modes that matrix is first built from `x`.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> multiply_matricized(x, 0, (1, 2), np.arange(6.0))
    array([10.,  3.,  0.])
    """
    x = as_flycoo(x, check_coords=True)
    _check_multiplier(dense, math.prod(x.shape[mode] for mode in column_modes), x)
    if dense.ndim == 1:
        return multiply_matricized(x, row_mode, column_modes, dense[:, None])[:, 0]
    if dense.shape[1] == 0:
        return x._engine.xp.zeros((x.shape[row_mode], 0), x.dtype)
    if x.ndim != 2:
        x, row_mode = _as_matrix(x, row_mode, column_modes), 0
    factors = [dense, dense]
    factors[row_mode] = x._engine.xp.empty((x.shape[row_mode], dense.shape[1]), x.dtype)
    return mttkrp(x, factors, row_mode)


def _check_multiplier(dense, num_rows, x):
    check_place(dense, "the multiplier", x.device == "cuda", "x")
    if dense.ndim not in (1, 2) or dense.shape[0] != num_rows:
        raise ValueError(
            f"the multiplier has shape {dense.shape}, expected ({num_rows}, rank) or ({num_rows},)"
        )
    if dense.dtype != x.dtype:
        raise TypeError(
            f"the multiplier has dtype {dense.dtype}, expected {x.dtype}, the dtype of x"
        )


def _as_matrix(x, row_mode, column_modes):
    coords, values = x._sorted_nonzeros()
    columns = join_modes(x, coords, column_modes)
    shape = (x.shape[row_mode], math.prod(x.shape[mode] for mode in column_modes))
    pair = x._engine.xp.stack([coords[row_mode], columns])
    return FlycooTensor(pair, values, shape, layout="indexed", device=x.device)


def join_modes(x, coords, modes):
    """Number the cells of some modes as one, the last varying fastest: for each of coords (nnz,).

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 4, 2))
    >>> join_modes(x, x.nonzeros()[0], (1, 2))
    array([5, 1])
    """
    joined = x._engine.xp.zeros_like(coords[0])
    for mode in modes:
        joined = joined * x.shape[mode] + coords[mode]
    return joined


def khatri_rao_at(mask, matrices, weights=None):
    r"""Compute the rows of a Khatri-Rao product where a sparse mask is not zero, times the mask.

    .. math:: K[c_1, ..., c_N, r] = m_c w_r \prod_n A_n[c_n, r]

    Parameters
    ----------
    mask : FlycooTensor or sparse.COO
        With a mode for each matrix.
    matrices : sequence of array (I_n, R)
        On the device of `mask`.
    weights : array (R,), optional

    Returns
    -------
    FlycooTensor
        Of shape ``(*mask.shape, R)``: rows are not numbered as one, so that there is no limit on
        how many there could be.

    Raises
    ------
    TypeError
        If an array is on another device.
    ValueError
        If the shapes of matrices and mask do not fit, or fill_value of the mask is not 0.

    Notes
    -----
    Takes ``nnz * R * (ndim + 2)`` numbers; a full row for each nonzero of the mask.

    Examples
    --------
    >>> mask = FlycooTensor([[0], [1]], [1.0], shape=(2, 3))
    >>> khatri_rao_at(mask, [np.array([[2.0], [5.0]]), np.array([[1.0], [3.0], [4.0]])]).nonzeros()
    (array([[0],
           [1],
           [0]]), array([6.]))
    """
    mask = as_flycoo(mask, check_coords=True)
    sizes = tuple(matrix.shape[0] for matrix in matrices)
    if sizes != mask.shape:
        raise ValueError(f"mask has shape {mask.shape}, expected {sizes}, the rows of the matrices")
    for n, matrix in enumerate(matrices):
        check_place(matrix, f"matrices[{n}]", mask.device == "cuda", "mask")
    xp, (coords, values) = mask._engine.xp, mask._sorted_nonzeros()
    rows = values[:, None] if weights is None else values[:, None] * weights
    for matrix, row_ids in zip(matrices, coords, strict=True):
        rows = rows * matrix[row_ids]
    rank = rows.shape[1]
    columns = xp.tile(xp.arange(rank), coords.shape[1])
    coords = xp.concatenate([xp.repeat(coords, rank, axis=1), columns[None]])
    shape = (*mask.shape, rank)
    return FlycooTensor(coords, rows.reshape(-1), shape, layout="indexed", device=mask.device)


def check_axes(axis, ndim):
    """Return `axis`, an integer or several, as a list of different modes from 0 to ndim - 1."""
    try:
        axes = [operator.index(n) for n in (axis if hasattr(axis, "__iter__") else [axis])]
    except TypeError:
        raise TypeError(f"axis is {axis!r}, expected integers") from None
    for n in axes:
        if not -ndim <= n < ndim:
            raise ValueError(f"axis {n} is out of bounds for array of dimension {ndim}")
    modes = [n % ndim for n in axes]
    if len(set(modes)) < len(modes):
        raise ValueError(f"axis is {axis!r}, expected each mode once")
    return modes


def _collect(x, coords, values, gone):
    """Add up the values (nnz,) whose coordinates in the modes that are not `gone` are equal."""
    kept = [mode for mode in range(x.ndim) if mode not in gone]
    if not kept:
        return _total(values)
    shape = [x.shape[mode] for mode in kept]
    result = FlycooTensor(coords[kept], values, shape, layout=x.layout, device=x.device)
    if len(kept) > 1:
        return result
    (rows,), sums = result._sorted_nonzeros()
    vector = x._engine.xp.zeros(shape, result.dtype)
    vector[rows] = sums
    return vector


def _total(values):
    return values.sum(dtype=np.float64).astype(values.dtype)

"""Products that contract modes of a sparse tensor; the result is sparse.

A contraction drops the coordinates of the contracted modes and sums the resulting duplicates, as
building a `FlycooTensor` does: it costs as much as building one. If one mode is left, the result is
a dense vector, like a column of a factor, and costs an MTTKRP; if none is left, a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ..base.array_modules import Array, array_module, share
from ..base.checks import check_place
from ..tensor.coo_cache import SparseData, as_flycoo
from ..tensor.tensor import FlycooTensor, check_axes, group_cells, total
from .mttkrp import mttkrp


def contract_vectors(
    x: SparseData, vectors: Sequence[Array], modes: Sequence[int]
) -> FlycooTensor | Array:
    r"""Contract modes of a sparse tensor with one vector each, all together.

    .. math:: Y[c_{\mathrm{rest}}] = \sum_k v_k \prod_{n \in \mathrm{modes}} u_n[c_{n,k}]

    over the nonzeros :math:`v_k` that have these coordinates in the remaining modes. Vectors (I_n,)
    are on the device of `x`.
    """
    x = as_flycoo(x, check_coords=True)
    gone_modes = check_axes(modes, x.ndim)
    vectors = [share(vector) for vector in vectors]
    for vector, mode in zip(vectors, gone_modes, strict=True):
        _check_vector(vector, mode, x)
    kept_modes = [mode for mode in range(x.ndim) if mode not in gone_modes]
    if len(kept_modes) == 1 and {vector.dtype for vector in vectors} == {x.dtype}:
        return _contract_to_vector(x, dict(zip(gone_modes, vectors, strict=True)), *kept_modes)
    coords, products = x._sorted_nonzeros()
    for vector, mode in zip(vectors, gone_modes, strict=True):
        products = products * vector[coords[mode]]
    if not kept_modes:
        return total(products)
    shape = [x.shape[mode] for mode in kept_modes]
    # Building it sums the products of nonzeros that differ in the contracted modes only.
    contracted = x._rebuild(coords[kept_modes], products, shape)
    return contracted._flatten()


def _contract_to_vector(x: FlycooTensor, vectors: Mapping[int, Array], mode: int) -> Array:
    """Contract all modes but one by an MTTKRP of rank 1, which sorts nothing."""
    # It does not read the factor of its mode, but its shape and dtype have to fit.
    unread = x._engine.xp.empty(x.shape[mode], x.dtype)
    factors = [vectors.get(n, unread).reshape(-1, 1) for n in range(x.ndim)]
    return mttkrp(x, factors, mode)[:, 0]


def _check_vector(vector: Array, mode: int, x: FlycooTensor) -> None:
    """Refuse a vector on another device than `x`, or of another length than its mode."""
    name = f"the vector of mode {mode}"
    check_place(vector, name, x.device == "cuda", "x")
    size = x.shape[mode]
    if vector.shape != (size,):
        raise ValueError(f"{name} has shape {vector.shape}, expected ({size},)")


def inner(x: SparseData, y: SparseData | Array) -> Array:
    """Compute the inner product of a sparse tensor with another one or a dense array, in float64.

    Two sparse tensors are sorted together, one pass per mode; an array is read at the nonzeros.
    """
    x = as_flycoo(x, check_coords=True)
    if x.shape != tuple(y.shape):
        raise ValueError(f"inner: the shapes {x.shape} and {tuple(y.shape)} differ")
    if hasattr(y, "strides"):  # an array of NumPy or CuPy
        check_place(y, "y", x.device == "cuda", "x")
        coords, values = x._sorted_nonzeros()
        return total(values * y[tuple(coords)])
    y = as_flycoo(y, check_coords=True)
    if x.device != y.device:
        raise TypeError(f"inner: devices {x.device!r} and {y.device!r} differ")
    return _multiply_shared_cells(x, y)


def _multiply_shared_cells(x: FlycooTensor, y: FlycooTensor) -> Array:
    """Sum the products of the values of all cells that two tensors of one shape both store."""
    xp = x._engine.xp
    x_coords, x_values = x._sorted_nonzeros()
    y_coords, y_values = y._sorted_nonzeros()
    coords = xp.concatenate([x_coords, y_coords], axis=-1)
    values = xp.concatenate([x_values, y_values])
    _, sorted_values, starts = group_cells(coords, values, x.shape, x._engine)
    ends = xp.append(starts, values.size)
    # A group has one value for each tensor that stores the cell: two if both do.
    is_shared = xp.diff(ends) == 2
    first_values = starts[is_shared]
    return total(sorted_values[first_values] * sorted_values[first_values + 1])


def multiply_matricized(
    x: SparseData, row_mode: int, column_modes: Sequence[int], dense: Array
) -> Array:
    """Multiply a matricised sparse tensor, with the indices of one mode as rows, by a dense array.

    The last of `column_modes`, which are all other modes, varies fastest; `dense` is (C, R) or
    (C,), where C is the product of their sizes. Runs as MTTKRP of a matrix, which is first built
    from `x` unless `x` is a matrix itself.
    """
    x = as_flycoo(x, check_coords=True)
    num_columns = math.prod(x.shape[mode] for mode in column_modes)
    _check_multiplier(dense, num_columns, x)
    if dense.ndim == 1:
        return multiply_matricized(x, row_mode, column_modes, dense[:, None])[:, 0]
    rank = dense.shape[1]
    if rank == 0:
        return x._engine.xp.zeros((x.shape[row_mode], 0), x.dtype)
    if x.ndim == 2:
        matrix = x
    else:
        matrix = _matricize(x, row_mode, column_modes, num_columns)
        row_mode = 0
    # The MTTKRP does not read the factor of the rows, but its shape and dtype have to fit.
    unread = matrix._engine.xp.empty((matrix.shape[row_mode], rank), matrix.dtype)
    factors = [dense, dense]
    factors[row_mode] = unread
    return mttkrp(matrix, factors, row_mode)


def _check_multiplier(dense: Array, num_rows: int, x: FlycooTensor) -> None:
    """Refuse an array by which the matricised `x` cannot be multiplied."""
    check_place(dense, "the multiplier", x.device == "cuda", "x")
    if dense.ndim not in (1, 2) or dense.shape[0] != num_rows:
        raise ValueError(
            f"the multiplier has shape {dense.shape}, expected ({num_rows}, rank) or ({num_rows},)"
        )
    if dense.dtype != x.dtype:
        raise TypeError(f"the multiplier has dtype {dense.dtype}, expected {x.dtype}, that of x")


def _matricize(
    x: FlycooTensor, row_mode: int, column_modes: Sequence[int], num_columns: int
) -> FlycooTensor:
    """Build the matrix that has the indices of one mode as rows."""
    coords, values = x._sorted_nonzeros()
    columns = join_modes(x.shape, coords, column_modes)
    matrix_coords = x._engine.xp.stack([coords[row_mode], columns])
    shape = (x.shape[row_mode], num_columns)
    return FlycooTensor(matrix_coords, values, shape, layout="indexed", device=x.device)


def join_modes(shape: Sequence[int], coords: Array, modes: Iterable[int]) -> Array:
    """Return the index of each nonzero (nnz,) in `modes` joined into one, the last fastest.

    >>> import numpy as np
    >>> join_modes((2, 3, 4), np.array([[1], [2], [3]]), [0, 2])
    array([7])
    """
    joined = array_module(coords).zeros_like(coords[0])
    for mode in modes:
        joined = joined * shape[mode] + coords[mode]
    return joined


def khatri_rao_at(
    mask: SparseData, matrices: Sequence[Array], weights: Array | None = None
) -> FlycooTensor:
    r"""Compute a Khatri-Rao product times a sparse mask, only where the mask is nonzero.

    .. math:: K[c_1, ..., c_N, r] = m_c w_r \prod_n A_n[c_n, r]

    with a matrix (I_n, R) for each mode. The result has the shape ``(*mask.shape, R)``: the modes
    are not joined, so the number of rows has no limit. It has R nonzeros for each of the mask's,
    and takes ``nnz * R * (ndim + 2)`` numbers.
    """
    mask = as_flycoo(mask, check_coords=True)
    sizes = tuple(matrix.shape[0] for matrix in matrices)
    if sizes != mask.shape:
        raise ValueError(f"mask has shape {mask.shape}, expected {sizes}, the rows of the matrices")
    for n, matrix in enumerate(matrices):
        check_place(matrix, f"matrices[{n}]", mask.device == "cuda", "mask")
    xp = mask._engine.xp
    cells, values = mask._sorted_nonzeros()
    rows = values[:, None]
    if weights is not None:
        rows = rows * weights
    for matrix, row_ids in zip(matrices, cells, strict=True):
        rows = rows * matrix[row_ids]
    # Each cell of the mask becomes `rank` nonzeros, which differ in the last coordinate.
    rank = rows.shape[1]
    repeated_cells = xp.repeat(cells, rank, axis=1)
    columns = xp.tile(xp.arange(rank), cells.shape[1])
    coords = xp.concatenate([repeated_cells, columns[None]])
    shape = (*mask.shape, rank)
    return FlycooTensor(coords, rows.reshape(-1), shape, layout="indexed", device=mask.device)

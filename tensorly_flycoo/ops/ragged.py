"""Sparse matrices that share their columns but not their number of rows, stacked in one tensor."""

from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_fill_value
from ..tensor.coo_cache import as_flycoo, find_converter, is_sparse
from ..tensor.tensor import FlycooTensor
from .lazy import LazyArray

#: With more different numbers of rows, slices get up to an eighth more rows, which are empty.
_MAX_NUM_SIZES = 32


class RaggedTensor(LazyArray):
    """Sparse slices (I_k, J) with any numbers of rows, stacked to one matrix for `parafac2`.

    Parameters
    ----------
    slices : iterable of sparse matrix, or FlycooTensor, sparse.COO or LabelledTensor (K, I, J)
        Matrices of SciPy, `sparse.COO` or FlycooTensor; or one tensor, such as `from_dataframe`
        makes of a table with columns for slice, row and column.
    drop_empty : bool
        Whether to leave out the rows of each slice of one tensor that are empty there.
    **options
        As of `FlycooTensor`; the device is by default that of the first slice.

    Attributes
    ----------
    matrix : FlycooTensor
        The rows of all slices, with empty ones in between if the slices have very many sizes.
    row_counts, starts : int64 array (K,)
        The number of rows of each slice, and its first row in `matrix`, on the host.
    labels : dict
        Those of a LabelledTensor; with `drop_empty` those of the rows are a list of arrays (I_k,).

    Raises
    ------
    TypeError
        If a slice is not sparse.
    ValueError
        If there is no slice, the slices differ in their number of columns, a slice has not two
        modes or a tensor not three, or a fill_value is not 0.

    Examples
    --------
    >>> import pandas
    >>> from tensorly_flycoo import from_dataframe
    >>> table = {"patient": list("aabb"), "visit": [3, 7, 3, 3], "code": list("xyxz")}
    >>> x = RaggedTensor(from_dataframe(pandas.DataFrame(table), [*table]), drop_empty=True)
    >>> x, x.labels["visit"]
    (<RaggedTensor: 2 slices of 1 to 2 rows, 3 columns, nnz=4>, [array([3, 7]), array([3])])
    """

    ndim = 3
    _instead = "only parafac2 takes slices with different numbers of rows"

    def __init__(self, slices: Any, *, drop_empty: bool = False, **options: Any) -> None:
        self.labels: dict[str, Any] = dict(getattr(slices, "labels", {}))
        if is_sparse(slices):
            x = as_flycoo(slices, check_coords=True)
            if x.ndim != 3:
                raise ValueError(f"tensor_slices has shape {x.shape}, expected three modes")
            (ids, rows, columns), values = x._sorted_nonzeros()
            width, row_counts = x.shape[2], np.full(x.shape[0], x.shape[1])
            options = {"device": x.device} | options
            if drop_empty:
                xp, is_first = array_module(ids), ids >= 0  # nonzero of its row
                is_first[1:] = (ids[1:] != ids[:-1]) | (rows[1:] != rows[:-1])
                names = move(rows[is_first], np)
                row_counts = np.bincount(move(ids[is_first], np), minlength=x.shape[0])
                ends = np.cumsum(row_counts)
                rows = xp.cumsum(is_first) - 1 - xp.asarray(ends - row_counts)[ids]
                for name in [*self.labels][1:2]:
                    self.labels[name] = np.split(self.labels[name][names], ends[:-1])
        else:
            parts = [_read_slice(x, k) for k, x in enumerate(slices)]
            widths = {part[3][1] for part in parts}
            if len(widths) != 1:
                raise ValueError(
                    f"tensor_slices have {sorted(widths) or 'no'} columns, expected the same number"
                )
            (width,), xp = widths, array_module(parts[0][2])
            row_counts = np.array([part[3][0] for part in parts])
            rows, columns, values = (xp.concatenate([part[n] for part in parts]) for n in range(3))
            ids = xp.asarray(np.repeat(np.arange(len(parts)), [part[2].size for part in parts]))
            options = {"device": parts[0][4]} | options
        self.row_counts = self.heights = row_counts
        if np.unique(row_counts).size > _MAX_NUM_SIZES:
            steps = 2 ** np.log2(np.maximum(row_counts // 8, 1)).astype(np.int64)
            self.heights = -(-row_counts // steps) * steps
        self.order, self.starts = np.argsort(self.heights, kind="stable"), np.empty_like(row_counts)
        self.starts[self.order] = np.cumsum(self.heights[self.order]) - self.heights[self.order]
        xp, shape = array_module(values), (int(self.heights.sum()), width)
        coords = xp.stack([xp.asarray(self.starts)[ids] + rows, columns])
        self.matrix = FlycooTensor(coords, values, shape, **options)
        self.shape = (len(row_counts), int(row_counts.max()), width)
        self.dtype, self.nnz = self.matrix.dtype, self.matrix.nnz

    def __repr__(self) -> str:
        size = f"{self.row_counts.min()} to {self.shape[1]} rows, {self.shape[2]} columns"
        return f"<RaggedTensor: {self.shape[0]} slices of {size}, nnz={self.nnz}>"


def _read_slice(x: Any, k: int) -> tuple[Array, Array, Array, tuple[int, ...], str | None]:
    """Return row and column numbers, values, shape, and the device if it is known."""
    if np.ndim(x) != 2:
        raise ValueError(f"tensor_slices[{k}] has shape {np.shape(x)}, expected two modes")
    if find_converter(x) == "from_scipy":
        coo = x.tocoo()
        return coo.row, coo.col, coo.data, x.shape, None
    if is_sparse(x) and hasattr(x, "coords"):
        check_fill_value(x.fill_value)
        return *x.coords, x.data, x.shape, None
    tensor = as_flycoo(x)
    (rows, columns), values = tensor._sorted_nonzeros()
    return rows, columns, values, x.shape, tensor.device

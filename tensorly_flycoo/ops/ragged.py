"""Sparse matrices that share their columns but not their number of rows, stacked in one tensor."""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from ..base.array_modules import Array, array_module, move, read_into_memory
from ..base.checks import check_fill_value
from ..format.primitives import index_dtype
from ..tensor.converters import find_converter
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import is_callers, is_sparse
from ..tensor.labelled import as_labels, find_missing
from ..tensor.lazy_array import LazyArray
from ..tensor.tensor import FlycooTensor

#: With more different numbers of rows, slices get up to an eighth more rows, which are empty.
_MAX_NUM_SIZES = 32


class RaggedTensor(LazyArray):
    """Sparse slices (I_k, J) with any numbers of rows, stacked to one matrix for `parafac2`.

    Parameters
    ----------
    slices : iterable of sparse matrix, or FlycooTensor, sparse.COO or LabelledTensor (K, I, J)
        Matrices of SciPy, `sparse.COO` or FlycooTensor; or one tensor, such as `from_dataframe`
        makes of a table with columns for slice, row and column; or, with `by`, one matrix or
        AnnData whose rows, in any order, are divided into slices.
    by : array_like of labels, or str, optional
        The slice of each row, or the column of the AnnData's ``obs`` that has it.
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
        Those of a LabelledTensor. With `by`, "slice" has the sorted labels of `by`; "row" and
        "column" have those of an AnnData or of the matrix, or else numbers. With `drop_empty` or
        `by` those of the rows are a list of arrays (I_k,).

    Raises
    ------
    TypeError
        If a slice is not sparse, or labels of `by` are of several types.
    ValueError
        If there is no slice, the slices differ in their number of columns, a slice has not two
        modes or a tensor not three, `by` is no column of the AnnData or does not have a label for
        each row (nan, NaT and None are none), `drop_empty` is given for slices or with `by`, a
        fill_value is not 0, or a tensor has unknown cells, which `parafac2` takes.

    Examples
    --------
    >>> import pandas
    >>> from tensorly_flycoo import from_dataframe
    >>> table = {"patient": list("aabb"), "visit": [3, 7, 3, 3], "code": list("xyxz")}
    >>> x = RaggedTensor(from_dataframe(pandas.DataFrame(table), [*table]), drop_empty=True)
    >>> x, x.labels["visit"]
    (<RaggedTensor: 2 slices of 1 to 2 rows, 3 columns, nnz=4>, [array([3, 7]), array([3])])

    >>> import scipy.sparse
    >>> x = RaggedTensor(scipy.sparse.eye_array(5), by=["new", "old", "new", "old", "new"])
    >>> x.labels["slice"].tolist(), x.labels["row"]
    (['new', 'old'], [array([0, 2, 4]), array([1, 3])])
    """

    ndim = 3
    _instead = "only parafac2 takes slices with different numbers of rows"

    @property
    def source(self) -> Self:  # type: ignore[override]
        """The tensor itself, which knows whether the caller has its slices on the host."""
        return self

    def __init__(
        self, slices: Any, *, by: Any = None, drop_empty: bool = False, **options: Any
    ) -> None:
        if getattr(slices, "unknown", None) is not None:
            raise ValueError(
                "slices is a tensor with unknown cells, which slices do not keep: pass it to "
                "parafac2 itself, or slices.tensor if these cells are zeros"
            )
        self.labels: dict[str, Any] = dict(getattr(slices, "labels", {}))
        is_list = isinstance(slices, list | tuple) and len(slices) and not is_sparse(slices)
        first = slices[0] if is_list else slices
        is_on_device = isinstance(first, FlycooTensor) or type(first).__module__.startswith("cupyx")
        self._is_callers = "device" not in options and (is_callers(first) or not is_on_device)
        if drop_empty and (by is not None or not is_sparse(slices)):
            raise ValueError("drop_empty is True, expected False but for a tensor of three modes")
        if by is not None or hasattr(slices, "obs_names"):
            parts = self._divide(slices, by)
        else:
            parts = self._cut(slices, drop_empty) if is_sparse(slices) else _join(slices)
        rows, columns, values, row_counts, width, device = parts
        self.row_counts = self.heights = row_counts
        if np.unique(row_counts).size > _MAX_NUM_SIZES:
            steps = 2 ** np.log2(np.maximum(row_counts // 8, 1)).astype(np.int64)
            self.heights = -(-row_counts // steps) * steps
        self.order, self.starts = np.argsort(self.heights, kind="stable"), np.empty_like(row_counts)
        self.starts[self.order] = _starts(self.heights[self.order])
        places = np.repeat(self.starts - _starts(row_counts), row_counts)
        places += np.arange(places.size)
        shape = (int(self.heights.sum()), width)
        xp = array_module(values)
        dtype = index_dtype(max(shape), "int32")
        coords = xp.empty((2, values.size), dtype)
        coords[0], coords[1] = xp.asarray(places.astype(dtype))[rows], columns
        self.matrix = FlycooTensor(coords, values, shape, **{"device": device} | options)
        self.shape = (len(row_counts), int(row_counts.max()), width)
        self.dtype = self.matrix.dtype
        self.nnz = self.matrix.nnz

    def _divide(self, matrix: Any, by: Any) -> tuple:
        """Number the rows of a matrix slice by slice, and keep their labels."""
        from scipy.sparse import coo_array

        if hasattr(matrix, "obs_names"):
            if not isinstance(by, str) or by not in matrix.obs:
                raise ValueError(f"by is {by!r}, expected a column of obs: {[*matrix.obs]}")
            self.labels = {"row": matrix.obs_names, "column": np.asarray(matrix.var_names)}
            matrix, by = read_into_memory(matrix.X), read_into_memory(matrix.obs)[by]
            matrix = coo_array(matrix) if isinstance(matrix, np.ndarray) else matrix
        rows, columns, values, (num_rows, width), device = _read_slice(matrix, 0)
        of_rows = as_labels(by)
        if of_rows.shape != (num_rows,):
            raise ValueError(f"by has shape {of_rows.shape}, expected ({num_rows},), one per row")
        if (places := find_missing(of_rows)).size:
            first = f"by is {of_rows[places[0]]} for row {places[0]}, expected a label for each row"
            raise ValueError(f"{first}: leave {places.size} such rows out")
        if of_rows.dtype == object and len(kinds := {type(of).__name__ for of in of_rows}) > 1:
            raise TypeError(f"by holds {sorted(kinds)}, expected labels of one type")
        labels, ids = np.unique(of_rows, return_inverse=True)
        order = np.argsort(ids, kind="stable")
        row_counts = np.bincount(ids)
        numbers = np.argsort(order).astype(index_dtype(num_rows, "int32"))
        known = self.labels or {"row": np.arange(num_rows), "column": np.arange(width)}
        name, names = next(iter(known.items()))
        parts = np.split(np.asarray(names)[order], _starts(row_counts)[1:])
        self.labels = {"slice": labels} | known | {name: parts}
        rows = array_module(values).asarray(numbers)[rows]
        return rows, columns, values, row_counts, width, device

    def _cut(self, tensor: Any, drop_empty: bool) -> tuple:
        """Number the rows of all slices of a tensor, or those with nonzeros and their labels."""
        x = as_flycoo(tensor, check_coords=True)
        if x.ndim != 3:
            raise ValueError(f"tensor_slices has shape {x.shape}, expected three modes")
        (ids, rows, columns), values = x._sorted_nonzeros()
        rows = ids * x.shape[1] + rows
        row_counts = np.full(x.shape[0], x.shape[1])
        if drop_empty:
            xp, is_first = array_module(rows), rows >= 0  # nonzero of its row
            is_first[1:] = rows[1:] != rows[:-1]
            names = move(rows[is_first], np) % x.shape[1]
            row_counts = np.bincount(move(ids[is_first], np), minlength=x.shape[0])
            rows = xp.cumsum(is_first) - 1
            for name in [*self.labels][1:2]:
                self.labels[name] = np.split(self.labels[name][names], _starts(row_counts)[1:])
        return rows, columns, values, row_counts, x.shape[2], x.device

    def take_slices(self, numbers: np.ndarray) -> Self:
        """Return the slices with these numbers, in their sequence, with their labels."""
        taken = object.__new__(type(self))
        taken._is_callers = self._is_callers
        taken.labels = {
            name: of[numbers] if mode == 0 else [of[k] for k in numbers] if type(of) is list else of
            for mode, (name, of) in enumerate(self.labels.items())
        }
        taken.row_counts = self.row_counts[numbers]
        taken.heights = self.heights[numbers]
        taken.order = np.argsort(taken.heights, kind="stable")
        taken.starts = np.empty_like(taken.row_counts)
        taken.starts[taken.order] = _starts(taken.heights[taken.order])
        blocks = [self.starts[k] + np.arange(self.heights[k]) for k in numbers[taken.order]]
        matrix: Any = self.matrix[np.concatenate(blocks)]
        taken.matrix = matrix
        taken.shape = (len(numbers), int(taken.row_counts.max()), self.shape[2])
        taken.dtype = self.dtype
        taken.nnz = taken.matrix.nnz
        return taken

    def __repr__(self) -> str:
        size = f"{self.row_counts.min()} to {self.shape[1]} rows, {self.shape[2]} columns"
        return f"<RaggedTensor: {self.shape[0]} slices of {size}, nnz={self.nnz}>"


def _join(slices: Iterable[Any]) -> tuple:
    """Number the rows of all slices."""
    parts = [_read_slice(x, k) for k, x in enumerate(slices)]
    if len(widths := {part[3][1] for part in parts}) != 1:
        raise ValueError(
            f"tensor_slices have {sorted(widths) or 'no'} columns, expected the same number"
        )
    xp = array_module(parts[0][2])
    row_counts = np.array([part[3][0] for part in parts])
    starts = _starts(row_counts).astype(index_dtype(row_counts.sum(), "int32"))
    rows = xp.concatenate([part[0] + n for n, part in zip(starts, parts, strict=True)])
    columns, values = (xp.concatenate([part[n] for part in parts]) for n in (1, 2))
    return rows, columns, values, row_counts, *widths, parts[0][4]


def _starts(row_counts: np.ndarray) -> np.ndarray:
    """Return the number of rows before each slice."""
    return np.cumsum(row_counts) - row_counts


def _read_slice(x: Any, k: int) -> tuple[Array, Array, Array, tuple[int, ...], str | None]:
    """Return row and column numbers, values, shape, and the device if it is known."""
    if np.ndim(x) != 2:
        raise ValueError(f"tensor_slices[{k}] has shape {np.shape(x)}, expected two modes")
    if find_converter(x) == "from_scipy":
        coo = x.tocoo(copy=False)
        return coo.row, coo.col, coo.data, x.shape, None
    if is_sparse(x) and hasattr(x, "coords"):
        check_fill_value(x.fill_value)
        return *x.coords, x.data, x.shape, None
    tensor = as_flycoo(x)
    (rows, columns), values = tensor._sorted_nonzeros()
    return rows, columns, values, x.shape, tensor.device

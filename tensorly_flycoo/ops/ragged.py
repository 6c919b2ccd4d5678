"""Sparse matrices that share their columns but not their number of rows, stacked in one tensor."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

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
    def source(self) -> Self:
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
        is_tensor = is_sparse(slices)
        if drop_empty and (by is not None or not is_tensor):
            raise ValueError("drop_empty is True, expected False but for a tensor of three modes")
        self._is_callers = "device" not in options and _are_callers(slices)
        self.labels: dict[str, Any] = dict(getattr(slices, "labels", {}))
        if by is not None or hasattr(slices, "obs_names"):
            stack = self._divide(slices, by)
        elif is_tensor:
            stack = self._cut(slices, drop_empty)
        else:
            stack = _join(slices)
        self.row_counts = stack.row_counts
        self.heights = _choose_heights(stack.row_counts)
        self.order, self.starts = _place_slices(self.heights)
        matrix_shape = (int(self.heights.sum()), stack.width)
        coords = _place_nonzeros(stack, self.starts, matrix_shape)
        options = {"device": stack.device} | options
        self.matrix = FlycooTensor(coords, stack.values, matrix_shape, **options)
        self.shape = (len(self.row_counts), int(self.row_counts.max()), stack.width)
        self.dtype = self.matrix.dtype
        self.nnz = self.matrix.nnz

    def _divide(self, matrix: Any, by: Any) -> "_Stack":
        """Number the rows of a matrix slice by slice, and keep their labels."""
        if hasattr(matrix, "obs_names"):
            matrix, by = self._read_anndata(matrix, by)
        nonzeros = _read_slice(matrix, 0)
        num_rows, width = nonzeros.shape
        slice_of_row = _check_row_labels(by, num_rows)
        slice_labels, slice_numbers = np.unique(slice_of_row, return_inverse=True)
        order = np.argsort(slice_numbers, kind="stable")  # the old rows, slice by slice
        row_counts = np.bincount(slice_numbers)

        matrix_labels = self.labels or {"row": np.arange(num_rows), "column": np.arange(width)}
        row_name, row_labels = next(iter(matrix_labels.items()))
        sorted_labels = np.asarray(row_labels)[order]
        labels_by_slice = _split(sorted_labels, row_counts)
        self.labels = {"slice": slice_labels} | matrix_labels | {row_name: labels_by_slice}

        # A permutation's argsort is its inverse: the new row of each old one.
        new_rows = np.argsort(order).astype(index_dtype(num_rows, "int32"))
        rows = array_module(nonzeros.values).asarray(new_rows)[nonzeros.rows]
        return _Stack(
            rows=rows,
            columns=nonzeros.columns,
            values=nonzeros.values,
            row_counts=row_counts,
            width=width,
            device=nonzeros.device,
        )

    def _read_anndata(self, data: Any, by: Any) -> tuple[Any, Any]:
        """Return the matrix of an AnnData and the column `by` of its rows; keep its labels."""
        from scipy.sparse import coo_array

        if not isinstance(by, str) or by not in data.obs:
            raise ValueError(f"by is {by!r}, expected a column of obs: {[*data.obs]}")
        self.labels = {"row": data.obs_names, "column": np.asarray(data.var_names)}
        matrix = read_into_memory(data.X)
        if isinstance(matrix, np.ndarray):
            matrix = coo_array(matrix)
        return matrix, read_into_memory(data.obs)[by]

    def _cut(self, tensor: Any, drop_empty: bool) -> "_Stack":
        """Number the rows of all slices of a tensor, or those with nonzeros and their labels."""
        x = as_flycoo(tensor, check_coords=True)
        if x.ndim != 3:
            raise ValueError(f"tensor_slices has shape {x.shape}, expected three modes")
        num_slices, slice_size, width = x.shape
        (slice_numbers, slice_rows, columns), values = x._sorted_nonzeros()
        rows = slice_numbers * slice_size + slice_rows
        row_counts = np.full(num_slices, slice_size)
        if drop_empty:
            xp = array_module(rows)
            is_first = xp.ones(rows.size, bool)  # nonzero of its row
            is_first[1:] = rows[1:] != rows[:-1]
            rows = xp.cumsum(is_first) - 1
            slices_of_kept_rows = move(slice_numbers[is_first], np)
            row_counts = np.bincount(slices_of_kept_rows, minlength=num_slices)
            self._keep_row_labels(move(slice_rows[is_first], np), row_counts)
        return _Stack(rows, columns, values, row_counts, width, x.device)

    def _keep_row_labels(self, kept_rows: np.ndarray, row_counts: np.ndarray) -> None:
        """Divide the labels of the rows that are kept by slice, if there are labels."""
        if self.labels:
            _, row_name, _ = self.labels
            kept_labels = self.labels[row_name][kept_rows]
            self.labels[row_name] = _split(kept_labels, row_counts)

    def take_slices(self, numbers: np.ndarray) -> Self:
        """Return the slices with these numbers, in their sequence, with their labels."""
        taken = object.__new__(type(self))
        taken._is_callers = self._is_callers
        taken.labels = {}
        for mode, (name, labels) in enumerate(self.labels.items()):
            if mode == 0:
                taken.labels[name] = labels[numbers]
            elif isinstance(labels, list):  # an array for each slice
                taken.labels[name] = [labels[number] for number in numbers]
            else:
                taken.labels[name] = labels
        taken.row_counts = self.row_counts[numbers]
        taken.heights = self.heights[numbers]
        taken.order, taken.starts = _place_slices(taken.heights)
        rows_of_slices = [
            self.starts[number] + np.arange(self.heights[number]) for number in numbers[taken.order]
        ]
        matrix: Any = self.matrix[np.concatenate(rows_of_slices)]
        taken.matrix = matrix
        taken.shape = (len(numbers), int(taken.row_counts.max()), self.shape[2])
        taken.dtype = self.dtype
        taken.nnz = taken.matrix.nnz
        return taken

    def __repr__(self) -> str:
        size = f"{self.row_counts.min()} to {self.shape[1]} rows, {self.shape[2]} columns"
        return f"<RaggedTensor: {self.shape[0]} slices of {size}, nnz={self.nnz}>"


class _Stack(NamedTuple):
    """The nonzeros of slices (I_k, J) one below the other."""

    rows: Array  # (nnz,), counted through all slices
    columns: Array
    values: Array
    row_counts: np.ndarray  # I_k of each slice, on the host
    width: int  # J
    device: str | None  # None if the caller has the slices on the host


class _Slice(NamedTuple):
    """The nonzeros of one slice."""

    rows: Array
    columns: Array
    values: Array
    shape: tuple[int, ...]
    device: str | None


def _are_callers(slices: Any) -> bool:
    """Return whether the caller has a tensor, a matrix or a list of slices on the host."""
    first = slices
    # A LabelledTensor is a tuple too.
    if isinstance(slices, list | tuple) and len(slices) and not is_sparse(slices):
        first = slices[0]
    is_on_device = isinstance(first, FlycooTensor) or type(first).__module__.startswith("cupyx")
    return is_callers(first) or not is_on_device


def _join(slices: Iterable[Any]) -> _Stack:
    """Number the rows of all slices."""
    parts = [_read_slice(matrix, k) for k, matrix in enumerate(slices)]
    widths = {part.shape[1] for part in parts}
    if len(widths) != 1:
        raise ValueError(
            f"tensor_slices have {sorted(widths) or 'no'} columns, expected the same number"
        )
    xp = array_module(parts[0].values)
    row_counts = np.array([part.shape[0] for part in parts])
    starts = _count_before(row_counts).astype(index_dtype(row_counts.sum(), "int32"))
    rows = [part.rows + start for part, start in zip(parts, starts, strict=True)]
    return _Stack(
        rows=xp.concatenate(rows),
        columns=xp.concatenate([part.columns for part in parts]),
        values=xp.concatenate([part.values for part in parts]),
        row_counts=row_counts,
        width=widths.pop(),
        device=parts[0].device,
    )


def _choose_heights(row_counts: np.ndarray) -> np.ndarray:
    """Choose how many rows each slice takes in the matrix: all it has, or up to an eighth more.

    Slices of one height are computed together, so there should be few heights.
    """
    if np.unique(row_counts).size <= _MAX_NUM_SIZES:
        return row_counts
    # Rounded up to a multiple of the largest power of two in an eighth of the rows.
    eighths = np.maximum(row_counts // 8, 1)
    steps = 2 ** np.log2(eighths).astype(np.int64)
    return -(-row_counts // steps) * steps


def _place_slices(heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order the slices by height, and find where each one starts in the matrix.

    Those of one height are neighbours there.

    >>> _place_slices(np.array([5, 2, 5]))
    (array([1, 0, 2]), array([2, 0, 7]))
    """
    order = np.argsort(heights, kind="stable")
    starts = np.empty_like(heights)
    starts[order] = _count_before(heights[order])
    return order, starts


def _place_nonzeros(stack: _Stack, starts: np.ndarray, shape: tuple[int, int]) -> Array:
    """Return the coords (2, nnz) in the matrix of the nonzeros of slices that start at these."""
    xp = array_module(stack.values)
    dtype = index_dtype(max(shape), "int32")
    # A slice moves as a whole, from its rows in the stack to those in the matrix.
    shifts = starts - _count_before(stack.row_counts)
    row_numbers = np.repeat(shifts, stack.row_counts)
    row_numbers += np.arange(row_numbers.size)
    coords = xp.empty((2, stack.values.size), dtype)
    coords[0] = xp.asarray(row_numbers.astype(dtype))[stack.rows]
    coords[1] = stack.columns
    return coords


def _split(labels: np.ndarray, row_counts: np.ndarray) -> list[np.ndarray]:
    """Divide the labels of all rows, slice by slice, into those of each slice."""
    first_rows = _count_before(row_counts)
    return np.split(labels, first_rows[1:])


def _count_before(counts: np.ndarray) -> np.ndarray:
    """Return the number of rows before each slice.

    >>> _count_before(np.array([2, 5, 1]))
    array([0, 2, 7])
    """
    return np.cumsum(counts) - counts


def _check_row_labels(by: Any, num_rows: int) -> np.ndarray:
    """Return the slice of each row as labels of one type; refuse missing ones."""
    labels = as_labels(by)
    if labels.shape != (num_rows,):
        raise ValueError(f"by has shape {labels.shape}, expected ({num_rows},), one per row")
    missing_rows = find_missing(labels)
    if missing_rows.size:
        row = missing_rows[0]
        raise ValueError(
            f"by is {labels[row]} for row {row}, expected a label for each row: leave "
            f"{missing_rows.size} such rows out"
        )
    if labels.dtype == object:
        types = {type(label).__name__ for label in labels}
        if len(types) > 1:
            raise TypeError(f"by holds {sorted(types)}, expected labels of one type")
    return labels


def _read_slice(matrix: Any, k: int) -> _Slice:
    """Read the nonzeros of slice k, of any kind of sparse matrix."""
    if np.ndim(matrix) != 2:
        raise ValueError(f"tensor_slices[{k}] has shape {np.shape(matrix)}, expected two modes")
    if find_converter(matrix) == "from_scipy":
        coo = matrix.tocoo(copy=False)
        return _Slice(coo.row, coo.col, coo.data, matrix.shape, None)
    if is_sparse(matrix) and hasattr(matrix, "coords"):
        check_fill_value(matrix.fill_value)
        rows, columns = matrix.coords
        return _Slice(rows, columns, matrix.data, matrix.shape, None)
    x = as_flycoo(matrix)
    (rows, columns), values = x._sorted_nonzeros()
    return _Slice(rows, columns, values, x.shape, x.device)

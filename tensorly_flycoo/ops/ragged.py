"""Sparse matrices that share their columns but not their number of rows, stacked in one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_fill_value
from ..tensor.coo_cache import as_flycoo, find_converter, is_sparse
from ..tensor.labelled import LabelledTensor
from ..tensor.tensor import FlycooTensor
from .lazy import LazyArray

if TYPE_CHECKING:
    from sparse import SparseArray


class RaggedTensor(LazyArray):
    """Sparse slices (I_k, J) with any numbers of rows, for `decomposition.parafac2`.

    All slices are one sparse matrix, so that an operation takes as many launches for 100,000 slices
    as for one. `parafac2` makes one of the slices that it gets; make it yourself to decompose the
    same slices several times, or use `from_tensor` for a table.

    Parameters
    ----------
    slices : iterable of SciPy sparse matrix, sparse.COO or FlycooTensor
    **options
        ``dtype``, ``layout``, ``device``, ``slabs`` and ``keep`` of `FlycooTensor`; the device is
        by default that of the slices.

    Attributes
    ----------
    matrix : FlycooTensor (sum of I_k, J)
        The rows of all slices; those with fewer rows come first.
    row_counts, starts : int64 array (K,)
        The number of rows of each slice, and its first row in `matrix`, on the host.
    labels : dict
        From `from_tensor` of a LabelledTensor: the labels of the slices (K,), a list of the labels
        of each one's rows (I_k,), and the labels of the columns (J,), by the names of the modes.

    Raises
    ------
    TypeError
        If a slice is not sparse.
    ValueError
        If there is no slice, one does not have two modes, their columns differ in number, or a
        fill_value is not 0.

    Notes
    -----
    Building one costs as much as building a FlycooTensor of all nonzeros.

    Examples
    --------
    >>> import scipy.sparse
    >>> RaggedTensor([scipy.sparse.eye_array(3), scipy.sparse.eye_array(2, 3)])
    <RaggedTensor: 2 slices of 2 to 3 rows and 3 columns; dtype=float64, nnz=5>
    """

    ndim = 3
    _instead = "only decomposition.parafac2 takes slices with different numbers of rows"

    def __init__(self, slices: Iterable[Any], **options: Any) -> None:
        slices = list(slices)
        parts = [_read_slice(x, k) for k, x in enumerate(slices)]
        widths = {shape[1] for _, _, shape in parts}
        if len(widths) != 1:
            raise ValueError(
                f"tensor_slices have {sorted(widths) or 'no'} columns, expected the same number in "
                "each of one slice or more"
            )
        starts = self._number([shape[0] for _, _, shape in parts])
        xp = array_module(parts[0][1])
        coords = [
            xp.stack([xp.asarray(rows, np.int64) + start, xp.asarray(columns, np.int64)])
            for ((rows, columns), _, _), start in zip(parts, starts.tolist(), strict=True)
        ]
        values = xp.concatenate([part for _, part, _ in parts])
        known = {x.device for x in slices if isinstance(x, FlycooTensor)}
        options = {"device": known.pop() if len(known) == 1 else None} | options
        self._build(xp.concatenate(coords, axis=1), values, widths.pop(), options)

    @classmethod
    def from_tensor(cls, x: FlycooTensor | SparseArray | LabelledTensor, **options: Any) -> Self:
        """Make one of a tensor (slice, row, column), without the rows that are empty in a slice.

        So ragged data may come from a table or file, where a row is whatever the second mode counts
        in any of the slices.

        Parameters
        ----------
        x : FlycooTensor, sparse.COO or LabelledTensor (K, I, J)
        **options
            As of the class.

        Raises
        ------
        TypeError
            If `x` is not sparse.
        ValueError
            If `x` does not have three modes.

        Examples
        --------
        >>> import pandas
        >>> from tensorly_flycoo import from_dataframe
        >>> table = pandas.DataFrame(
        ...     {"patient": list("aabb"), "visit": [3, 7, 3, 3], "code": list("xyxz")}
        ... )
        >>> visits = RaggedTensor.from_tensor(from_dataframe(table, ["patient", "visit", "code"]))
        >>> visits
        <RaggedTensor: 2 slices of 1 to 2 rows and 3 columns; dtype=float64, nnz=4>
        >>> visits.labels["visit"]
        [array([3, 7]), array([3])]
        """
        tensor = _check_modes(as_flycoo(x, check_coords=True))
        coords, values = tensor._sorted_nonzeros()
        xp, self = array_module(values), cls.__new__(cls)
        is_first = xp.ones(values.size, bool)  # nonzero of its row
        is_first[1:] = (coords[:2, 1:] != coords[:2, :-1]).any(axis=0)
        ids, labels = move(coords[:2, is_first], np)
        starts = self._number(np.bincount(ids, minlength=tensor.shape[0]))
        shift = starts - (np.cumsum(self.row_counts) - self.row_counts)
        rows = xp.cumsum(is_first) - 1 + xp.asarray(shift)[coords[0]]
        if isinstance(x, LabelledTensor):
            ends = np.cumsum(self.row_counts)[:-1]
            first, second, third = x.labels
            of_rows = np.split(x.labels[second][labels], ends)
            self.labels = {first: x.labels[first], second: of_rows, third: x.labels[third]}
        options = {"device": tensor.device} | options
        self._build(xp.stack([rows, coords[2]]), values, tensor.shape[2], options)
        return self

    def _number(self, row_counts: Sequence[int] | np.ndarray) -> np.ndarray:
        """Number the rows of all slices, and return the first one of each."""
        self.row_counts = np.asarray(row_counts, np.int64)
        self.order = np.argsort(self.row_counts, kind="stable")
        sizes = self.row_counts[self.order]
        self.starts = np.empty_like(sizes)
        self.starts[self.order] = np.cumsum(sizes) - sizes
        return self.starts

    def _build(self, coords: Array, values: Array, num_columns: int, options: dict) -> None:
        shape = (int(self.row_counts.sum()), num_columns)
        self.matrix = FlycooTensor(coords, values, shape, **options)
        self.shape = (self.row_counts.size, int(self.row_counts.max()), num_columns)
        self.dtype, self.nnz = self.matrix.dtype, self.matrix.nnz
        self.labels: dict[str, Any] = getattr(self, "labels", {})

    def __repr__(self) -> str:
        sizes = f"{self.row_counts.min()} to {self.row_counts.max()} rows"
        return (
            f"<RaggedTensor: {self.shape[0]} slices of {sizes} and {self.shape[2]} columns; "
            f"dtype={self.dtype.name}, nnz={self.nnz}>"
        )


def as_ragged(slices: Any) -> RaggedTensor:
    """Return slices as a RaggedTensor; a tensor of three modes has one for each first index."""
    if isinstance(slices, RaggedTensor):
        return slices
    if not is_sparse(slices):
        return RaggedTensor(slices)
    x = _check_modes(as_flycoo(slices, check_coords=True))
    (ids, rows, columns), values = x._sorted_nonzeros()
    ragged = RaggedTensor.__new__(RaggedTensor)
    ragged._number([x.shape[1]] * x.shape[0])
    coords = array_module(values).stack([ids * x.shape[1] + rows, columns])
    ragged._build(coords, values, x.shape[2], {"device": x.device})
    return ragged


def _check_modes(x: FlycooTensor) -> FlycooTensor:
    if x.ndim != 3:
        raise ValueError(f"tensor_slices has shape {x.shape}, expected three modes or a list")
    return x


def _read_slice(x: Any, k: int) -> tuple[Any, Array, tuple[int, ...]]:
    """Return the coordinates, values and shape of a slice, which may have duplicates."""
    if np.ndim(x) != 2:
        raise ValueError(f"tensor_slices[{k}] has shape {np.shape(x)}, expected two modes")
    if find_converter(x) == "from_scipy":
        x = x.tocoo()
        return (x.row, x.col), x.data, x.shape
    if is_sparse(x) and hasattr(x, "coords"):
        check_fill_value(x.fill_value)
        return x.coords, x.data, x.shape
    return *as_flycoo(x)._sorted_nonzeros(), x.shape

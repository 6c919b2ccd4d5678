"""Say what a tensor is like: how full its modes are, and how much memory it takes."""

from dataclasses import dataclass

import numpy as np

from ..checks import LAYOUTS, check_dtype, check_fill_value, check_values, num_cells
from ..engines import select_engine
from ..format.packing import RecordFormat
from ..tensor.coo_cache import is_raw_sparse
from ..tensor.memory import estimate_memory
from ..tensor.tensor import FlycooTensor


@dataclass(frozen=True)
class ModeStats:
    """Say how the nonzeros of a tensor are spread over the rows (the indices) of one mode.

    Attributes
    ----------
    size : int
    num_empty_rows : int
        Indices without a nonzero. They are left out of what follows.
    min_row_nnz, max_row_nnz : int
    median_row_nnz : float
        The fewest, the most and the median of the nonzeros of a row.
    gini : float
        The Gini coefficient of these: 0 where all rows have as many, near 1 where few have most.
    """

    size: int
    num_empty_rows: int
    min_row_nnz: int
    median_row_nnz: float
    max_row_nnz: int
    gini: float


@dataclass(frozen=True)
class TensorStats:
    """Say what a tensor is like; as text by `print`, and as a table in a notebook.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        Of the values that a `FlycooTensor` keeps.
    nnz : int
        Stored elements, with duplicates and zeros.
    density : float
    num_duplicates : int
        Stored elements with coordinates that another one has already.
    num_zeros : int
        Stored elements that are zero.
    modes : tuple of ModeStats
    nbytes : dict of str to int
        What a `FlycooTensor` takes in each layout, as `estimate_memory` says it for the device
        that the tensor is on, or would be.
    """

    shape: tuple
    dtype: np.dtype
    nnz: int
    density: float
    num_duplicates: int
    num_zeros: int
    modes: tuple[ModeStats, ...]
    nbytes: dict[str, int]

    @property
    def rank_limit(self):
        """The largest rank of a CP model that has no more free numbers than there are nonzeros.

        A component has one for each row that is not empty, but for its scale in all modes but one.
        More components fit anything; how many are sensible, fits of held-out nonzeros say.
        """
        num_rows = sum(mode.size - mode.num_empty_rows for mode in self.modes)
        num_distinct = self.nnz - self.num_duplicates - self.num_zeros
        return max(0, num_distinct) // max(1, num_rows - len(self.modes) + 1)

    def _facts(self):
        return {
            "shape": " x ".join(map(str, self.shape)),
            "dtype": str(self.dtype),
            "nonzeros": f"{self.nnz:,}",
            "density": f"{self.density:.3g}",
            "duplicates": f"{self.num_duplicates:,}",
            "zeros": f"{self.num_zeros:,}",
            "rank, at most": f"{self.rank_limit:,}",
            **{f"memory, {name}": f"{n / 1e6:,.1f} MB" for name, n in self.nbytes.items()},
        }

    def _table(self):
        """Return the rows of the table of modes, the first one with its headings."""
        rows = [["mode", "size", "empty rows", "min", "median", "max nonzeros per row", "Gini"]]
        for number, mode in enumerate(self.modes):
            counts = (mode.min_row_nnz, mode.median_row_nnz, mode.max_row_nnz)
            sizes = (mode.size, mode.num_empty_rows, *counts)
            rows.append([str(number), *(f"{n:,}" for n in sizes), f"{mode.gini:.2f}"])
        return rows

    def __str__(self):
        facts = self._facts()
        width = max(map(len, facts))
        lines = [f"{name:{width}}  {fact}" for name, fact in facts.items()]
        table = self._table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join(cells))
        return "\n".join(lines)

    def _repr_html_(self):
        facts = "".join(
            f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in self._facts().items()
        )
        head, *rows = self._table()
        modes = "<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"
        for row in rows:
            modes += "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
        return f"<table>{facts}</table><table>{modes}</table>"


def stats(x):
    """Look at a tensor before decomposing it: modes, empty rows, crowded rows, memory.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
        No `FlycooTensor` is built of a COO.

    Returns
    -------
    TensorStats

    Raises
    ------
    TypeError
        If `x` is something else.
    ValueError
        If `x` is a COO that no `FlycooTensor` could be made of.

    Notes
    -----
    Sorts the coordinates of each mode: O(ndim * nnz * log(nnz)) time, on the CPU. What is on a GPU
    is copied to host memory.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor, stats
    >>> x = FlycooTensor([[0, 0, 0, 2], [0, 1, 2, 0]], [1.0, 1.0, 1.0, 1.0], (4, 3))
    >>> print(stats(x))
    shape               4 x 3
    dtype               float64
    nonzeros            4
    density             0.333
    duplicates          0
    zeros               0
    rank, at most       1
    memory, remap       0.0 MB
    memory, replicated  0.0 MB
    memory, indexed     0.0 MB
    mode  size  empty rows  min  median  max nonzeros per row  Gini
       0     4           2    1     2.0                     3  0.25
       1     3           0    1     1.0                     2  0.17
    """
    if isinstance(x, FlycooTensor):
        (coords, values), num_duplicates, device = x.nonzeros(), 0, x.device
    else:
        device = None
        coords, values = _take_nonzeros(x)
        num_duplicates = _count_duplicates(coords, values, x.shape)
    dtype = check_dtype(values.dtype)
    return TensorStats(
        shape=tuple(x.shape),
        dtype=dtype,
        nnz=values.size,
        density=values.size / num_cells(x.shape),
        num_duplicates=num_duplicates,
        num_zeros=values.size - np.count_nonzero(values),
        modes=tuple(_describe_mode(*mode) for mode in zip(coords, x.shape, strict=True)),
        nbytes={
            layout: estimate_memory(
                x.shape, values.size, dtype=dtype, layout=layout, device=device
            ).nbytes
            for layout in LAYOUTS
        },
    )


def _take_nonzeros(x):
    if not is_raw_sparse(x):
        raise TypeError(f"x is a {type(x).__name__}, expected a FlycooTensor or a sparse.COO")
    x = x if hasattr(x, "coords") else x.asformat("coo")
    check_fill_value(x.fill_value)
    return x.coords, check_values(x.data, x.coords.shape[1])


def _count_duplicates(coords, values, shape):
    primitives = select_engine("cpu")
    record_format = RecordFormat.of(shape, values.dtype, np.uint64)
    records, is_rising, _ = primitives.pack(coords, values, record_format)
    if is_rising:
        return 0
    places = primitives.sort_places(records, record_format, reversed(range(len(shape))))
    records = primitives.gather(records, places)
    return int(np.count_nonzero(primitives.find_duplicates(records, record_format)))


def _describe_mode(rows, size):
    _, counts = np.unique(rows, return_counts=True)
    counts.sort()
    num_empty_rows = size - counts.size
    if counts.size == 0:
        return ModeStats(size, num_empty_rows, 0, 0.0, 0, 0.0)
    places = np.arange(1, counts.size + 1)
    spread = 2 * float(places @ counts.astype(np.float64)) / (counts.size * float(counts.sum()))
    return ModeStats(
        size=size,
        num_empty_rows=num_empty_rows,
        min_row_nnz=int(counts[0]),
        median_row_nnz=float(np.median(counts)),
        max_row_nnz=int(counts[-1]),
        gini=max(0.0, spread - (counts.size + 1) / counts.size),
    )

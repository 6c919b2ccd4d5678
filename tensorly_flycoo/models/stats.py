"""Statistics of a tensor: the nonzeros in each mode's rows, and the memory it takes."""

from dataclasses import astuple, dataclass
from functools import partial

import numpy as np

from ..base.checks import LAYOUTS
from ..base.tables import format_table
from ..format.groups import explain_apart
from ..spread.memory import estimate_memory
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.pieces import list_pieces


@dataclass(frozen=True)
class ModeStats:
    """The distribution of a tensor's nonzeros over the rows (the indices) of one mode.

    Attributes
    ----------
    size : int
    num_empty_rows : int
        Rows without a nonzero; the attributes below do not count them.
    min_row_nnz, max_row_nnz : int
    median_row_nnz : float
        Minimum, maximum and median of the nonzeros per row.
    gini : float
        The Gini coefficient of the nonzeros per row: 0 if all rows have the same number, near 1 if
        a few rows have most of them.
    """

    size: int
    num_empty_rows: int
    min_row_nnz: int
    median_row_nnz: float
    max_row_nnz: int
    gini: float


@dataclass(frozen=True, repr=False)
class TensorStats:
    """The statistics of a tensor, shown as tables.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    nnz : int
    density : float
    modes : tuple of ModeStats
    nbytes : dict of str to int
        The memory of the tensor in each layout, by `estimate_memory`, on its device.
    groups : str
        The groups of modes that share passes over the nonzeros; if slabs have none, why.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    nnz: int
    density: float
    modes: tuple[ModeStats, ...]
    nbytes: dict[str, int]
    groups: str

    def __repr__(self) -> str:
        facts = {
            "shape": " x ".join(map(str, self.shape)),
            "dtype": str(self.dtype),
            "nonzeros": f"{self.nnz:,}",
            "density": f"{self.density:.3g}",
            **{f"memory, {name}": f"{n / 1e6:,.1f} MB" for name, n in self.nbytes.items()},
            "groups of modes": self.groups,
        }
        rows = [["mode", "size", "empty rows", "min", "median", "max nonzeros per row", "Gini"]]
        for number, mode in enumerate(self.modes):
            *sizes, gini = astuple(mode)
            rows.append([str(number), *(f"{n:,}" for n in sizes), f"{gini:.2f}"])
        return f"{format_table(facts.items(), '<')}\n{format_table(rows)}"


def stats(x: LabelledData) -> TensorStats:
    """Return statistics of a tensor: sizes, empty rows, nonzeros per row, memory, groups.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
        A COO is converted, once: duplicates are added up, and zeros dropped.

    Returns
    -------
    TensorStats

    Raises
    ------
    TypeError
        If `x` is not a sparse tensor.
    ValueError
        If `x` is a COO that cannot be converted to a `FlycooTensor`.

    Notes
    -----
    Sorts the coordinates of each mode: O(ndim * nnz * log(nnz)) time, on the CPU. A tensor on a GPU
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
    memory, remap       0.0 MB
    memory, replicated  0.0 MB
    memory, indexed     0.0 MB
    groups of modes     none: fewer than 3 modes
    mode  size  empty rows  min  median  max nonzeros per row  Gini
       0     4           2    1     2.0                     3  0.25
       1     3           0    1     1.0                     2  0.17
    """
    x = as_flycoo(x, check_coords=True)
    coords, _ = x.nonzeros()
    estimate = partial(estimate_memory, x.shape, x.nnz, dtype=x.dtype, device=x.device)
    modes = tuple(_describe_mode(*mode) for mode in zip(coords, x.shape, strict=True))
    nbytes = {name: estimate(layout=name).nbytes for name in LAYOUTS}
    num_apart = sum(len(piece.layout.groups) == x.ndim for piece in list_pieces(x._layout, np))
    groups = "none" if len(x.groups) == x.ndim else str(x.groups)
    if num_apart:
        where = "" if groups == "none" else f", none in {num_apart} of {x.slabs} slabs"
        groups += f"{where}: {explain_apart(x.shape, x.nnz, x.slabs)}"
    return TensorStats(x.shape, x.dtype, x.nnz, x.density, modes, nbytes, groups)


def _describe_mode(rows: np.ndarray, size: int) -> ModeStats:
    counts = np.sort(np.unique(rows, return_counts=True)[1])
    if counts.size == 0:
        return ModeStats(size, size, 0, 0.0, 0, 0.0)
    weights = np.arange(1 - counts.size, counts.size, 2, dtype=np.float64)
    gini = max(0.0, float(weights @ counts)) / (counts.size * float(counts.sum()))
    least = int(counts[0])
    median = float(np.median(counts))
    most = int(counts[-1])
    return ModeStats(size, size - counts.size, least, median, most, gini)

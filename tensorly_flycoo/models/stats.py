"""Statistics of a tensor: the nonzeros in each mode's rows, and the memory it takes."""

from dataclasses import dataclass

import numpy as np

from ..base.checks import LAYOUTS
from ..base.notebooks import make_facts, make_text_table
from ..base.tables import format_table
from ..base.watching import watched
from ..format.groups import explain_apart
from ..spread.memory import estimate_memory
from ..spread.streamed import StreamedLayout
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.pieces import list_pieces
from ..tensor.tensor import FlycooTensor


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
    host_nbytes, unpacked_nbytes : int
        The memory of records that wait on the host (``keep="host"``), and what they would take if
        their bits were not packed; 0 if none does.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    nnz: int
    density: float
    modes: tuple[ModeStats, ...]
    nbytes: dict[str, int]
    groups: str
    host_nbytes: int = 0
    unpacked_nbytes: int = 0

    def __repr__(self) -> str:
        facts = format_table(self._list_facts().items(), "<")
        return f"{facts}\n{format_table(self._list_modes())}"

    def _repr_html_(self) -> str:
        """Return the same tables for a notebook."""
        return make_facts(self._list_facts()) + make_text_table(self._list_modes())

    def _list_facts(self) -> dict[str, str]:
        """List facts about the whole tensor as text, by name."""
        facts = {
            "shape": " x ".join(map(str, self.shape)),
            "dtype": str(self.dtype),
            "nonzeros": f"{self.nnz:,}",
            "density": f"{self.density:.3g}",
        }
        for layout, nbytes in self.nbytes.items():
            facts[f"memory, {layout}"] = f"{nbytes / 1e6:,.1f} MB"
        facts["groups of modes"] = self.groups
        if self.host_nbytes:
            share = self.host_nbytes / self.unpacked_nbytes
            packed = f"{self.host_nbytes / 1e6:,.1f} MB, {share:.0%} of what they hold unpacked"
            facts["records on the host"] = packed
        return facts

    def _list_modes(self) -> list[list[str]]:
        """Return a row for each mode as texts, headings first."""
        rows = [["mode", "size", "empty rows", "min", "median", "max nonzeros per row", "Gini"]]
        for number, mode in enumerate(self.modes):
            rows.append(
                [
                    str(number),
                    f"{mode.size:,}",
                    f"{mode.num_empty_rows:,}",
                    f"{mode.min_row_nnz:,}",
                    f"{mode.median_row_nnz:,}",
                    f"{mode.max_row_nnz:,}",
                    f"{mode.gini:.2f}",
                ]
            )
        return rows


@watched
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
    modes = [_describe_mode(rows, size) for rows, size in zip(coords, x.shape, strict=True)]
    nbytes = {}
    for layout in LAYOUTS:
        memory = estimate_memory(x.shape, x.nnz, dtype=x.dtype, layout=layout, device=x.device)
        nbytes[layout] = memory.nbytes
    host_nbytes, unpacked_nbytes = _count_streamed(x)
    return TensorStats(
        shape=x.shape,
        dtype=x.dtype,
        nnz=x.nnz,
        density=x.density,
        modes=tuple(modes),
        nbytes=nbytes,
        groups=_describe_groups(x),
        host_nbytes=host_nbytes,
        unpacked_nbytes=unpacked_nbytes,
    )


def _count_streamed(x: FlycooTensor) -> tuple[int, int]:
    """Count the bytes of the records that wait on the host, and of the same ones unpacked."""
    layouts = [piece.layout for piece in list_pieces(x._layout, np)]
    streamed = [layout for layout in layouts if isinstance(layout, StreamedLayout)]
    copies = [copy for layout in streamed for copy in layout.copies]
    host_nbytes = sum(copy.nbytes for copy in copies)
    return host_nbytes, x._layout.record_format.record_nbytes * sum(map(len, copies))


def _describe_groups(x: FlycooTensor) -> str:
    """Name the groups of modes of a tensor, and say why it or some of its slabs have none."""
    pieces = list_pieces(x._layout, np)
    num_apart = sum(len(piece.layout.groups) == x.ndim for piece in pieces)
    text = "none"
    if len(x.groups) < x.ndim:
        text = str(x.groups)
        if num_apart:
            text += f", none in {num_apart} of {x.slabs} slabs"
    if num_apart:
        text += f": {explain_apart(x.shape, x.nnz, x.slabs)}"
    return text


def _describe_mode(rows: np.ndarray, size: int) -> ModeStats:
    """Return the statistics of a mode from the rows of all nonzeros."""
    _, counts = np.unique(rows, return_counts=True)
    if counts.size == 0:
        return ModeStats(
            size=size,
            num_empty_rows=size,
            min_row_nnz=0,
            median_row_nnz=0.0,
            max_row_nnz=0,
            gini=0.0,
        )
    counts = np.sort(counts)
    return ModeStats(
        size=size,
        num_empty_rows=size - counts.size,
        min_row_nnz=int(counts[0]),
        median_row_nnz=float(np.median(counts)),
        max_row_nnz=int(counts[-1]),
        gini=_find_gini(counts),
    )


def _find_gini(counts: np.ndarray) -> float:
    """Return the Gini coefficient of sorted counts, at least one and all above 0.

    It is the mean difference of all pairs over twice the mean: each count is the larger one of as
    many pairs as there are counts before it, and the smaller one of those after it.

    >>> _find_gini(np.array([1, 1])), _find_gini(np.array([1, 3]))
    (0.0, 0.25)
    """
    num_larger_less_smaller = np.arange(1 - counts.size, counts.size, 2, dtype=np.float64)
    differences = max(0.0, float(num_larger_less_smaller @ counts))  # not below 0 by rounding
    return differences / (counts.size * float(counts.sum()))

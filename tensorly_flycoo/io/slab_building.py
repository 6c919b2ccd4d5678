"""Build a tensor's slabs one after the other from nonzeros on disk, in bounded memory."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..array_modules import move
from ..checks import check_sums
from ..format.layout import Layout
from ..format.layouts import LAYOUT_CLASSES
from ..format.ordering import make_canonical_records
from ..format.partition import count_rows, find_edges, find_longest_mode, list_rows
from ..format.slab_layout import build_slab
from ..reporting import report
from ..tensor.memory import attempt, format_nbytes
from .spool import Buckets, Spool

if TYPE_CHECKING:
    from ..engines.protocol import Engine


class SlabBuilder:
    """Makes the slabs that `SlabLayout.build` would, with the bits that they have there.

    Buckets of rows with equally many of the given nonzeros are sorted one by one, then cut again
    where the slabs begin that have equally many of the canonical ones.

    Attributes
    ----------
    record_format : RecordFormat
        For records of the whole tensor.
    num_slabs, cut_mode : int
    """

    def __init__(self, folder: Path, spool: Spool, num_slabs: int, engine: "Engine") -> None:
        """Distribute the nonzeros to buckets in a file in `folder`; remove those in `spool`."""
        self.record_format = engine.choose_cut(spool.shape, spool.dtype).record_format
        self.num_slabs = num_slabs
        self.cut_mode = find_longest_mode(spool.shape)
        self._engine = engine
        report(f"distributing {spool.nnz:,} nonzeros to {num_slabs} slabs")
        counts = spool.count_rows(self.cut_mode)
        rows = list_rows(find_edges(counts, num_slabs))
        self._buckets = Buckets(folder / "buckets", self.record_format, rows, counts)
        del counts
        self._buckets.fill(spool.iterate())
        spool.remove()

    def build(self, layout: str) -> Iterator[tuple[range, Layout]]:
        """Yield the rows and the layout of each slab."""
        exact = list_rows(attempt(self._sort, self._explain))
        for number, rows in enumerate(exact):
            report(f"building slab {number + 1} of {len(exact)}")
            build_slab = functools.partial(self._build_slab, layout, rows)
            yield rows, attempt(build_slab, self._explain)

    def _build_slab(self, layout: str, rows: range) -> Layout:
        records, engine = self._buckets.take(rows), self._engine
        arguments = (rows, self.record_format, engine.choose_cut, engine)
        return build_slab(LAYOUT_CLASSES[layout], records, *arguments)

    def _explain(self) -> str:
        free_nbytes = self._engine.count_free_nbytes()
        free = "an unknown amount" if free_nbytes is None else format_nbytes(free_nbytes)
        return (
            f"building a slab of {self._buckets.longest:,} nonzeros on {self._engine.name!r} needs "
            f"more memory than there is ({free} is free): give more slabs than {self.num_slabs}; "
            f"rows of mode {self.cut_mode}, the longest, are not split"
        )

    def remove(self) -> None:
        """Delete the file of the buckets."""
        self._buckets.path.unlink()

    def _sort(self) -> tuple[int, ...]:
        """Make the records of each bucket canonical; return the edges of the slabs."""
        counts, record_format = [], self.record_format

        def sort(records: np.ndarray, rows: range) -> np.ndarray:
            coords = record_format.coords(records)
            values = record_format.values(records).copy()
            records = make_canonical_records(coords, values, record_format, self._engine)
            records = move(records, np)
            check_sums(record_format.values(records))
            numbers = record_format.rows(records, self.cut_mode)
            numbers -= numbers.dtype.type(rows.start)
            counts.append(count_rows(numbers, len(rows)))
            return records

        self._buckets.map_buckets(sort)
        return find_edges(np.concatenate(counts), self.num_slabs)

"""The layout "replicated": one sorted copy for each mode; nothing moves."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from ..base.array_modules import Array, move
from .layout import Layout, RowTiling, collect_tilings, count_sort_nbytes, iterate_orders
from .ordering import compute_norm
from .packed_records import PackedRecords
from .packing import Cut, RecordFormat, RecordOrder
from .primitives import Primitives, Step, index_dtype


def number_prefixes(layout: Layout, primitives: Primitives) -> None:
    """Give a layout with numbered prefixes a tensor of ones with their indices and numbers.

    MTTKRP of it combines the factors of the group, and contracts its rows with them.
    """
    record_format = layout.record_format
    num_prefixes = record_format.num_prefixes
    if num_prefixes == 0:
        return
    xp = primitives.xp
    group = record_format.groups[0]
    coords = xp.zeros((len(group) + 1, num_prefixes), np.int64)
    with layout.hold_records() as records:
        if isinstance(records, PackedRecords):  # of a file
            records = records.unpack()
        for start in range(0, layout.nnz, primitives.block_size):
            block = move(records[start : start + primitives.block_size], xp)  # from a file
            numbers = record_format.merged.rows(block, 0, xp)
            for mode in group:  # all nonzeros of a prefix write the same index
                coords[mode, numbers] = record_format.rows(block, mode, xp)
    coords[-1] = xp.arange(num_prefixes)
    values = xp.ones(num_prefixes, record_format.dtype)
    cut = cut_prefixes(record_format, primitives)
    layout.prefixes = ReplicatedLayout.build(coords, values, cut, primitives)


def cut_prefixes(record_format: RecordFormat, primitives: Primitives) -> Cut:
    """Choose the cut of the tensor that `number_prefixes` builds."""
    shape = (*record_format.shape[: len(record_format.groups[0])], record_format.num_prefixes)
    return primitives.choose_cut(shape, record_format.dtype)


class ReplicatedLayout(Layout):
    """One copy for each mode, in that mode's order: the fastest layout, and the largest."""

    name = "replicated"

    def __init__(
        self, cut: Cut, copies: Sequence[Array], tilings: Sequence[RowTiling], norm: float
    ) -> None:
        super().__init__(cut, tilings, norm)
        self.copies = copies
        self.records = copies[0]
        self.steps = [Step(copy) for copy in copies]

    @classmethod
    def arrange(cls, records: Array, cut: Cut, primitives: Primitives) -> Self:
        norm = compute_norm(cut.record_format.values(records), primitives)
        copies = []
        tilings = []
        for places, tiling in iterate_orders(records, cut.merged, primitives):
            if places is None:
                copies.append(records)
            else:
                copies.append(primitives.gather(records, places))
            tilings.append(tiling)
        return cls(cut, copies, tilings, norm)

    @classmethod
    def count_build_nbytes(cls, nnz: int, cut: Cut, primitives: Primitives) -> int:
        places = 3 * nnz * index_dtype(nnz).itemsize  # two orders, and the positions
        sorting = count_sort_nbytes(nnz, cut, primitives)
        last_copy = nnz * cut.record_format.record_nbytes  # allocated once places are sorted
        return places + max(0, sorting - last_copy)

    def get_copies(self) -> Sequence[Array]:
        return self.copies

    def list_orders(self) -> list[RecordOrder]:
        """List the orders of the copies."""
        tilings = enumerate(self.tilings)
        return [
            RecordOrder(self.record_format, mode, tiling.empty_rows) for mode, tiling in tilings
        ]

    @classmethod
    def name_copies(cls, ndim: int) -> list[str]:
        return [f"records_{mode}" for mode in range(ndim)]

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], cut: Cut, norm: float) -> Self:
        ndim = cut.record_format.merged.ndim
        copies = [arrays[name] for name in cls.name_copies(ndim)]
        return cls(cut, copies, collect_tilings(arrays, ndim), norm)

    @contextlib.contextmanager
    def hold_records(self, mode: int = 0) -> Iterator[Array]:
        yield self.copies[mode]

    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        copies = [self.record_format.map_values(copy, function) for copy in self.copies]
        mapped = type(self)(self.cut, copies, self.tilings, self.norm * scale)
        return self.share_prefixes(mapped)

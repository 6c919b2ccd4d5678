"""The layout "indexed": one copy, and for each mode an index to pull records through."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from ..base.array_modules import Array
from .layout import Layout, RowTiling, collect_tilings, count_sort_nbytes, iterate_orders
from .ordering import compute_norm
from .packing import Cut
from .primitives import Primitives, Step, index_dtype


class IndexedLayout(Layout):
    """One copy, in the order of mode 0; `pull_ids` (nnz,) are where other orders have records."""

    name = "indexed"

    def __init__(
        self,
        cut: Cut,
        records: Array,
        pull_ids: Sequence[Array | None],  # of each mode; None for mode 0
        tilings: Sequence[RowTiling],
        norm: float,
    ) -> None:
        super().__init__(cut, tilings, norm)
        self.records = records
        self.pull_ids = pull_ids
        self.steps = [Step(records, ids) for ids in pull_ids]

    @classmethod
    def arrange(cls, records: Array, cut: Cut, primitives: Primitives) -> Self:
        norm = compute_norm(cut.record_format.values(records), primitives)
        pull_ids, tilings = zip(*iterate_orders(records, cut.merged, primitives), strict=True)
        return cls(cut, records, pull_ids, tilings, norm)

    @classmethod
    def count_build_nbytes(cls, nnz: int, cut: Cut, primitives: Primitives) -> int:
        return nnz * index_dtype(nnz).itemsize + count_sort_nbytes(nnz, cut, primitives)

    @classmethod
    def name_ids(cls, ndim: int) -> list[str]:
        return [f"pull_ids_{mode}" for mode in range(1, ndim)]

    def iterate_arrays(self) -> Iterator[tuple[str, Array]]:
        yield from super().iterate_arrays()
        yield from zip(self.name_ids(self.merged.ndim), self.pull_ids[1:], strict=True)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], cut: Cut, norm: float) -> Self:
        ndim = cut.record_format.merged.ndim
        pull_ids = [None, *(arrays[name] for name in cls.name_ids(ndim))]
        return cls(cut, arrays["records"], pull_ids, collect_tilings(arrays, ndim), norm)

    def find_places(self, mode: int, primitives: Primitives) -> Array | None:
        return self.pull_ids[mode]

    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        records = self.record_format.map_values(self.records, function)
        mapped = type(self)(self.cut, records, self.pull_ids, self.tilings, self.norm * scale)
        return self.share_prefixes(mapped)

"""A layout whose records wait in host memory, or in a file, and visit the device mode by mode."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ..base.array_modules import Array
from ..format.layout import Layout, RowTiling
from ..format.packing import Cut
from ..format.primitives import Primitives, Step
from ..format.replicated import ReplicatedLayout

if TYPE_CHECKING:
    from ..engines.cuda.staging import CudaStager

#: Returns the layout of a slab on a device, or puts its records aside.
KeepAside: TypeAlias = Callable[[Layout, int], Layout]


class StreamedLayout(ReplicatedLayout):
    """A replicated layout with its copies of the records on the host, as the stager keeps them.

    A mode's copy is on the device only while it is computed. Tilings stay there. `stager` is shared
    by all slabs of one device; `following` has for each mode the copy that a sweep over slabs and
    modes reads next.
    """

    def __init__(
        self,
        cut: Cut,
        copies: Sequence[Any],
        tilings: Sequence[RowTiling],
        norm: float,
        stager: CudaStager,
    ) -> None:
        super().__init__(cut, copies, tilings, norm)
        self.stager = stager
        self.following: Sequence[Any] = [None] * len(copies)

    @contextlib.contextmanager
    def step(self, mode: int, primitives: Primitives, stays: bool = False) -> Iterator[Step]:
        with self.stager.take(self.copies[mode], self.following[mode]) as records:
            yield Step(records)

    @contextlib.contextmanager
    def hold_records(self, mode: int = 0) -> Iterator[Array]:
        with self.stager.take(self.copies[mode], None) as records:
            yield records

    def iterate_values(self) -> Iterator[Array]:
        with self.hold_records() as records:
            yield self.record_format.values(records)

    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        copies = []
        for copy, order in zip(self.copies, self.list_orders(), strict=True):
            with self.stager.take(copy, None) as records:
                mapped_records = self.record_format.map_values(records, function)
                copies.append(self.stager.put_aside(mapped_records, order))
        mapped = type(self)(self.cut, copies, self.tilings, self.norm * scale, self.stager)
        return self.share_prefixes(mapped)


def make_keep_aside(make_stager: Callable[[], CudaStager], num_resident: int) -> KeepAside:
    """Make a function that moves slabs to the host, all but `num_resident` of each device."""
    stagers: dict[int, CudaStager] = defaultdict(make_stager)
    num_built: dict[int, int] = defaultdict(int)

    def keep_aside(layout: Layout, home: int) -> Layout:
        """Return a slab's layout as it is if it is among the first of its device."""
        num_built[home] += 1
        if num_built[home] <= num_resident:
            return layout
        assert isinstance(layout, ReplicatedLayout)
        stager = stagers[home]
        pairs = zip(layout.copies, layout.list_orders(), strict=True)
        copies = [stager.put_aside(copy, order) for copy, order in pairs]
        streamed = StreamedLayout(layout.cut, copies, layout.tilings, layout.norm, stager)
        return layout.share_prefixes(streamed)

    return keep_aside


def link_copies(layouts: Sequence[StreamedLayout]) -> None:
    """Tell layouts of one device, in the order of their slabs, which copy follows each."""
    for layout, next_layout in pairwise(layouts):
        layout.following = next_layout.copies
    if layouts:  # after the last slab a sweep goes on with the first slab and the next mode
        first_copy, *later_copies = layouts[0].copies
        layouts[-1].following = [*later_copies, first_copy]

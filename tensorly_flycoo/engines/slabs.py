"""The memory that operations on a tensor in slabs take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..array_modules import Array
from ..format.slab_layout import Slab, SlabLayout
from ..format.tree import count_waiting

if TYPE_CHECKING:
    from .protocol import Engine


def count_workspace_nbytes(
    engine: Engine, layout: SlabLayout, factors: Sequence[Array], mode: int
) -> int:
    """Count the bytes that `mttkrp` allocates while it runs."""
    own_nbytes = max(
        engine.count_workspace_nbytes(slab.layout, _list_own_factors(layout, slab, factors), mode)
        for slab in layout.slabs
    )
    if mode == layout.cut_mode:
        return own_nbytes
    num_rows, rank = layout.record_format.shape[mode], factors[mode].shape[1]
    spare_nbytes = num_rows * rank * factors[mode].itemsize
    return own_nbytes + count_waiting(len(layout.slabs)) * spare_nbytes


def _list_own_factors(layout: SlabLayout, slab: Slab, factors: Sequence[Array]) -> list[Array]:
    """Return the factors of a slab: of the cut mode's only its own rows."""
    return [f[slab.rows] if n == layout.cut_mode else f for n, f in enumerate(factors)]

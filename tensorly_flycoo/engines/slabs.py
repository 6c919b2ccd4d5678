"""Products of a tensor in slabs: of each slab, then added along a fixed tree.

In the cut mode each slab computes rows of its own. In any other mode each computes a partial
result for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..array_modules import Array
from ..format.slab_layout import Slab, SlabLayout
from ..format.tree import count_waiting, fold_tree

if TYPE_CHECKING:
    from .protocol import Engine


def mttkrp(
    engine: Engine,
    layout: SlabLayout,
    factors: Sequence[Array],
    mode: int,
    out: Array,
    weights: Array | None = None,
) -> None:
    """Do what `Engine.mttkrp` does, for a tensor in slabs."""

    def compute(slab: Slab, target: Array) -> None:
        own = _list_own_factors(layout, slab, factors)
        engine.mttkrp(slab.layout, own, mode, target, weights)

    if mode == layout.cut_mode:
        for slab in layout.slabs:
            compute(slab, out[slab.rows])
    else:
        _add_results(engine, layout, compute, out)


def ttmc(
    engine: Engine,
    layout: SlabLayout,
    mode: int,
    inputs: Mapping[int, Array],
    out: Array,
    slots: Array | None = None,
) -> None:
    """Do what `Engine.ttmc` does, for a tensor in slabs."""
    cut_mode = layout.cut_mode

    def compute(slab: Slab, target: Array) -> None:
        target[...] = 0  # rows that are empty in the slab are not written
        own = {n: f[slab.rows] if n == cut_mode else f for n, f in inputs.items()}
        engine.ttmc(slab.layout, mode, own, target, slots)

    if mode != cut_mode:
        _add_results(engine, layout, compute, out)
        return
    for slab in layout.slabs:
        target, places = (out[slab.rows], None) if slots is None else (out, slots[slab.rows])
        engine.ttmc(slab.layout, mode, inputs, target, places)


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


def _add_results(
    engine: Engine, layout: SlabLayout, compute: Callable[[Slab, Array], None], out: Array
) -> None:
    """Add the results that ``compute(slab, target)`` writes, in `out`.

    All memory is allocated before anything is computed.
    """
    num_spares = count_waiting(len(layout.slabs))
    free = [engine.xp.empty(out.shape, out.dtype) for _ in range(num_spares)]
    free.append(out)  # taken first: the first operand of each addition receives its result

    def make(slab: Slab) -> Array:
        target = free.pop()
        compute(slab, target)
        return target

    def add(rows: Array, others: Array) -> Array:
        engine.add_rows(rows, others)
        free.append(others)
        return rows

    fold_tree(map(make, layout.slabs), add)

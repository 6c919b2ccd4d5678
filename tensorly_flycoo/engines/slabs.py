"""Products of a tensor in slabs: of each slab, then added along a fixed tree.

In the cut mode each slab computes rows of its own. In any other mode each computes a partial
result for all rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ..array_modules import Array
from ..devices import bring_each, bring_to_each
from ..format.slab_layout import Slab, SlabLayout, SpreadLayout
from ..format.tree import Tree, count_waiting, fold_tree, renumber
from ..shards.row_shards import RowShards, gather_each
from ..shards.sharding import Sharding, cut_evenly, find_sharding

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
    """Run `Engine.mttkrp` slab by slab."""
    own_weights = _bring_to_homes(layout, weights)

    def compute(slab: Slab, own: Mapping[int, Array], target: Array) -> None:
        in_order = [own.get(n, target) for n in range(len(factors))]
        engine.mttkrp(slab.layout, in_order, mode, target, own_weights[slab.home])

    inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
    _compute_slabs(engine, layout, mode, inputs, compute, out)


def mttkrp_of_ratios(
    engine: Engine,
    layout: SlabLayout,
    factors: Sequence[Array],
    mode: int,
    out: Array,
    smallest: float,
    *,
    wants_logs: bool,
    stays: bool,
) -> Array | None:
    """Run `Engine.mttkrp_of_ratios` slab by slab."""
    log_sums: list[Array] = []

    def compute(slab: Slab, own: Mapping[int, Array], target: Array) -> None:
        in_order, options = [own[n] for n in range(len(factors))], (mode, target, smallest)
        log_sum = engine.mttkrp_of_ratios(
            slab.layout, in_order, *options, wants_logs=wants_logs, stays=stays
        )
        log_sums.append(log_sum)

    _compute_slabs(engine, layout, mode, dict(enumerate(factors)), compute, out)
    return _add_logs(layout, log_sums) if wants_logs else None


def ttmc(
    engine: Engine,
    layout: SlabLayout,
    mode: int,
    inputs: Mapping[int, Array],
    out: Array,
    slots: Array | None = None,
) -> None:
    """Run `Engine.ttmc` slab by slab."""
    is_cut = mode == layout.cut_mode
    own_slots = _bring_to_homes(layout, slots)

    def compute(slab: Slab, own: Mapping[int, Array], target: Array) -> None:
        places = own_slots[slab.home]
        if not is_cut:
            target[...] = 0  # rows that are empty in the slab are not written
        elif places is not None:
            places = places[slab.rows]
        engine.ttmc(slab.layout, mode, own, target, places)

    # With slots, rows of the cut mode may be anywhere in `out`.
    _compute_slabs(engine, layout, mode, inputs, compute, out, is_cut and slots is not None)


def _bring_to_homes(layout: SlabLayout, array: Array | None) -> dict[int, Array | None]:
    """Return an array on the device of each slab, by device."""
    homes = [slab.home for slab in layout.slabs]
    return dict.fromkeys(homes) if array is None else bring_to_each(layout.devices, array, homes)


def _compute_slabs(
    engine: Engine,
    layout: SlabLayout,
    mode: int,
    inputs: Mapping[int, Array],
    compute: Callable[[Slab, Mapping[int, Array], Array], None],
    out: Array,
    is_scattered: bool = False,
) -> None:
    """Let ``compute(slab, own, target)`` write each slab's rows of `out`, or add all rows of each.

    `compute` runs on the slab's device; what it reads of the `inputs`, and its target, are there
    already. The target is all of `out` if its rows of the cut mode are scattered.
    """
    devices, (own, _) = layout.devices, _bring_inputs(layout, inputs)

    def compute_at_home(number: int, target: Array) -> None:
        slab = layout.slabs[number]
        with devices.use(slab.home):
            own_target = devices.bring(target, slab.home)
            compute(slab, own[number], own_target)
        if own_target is not target:
            target[...] = devices.collect([own_target])[0]

    if mode != layout.cut_mode:
        _add_results(engine, layout, compute_at_home, out)
        return
    for number, slab in enumerate(layout.slabs):
        compute_at_home(number, out if is_scattered else out[slab.rows])


def _bring_inputs(
    layout: SlabLayout, inputs: Mapping[int, Array | RowShards], weights: Array | None = None
) -> tuple[list[dict[int, Array]], dict[int, Array]]:
    """Return what each slab reads of the inputs, and the weights on each device.

    Of the cut mode's input a slab reads only its own rows. All copies come before all work: a copy
    waits for the work that is under way.
    """
    devices, homes = layout.devices, [slab.home for slab in layout.slabs]
    modes = [n for n in inputs if n != layout.cut_mode]
    whole = [inputs[n] for n in modes] + ([] if weights is None else [weights])
    on_each = gather_each(whole, devices, dict.fromkeys(homes))
    own = [
        {n: matrices[home] for n, matrices in zip(modes, on_each, strict=False)} for home in homes
    ]
    if layout.cut_mode in inputs:
        x = inputs[layout.cut_mode]
        is_sharded = isinstance(x, RowShards)
        rows = [] if is_sharded else [x[slab.rows] for slab in layout.slabs]
        blocks = x.blocks if is_sharded else bring_each(devices, rows, homes)
        for of_slab, block in zip(own, blocks, strict=True):
            of_slab[layout.cut_mode] = block
    # In the order of the inputs: TTMc's columns follow it.
    in_order = [{n: of_slab[n] for n in inputs} for of_slab in own]
    return in_order, {} if weights is None else on_each[-1]


def _add_results(
    engine: Engine, layout: SlabLayout, compute: Callable[[int, Array], None], out: Array
) -> None:
    """Add the results that ``compute(number, target)`` writes for each slab, in `out`.

    All memory is allocated before anything is computed.
    """
    num_spares = count_waiting(len(layout.slabs))
    free = [engine.xp.empty(out.shape, out.dtype) for _ in range(num_spares)]
    free.append(out)  # taken first: the first operand of each addition receives its result

    def make(number: int) -> Array:
        target = free.pop()
        compute(number, target)
        return target

    def add(rows: Array, others: Array) -> Array:
        engine.add_rows(rows, others)
        free.append(others)
        return rows

    fold_tree(map(make, range(len(layout.slabs))), add)


# On several devices


def mttkrp_shards(
    engine: Engine,
    layout: SpreadLayout,
    factors: Sequence[Array | RowShards],
    mode: int,
    weights: Array | None = None,
) -> RowShards:
    """Return the MTTKRP of `mode`, its columns times the weights, of slabs on several devices."""

    def compute(slab: Slab, own: Mapping[int, Array], weights: Array | None, out: Array) -> None:
        in_order = [own.get(n, out) for n in range(len(factors))]
        engine.mttkrp(slab.layout, in_order, mode, out, weights)

    inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
    rank = factors[mode].shape[1]
    return _compute_shards(engine, layout, mode, rank, inputs, compute, weights)


def mttkrp_of_ratios_shards(
    engine: Engine,
    layout: SpreadLayout,
    factors: Sequence[Array | RowShards],
    mode: int,
    smallest: float,
    *,
    wants_logs: bool,
    stays: bool,
) -> tuple[RowShards, Array | None]:
    """Return what `mttkrp_of_ratios` computes, of slabs on several devices."""
    log_sums: list[Array] = []

    def compute(slab: Slab, own: Mapping[int, Array], _: Array | None, out: Array) -> None:
        in_order, options = [own[n] for n in range(len(factors))], (mode, out, smallest)
        log_sum = engine.mttkrp_of_ratios(
            slab.layout, in_order, *options, wants_logs=wants_logs, stays=stays
        )
        log_sums.append(log_sum)

    inputs, rank = dict(enumerate(factors)), factors[mode].shape[1]
    product = _compute_shards(engine, layout, mode, rank, inputs, compute)
    return product, _add_logs(layout, log_sums) if wants_logs else None


def ttmc_shards(
    engine: Engine,
    layout: SpreadLayout,
    mode: int,
    inputs: Mapping[int, Array | RowShards],
    size: tuple[int, int],
    slots: Array | None = None,
) -> RowShards:
    """Return what `ttmc` computes, of `size`, of slabs on several devices.

    Rows without nonzeros are zero. In the cut mode there is a row for each index, whatever `slots`.
    """
    own_slots = _bring_to_homes(layout, None if mode == layout.cut_mode else slots)

    def compute(slab: Slab, own: Mapping[int, Array], _: Array | None, out: Array) -> None:
        out[...] = 0  # rows that are empty in the slab are not written
        engine.ttmc(slab.layout, mode, own, out, own_slots[slab.home])

    num_rows = None if mode == layout.cut_mode else size[0]
    return _compute_shards(engine, layout, mode, size[1], inputs, compute, num_rows=num_rows)


def _add_logs(layout: SlabLayout, log_sums: Sequence[Array]) -> Array:
    return functools.reduce(operator.add, layout.devices.collect(log_sums))


def _compute_shards(
    engine: Engine,
    layout: SpreadLayout,
    mode: int,
    rank: int,
    inputs: Mapping[int, Array | RowShards],
    compute: Callable[[Slab, Mapping[int, Array], Array | None, Array], None],
    weights: Array | None = None,
    num_rows: int | None = None,
) -> RowShards:
    """Return what ``compute(slab, own, weights, target)`` writes to the targets of all slabs.

    `compute` runs on the slab's device; its inputs `own` and the weights are there already. In the
    cut mode a target has the slab's rows. In others it has `num_rows` rows, by default those of the
    mode, and the targets are added.
    """
    devices, slabs, dtype = layout.devices, layout.slabs, layout.record_format.dtype
    sharding = find_sharding(layout, mode)
    if num_rows is not None:
        sharding = Sharding.of(cut_evenly(num_rows, layout.num_slabs), devices)
    # First all copies, then all work: a copy waits for the work that is under way.
    own, own_weights = _bring_inputs(layout, inputs, weights)
    results: dict[int, Array] = {}

    def compute_slab(number: int) -> Tree:
        slab = slabs[number]
        with devices.use(slab.home):
            own_rows = slab.layout.record_format.shape[mode] if num_rows is None else num_rows
            target = engine.xp.empty((own_rows, rank), dtype)
            compute(slab, own[number], own_weights.get(slab.home), target)
        results[number] = target
        return number

    if mode == layout.cut_mode:
        for number in range(len(slabs)):
            compute_slab(number)
        return RowShards(list(results.values()), sharding)

    def add(a: Tree, b: Tree) -> Tree:
        """Add neighbours at once if they are on one device, else when all devices compute."""
        if not isinstance(a, int) or not isinstance(b, int) or slabs[a].home != slabs[b].home:
            return a, b
        with devices.use(slabs[a].home):
            engine.add_rows(results[a], results.pop(b))
        return a

    tree = fold_tree(map(compute_slab, range(len(slabs))), add)
    return _add_blocks(engine, results, tree, sharding)


def _add_blocks(
    engine: Engine, results: Mapping[int, Array], tree: Tree, sharding: Sharding
) -> RowShards:
    """Add matrices on several devices, which `tree` numbers; the device of a block adds it."""
    devices, homes = sharding.devices, sharding.homes
    places = {number: place for place, number in enumerate(results)}
    requests = [
        ([matrix[start:stop] for matrix in results.values()], home)
        for (start, stop), home in zip(pairwise(sharding.edges), homes, strict=True)
    ]
    blocks, placed = [], renumber(tree, places)
    for parts, home in zip(devices.gather(requests), homes, strict=True):
        with devices.use(home):
            blocks.append(engine.add_parts(parts, placed))
    return RowShards(blocks, sharding)

"""Products of a tensor in slabs: of each slab, then added along a fixed tree.

In the cut mode each slab computes rows of its own. In any other mode each computes a partial
result for all rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ..array_modules import Array
from ..devices import Devices
from ..format.slab_layout import Slab, SlabLayout, SpreadLayout
from ..format.tree import count_waiting, fold_tree
from ..shards.row_shards import RowShards, gather_each
from ..shards.sharding import Sharding, find_sharding

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

    _compute_slabs(engine, layout, mode, compute, out)


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
    """Do what `Engine.mttkrp_of_ratios` does, for a tensor in slabs."""
    log_sums: list[Array] = []

    def compute(slab: Slab, target: Array) -> None:
        own, options = _list_own_factors(layout, slab, factors), (mode, target, smallest)
        log_sum = engine.mttkrp_of_ratios(
            slab.layout, own, *options, wants_logs=wants_logs, stays=stays
        )
        log_sums.append(log_sum)

    _compute_slabs(engine, layout, mode, compute, out)
    return functools.reduce(operator.add, log_sums) if wants_logs else None


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


def _compute_slabs(
    engine: Engine,
    layout: SlabLayout,
    mode: int,
    compute: Callable[[Slab, Array], None],
    out: Array,
) -> None:
    """Let ``compute(slab, target)`` write each slab's rows of `out`, or add all rows of each."""
    if mode == layout.cut_mode:
        for slab in layout.slabs:
            compute(slab, out[slab.rows])
    else:
        _add_results(engine, layout, compute, out)


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


# On several devices


def mttkrp_shards(
    engine: Engine,
    layout: SpreadLayout,
    factors: Sequence[Array | RowShards],
    mode: int,
    weights: Array | None = None,
) -> RowShards:
    """Return the MTTKRP of `mode`, its columns times the weights, of slabs on several devices."""
    slabs, rank = layout.slabs, factors[mode].shape[1]
    sharding, dtype = find_sharding(layout, mode), layout.record_format.dtype
    # First all copies, then all work: a copy waits for the work that is under way.
    inputs, own_weights = _bring_inputs(layout, factors, mode, weights)

    def compute(number: int) -> Array:
        slab = slabs[number]
        with layout.devices.use(slab.home):
            target = engine.xp.empty((slab.layout.record_format.shape[mode], rank), dtype)
            own = [target if n == mode else inputs[n][number] for n in range(len(factors))]
            engine.mttkrp(slab.layout, own, mode, target, own_weights.get(slab.home))
            return target

    if mode == layout.cut_mode:
        return RowShards([compute(number) for number in range(len(slabs))], sharding)
    results = (_Result(compute(n), slab.home) for n, slab in enumerate(slabs))
    add = functools.partial(_Result.add, engine, layout.devices)
    return fold_tree(results, add).spread(sharding)


def _bring_inputs(
    layout: SpreadLayout,
    factors: Sequence[Array | RowShards],
    mode: int,
    weights: Array | None,
) -> tuple[dict[int, Sequence[Array]], dict[int, Array]]:
    """Return the rows that each slab reads of the factors, by mode, and the weights of devices."""
    homes, cut_mode = [slab.home for slab in layout.slabs], layout.cut_mode
    read = [n for n in range(len(factors)) if n not in (mode, cut_mode)]
    whole = [factors[n] for n in read] + ([] if weights is None else [weights])
    on_each = gather_each(whole, layout.devices, dict.fromkeys(homes))
    inputs: dict[int, Sequence[Array]] = {
        n: [matrices[home] for home in homes] for n, matrices in zip(read, on_each, strict=False)
    }
    factor = factors[cut_mode]
    if isinstance(factor, RowShards):
        inputs[cut_mode] = factor.blocks
    elif mode != cut_mode:
        inputs[cut_mode] = find_sharding(layout, cut_mode).cut(factor)
    return inputs, {} if weights is None else on_each[-1]


class _Result:
    """A sum of slabs' results: a matrix on one device, or two sums that are added block by block.

    The latter waits until all devices compute: copies wait for the work that is under way.
    """

    def __init__(
        self, matrix: Array | None, home: int, terms: tuple[_Result, _Result] | None = None
    ) -> None:
        self._matrix = matrix
        self._home = home
        self._terms = terms

    @staticmethod
    def add(engine: Engine, devices: Devices, a: _Result, b: _Result) -> _Result:
        """Add neighbours, at once if they are on one device."""
        if a._matrix is None or b._matrix is None or a._home != b._home:
            return _Result(None, a._home, (a, b))
        with devices.use(a._home):
            engine.add_rows(a._matrix, b._matrix)
        return a

    def spread(self, sharding: Sharding) -> RowShards:
        """Return the sum with each block on its device."""
        rows = [slice(*edges) for edges in pairwise(sharding.edges)]
        matrices = list(self._iterate_matrices())
        requests = [
            ((matrix[own],), home)
            for own, home in zip(rows, sharding.homes, strict=True)
            for matrix in matrices
        ]
        parts, blocks = iter(sharding.devices.gather(requests)), []
        for home in sharding.homes:
            with sharding.devices.use(home):
                blocks.append(self._add_parts(parts))
        return RowShards(blocks, sharding)

    def _iterate_matrices(self) -> Iterator[Array]:
        if self._terms is None:
            yield self._matrix
        else:
            for term in self._terms:
                yield from term._iterate_matrices()

    def _add_parts(self, parts: Iterator[Array]) -> Array:
        """Add parts of the matrices, given in order, as the matrices are to be added."""
        if self._terms is None:
            return next(parts)
        left, right = self._terms
        return left._add_parts(parts) + right._add_parts(parts)

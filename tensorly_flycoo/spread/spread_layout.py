"""Slabs that are spread over several devices, as are the rows of factors (`RowShards`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..base.devices import bring_each
from ..engines import Engine
from ..format.primitives import Operation
from ..format.tree import Tree, fold_tree, make_tree, renumber
from .row_shards import RowShards, Sharding, cut_evenly, gather_each
from .slab_layout import SlabLayout


class SpreadLayout(SlabLayout):
    """Slabs on several devices, and factors that are plain arrays or `RowShards`."""

    @functools.cached_property
    def shardings(self) -> list[Sharding]:
        """Sharding of each mode's factor: in the cut mode like the slabs, else evenly."""
        edges = [cut_evenly(size, self.num_slabs) for size in self.record_format.shape]
        shardings = [Sharding.of(own, self.devices, is_read_whole=True) for own in edges]
        shardings[self.cut_mode] = Sharding(tuple(self.edges), self.homes, self.devices)
        return shardings

    def scatter(self, factor: Array | RowShards, mode: int) -> RowShards:
        """Return a factor sharded as the results of an MTTKRP are."""
        if isinstance(factor, RowShards):
            return factor
        return RowShards.scatter(factor, self.shardings[mode])

    def spread(self, factors: Sequence[Array | RowShards]) -> list[Array | RowShards]:
        """Scatter the factors of all modes, unless they are small."""
        are_whole = not any(isinstance(factor, RowShards) for factor in factors)
        if are_whole and sum(factor.nbytes for factor in factors) < self.devices.least_nbytes:
            return list(factors)
        return [self.scatter(factor, mode) for mode, factor in enumerate(factors)]

    def apply(
        self,
        operation: Operation,
        engine: Any,
        inputs: Mapping[int, Array | RowShards],
        mode: int,
        out: Array,
        **options: Any,
    ) -> Array | None:
        """Run an operation on the nonzeros; its result is whole on the first device, in `out`.

        Other devices write their parts of a small result there; blocks of a large one are gathered.
        """
        devices = self.devices
        num_slabs = len(self.slabs)
        is_cut = mode == self.cut_mode
        if num_slabs * out.nbytes >= devices.least_nbytes or not devices.can_lend(out):
            rows, total = self.apply_sharded(operation, engine, inputs, mode, out.shape, **options)
            blocks = devices.collect(rows.blocks)
            for (start, stop), block in zip(pairwise(rows.sharding.edges), blocks, strict=True):
                out[start:stop] = block
            return total
        edges, own_slots = self._divide_rows(mode, options.get("slots"))
        parts = out
        num_rows = out.shape[0]
        if not is_cut:  # each slab computes all rows, which are then added
            edges = [num_rows * number for number in range(num_slabs + 1)]
            parts = engine.xp.empty((edges[-1], out.shape[1]), out.dtype)
        run_slab = self._prepare_slabs(inputs, options, own_slots, operation, engine, mode)
        targets = [parts[start:stop] for start, stop in pairwise(edges)]
        with devices.lend(targets, self.homes) as lent:
            sums = [run_slab(number, target) for number, target in enumerate(lent)]
        if not is_cut:
            engine.add_parts(parts, make_tree(num_slabs), out)
        return self._add_up(sums)

    def apply_sharded(
        self,
        operation: Operation,
        engine: Engine,
        inputs: Mapping[int, Array | RowShards],
        mode: int,
        shape: tuple[int, int],
        **options: Any,
    ) -> tuple[RowShards, Array | None]:
        """Run an operation as `Layout.apply` does; its result, of `shape`, stays spread.

        In the cut mode each slab computes a block. In any other each device adds the results
        of its own slabs as far as the tree allows; the device of each block adds that block of all.
        """
        devices = self.devices
        slabs = self.slabs
        is_cut = mode == self.cut_mode
        edges, own_slots = self._divide_rows(mode, options.get("slots"))
        sharding = self.shardings[mode]
        if own_slots is not None:
            sharding = Sharding(tuple(edges), sharding.homes, devices)
        elif shape[0] != sharding.edges[-1]:
            sharding = Sharding.of(cut_evenly(shape[0], self.num_slabs), devices)
        # First all copies, then all work: a copy waits for the work that is under way.
        run_slab = self._prepare_slabs(inputs, options, own_slots, operation, engine, mode)
        results: dict[Any, Array] = {}
        sums: list[Array | None] = []

        def compute(number: int) -> Tree:
            num_rows = edges[number + 1] - edges[number] if is_cut else shape[0]
            sizes = (num_rows, shape[1])
            results[number] = devices.empty(slabs[number].home, sizes, self.record_format.dtype)
            sums.append(run_slab(number, results[number]))
            return number

        def add(a: Tree, b: Tree) -> Tree:
            """Add neighbours at once if they are on one device, else when all devices compute."""
            if not isinstance(a, int) or not isinstance(b, int) or slabs[a].home != slabs[b].home:
                return a, b
            with devices.use(slabs[a].home):
                results[a] += results.pop(b)
            return a

        computed = map(compute, range(len(slabs)))
        if is_cut:
            blocks = [results[number] for number in computed]
        else:
            blocks = _add_blocks(engine, results, self.homes, fold_tree(computed, add), sharding)
        return RowShards(blocks, sharding), self._add_up(sums)

    def _prepare_slabs(
        self,
        inputs: Mapping[int, Array | RowShards],
        options: dict[str, Any],
        own_slots: Sequence[Array] | None,
        operation: Operation,
        engine: Any,
        mode: int,
    ) -> Callable[[int, Array], Array | None]:
        """Bring inputs and options to the slabs' devices: of the cut mode's factor their own rows.

        Returns a function that takes the number of a slab and an array on its device, and runs the
        operation there on the slab's nonzeros, with its result in the array.
        """
        devices = self.devices
        cut_mode = self.cut_mode
        parts: dict[Any, Sequence[Array]] = {}
        if own_slots is not None:
            parts["slots"] = bring_each(devices, own_slots, self.homes)
        x = inputs.get(cut_mode)
        if isinstance(x, RowShards):
            parts[cut_mode] = x.blocks
        elif x is not None and x.nbytes >= devices.least_nbytes:
            parts[cut_mode] = self.shardings[cut_mode].cut(x)
        given: Any = (*inputs.items(), *options.items())
        whole = {key: x for key, x in given if key not in parts and getattr(x, "ndim", 0) > 0}
        gathered = gather_each(whole.values(), devices, dict.fromkeys(self.homes))
        for key, arrays in zip(whole, gathered, strict=True):
            parts[key] = [arrays[home] for home in self.homes]
        if cut_mode in whole:  # small: it came with the others, in one exchange
            pairs = zip(parts[cut_mode], self.slabs, strict=True)
            parts[cut_mode] = [array[slab.rows] for array, slab in pairs]

        def take(given: Mapping[Any, Any], number: int) -> dict[Any, Any]:
            """Return a slab's own, in the order in which they are given, which TTMc follows."""
            return {key: parts[key][number] if key in parts else x for key, x in given.items()}

        def run_slab(number: int, out: Array) -> Array | None:
            slab = self.slabs[number]
            own = take(options, number)
            if own.get("find_rows"):
                own["find_rows"] = functools.partial(own["find_rows"], piece=number)
            with devices.use(slab.home):
                return slab.layout.apply(operation, engine, take(inputs, number), mode, out, **own)

        return run_slab


def _add_blocks(
    engine: Engine, results: dict[Any, Array], owners: Sequence[int], tree: Tree, sharding: Sharding
) -> list[Array]:
    """Add matrices of slabs, which `tree` numbers; the device of a block adds it."""
    devices = sharding.devices
    homes = sharding.homes
    cut = []
    for number, matrix in results.items():
        with devices.use(owners[number]):
            cut.append(np.split(matrix, sharding.edges[1:]))
    # What is behind the last edge is empty, and has no home.
    requests = list(zip(zip(*cut, strict=True), homes, strict=False))
    blocks = []
    placed = renumber(tree, tuple(results))
    for rows, home in zip(devices.gather(requests), homes, strict=True):
        with devices.use(home):
            blocks.append(engine.add_parts(rows, placed))
    return blocks

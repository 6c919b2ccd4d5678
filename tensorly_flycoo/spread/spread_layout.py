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
from ..engines.row_blocks import RowBlocks, Rows
from ..format.primitives import Operation
from ..format.tree import Tree, fold_tree, make_tree, renumber
from .row_shards import RowShards, Sharding, cut_evenly, gather_each
from .slab_layout import SlabLayout


class SpreadLayout(SlabLayout):
    """Slabs on several devices, and factors that are plain arrays or `RowShards`."""

    @functools.cached_property
    def shardings(self) -> list[Sharding]:
        """Sharding of each mode's factor: in the cut mode like the slabs, else evenly."""
        shardings = [
            Sharding.of(cut_evenly(size, self.num_slabs), self.devices, is_read_whole=True)
            for size in self.record_format.shape
        ]
        shardings[self.cut_mode] = Sharding(tuple(self.edges), self.homes, self.devices)
        return shardings

    def scatter(self, factor: Array | RowShards, mode: int) -> RowShards:
        """Return a factor sharded as the results of an MTTKRP are."""
        if isinstance(factor, RowShards):
            return factor
        return RowShards.scatter(factor, self.shardings[mode])

    def spread(self, factors: Sequence[Array | RowShards]) -> list[Array | RowShards]:
        """Scatter the factors of all modes, unless they are small."""
        if not any(isinstance(factor, RowShards) for factor in factors):
            nbytes = sum(factor.nbytes for factor in factors)
            if nbytes < self.devices.least_nbytes:
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
        """Run an operation on the nonzeros; its result is whole on the first device, in `out`."""
        is_small = len(self.slabs) * out.nbytes < self.devices.least_nbytes
        if is_small and self.devices.can_lend(out):
            return self._apply_lending(operation, engine, inputs, mode, out, **options)
        return self._apply_collecting(operation, engine, inputs, mode, out, **options)

    def _apply_lending(
        self,
        operation: Operation,
        engine: Any,
        inputs: Mapping[int, Array | RowShards],
        mode: int,
        out: Array,
        **options: Any,
    ) -> Array | None:
        """Lend memory of the first device to the others, which write their results there."""
        num_slabs = len(self.slabs)
        edges, slab_slots = self._divide_rows(mode, options.get("slots"))
        parts = out
        is_cut = mode == self.cut_mode
        if not is_cut:  # each slab computes all rows, which are then added
            num_rows, rank = out.shape
            edges = [num_rows * number for number in range(num_slabs + 1)]
            parts = engine.xp.empty((edges[-1], rank), out.dtype)
        run_slab = self._prepare_slabs(inputs, options, slab_slots, operation, engine, mode)
        targets = [parts[start:stop] for start, stop in pairwise(edges)]
        with self.devices.lend(targets, self.homes) as lent:
            # Beside its target, each slab has a small sum if the option `wants_sum` asks for one.
            sums = [run_slab(number, target) for number, target in enumerate(lent)]
        if not is_cut:
            engine.add_parts(parts, make_tree(num_slabs), out)
        return self._sum_results(sums)

    def _apply_collecting(
        self,
        operation: Operation,
        engine: Any,
        inputs: Mapping[int, Array | RowShards],
        mode: int,
        out: Array,
        **options: Any,
    ) -> Array | None:
        """Compute blocks of rows on all devices, and collect them on the first."""
        rows, total = self.apply_sharded(operation, engine, inputs, mode, out.shape, **options)
        blocks = self.devices.collect(rows.blocks)
        for (start, stop), block in zip(pairwise(rows.sharding.edges), blocks, strict=True):
            out[start:stop] = block
        return total

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

        In the cut mode each slab computes a block. In any other the device of each block adds that
        block of all slabs. These write it there if they can; else each device first adds the
        results of its own slabs as far as the tree allows.
        """
        devices = self.devices
        slabs = self.slabs
        is_cut = mode == self.cut_mode
        num_rows, rank = shape
        edges, slab_slots = self._divide_rows(mode, options.get("slots"))
        sharding = self.shardings[mode]
        if slab_slots is not None:  # the result has no empty rows
            sharding = Sharding(tuple(edges), sharding.homes, devices)
        elif num_rows != sharding.edges[-1]:  # as for TTMc without empty rows
            sharding = Sharding.of(cut_evenly(num_rows, self.num_slabs), devices)
        # First all copies, then all work: a copy waits for the work that is under way.
        run_slab = self._prepare_slabs(inputs, options, slab_slots, operation, engine, mode)
        if self._writes_blocks(operation, engine, mode):
            targets = self._allocate_blocks(sharding, rank)
            if all(map(devices.can_lend, targets)):
                return self._fill_blocks(run_slab, engine, targets, sharding)
        results: dict[Any, Array] = {}  # by the number of the slab, or of the first that is added
        sums: list[Array | None] = []

        def compute(number: int) -> Tree:
            """Run the operation on a slab; return its number, a leaf of the tree."""
            num_slab_rows = num_rows
            if is_cut:
                num_slab_rows = edges[number + 1] - edges[number]
            home = slabs[number].home
            shape_here = (num_slab_rows, rank)
            results[number] = devices.empty(home, shape_here, self.record_format.dtype)
            sums.append(run_slab(number, results[number]))
            return number

        def add(a: Tree, b: Tree) -> Tree:
            """Add neighbours at once if they are on one device, else when all devices compute."""
            if not isinstance(a, int) or not isinstance(b, int):
                return a, b
            home = slabs[a].home
            if home != slabs[b].home:
                return a, b
            with devices.use(home):
                results[a] += results.pop(b)
            return a

        numbers = map(compute, range(len(slabs)))
        if is_cut:
            blocks = [results[number] for number in numbers]
        else:
            tree = fold_tree(numbers, add)
            blocks = _add_blocks(engine, results, self.homes, tree, sharding)
        return RowShards(blocks, sharding), self._sum_results(sums)

    def _writes_blocks(self, operation: Operation, engine: Engine, mode: int) -> bool:
        """Say whether slabs can write each block of a mode's rows where it is added.

        With more slabs than devices that would take more memory than their sums; and the rows of a
        mode in a group are contracted from others.
        """
        if not operation.fills_blocks or mode == self.cut_mode:
            return False
        is_one_each = 1 < self.num_slabs <= self.devices.count
        if not is_one_each or self.num_slabs > engine.most_row_blocks:
            return False
        record_formats = [slab.layout.record_format for slab in self.slabs]
        return all(len(of_slab.find_group(mode)) == 1 for of_slab in record_formats)

    def _allocate_blocks(self, sharding: Sharding, rank: int) -> list[Array]:
        """Allocate for each block, on its device, the results of all slabs below each other."""
        num_slabs = len(self.slabs)
        dtype = self.record_format.dtype
        return [
            self.devices.empty(home, (num_slabs * (stop - start), rank), dtype)
            for (start, stop), home in zip(pairwise(sharding.edges), sharding.homes, strict=True)
        ]

    def _fill_blocks(
        self,
        run_slab: Callable[[int, Rows], Array | None],
        engine: Engine,
        targets: Sequence[Array],
        sharding: Sharding,
    ) -> tuple[RowShards, Array | None]:
        """Have each slab write its rows to the devices of their blocks, which then add them."""
        num_slabs = len(self.slabs)
        num_blocks = len(targets)
        # Slab by slab, its rows of each block.
        parts: list[Array] = []
        for number in range(num_slabs):
            for target in targets:
                num_rows = target.shape[0] // num_slabs
                parts.append(target[number * num_rows : (number + 1) * num_rows])
        writers = [home for home in self.homes for _ in range(num_blocks)]
        with self.devices.lend(parts, writers, sharding.homes) as lent:
            sums = []
            for number in range(num_slabs):
                rows = RowBlocks(lent[number * num_blocks : (number + 1) * num_blocks])
                sums.append(run_slab(number, rows))
        # Those of all slabs are on the device of the block.
        tree = make_tree(num_slabs)
        blocks = []
        for home, target in zip(sharding.homes, targets, strict=True):
            with self.devices.use(home):
                blocks.append(engine.add_parts(target, tree))
        return RowShards(blocks, sharding), self._sum_results(sums)

    def _prepare_slabs(
        self,
        inputs: Mapping[int, Array | RowShards],
        options: dict[str, Any],
        slab_slots: Sequence[Array] | None,
        operation: Operation,
        engine: Any,
        mode: int,
    ) -> Callable[[int, Rows], Array | None]:
        """Bring inputs and options to the slabs' devices: of the cut mode's factor their own rows.

        Returns a function that takes the number of a slab and an array on its device, and runs the
        operation there on the slab's nonzeros, with its result in the array; or in `RowBlocks`.
        """
        parts = self._bring_arrays(inputs, options, slab_slots)

        def take(arguments: Mapping[Any, Any], number: int) -> dict[Any, Any]:
            """Return a slab's inputs or options, in the given order, which TTMc follows."""
            taken = dict(arguments)
            for key in arguments:
                if key in parts:
                    taken[key] = parts[key][number]
            return taken

        def run_slab(number: int, out: Rows) -> Array | None:
            """Run the operation on one slab, on its device."""
            slab = self.slabs[number]
            slab_inputs = take(inputs, number)
            slab_options = take(options, number)
            find_rows = slab_options.get("find_rows")
            if find_rows is not None:  # rows that were kept are kept for each slab
                slab_options["find_rows"] = functools.partial(find_rows, piece=number)
            with self.devices.use(slab.home):
                return slab.layout.apply(operation, engine, slab_inputs, mode, out, **slab_options)

        return run_slab

    def _bring_arrays(
        self,
        inputs: Mapping[int, Array | RowShards],
        options: dict[str, Any],
        slab_slots: Sequence[Array] | None,
    ) -> dict[Any, Sequence[Array]]:
        """Bring arrays among the inputs (by mode) and the options (by name) to the slabs' devices.

        Returns for each of them the array of each slab.
        """
        devices = self.devices
        cut_mode = self.cut_mode
        parts: dict[Any, Sequence[Array]] = {}
        if slab_slots is not None:
            parts["slots"] = bring_each(devices, slab_slots, self.homes)
        cut_factor = inputs.get(cut_mode)
        if isinstance(cut_factor, RowShards):
            parts[cut_mode] = cut_factor.blocks
        elif cut_factor is not None and cut_factor.nbytes >= devices.least_nbytes:
            parts[cut_mode] = self.shardings[cut_mode].cut(cut_factor)
        arguments: dict[Any, Any] = {**inputs, **options}
        whole = {  # arrays that each device needs as a whole
            key: x for key, x in arguments.items() if key not in parts and getattr(x, "ndim", 0) > 0
        }
        gathered = gather_each(whole.values(), devices, dict.fromkeys(self.homes))
        for key, copies in zip(whole, gathered, strict=True):
            parts[key] = [copies[home] for home in self.homes]
        if cut_mode in whole:  # small: it came with the others, in one exchange
            slab_copies = zip(parts[cut_mode], self.slabs, strict=True)
            parts[cut_mode] = [copy[slab.rows] for copy, slab in slab_copies]
        return parts


def _add_blocks(
    engine: Engine, results: dict[Any, Array], owners: Sequence[int], tree: Tree, sharding: Sharding
) -> list[Array]:
    """Add matrices of slabs, which `tree` numbers; the device of a block adds it."""
    devices = sharding.devices
    parts = []  # of each matrix, for each block
    for number, matrix in results.items():
        with devices.use(owners[number]):
            *blocks, _ = np.split(matrix, sharding.edges[1:])  # behind the last edge is nothing
            parts.append(blocks)
    requests = list(zip(zip(*parts, strict=True), sharding.homes, strict=True))
    places = renumber(tree, tuple(results))
    return devices.add(requests, places, engine.add_parts)

"""An engine's kernels for tall matrices, on row-sharded ones.

Each block is computed on its device. Small results, one or a few for each block, are collected on
the first device, where other kernels add them in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..devices import bring_to_each
from ..shards.row_shards import RowShards

if TYPE_CHECKING:
    from ..engines.tall_kernels import TallKernels


class ShardedKernels:
    """`FactorKernels` of row-sharded matrices; small matrices are on the first device."""

    def __init__(self, kernels: TallKernels) -> None:
        self._kernels = kernels

    def suits_tensor_cores(self, x: RowShards) -> bool:
        if x.memo.suits is None:
            x.memo.suits = all(map(self._kernels.suits_tensor_cores, x.blocks))
        return x.memo.suits

    def gram_blocks(self, x: RowShards) -> Any:
        (grams,) = self._collect(x, x.apply(self._kernels.gram_blocks))
        return grams

    def inner_blocks(self, a: RowShards, b: RowShards) -> Any:
        (inner,) = self._collect(a, a.apply(self._kernels.inner_blocks, b))
        return inner

    def solve_rows(self, x: RowShards, inverse: Any) -> tuple[RowShards, Any, Any]:
        kernels, devices, homes = self._kernels, x.sharding.devices, x.sharding.homes
        matrices = bring_to_each(devices, inverse.to_array(), homes)
        inverses = {home: kernels.as_blocks(matrix) for home, matrix in matrices.items()}
        solved = []
        for block, home in zip(x.blocks, homes, strict=True):
            with devices.use(home):
                solved.append(kernels.solve_rows(block, inverses[home]))
        rows, grams, inner = zip(*solved, strict=True)
        return x.replace(rows, False), *self._collect(x, grams, inner)

    def _collect(self, x: RowShards, *results: Sequence[Any]) -> list[Any]:
        """Return `Blocks` of all blocks of rows, one after the other, on the first device."""
        requests = [([blocks.to_array() for blocks in own], 0) for own in results]
        return [self._kernels.as_blocks(array) for array in x.sharding.devices.gather(requests)]

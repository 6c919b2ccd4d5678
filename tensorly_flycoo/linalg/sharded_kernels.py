"""An engine's kernels for tall matrices, on row-sharded ones.

Each block is computed on its device. Small results, one or a few for each block, are collected on
the first device, where other kernels add them in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..devices import bring_to_each
from ..shards.row_shards import RowShards

if TYPE_CHECKING:
    from ..engines.tall_kernels import TallKernels


def suits(kernels: TallKernels, x: RowShards) -> bool:
    """Return whether the kernels suit all blocks."""
    return all(kernels.suits_tensor_cores(block) for block in x.blocks)


def gram_blocks(kernels: TallKernels, x: RowShards) -> Any:
    """Compute ``x.T @ x`` of some blocks of rows, `Blocks` (n, R, R)."""
    parts = [blocks.to_array() for blocks in x.apply(kernels.gram_blocks)]
    return kernels.as_blocks(x.collect(parts))


def inner_blocks(kernels: TallKernels, a: RowShards, b: RowShards) -> Any:
    """Compute the inner product of some blocks of rows, `Blocks` (n,)."""
    parts = [blocks.to_array() for blocks in a.apply(kernels.inner_blocks, b)]
    return kernels.as_blocks(a.collect(parts))


def solve_rows(kernels: TallKernels, x: RowShards, inverse: Any) -> tuple[RowShards, Any, Any]:
    """Do what `TallKernels.solve_rows` does; `inverse` is on the first device."""
    matrix, devices, homes = inverse.to_array(), x.sharding.devices, x.sharding.homes
    matrices = bring_to_each(devices, matrix, homes)
    inverses = {home: kernels.as_blocks(own) for home, own in matrices.items()}
    solved = []
    for block, home in zip(x.blocks, homes, strict=True):
        with devices.use(home):
            solved.append(kernels.solve_rows(block, inverses[home]))
    rows = x.replace([y for y, _, _ in solved], False)
    grams, inner = ([part[n].to_array() for part in solved] for n in (1, 2))
    return rows, kernels.as_blocks(x.collect(grams)), kernels.as_blocks(x.collect(inner))

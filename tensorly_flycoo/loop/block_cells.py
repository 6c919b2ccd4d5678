"""The known cells of coupled blocks whose other cells are unknown, such as ratings.

A block that knows all cells of a row gives it a Gram matrix that rows share, and one MTTKRP gives
all right-hand sides. A block of which some cells are known gives each row a system of its own, of
the cells that are listed here: `observed_rows` and `row_systems` solve such systems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..base.array_modules import Array, array_module
from ..engines.tall import inner_product, transposed_product
from ..ops.cp_entries import choose_block_size, evaluate_model
from .cp_model import multiply_all
from .observed_rows import ListedCells, RowPlan, list_cells


@dataclass(frozen=True)
class BlockCells:
    """The known cells of one block."""

    modes: Sequence[int]  # the numbers of its axes' modes in the model
    coords: Array  # (number of axes, count): rows of the model's factors
    values: Array  # (count,), in float64

    def find_rows(self, mode: int) -> Array:
        """Return the row of each cell in a mode of the model."""
        return self.coords[self.modes.index(mode)]

    def compare(self, weights: Array, factors: Sequence[Array]) -> tuple[float, float]:
        """Return the squared error of a model here, and the square of its values, in float64."""
        own = [factors[mode].astype(np.float64) for mode in self.modes]
        values = evaluate_model(self.coords, weights.astype(np.float64), own)
        residual = self.values - values
        return float(inner_product(residual, residual)), float(inner_product(values, values))

    def sum_systems(self, factors: Sequence[Array]) -> tuple[Array, Array]:
        """Return the Gram matrix (R, R) of the components at the cells, and their inner products.

        The inner products (R,) are those with the values. Both are in float64.
        """
        rank = factors[self.modes[0]].shape[1]
        xp = array_module(self.values)
        gram = xp.zeros((rank, rank))
        inner = xp.zeros(rank)
        step = choose_block_size(self.values, rank)
        for start in range(0, self.values.size, step):
            block = slice(start, start + step)
            rows = [factors[n][ids[block]] for n, ids in zip(self.modes, self.coords, strict=True)]
            components = multiply_all(rows).astype(np.float64)
            gram += transposed_product(components, components)
            inner += transposed_product(self.values[block][:, None], components)[0]
        return gram, inner


class CellsOfMode:
    """The known cells of all blocks that have a mode, grouped by their row in it.

    They are cells of one CP model: its factors are those of the blocks, one below the other, with a
    row of ones for a block that has fewer modes than others.
    """

    def __init__(self, blocks: Mapping[int, BlockCells], mode: int, sizes: Sequence[int]) -> None:
        self._blocks = blocks  # by the number of the block
        # By block, its other modes; None where it has fewer than others.
        depth = max(len(block.modes) for block in blocks.values()) - 1
        self._others: dict[int, list[int | None]] = {}
        for b, block in blocks.items():
            others = [n for n in block.modes if n != mode]
            self._others[b] = others + [None] * (depth - len(others))
        self._coords = [_join([block.find_rows(mode) for block in blocks.values()])]
        for place in range(depth):
            self._coords.append(self._stack_rows(place, sizes))
        self.plan = RowPlan.of(self._coords[0], sizes[mode])

    def _stack_rows(self, place: int, sizes: Sequence[int]) -> Array:
        """Return the row of each cell in the factors at a place, one below the other."""
        parts = []
        start = 0
        for b, block in self._blocks.items():
            mode = self._others[b][place]
            if mode is None:
                rows = array_module(block.coords).zeros_like(block.coords[0])
                size = 1
            else:
                rows = block.find_rows(mode)
                size = sizes[mode]
            if start:
                rows = rows + start
            parts.append(rows)
            start += size
        return _join(parts)

    def list_cells(
        self, factors: Sequence[Array], scales: Mapping[int, Array], roots: Mapping[int, float]
    ) -> ListedCells:
        """List the cells for fitting the rows of the mode, with all other factors fixed.

        A block's components are multiplied by its `scales` (R,), and its values by its root.
        """
        targets = _join([block.values * roots[b] for b, block in self._blocks.items()])
        stacked = [
            self._stack_factors(place, factors, scales) for place in range(len(self._coords) - 1)
        ]
        return list_cells(self._coords, targets, [None, *stacked], 0)

    def _stack_factors(
        self, place: int, factors: Sequence[Array], scales: Mapping[int, Array]
    ) -> Array:
        """Return the blocks' factors at a place in float64, one below the other."""
        parts = []
        for b, others in self._others.items():
            mode = others[place]
            if mode is None:
                part = array_module(scales[b]).ones((1, scales[b].size))
            else:
                part = factors[mode].astype(np.float64, copy=False)
            if place == 0:
                part = part * scales[b]
            parts.append(part)
        return _join(parts)


def _join(arrays: list[Array]) -> Array:
    """Join arrays along their first axis; a single one is no copy."""
    if len(arrays) == 1:
        return arrays[0]
    return array_module(arrays[0]).concatenate(arrays)

"""The known cells of coupled blocks whose other cells are unknown, such as ratings.

A block that knows all cells of a row gives it a Gram matrix that rows share, and one MTTKRP gives
all right-hand sides. A block of which some cells are known gives each row a system of its own, of
the cells that are listed here: `observed_rows` and `row_systems` solve such systems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..base.array_modules import Array, array_module
from ..engines.tall import transposed_product
from ..ops.cp_entries import choose_block_size, evaluate_model
from .cp_model import multiply_all
from .observed_rows import ListedCells, RowPlan


@dataclass(frozen=True)
class BlockCells:
    """The known cells of one block."""

    modes: Sequence[int]  # the numbers of its axes' modes in the model
    coords: Array  # (number of axes, count): rows of the model's factors
    values: Array  # (count,), in float64

    def find_rows(self, mode: int) -> Array:
        """Return the row of each cell in a mode of the model."""
        return self.coords[self.modes.index(mode)]

    def multiply_rows(
        self, places: Array | slice, factors: Sequence[Array], skip: int | None = None
    ) -> Array:
        """Multiply the rows of the model's factors at some cells, but those of a mode to skip."""
        rows = [
            factors[mode][ids[places]]
            for mode, ids in zip(self.modes, self.coords, strict=True)
            if mode != skip
        ]
        return multiply_all(rows)

    def compare(self, weights: Array, factors: Sequence[Array]) -> tuple[float, float]:
        """Return the squared error of a model here, and the square of its values, in float64."""
        own = [factors[mode].astype(np.float64) for mode in self.modes]
        values = evaluate_model(self.coords, weights.astype(np.float64), own)
        residual = self.values - values
        return float(residual @ residual), float(values @ values)

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
            components = self.multiply_rows(block, factors).astype(np.float64)
            gram += transposed_product(components, components)
            inner += self.values[block] @ components
        return gram, inner


class CellsOfMode:
    """The known cells of all blocks that have a mode, grouped by their row in it."""

    def __init__(self, blocks: Mapping[int, BlockCells], mode: int, num_rows: int) -> None:
        self.mode = mode
        self._blocks = blocks  # by the number of the block
        some_values = next(iter(blocks.values())).values
        self._xp = array_module(some_values)
        rows = [block.find_rows(mode) for block in blocks.values()]
        self._rows = self._xp.concatenate(rows)
        self.plan = RowPlan.of(self._rows, num_rows)

    def list(
        self, factors: Sequence[Array], scales: Mapping[int, Array], roots: Mapping[int, float]
    ) -> ListedCells:
        """List the cells for fitting the rows of the mode, with all other factors fixed.

        A block's components are multiplied by its `scales` (R,), and its values by its root.
        """
        exact = [factor.astype(np.float64, copy=False) for factor in factors]
        targets = self._xp.concatenate(
            [block.values * roots[b] for b, block in self._blocks.items()]
        )

        def find_designs(places: Array) -> Array:
            if len(self._blocks) == 1:
                ((b, block),) = self._blocks.items()
                return block.multiply_rows(places, exact, skip=self.mode) * scales[b]
            return self._mix_designs(places, exact, scales)

        return ListedCells(self._rows, find_designs, None, targets)

    def _mix_designs(
        self, places: Array, factors: Sequence[Array], scales: Mapping[int, Array]
    ) -> Array:
        """Return the designs at places in a list of all blocks' cells, block after block."""
        designs: Array = 0
        start = 0
        for b, block in self._blocks.items():
            places_here = places - start
            is_here = (places_here >= 0) & (places_here < block.values.size)
            rows = block.multiply_rows(
                self._xp.where(is_here, places_here, 0), factors, skip=self.mode
            )
            designs = designs + is_here[..., None] * rows * scales[b]
            start += block.values.size
        return designs

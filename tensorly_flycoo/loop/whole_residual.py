"""A sparse tensor minus a CP model as TensorLy's own parafac sees it."""

from collections.abc import Sequence

import numpy as np

from ..base.array_modules import Array
from ..ops.residual import ResidualTensor
from ..spread.spread_layout import SpreadLayout
from .whole_tensor import WholeTensor


class WholeResidual(WholeTensor):
    """A difference for one call of parafac: its products are those of the tensor and the model."""

    can_compute_ahead = False

    def __init__(self, x: ResidualTensor) -> None:
        if isinstance(x.tensor._layout, SpreadLayout):
            raise ValueError(f"parafac of {x!r}: it is on several devices, expected one")
        super().__init__(x.tensor)
        self._residual = x

    def norm(self) -> np.floating:
        return self._residual.norm()

    def mttkrp(
        self, weights: Array | None, factors: Sequence[Array], mode: int, is_early: bool = False
    ) -> Array:
        product = super().mttkrp(weights, factors, mode)
        self._residual.subtract_from(product, factors, mode, weights)
        return product

    def look_ahead(self, factors: Sequence[Array]) -> None:
        """Launch nothing: what is ahead would be a product of the tensor alone."""

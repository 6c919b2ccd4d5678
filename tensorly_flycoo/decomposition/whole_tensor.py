"""A sparse tensor as a decomposition sees it: without missing entries, for one call."""

from collections.abc import Sequence

import numpy as np

from ..base.array_modules import Array
from ..engines.tall_skinny import inner_product
from ..format.group_passes import LastPass
from ..ops import gram_products
from ..ops.gram_products import GramMemory
from ..ops.lazy import LazyArray
from ..ops.mttkrp import mttkrp_in_sweep
from ..tensor.tensor import FlycooTensor
from .cp_model import residual_square


def check_start(mttkrp: Array) -> None:
    """Refuse a start from which alternating least squares can only reach the zero model.

    If the MTTKRP of the first mode is zero, so will be its factor, and then every other one. Dense
    TensorLy meets a singular matrix there.
    """
    if np.max(mttkrp) == 0 == np.min(mttkrp):
        raise np.linalg.LinAlgError(
            "the initial guess has nothing in common with the tensor: the first MTTKRP is zero, "
            "and so would be the model. The singular vectors of init='svd' may be so if the "
            "tensor is very sparse: pass init='random'"
        )


class CallDevice(str):
    """Where a call's own arrays are, "cuda" or "cpu", in the context of its `WholeTensor`.

    `memory` is for the products of Gram matrices that begin on this device.
    """

    memory: GramMemory


class WholeTensor(LazyArray):
    """A sparse tensor for one call of a decomposition, with the methods of an `ImputedTensor`.

    TensorLy's own parafac gets one in place of the user's tensor: what it calls knows by this type
    that it is called by parafac, where all uses of a result are known.
    """

    _instead = "it belongs to one call of parafac"
    values = residual = None

    def __init__(self, x: FlycooTensor) -> None:
        self.tensor = x
        self.shape, self.ndim, self.dtype = x.shape, x.ndim, x.dtype
        self.device = CallDevice("cuda" if x.device == "cuda" else "cpu")
        self.device.memory = GramMemory()
        self._last_pass = LastPass()
        self._is_checked = False

    def impute(self, weights: Array | None, factors: Sequence[Array]) -> None:
        """Do nothing: no entry is missing."""

    def mttkrp(self, weights: Array | None, factors: Sequence[Array], mode: int) -> Array:
        """Compute the MTTKRP of factors in any precision: (I_mode, R), in that of the tensor."""
        return mttkrp_in_sweep(self.tensor, factors, mode, self._last_pass, weights=weights)

    def mttkrp_of_als(self, weights: Array | None, factors: Sequence[Array], mode: int) -> Array:
        """Compute an MTTKRP of TensorLy's parafac, which has just multiplied Gram matrices.

        Refuse a start whose first one is zero: see `check_start`.
        """
        gram_products.stop()
        product = self.mttkrp(weights, factors, mode)
        if not self._is_checked:
            check_start(product)
            self._is_checked = True
        return product

    def measure(
        self, weights: Array | None, factors: Sequence[Array], last_mttkrp: Array | None = None
    ) -> tuple[Array, None]:
        """Compute the relative error of a model, by default with an MTTKRP of the last mode."""
        if last_mttkrp is None:
            last_mttkrp = self.mttkrp(weights, factors, len(factors) - 1)
        norm, inner = self.tensor.norm(), inner_product(last_mttkrp, factors[-1])
        return np.sqrt(residual_square(norm**2, weights, factors, inner)) / norm, None

"""One form for all CP models: normalised columns, sorted components, chosen signs."""

import numpy as np

from ..array_modules import Array, array_module, move
from ..linalg.tall_skinny import column_norms, find_signs


def bring_into_form(weights: Array | None, factors: list[Array]) -> Array:
    """Normalise the columns, sort the components and choose the signs; see `LabelledCP`.

    Replaces the factors in their list one by one, and returns the new weights.
    """
    xp, dtype = array_module(factors[0]), factors[0].dtype
    old = np.ones(factors[0].shape[1]) if weights is None else move(weights, np)
    scales = [move(column_norms(factor), np) * find_signs(factor) for factor in factors]
    sizes = old * np.prod(scales, axis=0, dtype=np.float64)
    order = np.argsort(-np.abs(sizes), kind="stable")
    # The last mode takes the signs of the other columns and of the weights.
    is_negative = old * np.prod(np.sign(scales[:-1]), axis=0) < 0
    scales[-1] = np.where(is_negative, -1, 1) * np.abs(scales[-1])
    for n, scale in enumerate(scales):
        factors[n] = factors[n].take(xp.asarray(order), axis=1)
        factors[n] /= xp.asarray(np.where(scale == 0, 1, scale)[order], dtype)
    return xp.asarray(np.abs(sizes)[order], dtype)

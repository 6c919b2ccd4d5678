"""One form for all CP models: normalised columns, sorted components, chosen signs."""

import numpy as np

from ..array_modules import Array, array_module, move
from ..linalg.tall_skinny import column_norms, find_extremes


def bring_into_form(weights: Array | None, factors: list[Array]) -> Array:
    """Normalise the columns, sort the components and choose the signs; see `LabelledCP`.

    Replaces the factors in their list one by one, and returns the new weights.
    """
    xp, dtype = array_module(factors[0]), factors[0].dtype
    rank = factors[0].shape[1]
    old = np.ones(rank) if weights is None else move(weights, np).astype(np.float64)
    extremes = [find_extremes(factor) for factor in factors]
    signs = _choose_signs(old, *(np.array(of) for of in zip(*extremes, strict=True)))
    # Powers of two, exact, bring very large and small columns to where squares are accurate.
    shifts = np.frexp([np.maximum(largest, -smallest) for largest, smallest in extremes])[1]
    shifts[np.abs(shifts) <= np.finfo(dtype).maxexp // 4] = 0
    scales, powers = np.frexp(np.abs(old))
    norms = []
    for n, shift in enumerate(shifts):
        if shift.any():
            factors[n] = factors[n] / xp.asarray(np.ldexp(1.0, shift - 1), dtype)
            powers += np.where(shift, shift - 1, 0)
        norms.append(move(column_norms(factors[n]), np).astype(np.float64))
        mantissas, exponents = np.frexp(norms[n])
        scales, powers = scales * mantissas, powers + exponents
    sizes = np.ldexp(scales, powers)
    order = np.argsort(-sizes, kind="stable")
    for n, norm in enumerate(norms):
        factors[n] = factors[n].take(xp.asarray(order), axis=1)
        factors[n] /= xp.asarray((signs[n] * np.where(norm == 0, 1, norm))[order], dtype)
    return xp.asarray(sizes[order], dtype)


def _choose_signs(weights: np.ndarray, largest: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """Return the sign (ndim, R) of each column, by which it is to be multiplied.

    `weights` are (R,), `largest` and `smallest` the extreme elements of the columns, (ndim, R).
    """
    signs = np.where(-smallest > largest, -1, 1)
    peaks = np.maximum(largest, -smallest)
    is_negative = (weights * signs.prod(axis=0) < 0) & (peaks > 0).all(axis=0)
    # How alike the signs of a column are in size: not above 0 if it has only one sign.
    balance = np.minimum(largest, -smallest) / np.where(peaks > 0, peaks, 1)
    is_last = (balance[-1] > 0) | (balance.max(axis=0) <= 0)
    taker = np.where(is_last, len(signs) - 1, balance.argmax(axis=0))
    signs[taker, np.arange(weights.size)] *= np.where(is_negative, -1, 1)
    return signs

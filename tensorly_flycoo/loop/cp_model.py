"""Dense algebra of a CP model: weights (R,), or None for ones, and factors (I_n, R)."""

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, move
from ..base.checks import warn
from ..base.fit_record import FitRecord, find_record
from ..engines.tall import column_norms, sum_rows, transposed_product


def multiply_all(arrays: Array | Sequence[Array], skip: int | None = None) -> Array:
    """Multiply arrays elementwise, all but that of mode `skip`; ones if none is left.

    >>> multiply_all(np.array([[1, 2], [3, 4], [5, 6]]), skip=1)
    array([ 5, 12])
    """
    kept = [array for n, array in enumerate(arrays) if n != skip]
    if not kept:
        return array_module(arrays[0]).ones_like(arrays[0])
    return reduce(mul, kept)


def multiply_grams(
    weights: Array | None,
    factors: Sequence[Array],
    skip: int | None = None,
    ridge: float = 0,
    dtype: DTypeLike | None = None,
) -> Array:
    """Multiply the factors' Gram matrices elementwise, and by the weights on both sides: (R, R).

    The factor of mode `skip` is left out. `ridge` is added to the diagonal before the weights. With
    a `dtype`, one factor at a time is converted to it.
    """
    grams = []
    for n, factor in enumerate(factors):
        if n == skip:
            continue
        converted = factor
        if dtype is not None:
            converted = factor.astype(dtype, copy=False)
        grams.append(transposed_product(converted, converted))
        del converted  # a copy may be as large as a factor
    return combine_grams(weights, factors[0], grams, ridge, dtype)


def combine_grams(
    weights: Array | None,
    like: Array,
    grams: Sequence[Array],
    ridge: float = 0,
    dtype: DTypeLike | None = None,
) -> Array:
    """Multiply Gram matrices (R, R) as `multiply_grams` does; without any, ones as a factor `like`.

    >>> combine_grams(None, np.ones((5, 1)), [np.array([[2.0]]), np.array([[3.0]])], ridge=1)
    array([[7.]])
    """
    xp = array_module(like)
    rank = like.shape[1]
    if len(grams) > 1:
        product = reduce(mul, grams)
    elif grams:
        product = grams[0].copy()  # the caller's may be kept
    else:
        product = xp.ones((rank, rank), dtype or like.dtype)
    if ridge:
        product = product + ridge * xp.eye(rank, dtype=product.dtype)
    if weights is None:
        return product
    return weights[:, None] * product * weights


def residual_square(
    tensor_square: Array,
    weights: Array | None,
    factors: Sequence[Array],
    inner: Array,
    gram: Array | None = None,
) -> Array:
    """Compute the squared norm of the residual, ``|x - model|^2``, in float64.

    `tensor_square` is ``|x|^2`` and `inner` is ``<x, model>``; `gram` is ``multiply_grams(weights,
    factors)``, if that is known. The sum ``|x|^2 + |model|^2 - 2 <x, model>`` cancels near an exact
    fit: its error is about ``eps * |x|^2``.
    """
    if gram is None:
        gram = multiply_grams(weights, factors)
    model_square = gram.sum(dtype=np.float64)
    return np.abs(tensor_square + model_square - 2 * inner)


def drop_ones(weights: Array | None) -> Array | None:
    """Return weights (R,), or None, which stands for ones, if they are that.

    >>> drop_ones(np.ones(3)), drop_ones(np.array([1.0, 2.0]))
    (None, array([1., 2.]))
    """
    if weights is None or (move(weights, np) == 1).all():
        return None
    return weights


def normalize(weights: Array | None, factors: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Move the norms of the factors' columns into the weights."""
    weighted = list(factors)
    if weights is not None:
        weighted[0] = factors[0] * weights
    norms = [column_norms(factor) for factor in weighted]
    pairs = zip(weighted, norms, strict=True)
    return multiply_all(norms), [_divide(factor, norm) for factor, norm in pairs]


def normalize_updated(
    weights: Array | None, factors: list[Array], mode: int
) -> tuple[Array, list[Array]]:
    """Normalise one updated factor, and all if there are no weights yet.

    The others stay the same objects: a `LastPass` knows them by identity.
    """
    if weights is None:
        return normalize(weights, factors)
    norms = column_norms(factors[mode])
    updated = _divide(factors[mode], norms)
    return weights * norms, [*factors[:mode], updated, *factors[mode + 1 :]]


def _divide(factor: Array, norms: Array) -> Array:
    """Divide columns by their norms; columns of zeros stay."""
    xp = array_module(factor)
    return factor / xp.where(norms == 0, xp.ones_like(norms), norms)


def make_cp_tensor(weights: Array | None, factors: Sequence[Array]) -> CPTensor:
    """Make a TensorLy CPTensor from a model; weights of None become ones."""
    first = factors[0]
    if weights is None:
        weights = array_module(first).ones(first.shape[1], first.dtype)
    return CPTensor((weights, list(factors)))


#: A component of `observed_parafac` whose entries are below this part of the scale is nothing.
_NOTHING = 1e-6


def count_zeros(cp_tensor: Any) -> int:
    """Count the components that are zero: they are so in every factor after an iteration.

    A ridge of `observed_parafac` makes them small first. Biases are not counted.
    """
    factors: list[Array] = cp_tensor.factors
    record = find_record(cp_tensor)
    if record is not None and record.scale is not None:
        largest = [abs(factor).max(axis=0) for factor in factors]
        bounds = multiply_all([cp_tensor.weights, *largest])
        is_zero = move(bounds, np) < _NOTHING * record.scale
        is_bias = find_biases(record, is_zero.size)
        return int(is_zero[~is_bias].sum())
    shortest = min(factors, key=lambda factor: factor.shape[0])
    return int((sum_rows(np.abs(shortest)) == 0).sum())


def find_biases(record: FitRecord | None, rank: int) -> np.ndarray:
    """Mark the components that are biases (R,)."""
    if record is None or len(record.bias_modes) == 0:
        return np.zeros(rank, bool)
    return np.greater_equal(record.bias_modes, 0)  # the mode of each component's bias, or -1


def warn_of_zeros(cp_tensor: Any) -> None:
    """Warn if some components are zero, and say what to pass instead."""
    count = count_zeros(cp_tensor)
    if count == 0:
        return
    advice = "The start may share nothing with the tensor there: pass init='random'"
    record = find_record(cp_tensor)
    if record is not None and record.method == "observed_parafac":
        advice = "The ridge leaves nothing of them: pass a smaller l2_reg"
    rank = cp_tensor.factors[0].shape[1]
    subject = f"{count} of {rank} components are zero"
    if count == 1:
        subject = f"1 of {rank} components is zero"
    warn(f"{subject}. {advice} or a lower rank")

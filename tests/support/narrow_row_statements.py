"""The rules of narrow rows, in NumPy: what every engine stores to the bit; and what they promise.

All operations below round once, in the dtype of the factor, as IEEE 754 says.
"""

import numpy as np

from tensorly_flycoo.engines.narrow_rows import FIXED_POINT_ONE, NARROW_FORMATS

#: The largest number that fixed point stores, times `FIXED_POINT_ONE`; and the smallest normal one.
LARGEST_FIXED = FIXED_POINT_ONE - 1
SMALLEST_FLOAT32 = np.finfo(np.float32).tiny


def find_scales(factor):
    """Return what `Engine.find_scales` returns."""
    narrow_format = NARROW_FORMATS[factor.dtype]
    scales = np.empty(factor.shape[1], factor.dtype)
    for r, column in enumerate(factor.T):
        largest = np.abs(column).max(initial=0)
        _, exponent = np.frexp(largest)
        if largest == 0 or exponent in narrow_format.usual_exponents:
            exponent = 0
        exponent = max(exponent, narrow_format.least_exponent)
        is_finite = np.isfinite(largest) and exponent < np.finfo(factor.dtype).maxexp
        scales[r] = np.ldexp(1.0, exponent) if is_finite else np.nan
    return scales


def round_rows(factor, scales):
    """Return the narrow rows, and what the factor becomes."""
    with np.errstate(invalid="ignore"):
        numbers = factor / scales
    if factor.dtype == np.float64:
        numbers = np.where(np.abs(numbers) < SMALLEST_FLOAT32, 0.0, numbers)
        rows = numbers.astype(np.float32)
    else:
        fixed = np.rint(np.clip(numbers * FIXED_POINT_ONE, -LARGEST_FIXED, LARGEST_FIXED))
        stored = np.where(np.isnan(fixed), LARGEST_FIXED, fixed) + FIXED_POINT_ONE
        rows = stored.astype(np.uint16)
    return rows, widen(rows) * scales


def widen(rows):
    """Return the numbers that narrow rows stand for, in the dtype of the tensor: exactly."""
    if rows.dtype == np.float32:
        return rows.astype(np.float64)
    return (rows.astype(np.float32) - FIXED_POINT_ONE) / np.float32(FIXED_POINT_ONE)


def bound_rounding(factor):
    """Bound by how much a number of each column (R,) is changed, if none is an inf or nan."""
    narrow_format = NARROW_FORMATS[factor.dtype]
    largest = np.abs(factor).max(axis=0, initial=0).astype(float)
    return narrow_format.rounding * np.maximum(largest, 2.0 ** (narrow_format.least_exponent - 1))


def draw_factor(num_rows, rank, dtype, seed=0):
    """Draw a factor whose columns are of very different sizes; some are special.

    The first ones, as many as fit, hold zeros, an inf, a nan, subnormal numbers, the largest
    numbers, powers of two, ties of rounding, and numbers that are tiny beside the largest.
    """
    rng = np.random.default_rng(seed)
    limits = np.finfo(dtype)
    factor = rng.standard_normal((num_rows, rank)) * 2.0 ** rng.integers(-20, 20, rank)
    factor = factor.astype(dtype)
    middle = num_rows // 2
    columns = [
        np.zeros(num_rows),
        np.where(np.arange(num_rows) == middle, np.inf, factor[:, 0]),
        np.where(np.arange(num_rows) == middle, np.nan, factor[:, 0]),
        limits.tiny * rng.random(num_rows) / 2,
        limits.tiny * (1 + rng.random(num_rows)),
        limits.max * rng.uniform(-1, 1, num_rows) ** 2,
        limits.max * rng.uniform(-0.5, 0.5, num_rows),
        2.0 ** -np.arange(num_rows).astype(float),
        _draw_ties(num_rows, dtype, rng),
        np.where(np.arange(num_rows) == middle, 1, 2.0 ** rng.uniform(-150, -100, num_rows)),
    ]
    for r, column in enumerate(columns[:rank]):
        factor[:, r] = column.astype(dtype)
    return factor


def _draw_ties(num_rows, dtype, rng):
    """Draw numbers halfway between two neighbours that are stored, below the largest."""
    if dtype == np.float64:
        ties = (2 * rng.integers(2**22, 2**23, num_rows) + 1) / 2.0**24
    else:
        ties = (rng.integers(-1000, 1000, num_rows) + 0.5) / LARGEST_FIXED
    ties[0] = 1
    return ties

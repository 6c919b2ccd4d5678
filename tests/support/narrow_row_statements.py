"""The rules of narrow rows, in NumPy: what every engine stores to the bit; and what they promise.

All operations below round once, in the dtype of the factor, as IEEE 754 says.
"""

import functools

import numpy as np
import reference

from tensorly_flycoo.engines.narrow_rows import FIXED_POINT_ONE, NARROW_DTYPES, ROUNDINGS

#: The largest number that fixed point stores, times `FIXED_POINT_ONE`; and the smallest normal one.
LARGEST_FIXED = FIXED_POINT_ONE - 1
SMALLEST_FLOAT32 = np.finfo(np.float32).tiny

#: The least scale of a factor in float32 that is not 0: its reciprocal is finite.
LEAST_FIXED_SCALE = np.float32(2.0**-110)


def find_scales(factor):
    """Return the scales of the columns of a factor (I, R) in float64 or float32.

    A column of numbers that are all below the smallest normal one has the scale 0; one of which the
    scale would overflow, or with an inf or nan, has the scale nan.
    """
    largest = np.abs(factor).max(axis=0, initial=0)
    with np.errstate(over="ignore", invalid="ignore"):
        if factor.dtype == np.float64:
            # The least power of two that is not below the largest number.
            mantissas, exponents = np.frexp(largest)
            scales = np.ldexp(1.0, exponents - (mantissas == 0.5))
        else:
            ratio = np.float32(FIXED_POINT_ONE / LARGEST_FIXED)
            scales = np.maximum(largest * ratio, LEAST_FIXED_SCALE)
    scales[largest < np.finfo(factor.dtype).tiny] = 0
    scales[~np.isfinite(largest) | ~np.isfinite(scales)] = np.nan
    return scales


def narrow_rows(factor, scales=None):
    """Return the rows and the scales of `Engine.narrow_rows`."""
    if scales is None:
        scales = find_scales(factor)
    one = factor.dtype.type(1 if factor.dtype == np.float64 else FIXED_POINT_ONE)
    is_usable = (scales > 0) & (scales < np.inf)
    multipliers = np.where(is_usable, one / np.where(is_usable, scales, one), 0 * one)
    with np.errstate(invalid="ignore"):
        numbers = factor * multipliers
    if factor.dtype == np.float64:
        # Numbers that float32 would make subnormal are 0, and none is -0.
        numbers = np.where(np.abs(numbers) < SMALLEST_FLOAT32, 0.0, numbers)
        return numbers.astype(np.float32), scales
    # Only scales that were given can be so small that numbers are cut off.
    numbers = np.rint(np.clip(numbers, -LARGEST_FIXED, LARGEST_FIXED))
    stored = np.where(np.isnan(numbers), LARGEST_FIXED, numbers) + FIXED_POINT_ONE
    return stored.astype(NARROW_DTYPES[factor.dtype]), scales


def widen(rows):
    """Return the numbers that narrow rows stand for, in the dtype of the tensor: exactly."""
    if rows.dtype == np.float32:
        return rows.astype(np.float64)
    return (rows.astype(np.float32) - FIXED_POINT_ONE) / np.float32(FIXED_POINT_ONE)


def find_column_scales(narrow_factors, mode):
    """Return by what to multiply the columns of an MTTKRP of narrow rows: float64 (R,)."""
    scales = [factor.scales.astype(float) for factor in narrow_factors]
    return functools.reduce(np.multiply, scales[:mode] + scales[mode + 1 :], 1.0)


def bound_mttkrp(coords, values, shape, factors, mode):
    """Bound how far an MTTKRP of narrow rows, times their scales, is from that of the factors.

    A number f of a column with the scale s is off by (rounding + eps) * s at most; eps is for the
    arithmetic of finding it. So a product is off by ``prod(|f| + (rounding + eps) * s) -
    prod(|f|)`` at most, and its sum rounds as any MTTKRP of numbers up to ``|f| + ...`` does.
    """
    dtype = values.dtype
    rounding = ROUNDINGS[dtype] + np.finfo(dtype).eps
    magnitudes = [np.abs(factor).astype(float) for factor in factors]
    larger = [m + rounding * find_scales(f) for m, f in zip(magnitudes, factors, strict=True)]
    exact, most = (
        reference.mttkrp(coords, np.abs(values), shape, operands, mode)
        for operands in (magnitudes, larger)
    )
    rounded = reference.mttkrp_error_bound(coords, values, shape, larger, mode, dtype)
    return most - exact + rounded


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

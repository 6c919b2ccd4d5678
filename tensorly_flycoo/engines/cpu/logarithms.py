"""Sums of values times logarithms, of a tile at a time, compiled by numba.

A call of a logarithm for each nonzero, in the loop over nonzeros, takes 25 to 40 ns: all registers
are saved, and its latency is not hidden. For a whole tile at once it takes 4 ns.
"""

from typing import Any

import numpy as np

from ...base.array_modules import Array
from .compiling import kernel
from .records import intrinsic


@intrinsic
def _reinterpret(typing_context: Any, number: Any, result: Any) -> Any:
    """Return the bits of a 64-bit number as a number of the type of `result`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(number, result), generate


#: The bits of the smallest mantissa, sqrt(1/2), of the smallest normal number and of infinity.
_HALF_ROOT = np.int64(0x3FE6A09E667F3BCD)
_SMALLEST_NORMAL, _INFINITY = np.int64(0x0010000000000000), np.int64(0x7FF0000000000000)

#: 1023 in the bits of an exponent; 2**52 as bits, and with 1023 added as a number.
_BIAS = np.int64(0x3FF0000000000000)
_MAGIC_BITS, _MAGIC = np.int64(0x4330000000000000), 2.0**52 + 1023

#: Sums that grow side by side: together they wait for one addition, not for each.
_NUM_SUMS = 8


@kernel
def log(x: float) -> float:
    """Return the logarithm of a normal number to one unit in the last place.

    As in FreeBSD's e_log.c. Without branches and calls, and with operations on integers that AVX2
    has (logical shifts, no conversion to a float), so that a loop over it is vectorised.
    """
    bits = _reinterpret(x, np.int64(0))
    biased = np.uint64(bits - _HALF_ROOT + _BIAS) >> np.uint64(52)
    exponent = _reinterpret(np.int64(biased) | _MAGIC_BITS, 0.0) - _MAGIC
    mantissa = _reinterpret(bits - (np.int64(biased << np.uint64(52)) - _BIAS), 0.0)
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    odd = w * (0.3999999999940941908 + w * (0.2222219843214978396 + w * 0.1531383769920937332))
    even = z * (
        0.6666666666666735130
        + w * (0.2857142874366239149 + w * (0.1818357216161805012 + w * 0.1479819860511658591))
    )
    half = 0.5 * f * f
    small = s * (half + (odd + even)) + exponent * 1.90821492927058770002e-10
    return small - half + f + exponent * 6.93147180369123816490e-01


@kernel
def sum_logs(terms: Array, count: int) -> float:
    """Add up ``terms[0, i] * log(terms[1, i])`` in a fixed order; write to `terms`."""
    num_special = np.int64(0)
    for i in range(count):
        bits = _reinterpret(terms[1, i], np.int64(0))
        num_special += (bits < _SMALLEST_NORMAL) | (bits >= _INFINITY)
    if num_special == 0:
        for i in range(count):
            terms[0, i] *= log(terms[1, i])
    else:
        for i in range(count):
            terms[0, i] *= np.log(terms[1, i])
    for i in range(_NUM_SUMS, count):
        terms[0, i % _NUM_SUMS] += terms[0, i]
    total = 0.0
    for i in range(min(count, _NUM_SUMS)):
        total += terms[0, i]
    return total


@kernel
def add_in_order(numbers: Array) -> float:
    """Add numbers up from the first to the last."""
    total = 0.0
    for n in range(numbers.shape[0]):
        total += numbers[n]
    return total

"""Numba's loops for the text of a .tns file: threads read parts of a block of whole lines."""

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..engines.cpu.compiling import kernel

_NEWLINE, _SPACE, _TAB, _RETURN = (np.uint8(ord(c)) for c in "\n \t\r")
_HASH, _PERCENT, _POINT = (np.uint8(ord(c)) for c in "#%.")
_ZERO = np.uint64(ord("0"))
_PLUS, _MINUS, _SMALL_E, _LARGE_E = (np.uint8(ord(c)) for c in "+-eE")

#: Digits that always fit in 64 bits: signed for an index, unsigned for a value.
MAX_INDEX_DIGITS, _MAX_VALUE_DIGITS = np.uint64(18), np.uint64(19)

#: The bits of a nan. Values in a file are finite, so it can mark a value that is not yet read.
_UNREAD = np.uint64(0x7FF8 << 48)

#: Powers of ten whose products with 64-bit integers are normal float64 numbers.
_LEAST_POWER, _LARGEST_POWER = -300, 288

# `_nrt=False` turns off reference counting, which is not needed as nothing is allocated here. With
# it, each call that passes an array updates an atomic counter shared by all threads, which took a
# third of the time.
_compile = functools.partial(kernel, _nrt=False)


@functools.cache  # building them takes as long as reading a small file
def make_powers() -> tuple[np.ndarray, np.ndarray]:
    """Return uint64 s of at least 2**63 and int64 e with ``s * 2**e <= 10**p < (s + 1) * 2**e``.

    For p from `_LEAST_POWER` to `_LARGEST_POWER`.
    """
    significands, exponents = [], []
    for power in range(_LEAST_POWER, _LARGEST_POWER + 1):
        ten = 10 ** abs(power)
        exponent = ten.bit_length() - 64 if power >= 0 else -ten.bit_length() - 63
        numerator, denominator = (ten, 1) if power >= 0 else (1, ten)
        significands.append((numerator << max(0, -exponent)) // (denominator << max(0, exponent)))
        exponents.append(exponent)
    return np.array(significands, np.uint64), np.array(exponents, np.int64)


@intrinsic
def _count_leading_zeros(typing_context: Any, number: Any) -> Any:
    """Count the leading zero bits of a 64-bit number, which must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def _multiply_high(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the product of two 64-bit numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(number, wide) for number in args))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@_compile
def _round_decimal(
    digits: np.uint64, power: np.int64, significands: np.ndarray, exponents: np.ndarray
) -> np.uint64:
    """Return the bits of the float64 nearest to ``digits * 10**power``, or `_UNREAD`.

    The truncated 64-bit product bounds the number to an interval shorter than 2. If no tie (a point
    halfway between two float64 numbers) lies in the interval, all of it rounds alike. At most two
    numbers in a thousand remain `_UNREAD` and take a slow path.
    """
    if digits == 0:
        return np.uint64(0)
    if not _LEAST_POWER <= power <= _LARGEST_POWER:
        return _UNREAD
    zeros: np.uint64 = _count_leading_zeros(digits)  # type: ignore[call-arg]  # also has a context
    place = np.uint64(power - _LEAST_POWER)
    product = _multiply_high(digits << zeros, significands[place])
    shift = np.uint64(10) + (product >> np.uint64(63))  # leaves 53 bits
    half = np.uint64(1) << (shift - np.uint64(1))
    rest = product & (half + half - np.uint64(1))
    if rest == half or rest == half - np.uint64(1):
        return _UNREAD
    mantissa = (product >> shift) + np.uint64(rest > half)
    exponent = np.int64(shift) - np.int64(zeros) + exponents[place] + 64
    # The mantissa's highest bit is implicit: adding it, or twice it, increments the exponent.
    return (np.uint64(exponent + 1074) << np.uint64(52)) + mantissa


@_compile
def _skip_blanks(text: np.ndarray, at: np.uint64) -> np.uint64:
    while text[at] == _SPACE or text[at] == _TAB or text[at] == _RETURN:
        at += np.uint64(1)
    return at


@_compile
def _read_digits(text: np.ndarray, at: np.uint64, number: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Append digits to a number; return it and their end."""
    digit = np.uint64(text[at]) - _ZERO
    while digit < np.uint64(10):  # a character below "0" wraps around to a large number
        number = number * np.uint64(10) + digit
        at += np.uint64(1)
        digit = np.uint64(text[at]) - _ZERO
    return number, at


@_compile
def _skip_zeros(text: np.ndarray, at: np.uint64) -> np.uint64:
    while np.uint64(text[at]) == _ZERO:
        at += np.uint64(1)
    return at


@_compile
def _read_power(text: np.ndarray, at: np.uint64) -> tuple[np.int64, np.uint64]:
    """Read an optional exponent such as e-5; return it (or 0) and its end."""
    if text[at] != _SMALL_E and text[at] != _LARGE_E:
        return np.int64(0), at
    is_negative = text[at + np.uint64(1)] == _MINUS
    start = at + np.uint64(1) + np.uint64(is_negative or text[at + np.uint64(1)] == _PLUS)
    power, end = _read_digits(text, start, np.uint64(0))
    if end == start or end - start > MAX_INDEX_DIGITS:
        return np.int64(0), at
    return -np.int64(power) if is_negative else np.int64(power), end


@_compile
def _read_value(
    text: np.ndarray, at: np.uint64, significands: np.ndarray, exponents: np.ndarray
) -> tuple[np.uint64, np.uint64]:
    """Return the bits of the value that starts at `at`, or `_UNREAD`, and its end."""
    is_negative = text[at] == _MINUS
    start = at + np.uint64(is_negative or text[at] == _PLUS)
    first = _skip_zeros(text, start)
    number, at = _read_digits(text, first, np.uint64(0))
    num_digits, has_digits, power = at - first, at > start, np.int64(0)
    if text[at] == _POINT:
        point = at + np.uint64(1)
        first = _skip_zeros(text, point) if number == 0 else point
        number, at = _read_digits(text, first, number)
        num_digits += at - first
        has_digits = has_digits or at > point
        power = np.int64(point) - np.int64(at)
    shift, at = _read_power(text, at)
    if not (has_digits and num_digits <= _MAX_VALUE_DIGITS and text[at] <= _SPACE):
        while text[at] > _SPACE:
            at += np.uint64(1)
        return _UNREAD, at
    bits = _round_decimal(number, power + shift, significands, exponents)
    return bits | np.uint64(is_negative) << np.uint64(63), at


@_compile
def _read_indices(
    text: np.ndarray,
    at: np.uint64,
    index_base: np.uint64,
    sizes: np.ndarray,
    coords: np.ndarray,
    row: np.uint64,
    largest: np.ndarray,
) -> np.uint64:
    """Read one index per mode; return the start of the value, or 0 if an index is wrong."""
    for mode in range(np.uint64(sizes.shape[0])):
        index, end = _read_digits(text, at, np.uint64(0))
        num_digits = end - at
        index -= index_base  # with base 1, index 0 wraps around and fails the test below
        if num_digits == 0 or num_digits > MAX_INDEX_DIGITS or index >= sizes[mode]:
            return np.uint64(0)
        coords[row, mode] = index
        largest[mode] = max(largest[mode], index)
        at = _skip_blanks(text, end)
        if at == end:
            return np.uint64(0)
    return at if text[at] != _NEWLINE else np.uint64(0)


@_compile
def count_lines(
    first_part: int, last_part: int, text: np.ndarray, edges: np.ndarray, counts: np.ndarray
) -> None:
    """Count the lines of parts `first_part` to `last_part` - 1."""
    for part in range(first_part, last_part):
        count = 0
        for at in range(edges[part], edges[part + 1]):
            count += text[at] == _NEWLINE
        counts[part] = count


@_compile
def read_parts(
    first_part: int,
    last_part: int,
    text: np.ndarray,
    edges: np.ndarray,
    first_rows: np.ndarray,
    index_base: np.uint64,
    sizes: np.ndarray,
    significands: np.ndarray,
    exponents: np.ndarray,
    coords: np.ndarray,
    bits: np.ndarray,
    unread: np.ndarray,
    largest: np.ndarray,
    num_rows: np.ndarray,
    wrong_lines: np.ndarray,
) -> None:
    """Read the nonzeros of parts `first_part` to `last_part` - 1, each up to its first bad line.

    A part writes its nonzeros starting at its own first row. If the bits of a value are `_UNREAD`,
    `unread` holds the offset of its text.
    """
    for part in range(first_part, last_part):
        at, end = np.uint64(edges[part]), np.uint64(edges[part + 1])
        row = np.uint64(first_rows[part])
        part_largest = largest[part]
        while at < end:
            line, at = at, _skip_blanks(text, at)
            if text[at] == _NEWLINE or text[at] == _HASH or text[at] == _PERCENT:
                while text[at] != _NEWLINE:
                    at += np.uint64(1)
                at += np.uint64(1)
                continue
            at = _read_indices(text, at, index_base, sizes, coords, row, part_largest)
            if at != 0:
                start = at
                bits[row], at = _read_value(text, start, significands, exponents)
                if bits[row] & _UNREAD == _UNREAD:
                    bits[row], unread[row] = _UNREAD, start
                at = _skip_blanks(text, at)
            if at == 0 or text[at] != _NEWLINE:
                wrong_lines[part] = line
                break
            at += np.uint64(1)
            row += np.uint64(1)
        num_rows[part] = row - np.uint64(first_rows[part])

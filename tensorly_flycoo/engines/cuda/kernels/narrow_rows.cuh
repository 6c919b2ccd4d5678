// Numbers at half the width of values, and how kernels read them (see `engines/narrow_rows.py`): float
// for double; for float unsigned short, which is fixed point.
#pragma once

#include "ids.cuh"
#include "instructions.cuh"

// Sets a value to the number that is `place` among those that were loaded together. It is exact.
template <int Count>
__device__ __forceinline__ void widen(double& value, const Together<float, Count>& narrow, int place)
{
    value = convert(narrow.at[place]);
}

// Floats from 256 on are 2^-15 apart: with u for its low bits, 256 is 256 + u / 2^15. One instruction
// puts the two bytes of u beside those of 256; conversions are slower.
template <int Count>
__device__ __forceinline__ void widen(float& value, const Together<unsigned short, Count>& narrow,
                                      int place)
{
    const int even = place / 2 * 2;
    unsigned pair = narrow.at[even];
    if (even + 1 < Count) pair |= static_cast<unsigned>(narrow.at[even + 1]) << 16;
    const unsigned bytes = place == even ? 0x7610 : 0x7632;
    value = __uint_as_float(__byte_perm(pair, __float_as_uint(256.0f), bytes)) - 257.0f;
}

// Values stand for themselves.
template <typename Value, int Count>
__device__ __forceinline__ void widen(Value& value, const Together<Value, Count>& values, int place)
{
    value = values.at[place];
}

// Numbers rounded to fit narrow rows, and scales of their columns (see `engines/narrow_rows.py`).
#pragma once

#include "ids.cuh"
#include "instructions.cuh"

// The bits of a value. As integers, those of magnitudes ascend: to infinity, then to what is not a
// number.
template <typename Value>
using BitsOf = decltype(unsigned_zero<sizeof(Value)>());

template <typename Value>
union Number {
    Value value;
    BitsOf<Value> bits;
};

template <typename Value>
__device__ __forceinline__ BitsOf<Value> find_bits(Value value)
{
    return Number<Value>{value}.bits;
}

// The bits of the magnitude of a value.
template <typename Value>
__device__ __forceinline__ BitsOf<Value> find_magnitude(Value value)
{
    return find_bits(value) & (BitsOf<Value>(~BitsOf<Value>(0)) >> 1);
}

// The scale of a column, from its largest magnitude.
template <typename Value>
__device__ __forceinline__ Value find_scale(BitsOf<Value> largest)
{
    using Bits = BitsOf<Value>;
    constexpr bool is_wide = sizeof(Value) == 8;
    constexpr Bits smallest_normal = Bits(1) << (is_wide ? 52 : 23);
    constexpr Bits not_a_number = Bits(~Bits(0)) >> 1;
    constexpr Bits infinity = not_a_number ^ (smallest_normal - 1);
    constexpr Bits one = Bits(is_wide ? 1023 : 127) * smallest_normal;
    constexpr Bits least = one - Bits(is_wide ? 900 : 100) * smallest_normal;
    constexpr Bits first_usual = one - 64 * smallest_normal;
    constexpr Bits last_usual = one + 64 * smallest_normal;
    Number<Value> scale;
    scale.bits = max((largest & infinity) + smallest_normal, least);  // the next power of two
    const bool is_usual = is_wide && scale.bits >= first_usual && scale.bits <= last_usual;
    if (largest == 0 || is_usual) scale.bits = one;
    if (scale.bits >= infinity) scale.bits = not_a_number;
    return scale.value;
}

// Rounds the numbers of a column. `narrow` rounds once: what it multiplies by is a power of two.
template <typename Value, typename Narrow>
struct Rounding;

// Rounds nothing.
template <typename Value>
struct Rounding<Value, Value> {
    __device__ __forceinline__ explicit Rounding(Value) {}
    __device__ __forceinline__ Value narrow(Value value) const { return value; }
    __device__ __forceinline__ Value widen(Value value) const { return value; }
};

template <>
struct Rounding<double, float> {
    double scale, inverse;

    __device__ __forceinline__ explicit Rounding(double scale) : scale(scale), inverse(1 / scale) {}

    __device__ __forceinline__ float narrow(double value) const
    {
        const double number = value * inverse;
        return fabs(number) < 0x1p-126 ? 0.0f : round_to<float>(number);
    }

    __device__ __forceinline__ double widen(float narrow) const { return narrow * scale; }
};

template <>
struct Rounding<float, unsigned short> {
    float unit, inverse;

    __device__ __forceinline__ explicit Rounding(float scale)
        : unit(scale / 32768), inverse(1 / unit)
    {
    }

    __device__ __forceinline__ unsigned short narrow(float value) const
    {
        // 32767 of what is not a number.
        const float number = max(min(value * inverse, 32767.0f), -32767.0f);
        return static_cast<int>(rint(number)) + 32768;
    }

    __device__ __forceinline__ float widen(unsigned short narrow) const
    {
        return (narrow - 32768) * unit;
    }
};

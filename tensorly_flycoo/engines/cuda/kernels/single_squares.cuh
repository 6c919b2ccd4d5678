// Sums of squares by row, which do not depend on the order of additions: they are integers.
#pragma once

#include "orders.cuh"

// The high part counts units of 2^-62, the low part units of 2^-93. All squares together are at most
// 1, so the high parts fit 63 bits; up to 2^33 low parts fit 64.
__device__ __forceinline__ void add_square(double value, unsigned long long* high,
                                           unsigned long long* low)
{
    const double scaled = value * value * 4611686018427387904.0;  // 2^62
    const double whole = floor(scaled);
    const double rest = (scaled - whole) * 2147483648.0;  // 2^31
    if (whole > 0) atomicAdd(high, static_cast<unsigned long long>(whole));
    if (rest > 0) atomicAdd(low, static_cast<unsigned long long>(rest));
}

// Adds the squares of nonzeros without another one in their column. `parts` is (copy, sign, high or
// low, row).
__device__ __forceinline__ void add_single_squares(long long nnz, const bool* is_first,
                                                   const unsigned* rows, const double* values,
                                                   double scale, long long num_rows,
                                                   long long num_copies, unsigned long long* parts)
{
    for_own_items(nnz, [=](long long i) {
        if (!is_first[i] || !is_first[i + 1]) return;
        const long long copy = i % num_copies, sign = values[i] < 0;
        unsigned long long* high = parts + (2 * copy + sign) * 2 * num_rows + rows[i];
        add_square(values[i] / scale, high, high + num_rows);
    });
}

// The sum of one sign and row.
__device__ __forceinline__ double add_copies(long long sign, long long row, long long num_rows,
                                             long long num_copies, const unsigned long long* parts)
{
    unsigned long long high = 0, low = 0;
    parts += 2 * sign * num_rows + row;
    for (long long copy = 0; copy < num_copies; ++copy, parts += 4 * num_rows) {
        high += parts[0];
        low += parts[num_rows];
    }
    return high * 0x1p-62 + low * 0x1p-93;
}

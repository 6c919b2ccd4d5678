// Sums of squares by row, which do not depend on the order of additions: they are integers.
#pragma once

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

// A thread has a nonzero, and adds its square if no other nonzero is in its column. `parts` is
// (copy, sign, high or low, row).
__device__ __forceinline__ void add_single_squares(long long nnz, const bool* is_first,
                                                   const unsigned* rows, const double* values,
                                                   long long num_rows, long long num_copies,
                                                   unsigned long long* parts)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    parts += i % num_copies * 4 * num_rows;
    for (; i < nnz; i += num_threads) {
        if (!is_first[i] || !is_first[i + 1]) continue;
        unsigned long long* high = parts + (values[i] < 0 ? 2 * num_rows : 0) + rows[i];
        add_square(values[i], high, high + num_rows);
    }
}

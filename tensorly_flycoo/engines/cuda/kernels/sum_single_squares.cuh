// Sums of squares by row, which do not depend on the order of additions: they are integers.
#pragma once

// Squares are below 4. The high part counts units of 2^-30, the low part units of 2^-61: up to 2^32
// squares fit 64 bits each.
__device__ __forceinline__ void add_square(double value, unsigned long long* high,
                                           unsigned long long* low)
{
    const double scaled = value * value * 1073741824.0;  // 2^30
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

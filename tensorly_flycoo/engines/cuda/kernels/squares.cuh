// Sums of squares of values.
#pragma once

#include "sums.cuh"

// A block has ValuesPerBlock neighbouring values, a thread every BlockSize-th of them.
template <int ValuesPerBlock, int BlockSize, typename Value>
__device__ __forceinline__ void sum_squares_of_block(long long count, long long stride,
                                                     const Value* values, double* sums)
{
    const long long first = static_cast<long long>(blockIdx.x) * ValuesPerBlock;
    const long long end = min(first + ValuesPerBlock, count);
    double sum = 0;
    for (long long i = first + threadIdx.x; i < end; i += BlockSize) {
        const double value = values[i * stride];
        sum += value * value;
    }
    sum = sum_of_block<BlockSize>(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

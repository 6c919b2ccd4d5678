// The inner product of blocks of rows of two tall matrices.
#pragma once

#include "sums.cuh"

// A block has RowsPerBlock neighbouring rows, a thread every BlockSize-th number of them.
template <int Rank, int RowsPerBlock, int BlockSize, typename Value>
__device__ __forceinline__ void multiply_block(long long num_rows, const Value* a,
                                               long long a_stride, const Value* b,
                                               long long b_stride, double* sums)
{
    constexpr int Batch = 8;
    static_assert(static_cast<long long>(Rank) * RowsPerBlock + Batch * BlockSize < 1ll << 31,
                  "the numbers of a block are counted in 32 bits");
    const long long first = static_cast<long long>(blockIdx.x) * RowsPerBlock;
    const long long rows_left = num_rows - first;
    const int size = Rank * static_cast<int>(rows_left < RowsPerBlock ? rows_left : RowsPerBlock);
    a += first * a_stride;
    b += first * b_stride;
    const auto product = [=](int place) {
        const int row = place / Rank, column = place % Rank;
        return a[row * a_stride + column] * b[row * b_stride + column];
    };
    double sum = 0;
    int place = threadIdx.x;
    for (; place + (Batch - 1) * BlockSize < size; place += Batch * BlockSize) {
        Value products = 0;
#pragma unroll
        for (int i = 0; i < Batch; ++i) products += product(place + i * BlockSize);
        sum += products;
    }
    for (; place < size; place += BlockSize) sum += product(place);
    sum = sum_of_block<BlockSize>(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Columns of a matrix of vectors.
#pragma once

#include "orders.cuh"

// A warp takes every num_warps-th row of the block, then the warps' extremes are compared.
template <int BlockSize, typename Vector>
__device__ __forceinline__ void find_extremes_of_block(long long num_rows, long long rows_per_block,
                                                       long long num_columns, const Vector* x,
                                                       long long row_stride,
                                                       long long column_stride, Vector* extremes)
{
    constexpr int num_warps = BlockSize / 32;
    __shared__ Vector largest[num_warps][32], smallest[num_warps][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long column = blockIdx.y * 32ll + lane;
    const long long first = blockIdx.x * rows_per_block;
    const long long end = min(first + rows_per_block, num_rows);
    x += min(column, num_columns - 1) * column_stride;
    Vector high = x[first * row_stride], low = high;
#pragma unroll 4
    for (long long row = first + warp; row < end; row += num_warps) {
        const Vector value = x[row * row_stride];
        high = max(high, value);
        low = min(low, value);
    }
    largest[warp][lane] = high;
    smallest[warp][lane] = low;
    __syncthreads();
    if (warp > 0 || column >= num_columns) return;
    for (int w = 1; w < num_warps; ++w) {
        high = max(high, largest[w][lane]);
        low = min(low, smallest[w][lane]);
    }
    extremes[blockIdx.x * num_columns + column] = high;
    extremes[(gridDim.x + blockIdx.x) * num_columns + column] = low;
}

// `sources` is (source, sign) of each column of the target: a column of `vectors` and 1 or -1, or
// the complement of the row where a unit vector is 1.
template <typename Vector, typename Placed>
__device__ __forceinline__ void place_each(long long num_rows, long long num_columns,
                                           const Vector* vectors, long long row_stride,
                                           long long column_stride, const long long* rows,
                                           const long long* sources, long long placed_stride,
                                           Placed* placed)
{
    for_own_items((num_rows + 1) * num_columns, [=](long long item) {
        const long long i = item / num_columns, column = item % num_columns;
        const long long source = sources[column];
        if (source < 0 && i == num_rows) placed[~source * placed_stride + column] = 1;
        if (source < 0 || i == num_rows) return;
        const long long row = rows ? rows[i] : i;
        const Vector value = vectors[i * row_stride + source * column_stride];
        placed[row * placed_stride + column] =
            static_cast<Placed>(sources[num_columns + column] < 0 ? -value : value);
    });
}

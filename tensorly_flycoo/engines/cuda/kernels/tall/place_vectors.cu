// Entry: find the extreme elements of each column of a matrix; place its columns, some negated,
// and unit vectors in another one.
//
// Mapping: a block has `rows_per_block` neighbouring rows of 32 columns, a lane one column; or a
//   thread has one element.
// Preconditions (the engine's): `rows` is null if rows are in order; the target held zeros, or is
//   the matrix itself if no element moves.
// Bytes per element: sizeof(VECTOR) in, sizeof(PLACED) out.
// Writes and determinism: each element once.
// Source: none.
// MACRO VECTOR: float or double, the type of the matrix
// MACRO PLACED: float or double, the type of the target
// MACRO BLOCK_SIZE: threads of a block

#include "items.cuh"

// A warp takes every num_warps-th row of the block, then the warps' extremes are compared.
// `extremes` is (largest or smallest, block, column).
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    find_extremes(long long num_rows, long long rows_per_block, long long num_columns,
                  const VECTOR* x, long long row_stride, long long column_stride, VECTOR* extremes)
{
    constexpr int num_warps = BLOCK_SIZE / 32;
    __shared__ VECTOR largest[num_warps][32], smallest[num_warps][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long column = blockIdx.y * 32ll + lane;
    const long long first = blockIdx.x * rows_per_block;
    const long long end = min(first + rows_per_block, num_rows);
    x += min(column, num_columns - 1) * column_stride;
    VECTOR high = x[first * row_stride], low = high;
#pragma unroll 4
    for (long long row = first + warp; row < end; row += num_warps) {
        const VECTOR value = x[row * row_stride];
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
extern "C" __global__ void place_vectors(long long num_rows, long long num_columns,
                                         const VECTOR* vectors, long long row_stride,
                                         long long column_stride, const long long* rows,
                                         const long long* sources, long long placed_stride,
                                         PLACED* placed)
{
    for_own_item((num_rows + 1) * num_columns, [=](long long item) {
        const long long i = item / num_columns, column = item % num_columns;
        const long long source = sources[column];
        if (source < 0 && i == num_rows) placed[~source * placed_stride + column] = 1;
        if (source < 0 || i == num_rows) return;
        const long long row = rows ? rows[i] : i;
        const VECTOR value = vectors[i * row_stride + source * column_stride];
        placed[row * placed_stride + column] =
            static_cast<PLACED>(sources[num_columns + column] < 0 ? -value : value);
    });
}

// The product y of a block of rows of a tall matrix x and a small matrix, and the sums of y's rows
// that are asked for next: y.T @ y, and the inner product of x and y.
#pragma once

#include "gram.cuh"
#include "sums.cuh"

// A warp has 32 rows at a time, and each lane its part of the small matrix. The tensor cores
// compute y.T = matrix.T @ x.T, since that leaves in a lane those numbers of y that it passes on to
// compute y.T @ y. Columns of x may be multiplied in any order, so a lane loads Load neighbours.
template <typename Tall, int RowNumbers, int Load>
__device__ __forceinline__ void solve_block_rows(long long num_rows, int rows_per_block,
                                                 const float* x, long long row_stride,
                                                 const double* matrix, float* y, double* grams,
                                                 double* inner_products)
{
    struct alignas(4 * Load) Numbers {
        float at[Load];
    };
    constexpr int steps = 4;  // of 8 rows, loaded together
    constexpr int rank = Tall::rank, tiles = Tall::tiles;
    constexpr int lane_numbers = Tall::width / 4;  // of a row
    static_assert(rank % Load == 0, "a row is whole loads");
    const int lane = threadIdx.x % 32;
    // Four lanes share a row of x: each has Load neighbouring numbers in every 4 * Load.
    const auto column_of = [=](int k) { return k / Load * 4 * Load + lane % 4 * Load + k % Load; };
    double small[tiles][lane_numbers / 2][2];
#pragma unroll
    for (int k = 0; k < lane_numbers; ++k) {
#pragma unroll
        for (int t = 0; t < tiles; ++t) {
            const int from = column_of(k), to = 8 * t + lane / 4;
            small[t][k / 2][k % 2] = from < rank && to < rank ? matrix[from * rank + to] : 0;
        }
    }
    GramSums<Tall> gram;
    double inner = 0;
    const typename Tall::Rows rows(num_rows, rows_per_block, 8 * steps);
    x += rows.first * row_stride;
    y += rows.first * RowNumbers;
    for (int row = rows.row; row < rows.end; row += Tall::num_warps * 8 * steps) {
        Numbers numbers[steps][lane_numbers / Load];
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            const int from = row + 8 * step + lane / 4;
#pragma unroll
            for (int l = 0; l < lane_numbers / Load; ++l) {
                const int column = column_of(l * Load);
                const bool is_there = from < rows.end && column < rank;
                const float* place = x + from * row_stride + column;
                numbers[step][l] =
                    is_there ? *reinterpret_cast<const Numbers*>(place) : Numbers{};
            }
        }
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            double sums[tiles][2] = {};  // of columns 8 * t + lane / 4, of two rows
#pragma unroll
            for (int k = 0; k < lane_numbers; k += 2) {
                const double right[2] = {numbers[step][k / Load].at[k % Load],
                                         numbers[step][(k + 1) / Load].at[(k + 1) % Load]};
#pragma unroll
                for (int t = 0; t < tiles; t += 2) {
                    add_products(sums[t], sums[t + 1], small[t][k / 2], small[t + 1][k / 2], right);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int to = row + 8 * step + 2 * (lane % 4) + half;
#pragma unroll
                for (int t = 0; t < tiles; ++t) {
                    const int column = 8 * t + lane / 4;
                    const float rounded = sums[t][half];
                    sums[t][half] = rounded;  // as it is in memory
                    if (to < rows.end && column < RowNumbers) y[to * RowNumbers + column] = rounded;
                    // x is read again, by another lane: from the cache nearest to it.
                    const bool is_there = to < rows.end && column < rank;
                    if (is_there) inner += sums[t][half] * x[to * row_stride + column];
                }
            }
            gram.add(sums);
        }
    }
    gram.write(grams);
    inner = sum_of_block<Tall::block_size>(inner);
    if (threadIdx.x == 0) inner_products[blockIdx.x] = inner;
}

// The Gram matrix of each block of rows of a tall matrix.
#pragma once

#include "tall.cuh"

// The products of a warp's rows with each other: pairs of tiles on the diagonal and above.
template <typename Tall>
struct GramSums {
    static constexpr int rank = Tall::rank, tiles = Tall::tiles, width = Tall::width;

    double at[tiles][tiles][2] = {};

    // Adds 8 rows. A lane has of each tile of columns the numbers of column lane / 4, of two rows:
    // which rows they are does not matter, as long as the lanes of a column have different ones.
    __device__ __forceinline__ void add(const double (&numbers)[tiles][2])
    {
#pragma unroll
        for (int i = 0; i < tiles; i += 2) {
#pragma unroll
            for (int j = i; j < tiles; ++j) {
                add_products(at[i][j], at[i + 1][j], numbers[i], numbers[i + 1], numbers[j]);
            }
        }
    }

    // Adds the sums of all warps in their order, and writes the block's (rank, rank).
    __device__ __forceinline__ void write(double* products) const
    {
        __shared__ double total[width * width];
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (int turn = 0; turn < Tall::num_warps; ++turn) {
            __syncthreads();
            if (warp != turn) continue;
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
#pragma unroll
                for (int j = i / 2 * 2; j < tiles; ++j) {
                    double* place = total + (8 * i + lane / 4) * width + 8 * j + 2 * (lane % 4);
                    place[0] = at[i][j][0] + (turn == 0 ? 0 : place[0]);
                    place[1] = at[i][j][1] + (turn == 0 ? 0 : place[1]);
                }
            }
        }
        __syncthreads();
        products += static_cast<long long>(blockIdx.x) * rank * rank;
        for (int i = threadIdx.x; i < rank * rank; i += Tall::block_size) {
            const int row = i / rank, column = i % rank;
            const bool is_below = row / 16 > column / 16;
            products[i] = is_below ? total[column * width + row] : total[row * width + column];
        }
    }
};

// A warp has 32 rows at a time; a lane loads the numbers that it passes to the tensor cores.
template <typename Tall>
__device__ __forceinline__ void compute_gram(long long num_rows, int rows_per_block,
                                             const float* x, long long row_stride,
                                             double* products)
{
    constexpr int steps = 4;  // of 8 rows, loaded together
    constexpr int rank = Tall::rank, tiles = Tall::tiles;
    const int lane = threadIdx.x % 32;
    GramSums<Tall> sums;
    const typename Tall::Rows rows(num_rows, rows_per_block, 8 * steps);
    x += rows.first * row_stride + lane / 4;
    for (int row = rows.row; row < rows.end; row += Tall::num_warps * 8 * steps) {
        float numbers[steps][tiles][2];
#pragma unroll
        for (int step = 0; step < 2 * steps; ++step) {
            const int from = row + 4 * step + lane % 4;
            const float* place = x + from * row_stride;
#pragma unroll
            for (int t = 0; t < tiles; ++t) {
                const bool is_there = from < rows.end && 8 * t + lane / 4 < rank;
                numbers[step / 2][t][step % 2] = is_there ? place[8 * t] : 0;
            }
        }
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            double exact[tiles][2];
#pragma unroll
            for (int t = 0; t < tiles; ++t) {
                exact[t][0] = numbers[step][t][0];
                exact[t][1] = numbers[step][t][1];
            }
            sums.add(exact);
        }
    }
    sums.write(products);
}

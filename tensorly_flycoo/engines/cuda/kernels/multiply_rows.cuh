// The product of a block of rows of a tall matrix and a small matrix.
#pragma once

#include "tall.cuh"

// A warp has 32 rows at a time, and each lane its part of the small matrix. Columns may be
// multiplied in any order, so a lane loads Load neighbouring ones.
template <typename Tall, int RowNumbers, int Load>
__device__ __forceinline__ void multiply_block_rows(long long num_rows, const float* x,
                                                    long long row_stride, const double* matrix,
                                                    float* out)
{
    struct alignas(4 * Load) Numbers {
        float at[Load];
    };
    constexpr int steps = 2;  // of 16 rows, loaded together
    constexpr int rank = Tall::rank, tiles = Tall::tiles;
    constexpr int lane_numbers = Tall::width / 4;  // of a row
    static_assert(rank % Load == 0, "a row is whole loads");
    static_assert(RowNumbers == 1 || RowNumbers % 2 == 0, "a row is written two numbers at a time");
    const int lane = threadIdx.x % 32;
    // Four lanes share a row: each has Load neighbouring numbers in every 4 * Load.
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
    const typename Tall::Rows rows(num_rows, 16 * steps);
    for (long long row = rows.row; row < rows.end; row += Tall::num_warps * 16 * steps) {
        Numbers numbers[2 * steps][lane_numbers / Load];
#pragma unroll
        for (int step = 0; step < 2 * steps; ++step) {
            const long long from = row + 8 * step + lane / 4;
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
        for (int step = 0; step < 2 * steps; step += 2) {
            double sums[2][tiles][2] = {};
#pragma unroll
            for (int k = 0; k < lane_numbers; k += 2) {
                const auto number = [&](int half, int k) -> double {
                    return numbers[step + half][k / Load].at[k % Load];
                };
                const double top[2] = {number(0, k), number(0, k + 1)};
                const double bottom[2] = {number(1, k), number(1, k + 1)};
#pragma unroll
                for (int t = 0; t < tiles; ++t) {
                    add_products(sums[0][t], sums[1][t], top, bottom, small[t][k / 2]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const long long to = row + 8 * (step + half) + lane / 4;
#pragma unroll
                for (int t = 0; t < tiles; ++t) {
                    const int column = 8 * t + 2 * (lane % 4);
                    const bool is_there = to < rows.end && column < RowNumbers;
                    float* place = out + to * RowNumbers + column;
                    const auto& sum = sums[half][t];
                    if (is_there && RowNumbers > 1) {
                        *reinterpret_cast<float2*>(place) = make_float2(sum[0], sum[1]);
                    } else if (is_there) {
                        *place = sum[0];
                    }
                }
            }
        }
    }
}

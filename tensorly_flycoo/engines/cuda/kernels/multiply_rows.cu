// Entry: the product of a tall matrix and a small one (R, R), rows of which end with zeros.
//
// Mapping: a warp has 32 rows at a time, and each lane all that it needs of the small matrix. Which
//   columns are multiplied first makes no difference, so a lane loads neighbouring ones.
// Preconditions (the caller's): the numbers of a row are side by side, and rows `row_stride` apart;
//   these and RANK are multiples of LOAD.
// Bytes: both tall matrices once.
// Writes and determinism: each row depends on itself alone.
#include "tall.cuh"

#ifndef ROW_NUMBERS
#error "ROW_NUMBERS: from each row that is written to the next, 1 or even"
#endif
#ifndef LOAD
#error "LOAD: neighbouring numbers that are loaded at once: 1, 2 or 4"
#endif

struct alignas(4 * LOAD) Numbers {
    float at[LOAD];
};

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, 3)
    multiply_rows(long long num_rows, const float* x, long long row_stride, const double* matrix,
                  float* out)
{
    constexpr int STEPS = 2;        // of 16 rows, loaded together
    constexpr int NUMBERS = WIDTH / 4;  // of a row that a lane has
    const int lane = threadIdx.x % 32;
    // Lanes that have a row have LOAD neighbouring numbers each, and again.
    const auto column_of = [=](int k) { return k / LOAD * 4 * LOAD + lane % 4 * LOAD + k % LOAD; };
    double small[TILES][NUMBERS / 2][2];
#pragma unroll
    for (int k = 0; k < NUMBERS; ++k) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            const int from = column_of(k), to = 8 * t + lane / 4;
            small[t][k / 2][k % 2] = from < RANK && to < RANK ? matrix[from * RANK + to] : 0;
        }
    }
    const Block block(num_rows, 16 * STEPS);
    for (long long row = block.row; row < block.end; row += NUM_WARPS * 16 * STEPS) {
        Numbers numbers[2 * STEPS][NUMBERS / LOAD];
#pragma unroll
        for (int step = 0; step < 2 * STEPS; ++step) {
            const long long from = row + 8 * step + lane / 4;
#pragma unroll
            for (int l = 0; l < NUMBERS / LOAD; ++l) {
                const int column = column_of(l * LOAD);
                const bool is_there = from < block.end && column < RANK;
                const float* place = x + from * row_stride + column;
                numbers[step][l] =
                    is_there ? *reinterpret_cast<const Numbers*>(place) : Numbers{};
            }
        }
#pragma unroll
        for (int step = 0; step < 2 * STEPS; step += 2) {
            double sums[2][TILES][2] = {};
#pragma unroll
            for (int k = 0; k < NUMBERS; k += 2) {
                const auto number = [&](int half, int k) -> double {
                    return numbers[step + half][k / LOAD].at[k % LOAD];
                };
                const double top[2] = {number(0, k), number(0, k + 1)};
                const double bottom[2] = {number(1, k), number(1, k + 1)};
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    add_products(sums[0][t], sums[1][t], top, bottom, small[t][k / 2]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const long long to = row + 8 * (step + half) + lane / 4;
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    const int column = 8 * t + 2 * (lane % 4);
                    const bool is_there = to < block.end && column < ROW_NUMBERS;
                    float* place = out + to * ROW_NUMBERS + column;
                    const auto& sum = sums[half][t];
                    if (is_there && ROW_NUMBERS > 1) {
                        *reinterpret_cast<float2*>(place) = make_float2(sum[0], sum[1]);
                    } else if (is_there) {
                        *place = sum[0];
                    }
                }
            }
        }
    }
}

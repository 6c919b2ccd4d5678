// Entry: the Gram matrix x.T @ x of a tall matrix, as the sum of those of blocks of its rows.
//
// Mapping: a warp has 32 rows at a time; a lane loads the numbers that it has for the tensor cores.
// Preconditions (the caller's): the numbers of a row are side by side, and rows `row_stride` apart.
// Bytes: the matrix once; the blocks' products are small beside it.
// Writes and determinism: each block writes its own (R, R), in double precision. The order of
//   additions depends on the shape alone.
#include "tall.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, 4)
    gram(long long num_rows, const float* x, long long row_stride, double* products)
{
    constexpr int STEPS = 4;  // of 8 rows, loaded together
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sums[TILES][TILES][2] = {};  // those of pairs on the diagonal and above
    const Block block(num_rows, 8 * STEPS);
    for (long long row = block.row; row < block.end; row += NUM_WARPS * 8 * STEPS) {
        float numbers[STEPS][TILES][2];
#pragma unroll
        for (int step = 0; step < 2 * STEPS; ++step) {
            const long long from = row + 4 * step + lane % 4;
            const float* place = x + from * row_stride + lane / 4;
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const bool is_there = from < block.end && 8 * t + lane / 4 < RANK;
                numbers[step / 2][t][step % 2] = is_there ? place[8 * t] : 0;
            }
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            double exact[TILES][2];
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                exact[t][0] = numbers[step][t][0];
                exact[t][1] = numbers[step][t][1];
            }
#pragma unroll
            for (int i = 0; i < TILES; i += 2) {
#pragma unroll
                for (int j = i; j < TILES; ++j) {
                    add_products(sums[i][j], sums[i + 1][j], exact[i], exact[i + 1], exact[j]);
                }
            }
        }
    }
    __shared__ double total[WIDTH * WIDTH];
    for (int turn = 0; turn < NUM_WARPS; ++turn) {
        __syncthreads();
        if (warp != turn) continue;
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
#pragma unroll
            for (int j = i / 2 * 2; j < TILES; ++j) {
                double* place = total + (8 * i + lane / 4) * WIDTH + 8 * j + 2 * (lane % 4);
                place[0] = sums[i][j][0] + (turn == 0 ? 0 : place[0]);
                place[1] = sums[i][j][1] + (turn == 0 ? 0 : place[1]);
            }
        }
    }
    __syncthreads();
    products += static_cast<long long>(blockIdx.x) * RANK * RANK;
    for (int i = threadIdx.x; i < RANK * RANK; i += BLOCK_SIZE) {
        const int row = i / RANK, column = i % RANK;
        const bool is_below = row / 16 > column / 16;
        products[i] = is_below ? total[column * WIDTH + row] : total[row * WIDTH + column];
    }
}

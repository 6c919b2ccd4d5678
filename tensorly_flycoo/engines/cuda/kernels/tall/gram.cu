// Entry: the Gram matrix x.T @ x of each block of rows of a tall matrix.
//
// Mapping: a block has `rows_per_block` neighbouring rows, a warp 32 of them at a time. A lane
//   loads the numbers that it passes to the tensor cores.
// Preconditions (the caller's): each row is contiguous, and rows are `row_stride` numbers apart.
// Bytes: the matrix once; the blocks' products are small in comparison. None per nonzero.
// Writes and determinism: each block writes its own (R, R), in double precision. The order of
//   additions depends on the shape alone.
// Source: none.
// MACRO RANK: columns of the matrix, 32 or fewer
// MACRO BLOCK_SIZE: threads of a block

#include "gram.cuh"

using TallRows = Tall<RANK, BLOCK_SIZE>;

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, 3)
    gram(long long num_rows, int rows_per_block, const float* x, long long row_stride,
         double* products)
{
    constexpr int steps = 4;  // of 8 rows, loaded together
    constexpr int rank = TallRows::rank, tiles = TallRows::tiles;
    const int lane = threadIdx.x % 32;
    GramSums<TallRows> sums;
    const TallRows::Rows rows(num_rows, rows_per_block, 8 * steps);
    x += rows.first * row_stride + lane / 4;
    for (int row = rows.row; row < rows.end; row += TallRows::num_warps * 8 * steps) {
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

// Entry: the product y = x @ matrix of a tall and a small matrix; and y.T @ y, and the inner
// product of x and y, of each block of rows. The small matrix is an inverse, y ALS's new factor.
//
// Mapping: a block has `rows_per_block` neighbouring rows, a warp 32 of them at a time.
// Preconditions (the caller's): each row is contiguous, and rows are `row_stride` numbers apart;
//   they begin at multiples of LOAD numbers. The small matrix (R, R) is contiguous.
// Bytes: x and y once; what blocks write besides is small in comparison. None per nonzero.
// Writes and determinism: all of y (num_rows, ROW_NUMBERS), in single precision, with zeros past
//   the last column; each block its own (R, R) and its sum, in double precision, of y as rounded.
//   The order of additions depends on the shape alone.
// Source: none.
// MACRO RANK: columns of the matrix, 32 or fewer
// MACRO ROW_NUMBERS: numbers from one row of the result to the next
// MACRO BLOCK_SIZE: threads of a block
// MACRO LOAD: columns that one load brings, 1, 2 or 4

#include "gram.cuh"
#include "sums.cuh"

using TallRows = Tall<RANK, BLOCK_SIZE>;

// A warp has 32 rows at a time, and each lane its part of the small matrix. The tensor cores
// compute y.T = matrix.T @ x.T, since that leaves in a lane those numbers of y that it passes on to
// compute y.T @ y. Columns of x may be multiplied in any order, so a lane loads LOAD neighbours.
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, 2)
    solve_rows(long long num_rows, int rows_per_block, const float* x, long long row_stride,
               const double* matrix, float* y, double* grams, double* inner_products)
{
    struct alignas(4 * LOAD) Numbers {
        float at[LOAD];
    };
    constexpr int steps = 4;  // of 8 rows, loaded together
    constexpr int rank = TallRows::rank, tiles = TallRows::tiles;
    constexpr int lane_numbers = TallRows::width / 4;  // of a row
    static_assert(rank % LOAD == 0, "a row is whole loads");
    const int lane = threadIdx.x % 32;
    // Four lanes share a row of x: each has LOAD neighbouring numbers in every 4 * LOAD.
    const auto column_of = [=](int k) { return k / LOAD * 4 * LOAD + lane % 4 * LOAD + k % LOAD; };
    double small[tiles][lane_numbers / 2][2];
#pragma unroll
    for (int k = 0; k < lane_numbers; ++k) {
#pragma unroll
        for (int t = 0; t < tiles; ++t) {
            const int from = column_of(k), to = 8 * t + lane / 4;
            small[t][k / 2][k % 2] = from < rank && to < rank ? matrix[from * rank + to] : 0;
        }
    }
    GramSums<TallRows> gram;
    double inner = 0;
    const TallRows::Rows rows(num_rows, rows_per_block, 8 * steps);
    x += rows.first * row_stride;
    y += rows.first * ROW_NUMBERS;
    for (int row = rows.row; row < rows.end; row += TallRows::num_warps * 8 * steps) {
        Numbers numbers[steps][lane_numbers / LOAD];
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            const int from = row + 8 * step + lane / 4;
#pragma unroll
            for (int l = 0; l < lane_numbers / LOAD; ++l) {
                const int column = column_of(l * LOAD);
                const bool is_there = from < rows.end && column < rank;
                const float* place = x + from * row_stride + column;
                numbers[step][l] = is_there ? *reinterpret_cast<const Numbers*>(place) : Numbers{};
            }
        }
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            double sums[tiles][2] = {};  // of columns 8 * t + lane / 4, of two rows
#pragma unroll
            for (int k = 0; k < lane_numbers; k += 2) {
                const double right[2] = {numbers[step][k / LOAD].at[k % LOAD],
                                         numbers[step][(k + 1) / LOAD].at[(k + 1) % LOAD]};
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
                    if (to < rows.end && column < ROW_NUMBERS) {
                        y[to * ROW_NUMBERS + column] = rounded;
                    }
                    // x is read again, by another lane: from the cache nearest to it.
                    const bool is_there = to < rows.end && column < rank;
                    if (is_there) inner += sums[t][half] * x[to * row_stride + column];
                }
            }
            gram.add(sums);
        }
    }
    gram.write(grams);
    inner = sum_of_block<TallRows::block_size>(inner);
    if (threadIdx.x == 0) inner_products[blockIdx.x] = inner;
}

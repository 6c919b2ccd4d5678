// Entry: the product y = x @ matrix of a tall and a small matrix; and y.T @ y, and the inner product
// of x and y, of each block of rows. The small matrix is an inverse, and y the new factor of ALS.
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

#include "solve_rows.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, 2)
    solve_rows(long long num_rows, int rows_per_block, const float* x, long long row_stride,
               const double* matrix, float* y, double* grams, double* inner_products)
{
    solve_block_rows<Tall<RANK, BLOCK_SIZE>, ROW_NUMBERS, LOAD>(
        num_rows, rows_per_block, x, row_stride, matrix, y, grams, inner_products);
}

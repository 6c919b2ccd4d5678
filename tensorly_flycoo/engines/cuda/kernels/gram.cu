// Entry: the Gram matrix x.T @ x of each block of rows of a tall matrix.
//
// Mapping: a block has `rows_per_block` neighbouring rows, a warp 32 of them at a time.
// Preconditions (the caller's): each row is contiguous, and rows are `row_stride` numbers apart.
// Bytes: the matrix once; the blocks' products are small in comparison. None per nonzero.
// Writes and determinism: each block writes its own (R, R), in double precision. The order of
//   additions depends on the shape alone.
// Source: none.
// MACRO RANK: columns of the matrix, 32 or fewer
// MACRO BLOCK_SIZE: threads of a block

#include "gram.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, 3)
    gram(long long num_rows, int rows_per_block, const float* x, long long row_stride,
         double* products)
{
    compute_gram<Tall<RANK, BLOCK_SIZE>>(num_rows, rows_per_block, x, row_stride, products);
}

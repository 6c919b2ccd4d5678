// Entry: the product of a tall matrix and a small one (R, R), with zeros after each row.
//
// Mapping: a block has ROWS_PER_BLOCK neighbouring rows, a warp 32 of them at a time.
// Preconditions (the caller's): each row is contiguous, and rows are `row_stride` numbers apart;
//   `row_stride`, the address in numbers and RANK are multiples of LOAD.
// Bytes: both tall matrices once. None per nonzero.
// Writes and determinism: each row of the product depends on one row of `x` only.
// Source: none.
#ifndef RANK
#error "RANK: columns of the matrix, 32 or fewer"
#endif
#ifndef ROWS_PER_BLOCK
#error "ROWS_PER_BLOCK: rows of a block"
#endif
#ifndef BLOCK_SIZE
#error "BLOCK_SIZE: threads of a block"
#endif
#ifndef ROW_NUMBERS
#error "ROW_NUMBERS: numbers from the start of a row of the product to the next, 1 or even"
#endif
#ifndef LOAD
#error "LOAD: neighbouring numbers that are loaded at once: 1, 2 or 4"
#endif

#include "multiply_rows.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, 3)
    multiply_rows(long long num_rows, const float* x, long long row_stride, const double* matrix,
                  float* out)
{
    using Rows = Tall<RANK, ROWS_PER_BLOCK, BLOCK_SIZE>;
    multiply_block_rows<Rows, ROW_NUMBERS, LOAD>(num_rows, x, row_stride, matrix, out);
}

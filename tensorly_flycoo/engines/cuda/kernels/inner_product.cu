// Entry: the inner product of two tall matrices, one sum for each block of rows.
//
// Mapping: a block has ROWS_PER_BLOCK neighbouring rows, a thread every BLOCK_SIZE-th number.
// Preconditions (the caller's): each row is contiguous; rows are RANK long, and `a_stride` and
//   `b_stride` numbers apart.
// Bytes: both matrices once. None per nonzero.
// Writes and determinism: one sum for each block, in double: eight products at a time are added in
//   their own precision, then the threads' sums in a fixed order.
// Source: none.
// MACRO VALUE: float or double
// MACRO RANK: columns of both matrices
// MACRO ROWS_PER_BLOCK: rows of a block
// MACRO BLOCK_SIZE: threads of a block

#include "inner_product.cuh"

extern "C" __global__ void inner_product(long long num_rows, const VALUE* a, long long a_stride,
                                         const VALUE* b, long long b_stride, double* sums)
{
    multiply_block<RANK, ROWS_PER_BLOCK, BLOCK_SIZE>(num_rows, a, a_stride, b, b_stride, sums);
}

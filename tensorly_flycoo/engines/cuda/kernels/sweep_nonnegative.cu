// Entry: one sweep of HALS over all rows of a non-negative factor.
//
// Mapping: a thread has a row.
// Preconditions (the caller's): `targets` and `rows` (I, R) and `gram` (R, R) are C-contiguous.
// Bytes: the targets once, the rows in and out; the Gram matrix stays in the cache. None per
//   nonzero.
// Writes and determinism: each row depends only on its old value, target and the Gram matrix. Each
//   block writes to `found` its sum of squares and number of changes, added in double in a fixed
//   order; from these the host decides whether to continue.
// Source: Cichocki and Phan, IEICE Transactions on Fundamentals E92-A(3), 2009 (fast HALS).
// MACRO VALUE: float or double
// MACRO RANK: columns of the factor
// MACRO LOAD: neighbouring numbers that are loaded at once, which divide RANK, up to 16 bytes
// MACRO BLOCK_SIZE: threads of a block

#include "sweep_nonnegative.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    sweep_nonnegative(long long num_rows, const VALUE* targets, const VALUE* gram, VALUE* rows,
                      VALUE shift, VALUE ridge, VALUE smallest, double* found)
{
    Sweep<RANK, LOAD, BLOCK_SIZE, VALUE>::sweep_rows(num_rows, targets, gram, rows, shift, ridge,
                                                     smallest, found);
}

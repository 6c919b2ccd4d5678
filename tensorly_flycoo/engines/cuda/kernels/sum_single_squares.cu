// Entry: add the squares of values that are alone in their column, by row and sign.
//
// Mapping: a thread has one nonzero, and every num_threads-th after it.
// Preconditions (the engine's): the sum of all squares is at most 1; `parts` holds zeros.
// Bytes per nonzero: 13 in, two additions of 8 bytes in the second-level cache.
// Writes and determinism: atomic additions of integers, the same in any order. Each square loses
//   less than 2^-93.
// Source: none.
#include "sum_single_squares.cuh"

extern "C" __global__ void sum_single_squares(long long nnz, const bool* is_first,
                                              const unsigned* rows, const double* values,
                                              long long num_rows, long long num_copies,
                                              unsigned long long* parts)
{
    add_single_squares(nnz, is_first, rows, values, num_rows, num_copies, parts);
}

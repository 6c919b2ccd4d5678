// Entry: sum the squares of each block of values in double precision.
//
// Mapping: a block has VALUES_PER_BLOCK neighbouring values.
// Preconditions: none.
// Bytes per nonzero: the record of its value.
// Writes and determinism: each sum once; a thread adds in order, then a block adds its threads' sums
//   in a fixed tree.
// Source: none.
// MACRO VALUE: float or double, the type of values and factors
// MACRO VALUES_PER_BLOCK: values of a block
// MACRO BLOCK_SIZE: threads of a block

#include "squares.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    sum_squares(long long count, long long stride, const VALUE* values, double* sums)
{
    sum_squares_of_block<VALUES_PER_BLOCK, BLOCK_SIZE>(count, stride, values, sums);
}

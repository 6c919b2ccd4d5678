// Entry: copy a matrix to one whose rows begin further apart, with zeros in between.
//
// Mapping: a group of GROUP_SIZE lanes has a row, and loads BATCH rows before it stores the first.
// Preconditions (the engine's): each row is contiguous.
// Bytes: each value in once, each row with its padding out once. None per nonzero.
// Writes and determinism: each place is written once.
// Source: none.
// MACRO VALUE: float or double, the type of values and factors
// MACRO GROUP_SIZE: lanes of a group, a power of two up to 32
// MACRO BATCH: rows that a group loads before it stores the first

#include "pad_rows.cuh"

extern "C" __global__ void pad_rows(long long num_rows, int rank, long long source_stride,
                                    const VALUE* source, int target_stride, VALUE* target)
{
    copy_padded<GROUP_SIZE, BATCH>(num_rows, rank, source_stride, source, target_stride, target);
}

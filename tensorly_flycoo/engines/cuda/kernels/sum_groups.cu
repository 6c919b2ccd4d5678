// Entry: sum groups of consecutive values, such as the duplicates of a nonzero.
//
// Mapping: a thread has a group.
// Preconditions (the engine's): `starts` ascends from 0 to the number of values.
// Bytes per nonzero: each value and each sum once, and 8 for each group.
// Writes and determinism: each group is added in order. (CuPy's add.reduceat subtracts running sums
//   of all values, which loses the digits of small ones.)
// Source: none.
// MACRO VALUE: float or double, the type of values and factors

#include "sum_groups.cuh"

extern "C" __global__ void sum_groups(long long num_groups, const long long* starts,
                                      const VALUE* values, VALUE* sums)
{
    sum_each_group(num_groups, starts, values, sums);
}

// Entry: sum the squares of each block of values in double precision (`sum_squares`); and sum
// groups of consecutive values, such as the duplicates of a nonzero (`sum_groups`).
//
// Mapping: a block has VALUES_PER_BLOCK neighbouring values; a thread has one group.
// Preconditions (the engine's): `starts` ascends from 0 to the number of values.
// Bytes per nonzero: the record of its value; or each value and sum once, and 8 for each group.
// Writes and determinism: each sum once. A thread adds in order, then a block adds its threads'
//   sums in a fixed tree. (CuPy's add.reduceat subtracts running sums of all values, which loses
//   the digits of small ones.)
// Source: none.
// MACRO VALUE: float or double, the type of values and factors
// MACRO VALUES_PER_BLOCK: values of a block
// MACRO BLOCK_SIZE: threads of a block

#include "items.cuh"
#include "sums.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    sum_squares(long long count, long long stride, const VALUE* values, double* sums)
{
    const long long first = static_cast<long long>(blockIdx.x) * VALUES_PER_BLOCK;
    const long long end = min(first + VALUES_PER_BLOCK, count);
    double sum = 0;
    for (long long i = first + threadIdx.x; i < end; i += BLOCK_SIZE) {
        const double value = values[i * stride];
        sum += value * value;
    }
    sum = sum_of_block<BLOCK_SIZE>(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

extern "C" __global__ void sum_groups(long long num_groups, const long long* starts,
                                      const VALUE* values, VALUE* sums)
{
    for_own_item(num_groups, [=](long long group) {
        VALUE total = 0;
        for (long long i = starts[group]; i < starts[group + 1]; ++i) total += values[i];
        sums[group] = total;
    });
}

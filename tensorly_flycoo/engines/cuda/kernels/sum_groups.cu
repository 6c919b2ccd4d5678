// Entry: sum neighbouring values in groups, as duplicates of a nonzero are.
//
// Mapping: a thread has a group.
// Preconditions (the engine's): `starts` rise from 0, and end with the number of values.
// Bytes: each value and each sum once.
// Writes and determinism: each group is added in its order. (CuPy's add.reduceat subtracts sums of
//   all values up to here from each other, which loses the digits of small ones.)
#ifndef VALUE
#error "VALUE: float or double, the type of values and factors"
#endif

extern "C" __global__ void sum_groups(long long num_groups, const long long* starts,
                                      const VALUE* values, VALUE* sums)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long group = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; group < num_groups; group += num_threads) {
        VALUE total = 0;
        for (long long i = starts[group]; i < starts[group + 1]; ++i) total += values[i];
        sums[group] = total;
    }
}

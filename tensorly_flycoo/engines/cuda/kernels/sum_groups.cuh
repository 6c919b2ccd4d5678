// Sums of groups of consecutive values.
#pragma once

// A thread has a group, from one of `starts` to the next.
template <typename Value>
__device__ __forceinline__ void sum_each_group(long long num_groups, const long long* starts,
                                               const Value* values, Value* sums)
{
    static_assert(sizeof(Value) == 4 || sizeof(Value) == 8, "float or double");
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long group = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; group < num_groups; group += num_threads) {
        Value total = 0;
        for (long long i = starts[group]; i < starts[group + 1]; ++i) total += values[i];
        sums[group] = total;
    }
}

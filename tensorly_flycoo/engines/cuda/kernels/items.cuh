// Work that threads share item by item.
#pragma once

// Calls `use(i)` for each number below `count` that this thread has: one, and every num_threads-th
// after it. Not unrolled, since most threads have one: that takes half the time to compile.
template <typename Use>
__device__ __forceinline__ void for_own_items(long long count, Use use)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; i < count; i += num_threads) use(i);
}

__device__ __forceinline__ long long bucket_start_of(long long number, long long bucket_size)
{
    return number - number % bucket_size;
}

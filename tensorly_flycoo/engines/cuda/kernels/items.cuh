// Work of which each thread has one item.
#pragma once

// Calls `use(i)` for this thread's number, if it is below `count`.
template <typename Use>
__device__ __forceinline__ void for_own_item(long long count, Use use)
{
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) use(i);
}

__device__ __forceinline__ long long bucket_start_of(long long number, long long bucket_size)
{
    return number - number % bucket_size;
}

// Sums and counts over threads, in a fixed order.
#pragma once

__device__ __forceinline__ double sum_of_warp(double number)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        number += __shfl_xor_sync(0xffffffffu, number, distance);
    }
    return number;
}

// All threads of a block must call it; each gets the sum.
template <int NumThreads>
__device__ __forceinline__ double sum_of_block(double number)
{
    static_assert(NumThreads % 32 == 0, "a block is whole warps");
    __shared__ double of_warps[NumThreads / 32];
    number = sum_of_warp(number);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = number;
    __syncthreads();
    double sum = 0;
    for (int warp = 0; warp < NumThreads / 32; ++warp) sum += of_warps[warp];
    return sum;
}

// Numbers those threads of a block that are counted, from `next` on, and adds their count to `next`.
// All threads of a block must call it.
template <int NumThreads>
__device__ __forceinline__ long long take_number(bool is_counted, long long& next)
{
    static_assert(NumThreads % 32 == 0, "a block is whole warps");
    __shared__ int of_warps[NumThreads / 32];
    const int own_warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned lanes = __ballot_sync(0xffffffffu, is_counted);
    __syncthreads();
    if (lane == 0) of_warps[own_warp] = __popc(lanes);
    __syncthreads();
    long long number = next + __popc(lanes & ((1u << lane) - 1));
    for (int warp = 0; warp < NumThreads / 32; ++warp) {
        if (warp < own_warp) number += of_warps[warp];
        next += of_warps[warp];
    }
    return number;
}

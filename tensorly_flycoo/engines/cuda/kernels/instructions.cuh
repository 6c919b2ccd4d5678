// Instructions that C++ has no words for, each behind a function.
#pragma once

#include "architecture.cuh"

// Adds to a matrix (16, 8) the product of matrices (16, 8) and (8, 8), by tensor cores. All threads
// of a warp call it. A lane has the rows lane / 4 and lane / 4 + 8 of the sums, and there the columns
// 2 * (lane % 4) and the one after it; of the left matrix the same rows, and the columns lane % 4 and
// lane % 4 + 4, which come first; of the right one these as rows, and the column lane / 4.
__device__ __forceinline__ void multiply(double (&sums)[2][2], const double (&left)[2][2],
                                         const double (&right)[2])
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(sums[0][0]), "+d"(sums[0][1]), "+d"(sums[1][0]), "+d"(sums[1][1])
        : "d"(left[0][0]), "d"(left[0][1]), "d"(left[1][0]), "d"(left[1][1]), "d"(right[0]),
          "d"(right[1]));
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int top = 0; top < 2; ++top) {
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+d"(sums[top][0]), "+d"(sums[top][1])
                : "d"(left[half][top]), "d"(right[half]));
        }
    }
#endif
}

// Waits for the warps of a group alone, so that groups of a block need not keep step.
template <int NumThreads>
__device__ __forceinline__ void wait_for_group(int group)
{
    if (NumThreads == 32) {
        __syncwarp();
    } else {
        asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(NumThreads) : "memory");
    }
}

// Begins to copy a number from global to shared memory, or zero. `end_copies` ends what a thread has
// begun so far; `wait_for_copies_but_last` waits for all but the last of what was so ended.
template <typename Value>
__device__ __forceinline__ void begin_copy(Value& to, const Value* from, bool is_wanted)
{
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(&to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from),
                 "n"(sizeof(Value)), "r"(is_wanted ? int(sizeof(Value)) : 0));
}

__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;"); }

__device__ __forceinline__ void wait_for_copies_but_last()
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

// Waits for all copies that this thread began; the block's copies also need a barrier.
__device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// The larger of two numbers, nan if one is nan.
__device__ __forceinline__ float find_larger(float a, float b)
{
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

__device__ __forceinline__ double find_larger(double a, double b)
{
    if (a >= b) return a;
    return a < b ? b : a + b;  // not a number
}

// Rounds a number. Floats may be subnormal: to flush them would take three instructions more.
template <typename Value>
__device__ __forceinline__ Value round_to(double number)
{
    if constexpr (sizeof(Value) == 8) return number;
    float rounded;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(rounded) : "d"(number));
    return rounded;
}

// Converts a number that is not subnormal: else to flush it would take an instruction more.
__device__ __forceinline__ double convert(float number)
{
    double converted;
    asm("cvt.f64.f32 %0, %1;" : "=d"(converted) : "f"(number));
    return converted;
}

// One sweep of hierarchical alternating least squares (HALS) over a row of a non-negative factor.
#pragma once

#include "sums.cuh"

// A thread has a row: in registers if it has few columns, otherwise in local memory.
template <int Rank, int LoadSize, int BlockSize, typename Value>
struct Sweep {
    static_assert(Rank % LoadSize == 0, "a row is whole loads");
    static_assert(sizeof(Value) * LoadSize <= 16, "a load is 16 bytes at most");

    // If loops are unrolled, indices into a row are constants, so the row can be in registers.
    static constexpr int unroll = Rank <= 32 ? Rank : 1;

    struct alignas(sizeof(Value) * LoadSize) Numbers {
        Value at[LoadSize];
    };

    static __device__ __forceinline__ void load_row(Value (&row)[Rank], const Value* from)
    {
#pragma unroll unroll
        for (int k = 0; k < Rank; k += LoadSize) {
            const Numbers numbers = *reinterpret_cast<const Numbers*>(from + k);
#pragma unroll
            for (int i = 0; i < LoadSize; ++i) row[k + i] = numbers.at[i];
        }
    }

    static __device__ __forceinline__ void store_row(Value* to, const Value (&row)[Rank])
    {
#pragma unroll unroll
        for (int k = 0; k < Rank; k += LoadSize) {
            Numbers numbers;
#pragma unroll
            for (int i = 0; i < LoadSize; ++i) numbers.at[i] = row[k + i];
            *reinterpret_cast<Numbers*>(to + k) = numbers;
        }
    }

    // Sets each column to its minimiser while the others are fixed.
    static __device__ __forceinline__ void sweep_row(Value (&row)[Rank],
                                                     const Value (&target)[Rank],
                                                     const Value* gram, Value shift, Value ridge,
                                                     Value smallest, Value& squares,
                                                     int& num_changes)
    {
#pragma unroll unroll
        for (int k = 0; k < Rank; ++k) {
            const Value diagonal = gram[k * Rank + k];
            if (diagonal == 0) continue;
            Value number = target[k] - shift;
#pragma unroll unroll
            for (int other = 0; other < Rank; ++other) {
                if (other != k) number -= gram[k * Rank + other] * row[other];
            }
            number /= diagonal + 2 * ridge;
            if (number < smallest) number = smallest;  // nan stays nan
#pragma unroll unroll
            for (int other = 0; other < Rank; ++other) {
                squares += (row[other] - number) * (row[other] - number);
            }
            num_changes += number != row[k];
            row[k] = number;
        }
    }

    static __device__ __forceinline__ void sweep_rows(long long num_rows, const Value* targets,
                                                      const Value* gram, Value* rows, Value shift,
                                                      Value ridge, Value smallest, double* found)
    {
        const long long number = static_cast<long long>(blockIdx.x) * BlockSize + threadIdx.x;
        Value squares = 0;
        int num_changes = 0;
        if (number < num_rows) {
            Value row[Rank], target[Rank];
            load_row(row, rows + number * Rank);
            load_row(target, targets + number * Rank);
            sweep_row(row, target, gram, shift, ridge, smallest, squares, num_changes);
            store_row(rows + number * Rank, row);
        }
        const double error = sum_of_block<BlockSize>(squares);
        const double changes = sum_of_block<BlockSize>(num_changes);
        if (threadIdx.x > 0) return;
        found[blockIdx.x] = error;
        found[gridDim.x + blockIdx.x] = changes;
    }
};

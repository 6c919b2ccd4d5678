// Entry: one sweep of hierarchical ALS over the rows of a factor, all of which are non-negative.
//
// Mapping: a thread has a row, in registers where there are few columns.
// Preconditions (the caller's): `targets` and `rows` (I, R) and `gram` (R, R) are C-contiguous.
// Bytes: the targets once, the rows in and out; the Gram matrix stays in the cache.
// Writes and determinism: the rows, each of which depends on itself alone; and for each block, added
//   up in double in an order that never changes, what the host decides by whether to go on.
#ifndef VALUE
#error "VALUE: float or double"
#endif
#ifndef RANK
#error "RANK: columns of the factor"
#endif
#ifndef LOAD
#error "LOAD: neighbouring numbers that are loaded at once, which divide RANK, up to 16 bytes"
#endif
#ifndef BLOCK_SIZE
#error "BLOCK_SIZE: threads of a block"
#endif

#include "sums.cuh"

// Up to here a row is in registers, since each place in it is known to the compiler.
constexpr int UNROLL = RANK <= 32 ? RANK : 1;

struct alignas(sizeof(VALUE) * LOAD) Numbers {
    VALUE at[LOAD];
};

__device__ __forceinline__ void load_row(VALUE (&row)[RANK], const VALUE* from)
{
#pragma unroll UNROLL
    for (int k = 0; k < RANK; k += LOAD) {
        const Numbers numbers = *reinterpret_cast<const Numbers*>(from + k);
#pragma unroll
        for (int i = 0; i < LOAD; ++i) row[k + i] = numbers.at[i];
    }
}

// Set each column to its minimiser while the others are held.
__device__ __forceinline__ void sweep_row(VALUE (&row)[RANK], const VALUE (&target)[RANK],
                                          const VALUE* gram, VALUE shift, VALUE ridge,
                                          VALUE smallest, VALUE& squares, int& num_changes)
{
#pragma unroll UNROLL
    for (int k = 0; k < RANK; ++k) {
        const VALUE diagonal = gram[k * RANK + k];
        if (diagonal == 0) continue;
        VALUE number = target[k] - shift;
#pragma unroll UNROLL
        for (int other = 0; other < RANK; ++other) {
            if (other != k) number -= gram[k * RANK + other] * row[other];
        }
        number /= diagonal + 2 * ridge;
        if (number < smallest) number = smallest;  // nan stays what it is
#pragma unroll UNROLL
        for (int other = 0; other < RANK; ++other) {
            squares += (row[other] - number) * (row[other] - number);
        }
        num_changes += number != row[k];
        row[k] = number;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    sweep_nonnegative(long long num_rows, const VALUE* targets, const VALUE* gram, VALUE* rows,
                      VALUE shift, VALUE ridge, VALUE smallest, double* found)
{
    const long long number = static_cast<long long>(blockIdx.x) * BLOCK_SIZE + threadIdx.x;
    VALUE squares = 0;
    int num_changes = 0;
    if (number < num_rows) {
        VALUE row[RANK], target[RANK];
        load_row(row, rows + number * RANK);
        load_row(target, targets + number * RANK);
        sweep_row(row, target, gram, shift, ridge, smallest, squares, num_changes);
#pragma unroll UNROLL
        for (int k = 0; k < RANK; k += LOAD) {
            Numbers numbers;
#pragma unroll
            for (int i = 0; i < LOAD; ++i) numbers.at[i] = row[k + i];
            *reinterpret_cast<Numbers*>(rows + number * RANK + k) = numbers;
        }
    }
    const double error = sum_of_block<BLOCK_SIZE>(squares);
    const double changes = sum_of_block<BLOCK_SIZE>(num_changes);
    if (threadIdx.x > 0) return;
    found[blockIdx.x] = error;
    found[gridDim.x + blockIdx.x] = changes;
}

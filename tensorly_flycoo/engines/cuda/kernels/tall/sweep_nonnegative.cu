// Entry: one sweep of HALS over all rows of a non-negative factor.
//
// Mapping: a thread has a row: in registers if it has few columns, otherwise in local memory.
// Preconditions (the caller's): `targets` and `rows` (I, R) and `gram` (R, R) are C-contiguous.
// Bytes: the targets once, the rows in and out; the Gram matrix is cached. None per nonzero.
// Writes and determinism: each row depends only on its old value, target and the Gram matrix. Each
//   block writes to `found` its sum of squares and number of changes, added in double in a fixed
//   order; from these the host decides whether to continue.
// Source: Cichocki and Phan, IEICE Transactions on Fundamentals E92-A(3), 2009 (fast HALS).
// MACRO VALUE: float or double
// MACRO WIDTH: columns of the factor, or a few more
// MACRO LOAD: neighbouring numbers that are loaded at once, which divide R and WIDTH, up to
//   16 bytes
// MACRO BLOCK_SIZE: threads of a block

#include "sums.cuh"

static_assert(WIDTH % LOAD == 0, "a row is whole loads");
static_assert(sizeof(VALUE) * LOAD <= 16, "a load is 16 bytes at most");

// If loops are unrolled, indices into a row are constants, so the row can be in registers.
constexpr int unroll = WIDTH <= 32 ? WIDTH : 1;

struct alignas(sizeof(VALUE) * LOAD) Numbers {
    VALUE at[LOAD];
};

__device__ __forceinline__ void load_row(VALUE (&row)[WIDTH], const VALUE* from, int rank)
{
#pragma unroll unroll
    for (int k = 0; k < WIDTH; k += LOAD) {
        if (k >= rank) break;
        const Numbers numbers = *reinterpret_cast<const Numbers*>(from + k);
#pragma unroll
        for (int i = 0; i < LOAD; ++i) row[k + i] = numbers.at[i];
    }
}

__device__ __forceinline__ void store_row(VALUE* to, const VALUE (&row)[WIDTH], int rank)
{
#pragma unroll unroll
    for (int k = 0; k < WIDTH; k += LOAD) {
        if (k >= rank) break;
        Numbers numbers;
#pragma unroll
        for (int i = 0; i < LOAD; ++i) numbers.at[i] = row[k + i];
        *reinterpret_cast<Numbers*>(to + k) = numbers;
    }
}

// Sets each column of a row to its minimiser while the others are fixed.
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    sweep_nonnegative(long long num_rows, int rank, const VALUE* targets, const VALUE* gram,
                      VALUE* rows, VALUE shift, double* found)
{
    const long long number = static_cast<long long>(blockIdx.x) * BLOCK_SIZE + threadIdx.x;
    VALUE squares = 0;
    int num_changes = 0;
    if (number < num_rows) {
        VALUE row[WIDTH], target[WIDTH];
        load_row(row, rows + number * rank, rank);
        load_row(target, targets + number * rank, rank);
#pragma unroll unroll
        for (int k = 0; k < WIDTH; ++k) {
            if (k >= rank) break;
            const VALUE diagonal = gram[k * rank + k];
            if (diagonal == 0) continue;
            VALUE updated = target[k] - shift;
#pragma unroll unroll
            for (int other = 0; other < WIDTH; ++other) {
                if (other >= rank) break;
                if (other != k) updated -= gram[k * rank + other] * row[other];
            }
            updated /= diagonal;
            if (updated < 0) updated = 0;  // nan stays nan
#pragma unroll unroll
            for (int other = 0; other < WIDTH; ++other) {
                if (other >= rank) break;
                squares += (row[other] - updated) * (row[other] - updated);
            }
            num_changes += updated != row[k];
            row[k] = updated;
        }
        store_row(rows + number * rank, row, rank);
    }
    const double error = sum_of_block<BLOCK_SIZE>(squares);
    const double changes = sum_of_block<BLOCK_SIZE>(num_changes);
    if (threadIdx.x > 0) return;
    found[blockIdx.x] = error;
    found[gridDim.x + blockIdx.x] = changes;
}

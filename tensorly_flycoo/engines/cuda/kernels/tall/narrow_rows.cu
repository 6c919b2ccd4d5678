// Entry: a tall matrix rounded to numbers that fit narrow rows (see `engines/narrow_rows.py`).
//
//   find_largest: the largest magnitude of each column.
//   find_scales: from these, the scale of each column.
//   round_rows: the narrow rows; and the matrix, in place.
//
// Mapping: a block has `rows_per_block` neighbouring rows. A warp reads neighbouring columns, and a
//   thread every (BLOCK_SIZE / NUM_COLUMNS)-th row of every NUM_COLUMNS-th column.
// Preconditions (the engine's): rows are contiguous, and `row_stride` numbers apart; `largest` begins
//   as zeros; numbers of narrow rows past the last column do not matter.
// Bytes: `find_largest` reads the matrix, `round_rows` reads and writes it and writes half as many.
//   None per nonzero.
// Writes and determinism: each number by one thread. The order in which blocks compare their
//   largest numbers, as integers by atomics, does not matter. Numbers are rounded as
//   `tests/support/narrow_row_statements.py` states.
// Source: none.
// MACRO VALUE: float or double
// MACRO NARROW: its narrow type (see narrow_rows.cuh)
// MACRO NUM_COLUMNS: columns that a block has at a time, a power of two
// MACRO BLOCK_SIZE: threads of a block
// MACRO NARROW_COPY_LAYOUT: how Python fills struct NarrowCopy (see structs.py)

#include "layout.cuh"
#include "rounding.cuh"

static_assert(BLOCK_SIZE % NUM_COLUMNS == 0, "threads have equally many columns");
constexpr int num_lanes = BLOCK_SIZE / NUM_COLUMNS;
using Bits = BitsOf<VALUE>;

struct NarrowCopy {
    VALUE* matrix;   // (num_rows, rank), rows `row_stride` numbers apart
    NARROW* rows;    // (num_rows, narrow_stride), of which the first `rank` columns matter
    VALUE* scales;   // (rank,)
    Bits* largest;   // (rank,), of each column the largest magnitude, as `find_magnitude` has it
    long long num_rows;
    long long row_stride;
    long long rows_per_block;
    int rank;
    int narrow_stride;
};
CHECK_LAYOUT(NarrowCopy, NARROW_COPY_LAYOUT)

// Calls `use(row, number)` for each row of this thread, with the number of a column. Several are
// loaded together, before what `use` stores.
template <typename Use>
__device__ __forceinline__ void for_own_rows(const NarrowCopy& copy, int column, Use use)
{
    constexpr int num_loads = 8;
    const long long start = blockIdx.x * copy.rows_per_block;
    const long long end = min(start + copy.rows_per_block, copy.num_rows);
    for (long long first = start + threadIdx.x / NUM_COLUMNS; first < end;
         first += num_loads * num_lanes) {
        VALUE values[num_loads];
#pragma unroll
        for (int n = 0; n < num_loads; ++n) {
            const long long row = min(first + n * num_lanes, end - 1);
            values[n] = copy.matrix[row * copy.row_stride + column];
        }
#pragma unroll
        for (int n = 0; n < num_loads; ++n) {
            const long long row = first + n * num_lanes;
            if (row < end) use(row, values[n]);
        }
    }
}

extern "C" __global__ void find_largest(const NarrowCopy copy)
{
    __shared__ Bits of_lanes[BLOCK_SIZE];
    for (int first = 0; first < copy.rank; first += NUM_COLUMNS) {
        const int column = first + threadIdx.x % NUM_COLUMNS;
        Bits largest = 0;
        if (column < copy.rank) {
            for_own_rows(copy, column, [&](long long, VALUE value) {
                largest = max(largest, find_magnitude(value));
            });
        }
        __syncthreads();  // others may still read earlier ones
        of_lanes[threadIdx.x] = largest;
        __syncthreads();
        if (threadIdx.x >= NUM_COLUMNS || column >= copy.rank) continue;
        for (int lane = 1; lane < num_lanes; ++lane) {
            largest = max(largest, of_lanes[lane * NUM_COLUMNS + threadIdx.x]);
        }
        atomicMax(copy.largest + column, largest);
    }
}

extern "C" __global__ void find_scales(const NarrowCopy copy)
{
    for (int column = threadIdx.x; column < copy.rank; column += BLOCK_SIZE) {
        copy.scales[column] = find_scale<VALUE>(copy.largest[column]);
    }
}

extern "C" __global__ void round_rows(const NarrowCopy copy)
{
    for (int column = threadIdx.x % NUM_COLUMNS; column < copy.rank; column += NUM_COLUMNS) {
        const Rounding<VALUE, NARROW> rounding(copy.scales[column]);
        for_own_rows(copy, column, [&](long long row, VALUE value) {
            const NARROW narrow = rounding.narrow(value);
            copy.matrix[row * copy.row_stride + column] = rounding.widen(narrow);
            copy.rows[row * copy.narrow_stride + column] = narrow;
        });
    }
}

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

#include "ids.cuh"
#include "instructions.cuh"
#include "layout.cuh"

static_assert(BLOCK_SIZE % NUM_COLUMNS == 0, "threads have equally many columns");
constexpr int num_lanes = BLOCK_SIZE / NUM_COLUMNS;

// A value, or its bits. As integers, the bits of magnitudes ascend: to infinity, then to what is not
// a number.
using Bits = decltype(unsigned_zero<sizeof(VALUE)>());
union Number {
    VALUE value;
    Bits bits;
};
constexpr bool is_wide = sizeof(VALUE) == 8;
constexpr Bits smallest_normal = Bits(1) << (is_wide ? 52 : 23);
constexpr Bits mantissa = smallest_normal - 1;
constexpr Bits magnitude = Bits(~Bits(0)) >> 1;
constexpr Bits infinity = magnitude ^ mantissa;

struct NarrowCopy {
    VALUE* matrix;   // (num_rows, rank), rows `row_stride` numbers apart
    NARROW* rows;    // (num_rows, narrow_stride), of which the first `rank` columns matter
    VALUE* scales;   // (rank,)
    Bits* largest;   // (rank,), the bits of the largest magnitude of each column
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

// The scale of a column, from the bits of its largest magnitude.
__device__ __forceinline__ VALUE find_scale(Bits largest)
{
    constexpr Bits one = Bits(is_wide ? 1023 : 127) * smallest_normal;
    constexpr Bits least = one - Bits(is_wide ? 900 : 100) * smallest_normal;
    Number scale;
    scale.bits = max((largest & infinity) + smallest_normal, least);  // the next power of two
    const Bits first_usual = one - 64 * smallest_normal, last_usual = one + 64 * smallest_normal;
    const bool is_usual = is_wide && scale.bits >= first_usual && scale.bits <= last_usual;
    if (largest == 0 || is_usual) scale.bits = one;
    if (scale.bits >= infinity) scale.bits = magnitude;  // not a number
    return scale.value;
}

// Rounds a number of a column; returns what the factor becomes.
__device__ __forceinline__ double round_number(double value, double scale, float& narrow)
{
    const double number = value / scale;
    narrow = fabs(number) < 0x1p-126 ? 0.0f : round_to<float>(number);
    return narrow * scale;
}

__device__ __forceinline__ float round_number(float value, float scale, unsigned short& narrow)
{
    const float unit = scale / 32768;
    const float number = max(min(value / unit, 32767.0f), -32767.0f);  // 32767 if that is nan
    const float fixed = rint(number) + 0.0f;                           // 0, not -0
    narrow = static_cast<int>(fixed) + 32768;
    return fixed * unit;
}

extern "C" __global__ void find_largest(const NarrowCopy copy)
{
    __shared__ Bits of_lanes[BLOCK_SIZE];
    for (int first = 0; first < copy.rank; first += NUM_COLUMNS) {
        const int column = first + threadIdx.x % NUM_COLUMNS;
        Bits largest = 0;
        if (column < copy.rank) {
            for_own_rows(copy, column, [&](long long, VALUE value) {
                largest = max(largest, Number{value}.bits & magnitude);
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
        copy.scales[column] = find_scale(copy.largest[column]);
    }
}

extern "C" __global__ void round_rows(const NarrowCopy copy)
{
    for (int column = threadIdx.x % NUM_COLUMNS; column < copy.rank; column += NUM_COLUMNS) {
        const VALUE scale = copy.scales[column];
        for_own_rows(copy, column, [&](long long row, VALUE value) {
            NARROW narrow;
            copy.matrix[row * copy.row_stride + column] = round_number(value, scale, narrow);
            copy.rows[row * copy.narrow_stride + column] = narrow;
        });
    }
}

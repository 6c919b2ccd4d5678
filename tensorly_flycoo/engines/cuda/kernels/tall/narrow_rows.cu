// Entry: the narrow copy of a tall matrix (see `engines/narrow_rows.py`).
//
//   find_largest: the largest magnitude of each column.
//   store_narrow: the scale of each column, unless it is given, and the copy.
//
// Mapping: a block has `rows_per_block` neighbouring rows. A warp reads neighbouring columns, and a
//   thread every (BLOCK_SIZE / NUM_COLUMNS)-th row of every NUM_COLUMNS-th column.
// Preconditions (the engine's): rows are contiguous, and `row_stride` numbers apart; `largest` is
//   null, if the scales are given, or begins as zeros.
// Bytes: `find_largest` reads the matrix, `store_narrow` reads it and writes half as many. None per
//   nonzero.
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
    const VALUE* matrix;  // (num_rows, rank), rows `row_stride` numbers apart
    NARROW* rows;         // (num_rows, narrow_stride), of which the first `rank` columns matter
    VALUE* scales;        // (rank,)
    Bits* largest;        // (rank,), the bits of the largest magnitude of each column
    long long num_rows;
    long long row_stride;
    long long rows_per_block;
    int rank;
    int narrow_stride;
};
CHECK_LAYOUT(NarrowCopy, NARROW_COPY_LAYOUT)

// Calls `use(row, number)` for each row of this thread, with the number of a column.
template <typename Use>
__device__ __forceinline__ void for_own_rows(const NarrowCopy& copy, int column, Use use)
{
    const long long start = blockIdx.x * copy.rows_per_block;
    const long long end = min(start + copy.rows_per_block, copy.num_rows);
#pragma unroll 4
    for (long long row = start + threadIdx.x / NUM_COLUMNS; row < end; row += num_lanes) {
        // Several are loaded together: these loads need not wait for what `use` stores.
        use(row, __ldg(copy.matrix + row * copy.row_stride + column));
    }
}

__device__ __forceinline__ VALUE find_scale(Bits largest)
{
    if (largest < smallest_normal) return 0;
    Number scale;
    scale.bits = largest;
    if (is_wide) {
        scale.bits = (largest + mantissa) & infinity;  // the least power of two that is not less
    } else {
        const VALUE ratio = 32768.0 / 32767, least = 0x1p-110;  // 32768 / least is finite
        scale.value = max(scale.value * ratio, least);
    }
    if (largest >= infinity || scale.bits >= infinity) scale.bits = magnitude;  // not a number
    return scale.value;
}

// What the numbers of a column are multiplied by before they are rounded.
__device__ __forceinline__ VALUE find_multiplier(VALUE value)
{
    const Number scale{value};
    const VALUE one = is_wide ? 1 : 32768;
    return scale.bits > 0 && scale.bits < infinity ? one / value : 0;
}

// Rounds to float; 0 if that would be subnormal.
__device__ __forceinline__ float narrow(double number)
{
    return fabs(number) < 0x1p-126 ? 0.0f : round_to<float>(number);
}

// Rounds to fixed point; to the largest if it is not a number.
__device__ __forceinline__ unsigned short narrow(float number)
{
    const float inside = max(min(number, 32767.0f), -32767.0f);
    return static_cast<int>(rint(inside)) + 32768;
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

extern "C" __global__ void store_narrow(const NarrowCopy copy)
{
    const int lane = threadIdx.x / NUM_COLUMNS;
    const bool writes_scales = copy.largest && blockIdx.x == 0 && lane == 0;
    for (int column = threadIdx.x % NUM_COLUMNS; column < copy.narrow_stride;
         column += NUM_COLUMNS) {
        const int source = min(column, copy.rank - 1);  // past the rank, the last column again
        const VALUE scale = copy.largest ? find_scale(copy.largest[source]) : copy.scales[source];
        const VALUE multiplier = find_multiplier(scale);
        if (writes_scales && column == source) copy.scales[column] = scale;
        for_own_rows(copy, source, [&](long long row, VALUE value) {
            copy.rows[row * copy.narrow_stride + column] = narrow(value * multiplier);
        });
    }
}

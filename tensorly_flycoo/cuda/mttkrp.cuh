// MTTKRP of one tile, from records in shared memory.
//
// Mapping: a group of GROUP_SIZE lanes has a run of consecutive places of the tile; a lane has
//   LANE_COLUMNS neighbouring columns. Blocks along y have further columns where there are more
//   than a group holds.
// Preconditions (the engine's): factors are C-contiguous with `rank` columns, rank divisible by
//   LANE_COLUMNS, and aligned to a lane's load; `carry_rows` says which row a tile inherits.
// Bytes per nonzero: NUM_INPUTS rows of `rank` values; a row of `out` is written once.
// Writes and determinism: no atomics. Each row is written by the group in which it begins, which
//   adds what the groups after it in the tile found of it, in their order; what belongs to a row of
//   an earlier tile goes to `partial_rows`. The order of all additions follows from the order of
//   the nonzeros, TILE_SIZE and the rank alone.
// Source: Wijeratne, Kannan, Prasanna, Computing Frontiers 2024, Algorithm 2 (elementwise
//   computation).
#pragma once

#include "operands.cuh"
#include "tiles.cuh"

#ifndef LANE_COLUMNS
#error "LANE_COLUMNS: columns of a lane, 1, 2 or 4"
#endif
#ifndef GROUP_SIZE
#error "GROUP_SIZE: lanes of a group, a power of two up to 32"
#endif
#ifndef BATCH
#error "BATCH: nonzeros whose rows are loaded together"
#endif

constexpr int NUM_GROUPS = BLOCK_SIZE / GROUP_SIZE;
constexpr int RUN = TILE_SIZE / NUM_GROUPS;
static_assert(32 % GROUP_SIZE == 0, "a group lies inside a warp");
static_assert(RUN % BATCH == 0, "a run is whole batches");

struct alignas(sizeof(VALUE) * LANE_COLUMNS) Columns {
    VALUE at[LANE_COLUMNS];
};

// Said by name, so that it does not depend on what a compiler contracts.
template <typename T>
__device__ __forceinline__ T fused(T a, T b, T c);
template <>
__device__ __forceinline__ float fused(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
template <>
__device__ __forceinline__ double fused(double a, double b, double c)
{
    return __fma_rn(a, b, c);
}

__device__ __forceinline__ Columns zeros()
{
    Columns columns;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) columns.at[c] = 0;
    return columns;
}

__device__ __forceinline__ void add(Columns& total, const Columns& columns)
{
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) total.at[c] += columns.at[c];
}

// What groups tell each other about the row that they share with the group before.
struct Carries {
    Columns sums[BLOCK_SIZE];          // by thread
    bool inherits[NUM_GROUPS];         // the run begins with the row that the one before ends with
    bool is_one_row[NUM_GROUPS];       // and that row fills all of it
};

// The sum of a row goes on in the groups after `group`, as long as they inherit it.
__device__ __forceinline__ void add_following(Columns& total, const Carries& carries, int group)
{
    const int lane = threadIdx.x % GROUP_SIZE;
    for (int next = group + 1; next < NUM_GROUPS && carries.inherits[next]; ++next) {
        add(total, carries.sums[next * GROUP_SIZE + lane]);
        if (!carries.is_one_row[next]) break;
    }
}

__device__ __forceinline__ void compute_tile(const Piece* shared, Carries& carries,
                                             const Operands& operands, bool tile_inherits,
                                             long long tile, int count, int rank, int column,
                                             bool is_active, VALUE* out, VALUE* partial_rows)
{
    const int group = threadIdx.x / GROUP_SIZE;
    const int begin = group * RUN, end = min(begin + RUN, count);
    const auto record_at = [&](int place) {
        return reinterpret_cast<const unsigned*>(shared + slot_of<RUN>(place) * PIECES);
    };
    const auto store = [&](VALUE* target, long long row, const Columns& columns) {
        if (is_active) *reinterpret_cast<Columns*>(target + row * rank + column) = columns;
    };

    bool inherits = false, is_first_row = true;
    unsigned row = 0;
    if (begin < end) {
        row = read_row(record_at(begin), operands.out_field);
        inherits = group == 0 ? tile_inherits
                              : row == read_row(record_at(begin - 1), operands.out_field);
    }
    Columns total = zeros();
    for (int start = begin; start < end; start += BATCH) {
        Columns products[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) products[b] = zeros();
#pragma unroll
        for (int n = 0; n < NUM_INPUTS; ++n) {
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (start + b < end && is_active) {
                    const long long input_row =
                        read_row(record_at(start + b), operands.input_fields[n]);
                    const Columns columns = *reinterpret_cast<const Columns*>(
                        operands.factors[n] + input_row * rank + column);
#pragma unroll
                    for (int c = 0; c < LANE_COLUMNS; ++c) {
                        products[b].at[c] =
                            n == 0 ? columns.at[c] : products[b].at[c] * columns.at[c];
                    }
                }
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            if (start + b < end) {
                const unsigned* record = record_at(start + b);
                const unsigned next_row = read_row(record, operands.out_field);
                if (next_row != row) {
                    if (is_first_row && inherits) {
                        carries.sums[threadIdx.x] = total;
                    } else {
                        store(out, row, total);
                    }
                    total = zeros();
                    row = next_row;
                    is_first_row = false;
                }
                const VALUE value = read_value(record, operands);
#pragma unroll
                for (int c = 0; c < LANE_COLUMNS; ++c) {
                    const VALUE product = NUM_INPUTS == 0 ? VALUE(1) : products[b].at[c];
                    total.at[c] = fused(value, product, total.at[c]);
                }
            }
        }
    }
    const bool is_one_row = inherits && is_first_row;
    if (is_one_row) carries.sums[threadIdx.x] = total;
    if (threadIdx.x % GROUP_SIZE == 0) {
        carries.inherits[group] = inherits;
        carries.is_one_row[group] = is_one_row;
    }
    __syncthreads();
    if (begin < end && !is_one_row) {
        add_following(total, carries, group);
        store(out, row, total);
    }
    if (group == 0 && inherits) {
        total = carries.sums[threadIdx.x];
        if (is_one_row) add_following(total, carries, group);
        store(partial_rows, tile, total);
    }
}

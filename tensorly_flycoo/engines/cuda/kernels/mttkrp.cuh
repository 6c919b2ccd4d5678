// MTTKRP of one tile, from records in shared memory.
//
// Mapping: a group of GROUP_SIZE lanes has a run of consecutive places of the tile. A lane has
//   LANE_LOADS times LOAD_COLUMNS neighbouring columns; with each of its loads the group reads
//   neighbouring columns. Blocks along y have further columns where there are more than a group
//   holds.
// Preconditions (the engine's): rows of factors are aligned to a load, and as long as whole loads,
//   whatever stands behind the last column; rows of `out` and `partial_rows` follow each other and
//   are aligned to a store; `carry_rows` says which row a tile inherits.
// Bytes per nonzero: NUM_INPUTS rows of `rank` values; a row of `out` is written once.
// Writes and determinism: no atomics. Each row is written by the group in which it begins, which
//   adds what the groups after it in the tile found of it, in their order; what belongs to a row of
//   an earlier tile goes to `partial_rows`. The order of all additions follows from the order of
//   the nonzeros, TILE_SIZE and the rank alone, not from the alignment.
// Source: Wijeratne, Kannan, Prasanna, Computing Frontiers 2024, Algorithm 2 (elementwise
//   computation).
#pragma once

#ifndef LOAD_COLUMNS
#error "LOAD_COLUMNS: columns that one load brings, 1, 2 or 4"
#endif
#ifndef STORE_COLUMNS
#error "STORE_COLUMNS: columns that one store writes, 1, 2 or 4, and at most LOAD_COLUMNS"
#endif
#ifndef LANE_LOADS
#error "LANE_LOADS: loads that a lane makes of a row, 1, 2 or 4"
#endif
#ifndef GROUP_SIZE
#error "GROUP_SIZE: lanes of a group, a power of two up to 32"
#endif
#ifndef BATCH
#error "BATCH: nonzeros whose rows are loaded together"
#endif

#include "macros.cuh"

constexpr int NUM_GROUPS = BLOCK_SIZE / GROUP_SIZE;
constexpr int RUN = TILE_SIZE / NUM_GROUPS;
constexpr int LANE_COLUMNS = LOAD_COLUMNS * LANE_LOADS;
constexpr int GROUP_LOAD_COLUMNS = GROUP_SIZE * LOAD_COLUMNS;
static_assert(32 % GROUP_SIZE == 0, "a group lies inside a warp");
static_assert(RUN % BATCH == 0, "a run is whole batches");
static_assert(LOAD_COLUMNS % STORE_COLUMNS == 0, "what one load brings is whole stores");

#include "nonzeros.cuh"

struct alignas(sizeof(VALUE) * LANE_COLUMNS) Columns {
    VALUE at[LANE_COLUMNS];
};

struct alignas(sizeof(VALUE) * LOAD_COLUMNS) Load {
    VALUE at[LOAD_COLUMNS];
};

struct alignas(sizeof(VALUE) * STORE_COLUMNS) Store {
    VALUE at[STORE_COLUMNS];
};

// The first of a lane's columns. Its loads are GROUP_LOAD_COLUMNS apart.
__device__ __forceinline__ int first_column()
{
    return blockIdx.y * GROUP_SIZE * LANE_COLUMNS + threadIdx.x % GROUP_SIZE * LOAD_COLUMNS;
}

// Lanes without columns of their own read the last ones too where that takes one load, which then
// needs no condition.
__device__ __forceinline__ int readable_column(int column, int rank)
{
    return LANE_LOADS == 1 ? min(column, (rank - 1) / LOAD_COLUMNS * LOAD_COLUMNS) : column;
}

// Reads a lane's columns of the row whose readable column is at `source`.
__device__ __forceinline__ Columns read_columns(const char* source, int column, int rank)
{
    Columns columns;
#pragma unroll
    for (int l = 0; l < LANE_LOADS; ++l) {
        Load load = {};
        if (LANE_LOADS == 1 || column + l * GROUP_LOAD_COLUMNS < rank) {
            load = reinterpret_cast<const Load*>(source)[l * GROUP_SIZE];
        }
#pragma unroll
        for (int c = 0; c < LOAD_COLUMNS; ++c) columns.at[l * LOAD_COLUMNS + c] = load.at[c];
    }
    return columns;
}

// Writes a lane's columns to the row at `target`, as many as there are.
__device__ __forceinline__ void write_columns(VALUE* target, int column, int rank,
                                              const Columns& columns)
{
#pragma unroll
    for (int first = 0; first < LANE_COLUMNS; first += STORE_COLUMNS) {
        Store store;
#pragma unroll
        for (int c = 0; c < STORE_COLUMNS; ++c) store.at[c] = columns.at[first + c];
        const int place =
            column + first / LOAD_COLUMNS * GROUP_LOAD_COLUMNS + first % LOAD_COLUMNS;
        if (place < rank) *reinterpret_cast<Store*>(target + place) = store;
    }
}

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

// Loads and multiplies the rows of a batch; places past the end of a tile read entries of zeros.
__device__ __forceinline__ void multiply_rows(Columns (&products)[BATCH],
                                              SlotPiece* slots, int start,
                                              const Operands& operands,
                                              const char* const (&factors)[MAX_INPUTS],
                                              int column, int rank)
{
    Entry entries[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) entries[b] = read_entry(slots, start + b);
#pragma unroll
    for (int n = 0; n < NUM_INPUTS; ++n) {
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const unsigned long long offset =
                static_cast<unsigned long long>(entries[b].input_row(n)) *
                operands.row_nbytes[n];
            const Columns columns = read_columns(factors[n] + offset, column, rank);
#pragma unroll
            for (int c = 0; c < LANE_COLUMNS; ++c) {
                products[b].at[c] = n == 0 ? columns.at[c] : products[b].at[c] * columns.at[c];
            }
        }
    }
}

__device__ __forceinline__ void point_at_columns(const char* (&factors)[MAX_INPUTS],
                                                 const Operands& operands, int column, int rank)
{
#pragma unroll
    for (int n = 0; n < NUM_INPUTS; ++n) {
        const VALUE* first = operands.factors[n] + readable_column(column, rank);
        factors[n] = reinterpret_cast<const char*>(first);
    }
}

__device__ __forceinline__ void compute_tile(SlotPiece* slots, Carries& carries,
                                             const Operands& operands, bool tile_inherits,
                                             long long tile, int count, int rank, int column,
                                             VALUE* out, VALUE* partial_rows)
{
    const int group = threadIdx.x / GROUP_SIZE;
    const int begin = group * RUN, end = min(begin + RUN, count);
    const char* factors[MAX_INPUTS];
    point_at_columns(factors, operands, column, rank);
    const auto store = [&](VALUE* target, long long row, const Columns& columns) {
        write_columns(target + row * rank, column, rank, columns);
    };

    bool inherits = false, is_first_row = true;
    unsigned row = 0;
    if (begin < end) {
        row = read_entry(slots, begin).out_row();
        inherits = group == 0 ? tile_inherits : row == read_entry(slots, begin - 1).out_row();
    }
    Columns total = zeros();
    for (int start = begin; start < end; start += BATCH) {
        Columns products[BATCH];
        multiply_rows(products, slots, start, operands, factors, column, rank);
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            if (start + b >= end) break;
            // Read again rather than kept: registers are what limits a batch.
            const Entry entry = read_entry(slots, start + b);
            if (entry.out_row() != row) {
                ASSERT(entry.out_row() > row);
                if (is_first_row && inherits) {
                    carries.sums[threadIdx.x] = total;
                } else {
                    store(out, row, total);
                }
                total = zeros();
                row = entry.out_row();
                is_first_row = false;
            }
#pragma unroll
            for (int c = 0; c < LANE_COLUMNS; ++c) {
                const VALUE product = NUM_INPUTS == 0 ? VALUE(1) : products[b].at[c];
                total.at[c] = fused(entry.value(), product, total.at[c]);
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

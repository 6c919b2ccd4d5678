// Entry: TTMc of one mode: each nonzero adds the Kronecker product of the rows of its other factors,
// times its value, to the columns of its output row.
//
// Mapping: a block has a tile, whose nonzeros are unpacked in shared memory. A group of GROUP_SIZE
//   threads has a run of consecutive places of it, a thread LANE_COLUMNS columns that lie GROUP_SIZE
//   apart. Blocks along y have further columns where there are more than a group holds.
// Preconditions (the engine's): columns of a factor's row follow each other; `columns` is the product
//   of the ranks; `slots`, if any, has the row of `out` of each index that has nonzeros.
// Bytes per nonzero: a record once for each block along y, and for each thread NUM_INPUTS values a
//   column, which neighbours share; a row of `out` is written once.
// Writes and determinism: no atomics. A row is written by the group in which it begins. What other
//   groups find of it goes to `partial_rows`, a row for each run, and its row of `out` to
//   `run_rows` (-1 where a run inherits nothing), to be added in the order of the runs by
//   `partial_rows.cu`. So the order of additions follows from the nonzeros, TILE_SIZE and GROUP_SIZE.
// Source: none; the tiles are those of `mttkrp.cu`.
#ifndef GROUP_SIZE
#error "GROUP_SIZE: threads of a group, a power of two up to BLOCK_SIZE"
#endif
#ifndef LANE_COLUMNS
#error "LANE_COLUMNS: columns of a thread"
#endif
#ifndef MIN_BLOCKS
#error "MIN_BLOCKS: blocks of a multiprocessor that registers should be enough for"
#endif
#ifndef SLOT_ID
#error "SLOT_ID: unsigned type of slots"
#endif
#ifndef PULL
#error "PULL: 1 or 0, whether records are pulled through ids"
#endif

#include "macros.cuh"

constexpr int NUM_GROUPS = BLOCK_SIZE / GROUP_SIZE;
constexpr int RUN = TILE_SIZE / NUM_GROUPS;
static_assert(NUM_GROUPS * RUN == TILE_SIZE, "runs are a tile");

#include "nonzeros.cuh"
#include "tiles.cuh"

struct Ranks {
    int at[MAX_INPUTS];
};

// For each of a thread's columns, the column of each factor; columns past the last one read the
// first, and are not written.
struct FactorColumns {
    int at[LANE_COLUMNS][MAX_INPUTS];
};

__device__ __forceinline__ FactorColumns split_columns(long long column, long long columns,
                                                       const Ranks& ranks)
{
    FactorColumns split;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) {
        long long rest = column + c * GROUP_SIZE;
        if (rest >= columns) rest = 0;
#pragma unroll
        for (int n = NUM_INPUTS - 1; n >= 0; --n) {
            split.at[c][n] = static_cast<int>(rest % ranks.at[n]);
            rest /= ranks.at[n];
        }
    }
    return split;
}

struct Totals {
    VALUE at[LANE_COLUMNS];
};

__device__ __forceinline__ void add_nonzero(Totals& totals, const Entry& entry,
                                            const Operands& operands,
                                            const FactorColumns& split)
{
    Totals products;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) products.at[c] = 1;
#pragma unroll
    for (int n = 0; n < NUM_INPUTS; ++n) {
        const unsigned long long offset =
            static_cast<unsigned long long>(entry.input_row(n)) * operands.row_nbytes[n];
        const VALUE* row = reinterpret_cast<const VALUE*>(
            reinterpret_cast<const char*>(operands.factors[n]) + offset);
#pragma unroll
        for (int c = 0; c < LANE_COLUMNS; ++c) products.at[c] *= row[split.at[c][n]];
    }
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) {
        // Said by name, so that it does not depend on what a compiler contracts.
        totals.at[c] = fma(entry.value(), products.at[c], totals.at[c]);
    }
}

// Writes the totals to a row, and clears them.
__device__ __forceinline__ void store(VALUE* target, long long column, long long columns,
                                      Totals& totals)
{
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) {
        const long long own = column + c * GROUP_SIZE;
        if (own < columns) target[own] = totals.at[c];
        totals.at[c] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, MIN_BLOCKS)
    ttmc(long long first_tile, const Operands operands, const Ranks ranks, long long nnz,
         long long bucket_size, const long long* carry_rows, const SLOT_ID* slots,
         const Piece* records, const PULL_ID* pull_ids, long long columns, VALUE* out,
         long long* run_rows, VALUE* partial_rows)
{
    extern __shared__ uint4 shared[];
    SlotPiece* places = reinterpret_cast<SlotPiece*>(shared);
    const long long tile = first_tile + blockIdx.x, first = tile * TILE_SIZE;
    const int count = static_cast<int>(min(static_cast<long long>(TILE_SIZE), nnz - first));
    const long long base = PULL ? bucket_start(first, bucket_size) : first;
    pull_records(places, records + base * PIECES, nnz - base, PULL ? pull_ids + first : nullptr,
                 count);

    const int group = threadIdx.x / GROUP_SIZE, lane = threadIdx.x % GROUP_SIZE;
    const long long column =
        static_cast<long long>(blockIdx.y) * (GROUP_SIZE * LANE_COLUMNS) + lane;
    const FactorColumns split = split_columns(column, columns, ranks);
    const auto row_of = [&](unsigned index) {
        return slots ? static_cast<long long>(slots[index]) : static_cast<long long>(index);
    };
    wait_for_copies();
    unpack_tile(places, count, operands);
    __syncthreads();

    const long long run = tile * NUM_GROUPS + group;
    const int begin = group * RUN, end = min(begin + RUN, count);
    bool inherits = false;
    unsigned index = 0;
    if (begin < end) {
        index = read_entry(places, begin).out_row();
        inherits = group == 0 ? carry_rows[tile] >= 0
                              : index == read_entry(places, begin - 1).out_row();
    }
    if (blockIdx.y == 0 && lane == 0) run_rows[run] = inherits ? row_of(index) : -1;
    Totals totals = {};
    const auto flush = [&]() {
        VALUE* target = inherits ? partial_rows + run * columns : out + row_of(index) * columns;
        store(target, column, columns, totals);
        inherits = false;
    };
    for (int place = begin; place < end; ++place) {
        const Entry entry = read_entry(places, place);
        if (entry.out_row() != index) {
            ASSERT(entry.out_row() > index);
            flush();
            index = entry.out_row();
        }
        add_nonzero(totals, entry, operands, split);
    }
    if (begin < end) flush();
}

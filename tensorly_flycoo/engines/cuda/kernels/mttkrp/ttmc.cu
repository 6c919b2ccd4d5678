// Entry: TTMc of one mode. Each nonzero adds the Kronecker product of the rows of its input modes'
// factors, times its value, to the columns of its output row.
//
// Mapping: a block has a tile; thread t moves the records t, t + BLOCK_SIZE, ... of it. A group of
//   GROUP_SIZE threads has a run of consecutive places; a thread has LANE_COLUMNS columns,
//   GROUP_SIZE apart. If a group holds too few columns, blocks along y have the remaining ones.
// Preconditions. The layout's: as for `mttkrp_remap.cu`. The engine's: the columns of a factor's
//   row are contiguous; `columns` is the product of the ranks; `slots` is null, or maps each index
//   that has nonzeros to a row of `out`. A debug build (`assertions.cuh`) checks ids and rows.
// Bytes per nonzero: for each block along y a record, and with PULL sizeof(PULL_ID); for each
//   column NUM_INPUTS values, which neighbouring threads share. And each row of `out` once.
// Writes and determinism: no atomics. A row is written by the group in which it begins. The other
//   groups write their sums for it to `partial_rows`, one row for each run, and its row of `out` to
//   `run_rows` (-1 if a run inherits nothing); `partial_rows.cu` adds them in the order of the
//   runs. So the order of additions follows from the nonzeros, TILE_SIZE and GROUP_SIZE.
// Source: none; the tiles are those of `mttkrp_remap.cu`.
// MACRO VALUE: float or double, the type of values and factors
// MACRO NUM_INPUTS: modes whose factors are read, ndim - 1
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a block
// MACRO GROUP_SIZE: threads of a group, a power of two up to BLOCK_SIZE
// MACRO LANE_COLUMNS: columns of a thread
// MACRO MIN_BLOCKS: blocks of a multiprocessor that registers should be enough for
// MACRO PULL_ID: unsigned type of the low bits of pull ids
// MACRO PULL_HIGH_BITS: number of their other bits, if they are packed
// MACRO SLOT_ID: unsigned type of slots
// MACRO PULL: PLACES, IN_ORDER or PACKED, the pull ids (see ids.cuh)
// MACRO SLOT_NBYTES: bytes of a place in shared memory, as Python reserves them
// MACRO FIELD_LAYOUT: how Python fills struct Field (see structs.py)
// MACRO OPERANDS_LAYOUT: how Python fills struct Operands (see structs.py)
// MACRO RANKS_LAYOUT: how Python fills struct Ranks (see structs.py)

#include "layout.cuh"
#include "nonzeros.cuh"
#include "remap.cuh"

using TileNonzeros = Nonzeros<VALUE, NUM_INPUTS, NUM_WORDS, TILE_SIZE, BLOCK_SIZE, GROUP_SIZE>;
using TileSlots = TileNonzeros::Slots;
using TileOperands = TileNonzeros::Operands;
using TileSources = Sources<PULL, PULL_ID, PULL_HIGH_BITS, TILE_SIZE, BLOCK_SIZE>;
static_assert(TileSlots::slot_nbytes == SLOT_NBYTES, "structs.py: size of slots differs");
static_assert(LANE_COLUMNS > 0, "a thread has a column");

// The number of columns of each factor. Filled by Python (`structs.py`) and passed by value.
struct Ranks {
    int at[TileOperands::max_inputs];
};
CHECK_LAYOUT(Field, FIELD_LAYOUT)
CHECK_LAYOUT(TileOperands, OPERANDS_LAYOUT)
CHECK_LAYOUT(Ranks, RANKS_LAYOUT)

// For each of a thread's columns, that of each factor; past the last column, the first.
struct FactorColumns {
    int at[LANE_COLUMNS][TileOperands::max_inputs];

    __device__ __forceinline__ FactorColumns(long long column, long long columns,
                                             const Ranks& ranks)
    {
#pragma unroll
        for (int c = 0; c < LANE_COLUMNS; ++c) {
            long long rest = column + c * GROUP_SIZE;
            if (rest >= columns) rest = 0;
#pragma unroll
            for (int n = NUM_INPUTS - 1; n >= 0; --n) {
                at[c][n] = static_cast<int>(rest % ranks.at[n]);
                rest /= ranks.at[n];
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, MIN_BLOCKS)
    ttmc(long long first_tile, const TileOperands operands, const Ranks ranks, long long nnz,
         long long bucket_size, const long long* carry_rows, const SLOT_ID* slots,
         const TileSlots::Piece* records, const void* pull_ids, const void* pull_highs,
         long long columns, VALUE* out, long long* run_rows, VALUE* partial_rows)
{
    extern __shared__ uint4 shared[];
    const TileSlots places{reinterpret_cast<TileSlots::SlotPiece*>(shared)};
    const long long tile = first_tile + blockIdx.x, first = tile * TILE_SIZE;
    const int count = count_places<TILE_SIZE>(first, nnz);
    const long long base = PULL == PLACES ? first : bucket_start(first, bucket_size);
    TileSources::Id sources[TileSources::moves];
    TileSources{pull_ids, pull_highs}.read(sources, tile, count);
    pull_records(places, records + base * TileSlots::record_pieces, nnz - base, sources, count);

    const int group = threadIdx.x / GROUP_SIZE, lane = threadIdx.x % GROUP_SIZE;
    const long long column =
        static_cast<long long>(blockIdx.y) * (GROUP_SIZE * LANE_COLUMNS) + lane;
    const FactorColumns split(column, columns, ranks);
    const auto row_of = [&](unsigned index) {
        return slots ? static_cast<long long>(slots[index]) : static_cast<long long>(index);
    };
    wait_for_copies();
    TileNonzeros::unpack(places, count, operands);
    __syncthreads();

    const long long run_number = tile * TileNonzeros::num_groups + group;
    const int begin = group * TileNonzeros::run, end = min(begin + TileNonzeros::run, count);
    bool inherits = false;
    unsigned index = 0;
    if (begin < end) {
        index = TileNonzeros::read(places, begin).out_row();
        inherits = group == 0 ? carry_rows[tile] >= 0
                              : index == TileNonzeros::read(places, begin - 1).out_row();
    }
    if (blockIdx.y == 0 && lane == 0) run_rows[run_number] = inherits ? row_of(index) : -1;
    VALUE totals[LANE_COLUMNS] = {};
    const auto flush = [&]() {
        VALUE* target =
            inherits ? partial_rows + run_number * columns : out + row_of(index) * columns;
#pragma unroll
        for (int c = 0; c < LANE_COLUMNS; ++c) {
            const long long own = column + c * GROUP_SIZE;
            if (own < columns) target[own] = totals[c];
            totals[c] = 0;
        }
        inherits = false;
    };
    for (int place = begin; place < end; ++place) {
        const TileNonzeros::Entry entry = TileNonzeros::read(places, place);
        if (entry.out_row() != index) {
            ASSERT(entry.out_row() > index);
            flush();
            index = entry.out_row();
        }
        VALUE products[LANE_COLUMNS];
#pragma unroll
        for (int c = 0; c < LANE_COLUMNS; ++c) products[c] = 1;
#pragma unroll
        for (int n = 0; n < NUM_INPUTS; ++n) {
            const unsigned long long offset =
                static_cast<unsigned long long>(entry.input_row(n)) * operands.row_nbytes[n];
            const VALUE* row = reinterpret_cast<const VALUE*>(
                static_cast<const char*>(operands.factors[n]) + offset);
#pragma unroll
            for (int c = 0; c < LANE_COLUMNS; ++c) products[c] *= row[split.at[c][n]];
        }
#pragma unroll
        for (int c = 0; c < LANE_COLUMNS; ++c) {
            // Explicit, so that the result does not depend on what a compiler contracts.
            totals[c] = fma(entry.value(), products[c], totals[c]);
        }
    }
    if (begin < end) flush();
}

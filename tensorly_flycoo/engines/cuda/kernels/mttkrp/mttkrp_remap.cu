// Entry: MTTKRP of one mode; with REMAP also dynamic remapping to the next mode's storage. With
//   RATIOS values are first divided or multiplied by those of a CP model (`ratios.cuh`). Factors may
//   have narrow rows (`narrow_rows.cuh`): results are those of whole rows of the same numbers.
//
// Mapping: a block has a tile, and its share of the rows without a nonzero. Thread t moves the
//   records t, t + BLOCK_SIZE, ... of the tile. A group of GROUP_SIZE lanes has a run of
//   consecutive places; a lane has LANE_LOADS times LOAD_COLUMNS of the R columns. If a group holds
//   fewer than R, blocks along y have the remaining columns.
// Preconditions. The layout's: pull ids are positions inside the tile's bucket, or in the whole
//   copy; the write order is a permutation of a tile's places; remap ids are unique, and ascend in
//   a tile; `carry_rows` has the row that a tile inherits, or -1. The engine's: a bucket's size is
//   a power of two; rows of factors are aligned to a load, and readable up to whole loads (the
//   contents past the last column do not matter); rows of a block of `out`, which this GPU can
//   write to wherever it is, and those of `partial_rows` are contiguous
//   and aligned to a store; `weights` has R numbers, or is null; `model_factor`, that of the
//   output's mode, is as the others, and non-negative if it divides; `log_sums` has a number for
//   each tile and warp. A debug build (`assertions.cuh`) checks ids and rows.
// Bytes per nonzero: a record in, and NUM_INPUTS rows of R values, narrow ones half as long; without
//   PLACES a pull id (18 bits for buckets of 2^18); with REMAP a record out, a place of the write
//   order (12 bits for tiles of 2048), 1.5 bits, and sizeof(REMAP_ID) for each run. In addition, each
//   row of `out` once, and with RATIOS each row of `model_factor`; if blocks along y share columns,
//   each reads all.
// Writes and determinism: no atomics. A row is written by the group in which it begins, which adds
//   the carry-outs of the groups after it in their order; the carry-out of a row of an earlier tile
//   goes to `partial_rows`. The order of all additions follows from the order of the nonzeros,
//   TILE_SIZE and R alone, not from the alignment. So do those of logarithms: a lane has one in
//   GROUP_SIZE nonzeros, and the lanes of a warp are added in pairs. Remap ids are unique: each
//   record of `spare` is written once.
// Source: Wijeratne, Kannan, Prasanna, Computing Frontiers 2024, Algorithms 2 (elementwise
//   computation) and 5 (dynamic remapping, here in two levels: see README.md).
// MACRO VALUE: float or double, the type of values and results
// MACRO FACTOR: the type of numbers of factors: VALUE, or its narrow one (see narrow_rows.cuh)
// MACRO NUM_INPUTS: modes whose factors are read, ndim - 1
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a block
// MACRO GROUP_SIZE: lanes of a group, a power of two up to 32
// MACRO LOAD_COLUMNS: columns that one load brings, 1, 2 or 4
// MACRO STORE_COLUMNS: columns that one store writes, 1, 2 or 4, and at most LOAD_COLUMNS
// MACRO LANE_LOADS: loads that a lane makes of a row, 1, 2 or 4
// MACRO NUM_PARTS: blocks along y, which share the columns; it matters with RATIOS
// MACRO IS_WHOLE: 1 or 0, whether all columns of all lanes are among the R; it matters with RATIOS
// MACRO BATCH: nonzeros whose rows are loaded together
// MACRO MIN_BLOCKS: blocks of a multiprocessor that registers should be enough for
// MACRO PULL_ID: unsigned type of the low bits of pull ids
// MACRO PULL_HIGH_BITS: number of their other bits, if they are packed
// MACRO WRITE: unsigned type of the low bits of the write order
// MACRO WRITE_HIGH_BITS: number of its other bits
// MACRO REMAP_ID: unsigned type of remap ids
// MACRO OUT_BLOCKS: blocks of rows of the result
// MACRO EMPTY_ROW: unsigned type of the list of empty rows
// MACRO PULL: PLACES, IN_ORDER or PACKED, the pull ids (see ids.cuh)
// MACRO REMAP: 1 or 0, whether records are pushed to the next mode's storage
// MACRO RATIOS: a RatioKind, what is done with the values of a model (see ratios.cuh)
// MACRO SLOT_NBYTES: bytes of a place in shared memory, as Python reserves them
// MACRO FIELD_LAYOUT: how Python fills struct Field (see structs.py)
// MACRO OPERANDS_LAYOUT: how Python fills struct Operands (see structs.py)
// MACRO ROW_BLOCKS_LAYOUT: how Python fills struct RowBlocks (see structs.py)
// MACRO LAUNCH_ARGUMENTS_LAYOUT: how Python fills struct LaunchArguments (see structs.py)
// MACRO CARRIES_NBYTES: bytes of struct Carries, as Python reserves them

#include "layout.cuh"
#include "mttkrp.cuh"
#include "ratios.cuh"
#include "remap.cuh"
#include "row_blocks.cuh"

using TileNonzeros = Nonzeros<VALUE, NUM_INPUTS, NUM_WORDS, TILE_SIZE, BLOCK_SIZE, GROUP_SIZE>;
using Tile = Mttkrp<TileNonzeros, LOAD_COLUMNS, STORE_COLUMNS, LANE_LOADS, BATCH, FACTOR>;
static_assert(!RATIOS || sizeof(FACTOR) == sizeof(VALUE), "models have whole rows");
using TileSlots = Tile::Slots;
using TileOperands = Tile::Operands;
using TileCarries = Tile::Carries;
static_assert(TileSlots::slot_nbytes == SLOT_NBYTES, "structs.py: size of slots differs");
static_assert(sizeof(TileCarries) == CARRIES_NBYTES, "structs.py: size of carries differs");
using TileSources = Sources<PULL, PULL_ID, PULL_HIGH_BITS, TILE_SIZE, BLOCK_SIZE>;
using RemapIds = Runs<REMAP_ID, TILE_SIZE, BLOCK_SIZE>;
using WriteOrder = PackedIds<WRITE, WRITE_HIGH_BITS, TILE_SIZE, BLOCK_SIZE>;
CHECK_LAYOUT(Field, FIELD_LAYOUT)
CHECK_LAYOUT(TileOperands, OPERANDS_LAYOUT)
using Output = RowBlocks<VALUE, OUT_BLOCKS>;
CHECK_LAYOUT(Output, ROW_BLOCKS_LAYOUT)

// Filled by Python (`structs.py`) and passed by value, so it is in constant memory. (If the weights
// were in it, registers would spill.)
struct LaunchArguments {
    TileOperands operands;
    long long first_tile, nnz, num_empty;
    long long empty_share;  // the most empty rows that a tile clears
    long long bucket_size;
    const long long* carry_rows;
    const EMPTY_ROW* empty_rows;
    const TileSlots::Piece* records;
    const void *pull_ids, *pull_highs;
    TileSlots::Piece* spare;
    const RemapIds::Words* run_starts;
    const RemapIds::Counts* run_counts;
    const REMAP_ID* run_shifts;
    const WriteOrder::Lows* write_lows;
    const WriteOrder::Highs* write_highs;
    Output out;
    VALUE* partial_rows;
    const VALUE* model_factor;  // this and others of the model only with RATIOS
    double* log_sums;
    int max_runs, rank;
    unsigned model_row_nbytes;
    VALUE smallest;
};
CHECK_LAYOUT(LaunchArguments, LAUNCH_ARGUMENTS_LAYOUT)

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, MIN_BLOCKS)
    mttkrp(const LaunchArguments arguments, const VALUE* weights)
{
    const TileOperands operands = arguments.operands;
    const long long nnz = arguments.nnz;
    const int rank = arguments.rank;
    extern __shared__ uint4 shared[];
    const TileSlots slots{reinterpret_cast<TileSlots::SlotPiece*>(shared)};
    TileCarries& carries =
        *reinterpret_cast<TileCarries*>(slots.memory + TILE_SIZE * TileSlots::slot_pieces);
    const int column = Tile::first_column();
    const bool remaps = REMAP && blockIdx.y == 0;

    const long long tile = arguments.first_tile + blockIdx.x, first = tile * TILE_SIZE;
    const int count = count_places<TILE_SIZE>(first, nnz);
    const long long base = PULL == PLACES ? first : bucket_start(first, arguments.bucket_size);
    const TileSources pull{arguments.pull_ids, arguments.pull_highs};
    const RemapIds remap_ids{arguments.run_starts, arguments.run_counts, arguments.run_shifts,
                             arguments.max_runs};
    const WriteOrder write_order{arguments.write_lows, arguments.write_highs};
    TileSources::Id sources[TileSources::moves];
    Targets<TileSlots, RemapIds, WriteOrder> targets;
    pull.read(sources, tile, count);
    if (remaps) targets.find(remap_ids, write_order, tile);
    pull_records(slots, arguments.records + base * TileSlots::record_pieces, nnz - base, sources,
                 count);
    if (remaps) targets.read(remap_ids, tile, nnz, count);
    Tile::clear_rows(arguments.empty_rows, arguments.num_empty, arguments.empty_share, tile, column,
                     rank, arguments.out, operands);
    wait_for_copies();
    if (remaps) {
        __syncthreads();
        push_records(arguments.spare, slots, targets, count);
        __syncthreads();  // before any of them is unpacked
    }
    TileNonzeros::unpack(slots, count, operands);
    __syncthreads();
#if RATIOS
    Ratios<Tile, NUM_PARTS, IS_WHOLE, RatioKind(RATIOS)> values{
        operands, arguments.model_factor, arguments.model_row_nbytes, arguments.smallest, rank,
        column};
#else
    EntryValues values;
#endif
    const VALUE* own_weights = RATIOS ? nullptr : weights;  // known to the compiler
    Tile::compute_tile(slots, carries, operands, arguments.carry_rows[tile] >= 0, tile, count, rank,
                       column, own_weights, arguments.out, arguments.partial_rows, values);
#if RATIOS
    values.write_logs(arguments.log_sums, tile);
#endif
}

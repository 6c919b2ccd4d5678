// Entry: read all that an MTTKRP of one mode reads, and write nothing. No MTTKRP can be faster.
//
// Mapping: as `mttkrp_remap.cu`, but a lane adds up all that it reads, whatever row it belongs to: there
//   are no partial rows and no carry-outs.
// Preconditions: as `mttkrp_remap.cu`, for records that are sorted and not pulled.
// Bytes per nonzero: a record, and NUM_INPUTS rows of `rank` values.
// Writes and determinism: none. `impossible` is nan, which equals no sum. The compiler does not
//   know that, so it has to compute the sums and to read all that they are made of.
// Source: none.
// MACRO VALUE: float or double, the type of values and factors
// MACRO NUM_INPUTS: modes whose factors are read, ndim - 1
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a block
// MACRO GROUP_SIZE: lanes of a group, a power of two up to 32
// MACRO LOAD_COLUMNS: columns that one load brings, 1, 2 or 4
// MACRO STORE_COLUMNS: as LOAD_COLUMNS; nothing is stored
// MACRO LANE_LOADS: loads that a lane makes of a row, 1, 2 or 4
// MACRO BATCH: nonzeros whose rows are loaded together
// MACRO MIN_BLOCKS: blocks of a multiprocessor that registers should be enough for
// MACRO FIELD_LAYOUT: how Python fills struct Field (see structs.py)
// MACRO OPERANDS_LAYOUT: how Python fills struct Operands (see structs.py)

#include "layout.cuh"
#include "mttkrp.cuh"
#include "remap.cuh"

using TileNonzeros = Nonzeros<VALUE, NUM_INPUTS, NUM_WORDS, TILE_SIZE, BLOCK_SIZE, GROUP_SIZE>;
using Tile = Mttkrp<TileNonzeros, LOAD_COLUMNS, STORE_COLUMNS, LANE_LOADS, BATCH>;
using TileSlots = Tile::Slots;
using TileOperands = Tile::Operands;
using Places = Sources<PLACES, unsigned, 0, TILE_SIZE, BLOCK_SIZE>;
CHECK_LAYOUT(Field, FIELD_LAYOUT)
CHECK_LAYOUT(TileOperands, OPERANDS_LAYOUT)

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, MIN_BLOCKS)
    gather_only(long long first_tile, const TileOperands operands, long long nnz,
                const TileSlots::Piece* records, int rank, VALUE impossible, Tile::Columns* out)
{
    extern __shared__ uint4 shared[];
    const TileSlots slots{reinterpret_cast<TileSlots::SlotPiece*>(shared)};
    const int column = Tile::first_column();
    const char* factors[TileOperands::max_inputs];
    Tile::point_at_columns(factors, operands, column, rank);

    const long long tile = first_tile + blockIdx.x, first = tile * TILE_SIZE;
    const int count = count_places<TILE_SIZE>(first, nnz);
    Places::Id sources[Places::moves];
    Places{}.read(sources, tile, count);
    pull_records(slots, records + first * TileSlots::record_pieces, nnz - first, sources, count);
    wait_for_copies();
    TileNonzeros::unpack(slots, count, operands);
    __syncthreads();
    Tile::Columns total = {};
    const int begin = threadIdx.x / GROUP_SIZE * Tile::run, end = min(begin + Tile::run, count);
    for (int start = begin; start < end; start += BATCH) {
        Tile::Columns products[BATCH];
        Tile::multiply_rows(products, slots, start, operands, factors, column, rank);
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            // Past the end of a tile there are zeros.
            const VALUE value = TileNonzeros::read(slots, start + b).value();
#pragma unroll
            for (int c = 0; c < Tile::lane_columns; ++c) {
                total.at[c] = fused(value, products[b].at[c], total.at[c]);
            }
        }
    }
    if (total.at[0] == impossible) *out = total;
}

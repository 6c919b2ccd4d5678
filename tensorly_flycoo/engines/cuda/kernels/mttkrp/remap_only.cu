// Entry: remap to the next mode's storage without computing, when modes are visited out of turn.
//
// Mapping: a block has a tile; thread t moves the records t, t + BLOCK_SIZE, ... of it.
// Preconditions (the layout's): as for `mttkrp_remap.cu`, with pull ids and remap ids.
// Bytes per nonzero: a record in and out, and ids as for `mttkrp_remap.cu`.
// Writes and determinism: remap ids are unique, so each record of `spare` is written once.
// Source: Wijeratne, Kannan, Prasanna, Computing Frontiers 2024, Algorithm 5 (dynamic remapping,
//   here in two levels: see README.md).
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a block
// MACRO PULL_ID: unsigned type of the low bits of pull ids
// MACRO PULL_HIGH_BITS: number of their other bits
// MACRO WRITE: unsigned type of the low bits of the write order
// MACRO WRITE_HIGH_BITS: number of its other bits
// MACRO REMAP_ID: unsigned type of remap ids

#include "remap.cuh"

using TileSlots = Slots<NUM_WORDS, 0, TILE_SIZE, BLOCK_SIZE, 1>;  // nothing is unpacked
using PullIds = PackedIds<PULL_ID, PULL_HIGH_BITS, TILE_SIZE, BLOCK_SIZE>;
using RemapIds = Runs<REMAP_ID, TILE_SIZE, BLOCK_SIZE>;
using WriteOrder = PackedIds<WRITE, WRITE_HIGH_BITS, TILE_SIZE, BLOCK_SIZE>;

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    remap(long long first_tile, long long nnz, long long bucket_size,
          const TileSlots::Piece* records, const PullIds::Lows* pull_lows,
          const PullIds::Highs* pull_highs, TileSlots::Piece* spare,
          const RemapIds::Words* run_starts, const RemapIds::Counts* run_counts,
          const REMAP_ID* run_shifts, int max_runs, const WriteOrder::Lows* write_lows,
          const WriteOrder::Highs* write_highs)
{
    extern __shared__ uint4 shared[];
    const TileSlots slots{reinterpret_cast<TileSlots::SlotPiece*>(shared)};
    const RemapIds remap_ids{run_starts, run_counts, run_shifts, max_runs};
    const long long tile = first_tile + blockIdx.x, first = tile * TILE_SIZE;
    const long long base = bucket_start(first, bucket_size);
    const int count = count_places<TILE_SIZE>(first, nnz);
    PullIds::Id sources[PullIds::moves];
    Targets<TileSlots, RemapIds, WriteOrder> targets;
    PullIds{pull_lows, pull_highs}.read(sources, tile, threadIdx.x);
    targets.find(remap_ids, WriteOrder{write_lows, write_highs}, tile);
    pull_records(slots, records + base * TileSlots::record_pieces, nnz - base, sources, count);
    targets.read(remap_ids, tile, nnz, count);
    wait_for_copies();
    __syncthreads();
    push_records(spare, slots, targets, count);
}

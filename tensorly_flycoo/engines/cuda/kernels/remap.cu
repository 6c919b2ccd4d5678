// Entry: remap to the next mode's storage without computing, when modes are visited out of turn.
//
// Mapping: a block has a tile; thread t moves the records t, t + BLOCK_SIZE, ... of it.
// Preconditions (the layout's): as for `mttkrp.cu`, with pull ids and remap ids.
// Bytes per nonzero: a record in and out, sizeof(PULL_ID), sizeof(REMAP_ID) and 2.
// Writes and determinism: remap ids are unique, so each record of `spare` is written once.
// Source: Wijeratne, Kannan, Prasanna, Computing Frontiers 2024, Algorithm 5 (dynamic remapping,
//   here in two levels: see README.md).
#ifndef NUM_WORDS
#error "NUM_WORDS: 32-bit words of a record"
#endif
#ifndef TILE_SIZE
#error "TILE_SIZE: nonzeros of a tile"
#endif
#ifndef BLOCK_SIZE
#error "BLOCK_SIZE: threads of a block"
#endif
#ifndef PULL_ID
#error "PULL_ID: unsigned type of pull ids"
#endif
#ifndef REMAP_ID
#error "REMAP_ID: unsigned type of remap ids"
#endif

#include "tiles.cuh"

using TileSlots = Slots<NUM_WORDS, 0, TILE_SIZE, BLOCK_SIZE, 1>;  // nothing is unpacked

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    remap(long long first_tile, long long nnz, long long bucket_size,
          const TileSlots::Piece* records, const PULL_ID* pull_ids, TileSlots::Piece* spare,
          const REMAP_ID* remap_ids, const unsigned short* write_order)
{
    extern __shared__ uint4 shared[];
    const TileSlots slots{reinterpret_cast<TileSlots::SlotPiece*>(shared)};
    const long long first = (first_tile + blockIdx.x) * TILE_SIZE;
    const long long base = bucket_start(first, bucket_size);
    const int count = count_places<TILE_SIZE>(first, nnz);
    Targets<TileSlots, REMAP_ID> targets;
    pull_records(slots, records + base * TileSlots::record_pieces, nnz - base, pull_ids + first,
                 count);
    read_targets(targets, remap_ids + first, write_order + first, nnz, count);
    wait_for_copies();
    __syncthreads();
    push_records(spare, slots, targets, count);
}

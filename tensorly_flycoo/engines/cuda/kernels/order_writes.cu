// Entry: sort the remap ids of each tile, ascending and in place, and write the place of each.
//
// Mapping: a block has a tile.
// Preconditions (the layout's): remap ids are unique.
// Bytes per nonzero: an id in and out, and 2 for the place.
// Writes and determinism: ids are unique, so only one order is possible.
// Source: Batcher, Sorting networks and their applications, AFIPS 1968 (the bitonic network).
// MACRO REMAP_ID: unsigned type of remap ids
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a block

#include "order_writes.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    order_writes(long long first_tile, long long nnz, REMAP_ID* remap_ids,
                 unsigned short* write_order)
{
    const long long first = (first_tile + blockIdx.x) * TILE_SIZE;
    order_tile<TILE_SIZE, BLOCK_SIZE>(first, nnz, remap_ids, write_order);
}

// Entry: pack ids in the order in which the threads of tiles read them; and read them back.
//
// Mapping: a thread has the ids of a thread of a tile (split), or one id (join), and every
//   num_threads-th after it.
// Preconditions (the engine's): ids fit the bits of LOW and HIGH_BITS; arrays hold whole tiles.
// Bytes per nonzero: sizeof(ID), sizeof(LOW), and HIGH_BITS / 8.
// Writes and determinism: each id once.
// Source: none.
// MACRO ID: unsigned type of ids
// MACRO LOW: unsigned type of their low bits
// MACRO HIGH_BITS: number of their other bits, 0, 1, 2, 4 or 8
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a tile's block

#include "compact_ids.cuh"

using Packed = PackedIds<LOW, HIGH_BITS, TILE_SIZE, BLOCK_SIZE>;

extern "C" __global__ void split_ids(long long count, long long num_tiles, const ID* ids,
                                     Packed::Lows* lows, Packed::Highs* highs)
{
    split_each_id<Packed, TILE_SIZE, BLOCK_SIZE>(count, num_tiles, ids, lows, highs);
}

extern "C" __global__ void join_ids(long long count, const Packed::Lows* lows,
                                    const Packed::Highs* highs, ID* ids)
{
    join_each_id(count, Packed{lows, highs}, ids);
}

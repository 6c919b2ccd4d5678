// Entry: convert offsets from the start of a bucket to positions.
//
// Mapping: a thread has one offset, and every num_threads-th after it.
// Preconditions (the layout's): positions fit PLACE.
// Bytes per nonzero: an offset in, sizeof(PLACE) out.
// Writes and determinism: each position once.
// Source: none.
// MACRO PLACE: unsigned type of positions
// MACRO OFFSET: unsigned type of the low bits of offsets from the start of a bucket
// MACRO HIGH_BITS: number of their other bits
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a tile's block

#include "ids.cuh"
#include "orders.cuh"

using Offsets = PackedIds<OFFSET, HIGH_BITS, TILE_SIZE, BLOCK_SIZE>;

extern "C" __global__ void position_in_buckets(long long count, long long bucket_size,
                                               const Offsets::Lows* lows,
                                               const Offsets::Highs* highs, PLACE* positions)
{
    find_each_position(count, bucket_size, Offsets{lows, highs}, positions);
}

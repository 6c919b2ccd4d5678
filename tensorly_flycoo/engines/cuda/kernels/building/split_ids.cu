// Entry: pack ids in the order in which the threads of tiles read them; and read them back, or the
// positions that they stand for if they are offsets from the start of a bucket.
//
// Mapping: a thread has a tile's thread's ids (split) or one id (join).
// Preconditions (the engine's): ids fit the bits of LOW and HIGH_BITS, positions fit ID; arrays
//   hold whole tiles. `bucket_size` is `count` if ids are no offsets.
// Bytes per nonzero: sizeof(ID), sizeof(LOW), and HIGH_BITS / 8.
// Writes and determinism: each id once.
// Source: none.
// MACRO ID: unsigned type of ids
// MACRO LOW: unsigned type of their low bits
// MACRO HIGH_BITS: number of their other bits, 0, 1, 2, 4 or 8
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a tile's block

#include "ids.cuh"
#include "items.cuh"

using Packed = PackedIds<LOW, HIGH_BITS, TILE_SIZE, BLOCK_SIZE>;

// Places past the end get zeros.
extern "C" __global__ void split_ids(long long count, long long num_tiles, const ID* ids,
                                     Packed::Lows* lows, Packed::Highs* highs)
{
    for_own_item(num_tiles * BLOCK_SIZE, [=](long long number) {
        const long long first = number / BLOCK_SIZE * TILE_SIZE + number % BLOCK_SIZE;
        Packed::Lows low;
        unsigned long long high = 0;
#pragma unroll
        for (int m = 0; m < Packed::moves; ++m) {
            const long long place = first + m * BLOCK_SIZE;
            const unsigned long long id = place < count ? ids[place] : 0;
            low.at[m] = static_cast<Packed::Low>(id);
            if constexpr (Packed::high_bits > 0) {
                high |= (id >> Packed::low_bits) << m * Packed::high_bits;
            }
        }
        lows[number] = low;
        if constexpr (Packed::high_bits > 0) highs[number] = static_cast<Packed::Highs>(high);
    });
}

extern "C" __global__ void join_ids(long long count, long long bucket_size,
                                    const Packed::Lows* lows, const Packed::Highs* highs, ID* ids)
{
    const Packed packed{lows, highs};
    for_own_item(count, [=](long long i) {
        ids[i] = static_cast<ID>(bucket_start_of(i, bucket_size) + packed.at(i));
    });
}

// Entries: write ids in fewer bytes, and read them back.
//
// Mapping: a thread has the ids of a byte of high bits (split), or one id (join), and every
//   num_threads-th after them.
// Preconditions (the engine's): ids fit the bits of LOW and HIGH_BITS.
// Bytes per nonzero: sizeof(ID), sizeof(LOW), and HIGH_BITS / 8.
// Writes and determinism: each id once.
// Source: none.
#ifndef ID
#error "ID: unsigned type of ids"
#endif
#ifndef LOW
#error "LOW: unsigned type of their low bits"
#endif
#ifndef HIGH_BITS
#error "HIGH_BITS: number of their other bits, 0, 1, 2, 4 or 8"
#endif

#include "compact_ids.cuh"

using CompactIds = Ids<LOW, HIGH_BITS>;

extern "C" __global__ void split_ids(long long count, const ID* ids, LOW* low,
                                     unsigned char* high)
{
    split_each_id<CompactIds>(count, ids, low, high);
}

extern "C" __global__ void join_ids(long long count, const LOW* low, const unsigned char* high,
                                    ID* ids)
{
    join_each_id(count, CompactIds{low, high}, ids);
}

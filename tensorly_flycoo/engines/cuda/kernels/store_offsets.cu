// Entry: store where items are after sorting by bucket, and for each position the offset of its
// item from the start of the bucket.
//
// Mapping: a thread has one item, and every num_threads-th after it.
// Preconditions (the engine's): `stored_now` and `positions` are permutations; `stored` may be
//   `positions`.
// Bytes per nonzero: 2 sizeof(PLACE) in, sizeof(PLACE) out, and sizeof(OFFSET) out at random.
// Writes and determinism: each element once.
// Source: none.
// MACRO PLACE: unsigned type of positions
// MACRO OFFSET: unsigned type of offsets from the start of a bucket

#include "orders.cuh"

extern "C" __global__ void store_offsets(long long count, long long bucket_size,
                                         const PLACE* stored_now, const PLACE* positions,
                                         PLACE* stored, OFFSET* offsets)
{
    store_each_offset(count, bucket_size, stored_now, positions, stored, offsets);
}

// Entry: sort items by bucket: find the bucket of each position (`number_buckets`); and, after the
// sort, store where items are, and each one's offset from its bucket's start (`store_offsets`).
//
// Mapping: a thread has one item.
// Preconditions (the engine's): bucket numbers fit BUCKET; `stored_now` and `positions` are
//   permutations; `stored` may be `positions`, since a thread reads and writes only its own items.
// Bytes per nonzero: sizeof(PLACE) in, sizeof(BUCKET) out; then 2 sizeof(PLACE) in, sizeof(PLACE)
//   out, and sizeof(OFFSET) out at random.
// Writes and determinism: each element once.
// Source: none.
// MACRO PLACE: unsigned type of positions
// MACRO BUCKET: unsigned type of bucket numbers
// MACRO OFFSET: unsigned type of offsets from the start of a bucket

#include "items.cuh"

extern "C" __global__ void number_buckets(long long count, long long bucket_size,
                                          const PLACE* positions, BUCKET* buckets)
{
    const PLACE size = static_cast<PLACE>(bucket_size);
    for_own_item(count, [=](long long i) {
        buckets[i] = static_cast<BUCKET>(positions[i] / size);
    });
}

extern "C" __global__ void store_offsets(long long count, long long bucket_size,
                                         const PLACE* stored_now, const PLACE* positions,
                                         PLACE* stored, OFFSET* offsets)
{
    const PLACE size = static_cast<PLACE>(bucket_size);
    for_own_item(count, [=](long long i) {
        const PLACE place = stored_now[i];
        offsets[positions[i]] = static_cast<OFFSET>(place % size);
        stored[i] = place;
    });
}

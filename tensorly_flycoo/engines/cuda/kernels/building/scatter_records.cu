// Entry: copy each record to its offset within its own bucket.
//
// Mapping: a thread has 8 bytes of a record.
// Preconditions (the layout's): the offsets of a bucket are a permutation.
// Bytes per nonzero: a record in and out, and sizeof(OFFSET).
// Writes and determinism: each record once.
// Source: none.
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO OFFSET: unsigned type of offsets from the start of a bucket

#include "items.cuh"

extern "C" __global__ void scatter_records(long long count, long long bucket_size,
                                           const OFFSET* offsets, const uint2* records,
                                           uint2* target)
{
    static_assert(NUM_WORDS % 2 == 0, "records are multiples of 8 bytes");
    constexpr int pieces = NUM_WORDS / 2;
    for_own_item(count * pieces, [=](long long i) {
        const long long number = i / pieces, piece = i % pieces;
        const long long position = bucket_start_of(number, bucket_size) + offsets[number];
        target[position * pieces + piece] = records[i];
    });
}

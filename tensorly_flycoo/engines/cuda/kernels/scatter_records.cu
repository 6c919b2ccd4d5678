// Entry: copy each record to its offset within its own bucket.
//
// Mapping: a thread has 8 bytes of a record, and every num_threads-th 8 bytes after them.
// Preconditions (the layout's): the offsets of a bucket are a permutation.
// Bytes per nonzero: a record in and out, and sizeof(OFFSET).
// Writes and determinism: each record once.
// Source: none.
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO OFFSET: unsigned type of offsets from the start of a bucket

#include "orders.cuh"

extern "C" __global__ void scatter_records(long long count, long long bucket_size,
                                           const OFFSET* offsets, const uint2* records,
                                           uint2* target)
{
    scatter_each_record<NUM_WORDS>(count, bucket_size, offsets, records, target);
}

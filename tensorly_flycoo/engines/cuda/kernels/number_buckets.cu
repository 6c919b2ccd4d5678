// Entry: find the bucket of each position.
//
// Mapping: a thread has one position, and every num_threads-th after it.
// Preconditions (the engine's): bucket numbers fit BUCKET.
// Bytes per nonzero: sizeof(PLACE) in, sizeof(BUCKET) out.
// Writes and determinism: each element once.
// Source: none.
// MACRO PLACE: unsigned type of positions
// MACRO BUCKET: unsigned type of bucket numbers

#include "orders.cuh"

extern "C" __global__ void number_buckets(long long count, long long bucket_size,
                                          const PLACE* positions, BUCKET* buckets)
{
    number_each_bucket(count, bucket_size, positions, buckets);
}

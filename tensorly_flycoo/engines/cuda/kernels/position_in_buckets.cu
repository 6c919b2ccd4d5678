// Entry: convert offsets from the start of a bucket to positions.
//
// Mapping: a thread has one offset, and every num_threads-th after it.
// Preconditions (the layout's): positions fit PLACE.
// Bytes per nonzero: sizeof(OFFSET) in, sizeof(PLACE) out.
// Writes and determinism: each position once.
// Source: none.
#ifndef PLACE
#error "PLACE: unsigned type of positions"
#endif
#ifndef OFFSET
#error "OFFSET: unsigned type of offsets from the start of a bucket"
#endif

#include "orders.cuh"

extern "C" __global__ void position_in_buckets(long long count, long long bucket_size,
                                               const OFFSET* offsets, PLACE* positions)
{
    find_each_position(count, bucket_size, offsets, positions);
}

// Entry: convert offsets from the start of a bucket to positions.
//
// Mapping: a thread has one offset, and every num_threads-th after it.
// Preconditions (the layout's): positions fit PLACE.
// Bytes per nonzero: an offset in, sizeof(PLACE) out.
// Writes and determinism: each position once.
// Source: none.
#ifndef PLACE
#error "PLACE: unsigned type of positions"
#endif
#ifndef OFFSET
#error "OFFSET: unsigned type of the low bits of offsets from the start of a bucket"
#endif
#ifndef HIGH_BITS
#error "HIGH_BITS: number of their other bits, which share bytes"
#endif

#include "ids.cuh"
#include "orders.cuh"

extern "C" __global__ void position_in_buckets(long long count, long long bucket_size,
                                               const OFFSET* low,
                                               const unsigned char* high, PLACE* positions)
{
    find_each_position(count, bucket_size, Ids<OFFSET, HIGH_BITS>{low, high}, positions);
}

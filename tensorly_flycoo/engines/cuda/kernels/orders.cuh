// Orders of nonzeros, and their positions in buckets.
#pragma once

// Calls `use(i)` for each number below `count` that this thread has: one, and every num_threads-th
// after it. Not unrolled, since most threads have one: that takes half the time to compile.
template <typename Use>
__device__ __forceinline__ void for_own_items(long long count, Use use)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; i < count; i += num_threads) use(i);
}

__device__ __forceinline__ long long bucket_start_of(long long number, long long bucket_size)
{
    return number - number % bucket_size;
}

// `order` is that of the items after a sort, in which item i was at place `places[i]`, or at i.
template <typename Place>
__device__ __forceinline__ void store_each_place(long long count, const long long* order,
                                                 const Place* places, Place* target,
                                                 Place* positions)
{
    for_own_items(count, [=](long long i) {
        const long long item = order[i];
        if (target) target[i] = places ? places[item] : static_cast<Place>(item);
        if (positions) positions[item] = static_cast<Place>(i);
    });
}

template <typename Place, typename Bucket>
__device__ __forceinline__ void number_each_bucket(long long count, long long bucket_size,
                                                   const Place* positions, Bucket* buckets)
{
    const Place size = static_cast<Place>(bucket_size);
    for_own_items(count, [=](long long i) {
        buckets[i] = static_cast<Bucket>(positions[i] / size);
    });
}

// `stored` may be `positions`: a thread reads and writes only its own items of both.
template <typename Place, typename Offset>
__device__ __forceinline__ void store_each_offset(long long count, long long bucket_size,
                                                  const Place* stored_now, const Place* positions,
                                                  Place* stored, Offset* offsets)
{
    const Place size = static_cast<Place>(bucket_size);
    for_own_items(count, [=](long long i) {
        const Place place = stored_now[i];
        offsets[positions[i]] = static_cast<Offset>(place % size);
        stored[i] = place;
    });
}

template <typename Place, typename Ids>
__device__ __forceinline__ void find_each_position(long long count, long long bucket_size,
                                                   Ids offsets, Place* positions)
{
    for_own_items(count, [=](long long i) {
        positions[i] = static_cast<Place>(bucket_start_of(i, bucket_size) + offsets.at(i));
    });
}

template <int NumWords, typename Offset>
__device__ __forceinline__ void scatter_each_record(long long count, long long bucket_size,
                                                    const Offset* offsets, const uint2* records,
                                                    uint2* target)
{
    static_assert(NumWords % 2 == 0, "records are multiples of 8 bytes");
    constexpr int pieces = NumWords / 2;
    for_own_items(count * pieces, [=](long long i) {
        const long long number = i / pieces, piece = i % pieces;
        const long long position = bucket_start_of(number, bucket_size) + offsets[number];
        target[position * pieces + piece] = records[i];
    });
}

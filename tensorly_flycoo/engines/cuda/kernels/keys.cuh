// Rows of records as keys to sort by.
#pragma once

#include "operands.cuh"

// Fields that form one key, the most significant first. Filled by Python (`structs.py`).
template <int NumFields>
struct KeyFields {
    Field at[NumFields];
};

template <int NumWords, int NumFields>
__device__ __forceinline__ unsigned long long read_key(const unsigned* records, long long place,
                                                       const KeyFields<NumFields>& fields)
{
    const unsigned* record = records + place * NumWords;
    unsigned long long key = 0;
#pragma unroll
    for (int n = 0; n < NumFields; ++n) {
        const Field field = fields.at[n];
        key = key << __popc(field.mask) | read_row<NumWords>(record, field);
    }
    return key;
}

// A thread has one place, and every num_threads-th after it.
template <int NumWords, int NumFields, typename Key, typename Place>
__device__ __forceinline__ void read_each_key(const KeyFields<NumFields>& fields, long long count,
                                              const unsigned* records, const Place* places,
                                              Key* keys, bool* is_used)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; i < count; i += num_threads) {
        const long long place = places ? static_cast<long long>(places[i]) : i;
        const unsigned long long key = read_key<NumWords>(records, place, fields);
        if (keys) keys[i] = static_cast<Key>(key);
        if (is_used) is_used[key] = true;
    }
}

// A thread has one tile, and every num_threads-th after it.
template <int NumWords, typename Place>
__device__ __forceinline__ void find_each_carry_row(const KeyFields<1>& fields, long long num_tiles,
                                                    long long tile_size, const unsigned* records,
                                                    const Place* places, long long* carry_rows)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long tile = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; tile < num_tiles; tile += num_threads) {
        const auto row_at = [&](long long number) {
            const long long place = places ? static_cast<long long>(places[number]) : number;
            return static_cast<long long>(read_key<NumWords>(records, place, fields));
        };
        const long long first = tile * tile_size, row = row_at(first);
        carry_rows[tile] = tile > 0 && row_at(first - 1) == row ? row : -1;
    }
}

// Makes compact ids, and reads them back.
#pragma once

#include "ids.cuh"
#include "orders.cuh"

// A thread writes the ids whose high bits share a byte.
template <typename Ids, typename Id>
__device__ __forceinline__ void split_each_id(long long count, const Id* ids,
                                              typename Ids::Low* low, unsigned char* high)
{
    const long long num_bytes = (count + Ids::per_byte - 1) / Ids::per_byte;
    for_own_items(num_bytes, [=](long long byte) {
        unsigned shared = 0;
#pragma unroll
        for (int i = 0; i < Ids::per_byte; ++i) {
            const long long place = byte * Ids::per_byte + i;
            if (place >= count) break;
            const unsigned long long id = ids[place];
            low[place] = static_cast<typename Ids::Low>(id);
            if constexpr (Ids::high_bits > 0) {
                shared |= static_cast<unsigned>(id >> Ids::low_bits) << i * Ids::high_bits;
            }
        }
        if constexpr (Ids::high_bits > 0) high[byte] = static_cast<unsigned char>(shared);
    });
}

template <typename Ids, typename Id>
__device__ __forceinline__ void join_each_id(long long count, Ids compact, Id* ids)
{
    for_own_items(count, [=](long long i) { ids[i] = static_cast<Id>(compact.at(i)); });
}

// A warp has 32 places of a tile at a time.
template <int TileSize, typename Id>
__device__ __forceinline__ void find_runs_of_tile(long long tile, long long nnz, const Id* ids,
                                                  unsigned* starts, unsigned short* counts,
                                                  Id* shifts, int max_runs)
{
    static_assert(TileSize % 32 == 0, "a tile is whole words of starts");
    const long long first = tile * TileSize;
    const int lane = threadIdx.x % 32;
    const unsigned lower_lanes = (1u << lane) - 1;
    int num_runs = 0;
    for (int start = 0; start < TileSize && first + start < nnz; start += 32) {
        const int place = start + lane;
        const long long number = first + place;
        const bool is_start =
            number < nnz && (place == 0 || ids[number] != static_cast<Id>(ids[number - 1] + 1));
        const unsigned word = __ballot_sync(0xffffffffu, is_start);
        if (lane == 0) {
            starts[number / 32] = word;
            counts[number / 32] = static_cast<unsigned short>(num_runs);
        }
        if (is_start) {
            const int run = num_runs + __popc(word & lower_lanes);
            shifts[tile * max_runs + run] = static_cast<Id>(ids[number] - static_cast<Id>(place));
        }
        num_runs += __popc(word);
    }
    for (int run = num_runs + lane; run < max_runs; run += 32) shifts[tile * max_runs + run] = 0;
}

template <int TileSize, typename Id>
__device__ __forceinline__ void list_each_id(long long nnz, Runs<Id> runs, Id* ids)
{
    for_own_items(nnz, [=](long long i) {
        ids[i] = runs.template at<TileSize>(i / TileSize, static_cast<int>(i % TileSize));
    });
}

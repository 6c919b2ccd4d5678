// Packs ids, and reads them back.
#pragma once

#include "ids.cuh"
#include "orders.cuh"

// A thread writes the ids of a thread of a tile. Places past the end get zeros.
template <typename Ids, int TileSize, int BlockSize, typename Id>
__device__ __forceinline__ void split_each_id(long long count, long long num_tiles, const Id* ids,
                                              typename Ids::Lows* lows,
                                              typename Ids::Highs* highs)
{
    for_own_items(num_tiles * BlockSize, [=](long long number) {
        const long long first = number / BlockSize * TileSize + number % BlockSize;
        typename Ids::Lows low;
        unsigned long long high = 0;
#pragma unroll
        for (int m = 0; m < Ids::moves; ++m) {
            const long long place = first + m * BlockSize;
            const unsigned long long id = place < count ? ids[place] : 0;
            low.at[m] = static_cast<typename Ids::Low>(id);
            if constexpr (Ids::high_bits > 0) {
                high |= (id >> Ids::low_bits) << m * Ids::high_bits;
            }
        }
        lows[number] = low;
        if constexpr (Ids::high_bits > 0) highs[number] = static_cast<typename Ids::Highs>(high);
    });
}

template <typename Ids, typename Id>
__device__ __forceinline__ void join_each_id(long long count, Ids packed, Id* ids)
{
    for_own_items(count, [=](long long i) { ids[i] = static_cast<Id>(packed.at(i)); });
}

// A warp finds the runs of a tile, 32 places at a time.
template <int TileSize, int BlockSize, typename Id>
__device__ __forceinline__ void find_runs_of_tile(long long tile, long long nnz, const Id* ids,
                                                  unsigned* starts, unsigned short* counts,
                                                  Id* shifts, int max_runs)
{
    static_assert(BlockSize % 32 == 0, "a move of a warp is a word of starts");
    constexpr int moves = TileSize / BlockSize, num_warps = BlockSize / 32;
    const int lane = threadIdx.x % 32;
    const unsigned lower_lanes = (1u << lane) - 1;
    int num_runs = 0;
    for (int start = 0; start < TileSize; start += 32) {
        const int place = start + lane;
        const long long i = tile * TileSize + place;
        const bool is_start =
            i < nnz && (place == 0 || ids[i] != static_cast<Id>(ids[i - 1] + 1));
        const unsigned word = __ballot_sync(0xffffffffu, is_start);
        if (lane == 0) {
            const int warp = start % BlockSize / 32, move = start / BlockSize;
            const long long number = (tile * num_warps + warp) * moves + move;
            starts[number] = word;
            counts[number] = static_cast<unsigned short>(num_runs);
        }
        if (is_start) {
            const int run = num_runs + __popc(word & lower_lanes);
            shifts[tile * max_runs + run] = static_cast<Id>(ids[i] - static_cast<Id>(place));
        }
        num_runs += __popc(word);
    }
    for (int run = num_runs + lane; run < max_runs; run += 32) shifts[tile * max_runs + run] = 0;
}

template <int TileSize, int BlockSize, typename Runs, typename Id>
__device__ __forceinline__ void list_each_id(long long nnz, Runs runs, Id* ids)
{
    for_own_items(nnz, [=](long long i) {
        const int place = static_cast<int>(i % TileSize), thread = place % BlockSize;
        const long long tile = i / TileSize, number = tile * Runs::num_warps + thread / 32;
        const unsigned word = runs.starts[number].at[place / BlockSize];
        const unsigned short before = runs.counts[number].at[place / BlockSize];
        ids[i] = runs.at(tile, Runs::find_run(word, before, thread % 32), place);
    });
}

// Moving a tile's records: pulled from the storage of this mode into slots, in the order of their
// rows, and pushed to the storage of the next mode. Thread t moves the places t, t + BlockSize, ...
// of a block's tile. README.md beside this file draws both moves.
#pragma once

#include "assertions.cuh"
#include "ids.cuh"
#include "records.cuh"

// The first place of a place's bucket; the bucket's size is a power of two.
__device__ __forceinline__ long long bucket_start(long long place, long long bucket_size)
{
    return place & -bucket_size;
}

// The number of places in a tile; the last tile may be shorter.
template <int TileSize>
__device__ __forceinline__ int count_places(long long first, long long nnz)
{
    return static_cast<int>(min(static_cast<long long>(TileSize), nnz - first));
}

// Calls `use(place, m)` for each of the places below `count` that this thread moves.
template <typename Slots, typename Use>
__device__ __forceinline__ void for_own_places(int count, Use use)
{
#pragma unroll
    for (int m = 0; m < Slots::moves; ++m) {
        const int place = threadIdx.x + m * Slots::block_size;
        if (place < count) use(place, m);
    }
}

// Starts copying the tile's records to their slots. After `wait_for_copies` a thread may use those
// that it copied; after a barrier, all. `sources` count from `records`, where `num_records` are.
template <typename Slots, typename Id>
__device__ __forceinline__ void pull_records(Slots slots, const typename Slots::Piece* records,
                                             long long num_records,
                                             const Id (&sources)[Slots::moves], int count)
{
    for_own_places<Slots>(count, [&](int place, int m) {
        ASSERT(sources[m] < num_records);
        const long long source = static_cast<long long>(sources[m]);
        slots.copy_to(place, records + source * Slots::record_pieces);
    });
}

// Where a thread's records go next. Reads numbers in two steps, the second of which depends on the
// first; records are pulled in between, so that neither waits for the other.
template <typename Slots, typename Runs, typename WriteOrder>
struct Targets {
    typename WriteOrder::Id places[Slots::moves];
    int runs[Slots::moves];
    typename Runs::Id positions[Slots::moves];

    __device__ __forceinline__ void find(Runs remap_ids, WriteOrder write_order, long long tile)
    {
        write_order.read(places, tile, threadIdx.x);
        remap_ids.find(runs, tile, threadIdx.x);
    }

    __device__ __forceinline__ void read(Runs remap_ids, long long tile, long long nnz, int count)
    {
        for_own_places<Slots>(count, [&](int place, int m) {
            positions[m] = remap_ids.at(tile, runs[m], place);
            ASSERT(positions[m] < nnz);
            ASSERT(places[m] < count);
        });
    }
};

// Writes the tile's records to the next mode's storage; neighbouring threads write neighbours.
template <typename Slots, typename Targets>
__device__ __forceinline__ void push_records(typename Slots::Piece* spare, Slots slots,
                                             const Targets& targets, int count)
{
    union Record {
        typename Slots::SlotPiece in_slot[Slots::record_slot_pieces];
        typename Slots::Piece in_memory[Slots::record_pieces];
    };
    for_own_places<Slots>(count, [&](int, int m) {
        const typename Slots::SlotPiece* slot = slots.at(targets.places[m]);
        Record record;
#pragma unroll
        for (int p = 0; p < Slots::record_slot_pieces; ++p) record.in_slot[p] = slot[p];
        typename Slots::Piece* target =
            spare + static_cast<long long>(targets.positions[m]) * Slots::record_pieces;
#pragma unroll
        for (int p = 0; p < Slots::record_pieces; ++p) target[p] = record.in_memory[p];
    });
}

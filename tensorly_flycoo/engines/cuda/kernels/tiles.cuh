// Bring the records of a tile to shared memory in the order of their rows, and send them on.
//
// Mapping: a block has a tile; thread t moves the records t, t + BLOCK_SIZE, ...
// Preconditions (the layout's): pull ids are positions inside the tile's bucket, or in the whole
//   copy; the write order is a permutation of each tile's places. The engine's: a bucket's size is a
//   power of two.
// Bytes per nonzero: a record in; with ids, sizeof(PULL_ID); with remapping, a record out,
//   sizeof(REMAP_ID) and 2.
// Writes and determinism: remap ids are unique, so each record of `spare` is written once.
// Source: Wijeratne, Kannan, Prasanna, Computing Frontiers 2024, Algorithm 5 (dynamic remapping),
//   in two levels: records of a tile that go to one bucket are written together, and a tile's
//   records are found inside one bucket.
#pragma once

#include "records.cuh"

// The place that the bucket of a place begins with.
__device__ __forceinline__ long long bucket_start(long long place, long long bucket_size)
{
    return place & -bucket_size;
}

// Where a thread's records go next; read while they are on their way in.
struct Targets {
    REMAP_ID positions[MOVES];
    unsigned short places[MOVES];
};

// Calls `use(place, m)` for each of the places below `count` that this thread moves.
template <typename Use>
__device__ __forceinline__ void for_own_places(int count, Use use)
{
#pragma unroll
    for (int m = 0; m < MOVES; ++m) {
        const int place = threadIdx.x + m * BLOCK_SIZE;
        if (place < count) use(place, m);
    }
}

// Copies the tile's records to their slots; this thread may then use its own, the block's after a
// barrier. `pull_ids` begins with the tile, and is null where places are positions. From `records`
// on there are `num_records`.
__device__ __forceinline__ void pull_records(SlotPiece* slots, const Piece* records,
                                             long long num_records, const PULL_ID* pull_ids,
                                             int count)
{
    // Ids in a bunch: their loads are independent, and so are those of the records then.
    PULL_ID sources[MOVES];
    for_own_places(count, [&](int place, int m) {
        if (pull_ids) sources[m] = pull_ids[place];
    });
    for_own_places(count, [&](int place, int m) {
        const long long source = pull_ids ? static_cast<long long>(sources[m]) : place;
        ASSERT(source < num_records);
        copy_to_slot(slot_at(slots, place), records + source * PIECES);
    });
}

__device__ __forceinline__ void read_targets(Targets& targets, const REMAP_ID* remap_ids,
                                             const unsigned short* write_order, long long nnz,
                                             int count)
{
    for_own_places(count, [&](int place, int m) {
        targets.positions[m] = remap_ids[place];
        targets.places[m] = write_order[place];
        ASSERT(targets.positions[m] < nnz);
        ASSERT(targets.places[m] < count);
    });
}

// A record in registers, in the pieces in which it comes and goes.
union Record {
    SlotPiece in_slot[PIECES_OF_RECORD];
    Piece in_memory[PIECES];
};

__device__ __forceinline__ void push_records(Piece* spare, SlotPiece* slots,
                                             const Targets& targets, int count)
{
    for_own_places(count, [&](int, int m) {
        const SlotPiece* slot = slot_at(slots, targets.places[m]);
        Record record;
#pragma unroll
        for (int p = 0; p < PIECES_OF_RECORD; ++p) record.in_slot[p] = slot[p];
        Piece* target = spare + static_cast<long long>(targets.positions[m]) * PIECES;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) target[p] = record.in_memory[p];
    });
}

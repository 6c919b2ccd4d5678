// Bring the records of a tile to shared memory in the order of their rows, and send them on.
//
// Mapping: a block has a tile; thread t moves the records t, t + BLOCK_SIZE, ...
// Preconditions (the layout's): pull ids are positions inside the tile's bucket, or in the whole
//   copy; the write order is a permutation of each tile's places.
// Bytes per nonzero: a record in; with ids, sizeof(PULL_ID); with remapping, a record out,
//   sizeof(REMAP_ID) and 2.
// Source: Wijeratne, Kannan, Prasanna, Computing Frontiers 2024, Algorithm 5 (dynamic remapping),
//   in two levels: records of a tile that go to one bucket are written together, and a tile's
//   records are found inside one bucket.
#pragma once

#include "records.cuh"

// Where place p of a tile is in shared memory. Groups of threads read places that lie a run apart;
// the lowest bits are mixed with the number of the run, so that they read different banks.
template <int RUN>
__device__ __forceinline__ int slot_of(int place)
{
    if (RUN % 8 != 0) return place;
    return place ^ ((place / RUN) & 7);
}

template <int RUN, typename PullId, typename RemapId>
__device__ __forceinline__ void move_tile(Piece* shared, const Piece* records,
                                          const PullId* pull_ids, long long bucket_start,
                                          Piece* spare, const RemapId* remap_ids,
                                          const unsigned short* write_order, long long first,
                                          int count)
{
    // Ids first, in a bunch: their loads are independent, and so are those of the records then.
    PullId sources[MOVES];
#pragma unroll
    for (int m = 0; m < MOVES; ++m) {
        const int place = threadIdx.x + m * BLOCK_SIZE;
        if (pull_ids && place < count) sources[m] = pull_ids[first + place];
    }
#pragma unroll
    for (int m = 0; m < MOVES; ++m) {
        const int place = threadIdx.x + m * BLOCK_SIZE;
        if (place < count) {
            const long long source =
                pull_ids ? bucket_start + static_cast<long long>(sources[m]) : first + place;
            copy_to_shared(shared + slot_of<RUN>(place) * PIECES, records + source * PIECES);
        }
    }
    // While the records are on their way, where they go next.
    RemapId targets[MOVES];
    unsigned short places[MOVES];
#pragma unroll
    for (int m = 0; m < MOVES; ++m) {
        const int place = threadIdx.x + m * BLOCK_SIZE;
        if (spare && place < count) {
            targets[m] = remap_ids[first + place];
            places[m] = write_order[first + place];
        }
    }
    wait_for_copies();
    __syncthreads();
    if (spare) {
#pragma unroll
        for (int m = 0; m < MOVES; ++m) {
            const int place = threadIdx.x + m * BLOCK_SIZE;
            if (place < count) {
#pragma unroll
                for (int p = 0; p < PIECES; ++p) {
                    spare[static_cast<long long>(targets[m]) * PIECES + p] =
                        shared[slot_of<RUN>(places[m]) * PIECES + p];
                }
            }
        }
    }
}

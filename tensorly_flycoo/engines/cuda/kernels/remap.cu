// Entry: remap to the next mode's storage without computing, for a mode out of turn.
#define ENTRY_NBYTES 0  // nothing is unpacked
#define RUN 1
#include "tiles.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    remap(long long first_tile, long long nnz, long long bucket_size, const Piece* records,
          const PULL_ID* pull_ids, Piece* spare, const REMAP_ID* remap_ids,
          const unsigned short* write_order)
{
    extern __shared__ SlotPiece slots[];
    const long long first = (first_tile + blockIdx.x) * TILE_SIZE;
    const long long base = bucket_start(first, bucket_size);
    const int count = static_cast<int>(min(static_cast<long long>(TILE_SIZE), nnz - first));
    Targets targets;
    pull_records(slots, records + base * PIECES, nnz - base, pull_ids + first, count);
    read_targets(targets, remap_ids + first, write_order + first, nnz, count);
    wait_for_copies();
    __syncthreads();
    push_records(spare, slots, targets, count);
}

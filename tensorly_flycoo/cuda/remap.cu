// Entry: remap to the next mode's storage without computing, for a mode out of turn.
//
// Macros beside those of macros.cuh: PULL_ID and REMAP_ID (types).
#include "tiles.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    remap(long long nnz, long long num_tiles, long long bucket_size, const Piece* records,
          const PULL_ID* pull_ids, Piece* spare, const REMAP_ID* remap_ids,
          const unsigned short* write_order)
{
    extern __shared__ Piece shared[];
    for (long long tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
        const long long first = tile * TILE_SIZE;
        const int count = static_cast<int>(min(static_cast<long long>(TILE_SIZE), nnz - first));
        move_tile<1>(shared, records, pull_ids, first / bucket_size * bucket_size, spare,
                     remap_ids, write_order, first, count);
        __syncthreads();  // before the next tile comes to the same shared memory
    }
}

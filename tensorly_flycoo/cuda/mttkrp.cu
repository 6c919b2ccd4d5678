// Entry: MTTKRP of one mode; with REMAP also dynamic remapping to the next mode's storage.
//
// Macros beside those of macros.cuh: LANE_COLUMNS, GROUP_SIZE, BATCH, PULL_ID and REMAP_ID (types),
// PULL and REMAP (0 or 1), MIN_BLOCKS (of a multiprocessor).
#include "mttkrp.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, MIN_BLOCKS)
    mttkrp(const Operands operands, long long nnz, long long num_tiles, long long num_empty,
           long long bucket_size, const long long* carry_rows, const EMPTY_ROW* empty_rows,
           const Piece* records, const PULL_ID* pull_ids, Piece* spare, const REMAP_ID* remap_ids,
           const unsigned short* write_order, int rank, VALUE* out, VALUE* partial_rows)
{
    extern __shared__ Piece shared[];
    Carries& carries = *reinterpret_cast<Carries*>(shared + TILE_SIZE * PIECES);
    const int column = (blockIdx.y * GROUP_SIZE + threadIdx.x % GROUP_SIZE) * LANE_COLUMNS;
    const bool remaps = REMAP && blockIdx.y == 0;

    for (long long tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
        const long long first = tile * TILE_SIZE;
        const int count = static_cast<int>(min(static_cast<long long>(TILE_SIZE), nnz - first));
        move_tile<RUN>(shared, records, PULL ? pull_ids : nullptr,
                       first / bucket_size * bucket_size, remaps ? spare : nullptr, remap_ids,
                       write_order, first, count);
        compute_tile(shared, carries, operands, carry_rows[tile] >= 0, tile, count, rank, column,
                     column < rank, out, partial_rows);
        // Rows without a nonzero: each block has its share of them.
        const long long begin = tile * num_empty / num_tiles;
        const long long end = (tile + 1) * num_empty / num_tiles;
        for (long long e = begin + threadIdx.x / GROUP_SIZE; e < end; e += NUM_GROUPS) {
            const long long row = empty_rows[e];
            if (column < rank) *reinterpret_cast<Columns*>(out + row * rank + column) = zeros();
        }
        __syncthreads();  // before the next tile comes to the same shared memory
    }
}

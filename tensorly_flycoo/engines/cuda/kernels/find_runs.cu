// Entry: write the remap ids of each tile as runs of consecutive ids; and read them back.
//
// Mapping: a warp has a tile, and every num_warps-th after it (find); a thread has an id, and every
//   num_threads-th after it (list).
// Preconditions (the layout's): ids ascend within a tile, and form at most `max_runs` runs there.
// Bytes per nonzero: sizeof(REMAP_ID), 3/16, and a tile's share of sizeof(REMAP_ID) * max_runs.
// Writes and determinism: each number once.
// Source: none.
// MACRO REMAP_ID: unsigned type of remap ids
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a tile's block, and of this kernel's

#include "compact_ids.cuh"

using RemapIds = Runs<REMAP_ID, TILE_SIZE, BLOCK_SIZE>;

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    find_runs(long long num_tiles, long long nnz, const REMAP_ID* ids, unsigned* starts,
              unsigned short* counts, REMAP_ID* shifts, int max_runs)
{
    constexpr int num_warps = BLOCK_SIZE / 32;
    long long tile = static_cast<long long>(blockIdx.x) * num_warps + threadIdx.x / 32;
    for (; tile < num_tiles; tile += static_cast<long long>(gridDim.x) * num_warps) {
        find_runs_of_tile<TILE_SIZE, BLOCK_SIZE>(tile, nnz, ids, starts, counts, shifts,
                                                 max_runs);
    }
}

extern "C" __global__ void list_ids(long long nnz, const RemapIds::Words* starts,
                                    const RemapIds::Counts* counts, const REMAP_ID* shifts,
                                    int max_runs, REMAP_ID* ids)
{
    list_each_id<TILE_SIZE, BLOCK_SIZE>(nnz, RemapIds{starts, counts, shifts, max_runs}, ids);
}

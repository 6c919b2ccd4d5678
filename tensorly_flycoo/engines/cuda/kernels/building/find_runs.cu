// Entry: write the remap ids of each tile as runs of consecutive ids; `Runs` in `ids.cuh` reads
//   them.
//
// Mapping: a warp has a tile.
// Preconditions (the layout's): ids ascend within a tile, and form at most `max_runs` runs there.
// Bytes per nonzero: sizeof(REMAP_ID), 3/16, and a tile's share of sizeof(REMAP_ID) * max_runs.
// Writes and determinism: each number once.
// Source: none.
// MACRO REMAP_ID: unsigned type of remap ids
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a tile's block, and of this kernel's

// A warp finds the runs of its tile, 32 places at a time.
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    find_runs(long long num_tiles, long long nnz, const REMAP_ID* ids, unsigned* starts,
              unsigned short* counts, REMAP_ID* shifts, int max_runs)
{
    static_assert(BLOCK_SIZE % 32 == 0, "a move of a warp is a word of starts");
    constexpr int moves = TILE_SIZE / BLOCK_SIZE, num_warps = BLOCK_SIZE / 32;
    const long long tile = static_cast<long long>(blockIdx.x) * num_warps + threadIdx.x / 32;
    if (tile >= num_tiles) return;
    const int lane = threadIdx.x % 32;
    const unsigned lower_lanes = (1u << lane) - 1;
    int num_runs = 0;
    for (int start = 0; start < TILE_SIZE; start += 32) {
        const int place = start + lane;
        const long long i = tile * TILE_SIZE + place;
        const bool is_start =
            i < nnz && (place == 0 || ids[i] != static_cast<REMAP_ID>(ids[i - 1] + 1));
        const unsigned word = __ballot_sync(0xffffffffu, is_start);
        if (lane == 0) {
            const int warp = start % BLOCK_SIZE / 32, move = start / BLOCK_SIZE;
            const long long number = (tile * num_warps + warp) * moves + move;
            starts[number] = word;
            counts[number] = static_cast<unsigned short>(num_runs);
        }
        if (is_start) {
            const int run = num_runs + __popc(word & lower_lanes);
            shifts[tile * max_runs + run] = ids[i] - static_cast<REMAP_ID>(place);
        }
        num_runs += __popc(word);
    }
    for (int run = num_runs + lane; run < max_runs; run += 32) shifts[tile * max_runs + run] = 0;
}

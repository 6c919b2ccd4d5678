// Entry: count the empty rows of each block of rows, or list them.
//
// Mapping: a block has ROWS_PER_BLOCK neighbouring rows, a thread every BLOCK_SIZE-th of them.
// Preconditions (the engine's): if `rows` is null, `starts` receives the counts; else it holds the
//   sum of the counts of all previous blocks.
// Bytes per row: 1, and sizeof(ROW) for each empty one.
// Writes and determinism: each empty row once, ascending.
// Source: none.
// MACRO ROW: unsigned type of rows
// MACRO ROWS_PER_BLOCK: rows of a block
// MACRO BLOCK_SIZE: threads of a block

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    list_empty_rows(long long num_rows, const bool* is_used, long long* starts, ROW* rows)
{
    static_assert(BLOCK_SIZE % 32 == 0, "a block is whole warps");
    constexpr int num_warps = BLOCK_SIZE / 32;
    __shared__ int counts[num_warps];
    const long long first = static_cast<long long>(blockIdx.x) * ROWS_PER_BLOCK;
    const long long end = min(first + ROWS_PER_BLOCK, num_rows);
    const int warp = threadIdx.x / 32;
    const unsigned lower_lanes = (1u << threadIdx.x % 32) - 1;
    long long next = rows ? starts[blockIdx.x] : 0;
    for (int step = 0; step < ROWS_PER_BLOCK; step += BLOCK_SIZE) {
        const long long row = first + step + threadIdx.x;
        const bool is_empty = row < end && !is_used[row];
        const unsigned empty_lanes = __ballot_sync(0xffffffffu, is_empty);
        if (threadIdx.x % 32 == 0) counts[warp] = __popc(empty_lanes);
        __syncthreads();
        long long place = next + __popc(empty_lanes & lower_lanes);
        for (int w = 0; w < num_warps; ++w) {
            if (w < warp) place += counts[w];
            next += counts[w];
        }
        if (rows && is_empty) rows[place] = static_cast<ROW>(row);
        __syncthreads();
    }
    if (!rows && threadIdx.x == 0) starts[blockIdx.x] = next;
}

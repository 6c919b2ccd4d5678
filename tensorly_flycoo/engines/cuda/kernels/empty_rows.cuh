// A list of the rows that are not in use.
#pragma once

// A block has RowsPerBlock neighbouring rows. Without `rows` it counts the empty ones in `starts`;
// with it, it lists them from `starts` on.
template <int RowsPerBlock, int BlockSize, typename Row>
__device__ __forceinline__ void list_block(long long num_rows, const bool* is_used,
                                           long long* starts, Row* rows)
{
    static_assert(BlockSize % 32 == 0, "a block is whole warps");
    constexpr int num_warps = BlockSize / 32;
    __shared__ int counts[num_warps];
    const long long first = static_cast<long long>(blockIdx.x) * RowsPerBlock;
    const long long end = min(first + RowsPerBlock, num_rows);
    const int warp = threadIdx.x / 32;
    const unsigned lower_lanes = (1u << threadIdx.x % 32) - 1;
    long long next = rows ? starts[blockIdx.x] : 0;
    for (int step = 0; step < RowsPerBlock; step += BlockSize) {
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
        if (rows && is_empty) rows[place] = static_cast<Row>(row);
        __syncthreads();
    }
    if (!rows && threadIdx.x == 0) starts[blockIdx.x] = next;
}

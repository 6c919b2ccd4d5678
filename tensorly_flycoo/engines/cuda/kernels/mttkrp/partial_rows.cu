// Entry: add the carry-outs of tiles, their partial rows, to the rows that they belong to. Launched
// after `mttkrp_remap.cu`, and after `ttmc.cu`, whose runs count as tiles here.
//
// Mapping: a block has a segment, NUM_WARPS runs of `run` consecutive tiles, and blocks along y
//   have 32 columns each; a warp has a run, a lane a column.
// Preconditions (the layout's): `carry_rows` ascend, except where tiles inherit nothing (-1).
// Bytes: a row of `partial_rows` for each tile that inherits, a row of `out` in and out for each
//   row that crosses tiles. None per nonzero.
// Writes and determinism: a segment adds to `out` the rows first carried into one of its tiles: the
//   tiles of a run in their order, then the runs in theirs. It writes the sum of a row carried over
//   from the previous segment to `segment_sums`, and the row's number to `segment_rows`; the next
//   launch adds these, with segments as tiles. So even a row over all tiles takes only a
//   logarithmic number of launches, and the order is fixed by the number of tiles.
// Source: none.
// MACRO VALUE: float or double
// MACRO NUM_WARPS: warps of a block, 2 or more
// MACRO OUT_BLOCKS: blocks of rows of the result

#include "row_blocks.cuh"

// The runs of a block, and the carry-outs between them.
struct Runs {
    VALUE sums[NUM_WARPS][32];   // of a run, for the row that it inherits from the previous run
    bool inherits[NUM_WARPS];    // the run begins with the row that the previous run ends with
    bool is_one_row[NUM_WARPS];  // and that row fills the whole run

    // Adds to `total` the sums of the runs after `warp` for its last row.
    __device__ __forceinline__ void add_following(VALUE& total, int warp, int lane) const
    {
        for (int next = warp + 1; next < NUM_WARPS && inherits[next]; ++next) {
            total += sums[next][lane];
            if (!is_one_row[next]) break;
        }
    }
};

__device__ __forceinline__ long long pass_row(long long lane_row, long long tile)
{
    return __shfl_sync(0xffffffffu, lane_row, static_cast<int>(tile % 32));
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    add_partial_rows(long long num_tiles, int run, const long long* carry_rows, int rank,
                     const VALUE* partial_rows, const RowBlocks<VALUE, OUT_BLOCKS> out,
                     long long* segment_rows, VALUE* segment_sums)
{
    static_assert(NUM_WARPS > 1, "each launch leaves fewer partial rows");
    constexpr int batch = 32 / sizeof(VALUE);  // partial rows loaded together
    __shared__ Runs runs;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int column = blockIdx.y * 32 + lane;
    const long long first = (static_cast<long long>(blockIdx.x) * NUM_WARPS + warp) * run;
    const long long last = min(first + run, num_tiles);
    const bool is_there = first < last, has_column = column < rank;
    long long row = is_there ? carry_rows[first] : -1;
    const long long first_row = row;
    const bool inherited = is_there && first > 0 && row >= 0 && row == carry_rows[first - 1];
    bool is_first_row = true;
    long long lane_row = -1, last_row = -1;
    VALUE total = 0, sum = 0;  // of a row: its partial rows, and what `out` holds of it
    for (long long start = first; start < last; start += batch) {
        // A lane reads the row of one tile, and passes it to the others.
        if ((start - first) % 32 == 0) {
            lane_row = start + lane < last ? carry_rows[start + lane] : -1;
        }
        VALUE parts[batch], begun[batch];
#pragma unroll
        for (int b = 0; b < batch; ++b) {
            const long long next_row = pass_row(lane_row, start - first + b);
            const bool is_read = next_row >= 0 && has_column;
            parts[b] = is_read ? partial_rows[(start + b) * rank + column] : VALUE(0);
            // The run in which an inherited row begins adds it to `out`.
            const bool is_own = !inherited || next_row != first_row;
            const bool begins = is_read && is_own && next_row != last_row;
            begun[b] = begins ? out.find_row(next_row, rank)[column] : VALUE(0);
            last_row = next_row;
        }
#pragma unroll
        for (int b = 0; b < batch; ++b) {
            if (start + b >= last) break;
            const long long next_row = pass_row(lane_row, start - first + b);
            if (next_row != row) {
                if (inherited && is_first_row) {
                    runs.sums[warp][lane] = total;
                } else if (row >= 0 && has_column) {
                    out.find_row(row, rank)[column] = sum + total;
                }
                total = 0;
                row = next_row;
                is_first_row = false;
                sum = begun[b];
            } else if (start + b == first) {
                sum = begun[b];
            }
            total += parts[b];
        }
    }
    const bool fills_run = inherited && is_first_row;
    if (fills_run) runs.sums[warp][lane] = total;
    if (lane == 0) {
        runs.inherits[warp] = inherited;
        runs.is_one_row[warp] = fills_run;
    }
    __syncthreads();
    if (row >= 0 && !fills_run) {
        runs.add_following(total, warp, lane);
        if (has_column) out.find_row(row, rank)[column] = sum + total;
    }
    if (warp > 0) return;
    if (lane == 0 && blockIdx.y == 0) segment_rows[blockIdx.x] = inherited ? first_row : -1;
    if (!inherited) return;
    total = runs.sums[0][lane];
    if (fills_run) runs.add_following(total, warp, lane);
    if (has_column) segment_sums[static_cast<long long>(blockIdx.x) * rank + column] = total;
}

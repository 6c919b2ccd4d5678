// Addition of partial rows, the carry-outs of tiles.
#pragma once

// A block has a segment, `Segment` consecutive tiles, and 32 columns of it. A warp adds a run of the
// tiles one after the other, a lane for each column; the runs of a row are then added in their order.
template <int Segment, typename Value>
struct Segments {
    static_assert(Segment > 1, "each launch leaves fewer partial rows");
    static constexpr int num_warps = Segment < 32 ? Segment : 32;
    static constexpr int run = Segment / num_warps;
    static constexpr int batch = run < 8 ? run : 8;  // partial rows loaded together
    static_assert(run * num_warps == Segment, "a segment is whole runs");
    static_assert(32 % batch == 0, "a lane's row is for whole batches");

    Value sums[num_warps][32];   // of a run, for the row that it inherits from the previous run
    bool inherits[num_warps];    // the run begins with the row that the previous run ends with
    bool is_one_row[num_warps];  // and that row fills the whole run

    static __device__ __forceinline__ long long pass_row(long long lane_row, long long tile)
    {
        return __shfl_sync(0xffffffffu, lane_row, static_cast<int>(tile % 32));
    }

    // Adds to `total` the sums of the runs after `warp` for its last row.
    __device__ __forceinline__ void add_following(Value& total, int warp, int lane) const
    {
        for (int next = warp + 1; next < num_warps && inherits[next]; ++next) {
            total += sums[next][lane];
            if (!is_one_row[next]) break;
        }
    }

    __device__ __forceinline__ void add(long long num_tiles, const long long* carry_rows, int rank,
                                        const Value* partial_rows, Value* out,
                                        long long* segment_rows, Value* segment_sums)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int column = blockIdx.y * 32 + lane;
        const long long first = static_cast<long long>(blockIdx.x) * Segment + warp * run;
        const long long last = min(first + run, num_tiles);
        const bool is_there = first < last, has_column = column < rank;
        long long row = is_there ? carry_rows[first] : -1;
        const long long first_row = row;
        const bool inherited = is_there && first > 0 && row >= 0 && row == carry_rows[first - 1];
        bool is_first_row = true;
        long long lane_row = -1;
        Value total = 0;
        for (long long start = first; start < last; start += batch) {
            // A lane reads the row of one tile, and passes it to the others.
            if ((start - first) % 32 == 0) {
                lane_row = start + lane < last ? carry_rows[start + lane] : -1;
            }
            Value parts[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                const bool is_read = pass_row(lane_row, start - first + b) >= 0 && has_column;
                parts[b] = is_read ? partial_rows[(start + b) * rank + column] : Value(0);
            }
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                if (start + b >= last) break;
                const long long next_row = pass_row(lane_row, start - first + b);
                if (next_row != row) {
                    if (inherited && is_first_row) {
                        sums[warp][lane] = total;
                    } else if (row >= 0 && has_column) {
                        out[row * rank + column] += total;
                    }
                    total = 0;
                    row = next_row;
                    is_first_row = false;
                }
                total += parts[b];
            }
        }
        const bool fills_run = inherited && is_first_row;
        if (fills_run) sums[warp][lane] = total;
        if (lane == 0) {
            inherits[warp] = inherited;
            is_one_row[warp] = fills_run;
        }
        __syncthreads();
        if (row >= 0 && !fills_run) {
            add_following(total, warp, lane);
            if (has_column) out[row * rank + column] += total;
        }
        if (warp > 0) return;
        if (lane == 0 && blockIdx.y == 0) segment_rows[blockIdx.x] = inherited ? first_row : -1;
        if (!inherited) return;
        total = sums[0][lane];
        if (fills_run) add_following(total, warp, lane);
        if (has_column) segment_sums[static_cast<long long>(blockIdx.x) * rank + column] = total;
    }
};

// Addition of partial rows, the carry-outs of tiles.
#pragma once

// A block has a segment of consecutive tiles, and 32 columns of it. A warp adds a run of `run` tiles
// one after the other, a lane for each column; the runs of a row are then added in their order.
template <int NumWarps, typename Value>
struct Segments {
    static_assert(NumWarps > 1, "each launch leaves fewer partial rows");
    static constexpr int batch = 32 / sizeof(Value);  // partial rows loaded together

    Value sums[NumWarps][32];   // of a run, for the row that it inherits from the previous run
    bool inherits[NumWarps];    // the run begins with the row that the previous run ends with
    bool is_one_row[NumWarps];  // and that row fills the whole run

    static __device__ __forceinline__ long long pass_row(long long lane_row, long long tile)
    {
        return __shfl_sync(0xffffffffu, lane_row, static_cast<int>(tile % 32));
    }

    // Adds to `total` the sums of the runs after `warp` for its last row.
    __device__ __forceinline__ void add_following(Value& total, int warp, int lane) const
    {
        for (int next = warp + 1; next < NumWarps && inherits[next]; ++next) {
            total += sums[next][lane];
            if (!is_one_row[next]) break;
        }
    }

    __device__ __forceinline__ void add(long long num_tiles, int run, const long long* carry_rows,
                                        int rank, const Value* partial_rows, Value* out,
                                        long long* segment_rows, Value* segment_sums)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int column = blockIdx.y * 32 + lane;
        const long long first = (static_cast<long long>(blockIdx.x) * NumWarps + warp) * run;
        const long long last = min(first + run, num_tiles);
        const bool is_there = first < last, has_column = column < rank;
        long long row = is_there ? carry_rows[first] : -1;
        const long long first_row = row;
        const bool inherited = is_there && first > 0 && row >= 0 && row == carry_rows[first - 1];
        bool is_first_row = true;
        long long lane_row = -1, last_row = -1;
        Value total = 0, sum = 0;  // of a row: its partial rows, and what `out` holds of it
        for (long long start = first; start < last; start += batch) {
            // A lane reads the row of one tile, and passes it to the others.
            if ((start - first) % 32 == 0) {
                lane_row = start + lane < last ? carry_rows[start + lane] : -1;
            }
            Value parts[batch], begun[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                const long long next_row = pass_row(lane_row, start - first + b);
                const bool is_read = next_row >= 0 && has_column;
                parts[b] = is_read ? partial_rows[(start + b) * rank + column] : Value(0);
                // The run in which an inherited row begins adds it to `out`.
                const bool is_own = !inherited || next_row != first_row;
                const bool begins = is_read && is_own && next_row != last_row;
                begun[b] = begins ? out[next_row * rank + column] : Value(0);
                last_row = next_row;
            }
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                if (start + b >= last) break;
                const long long next_row = pass_row(lane_row, start - first + b);
                if (next_row != row) {
                    if (inherited && is_first_row) {
                        sums[warp][lane] = total;
                    } else if (row >= 0 && has_column) {
                        out[row * rank + column] = sum + total;
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
        if (fills_run) sums[warp][lane] = total;
        if (lane == 0) {
            inherits[warp] = inherited;
            is_one_row[warp] = fills_run;
        }
        __syncthreads();
        if (row >= 0 && !fills_run) {
            add_following(total, warp, lane);
            if (has_column) out[row * rank + column] = sum + total;
        }
        if (warp > 0) return;
        if (lane == 0 && blockIdx.y == 0) segment_rows[blockIdx.x] = inherited ? first_row : -1;
        if (!inherited) return;
        total = sums[0][lane];
        if (fills_run) add_following(total, warp, lane);
        if (has_column) segment_sums[static_cast<long long>(blockIdx.x) * rank + column] = total;
    }
};

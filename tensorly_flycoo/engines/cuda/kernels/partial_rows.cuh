// Addition of partial rows, the carry-outs of tiles.
#pragma once

// A thread has one column of a segment: `Segment` consecutive tiles.
template <int Segment, typename Value>
__device__ __forceinline__ void add_segments(long long num_tiles, const long long* carry_rows,
                                             int rank, const Value* partial_rows, Value* out,
                                             long long* segment_rows, Value* segment_sums)
{
    static_assert(Segment > 1, "each launch leaves fewer partial rows");
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    const long long num_segments = (num_tiles + Segment - 1) / Segment;
    long long item = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; item < num_segments * rank; item += num_threads) {
        const long long segment = item / rank, column = item % rank;
        const long long first = segment * Segment;
        const long long last = min(first + Segment, num_tiles);
        const bool inherits =
            first > 0 && carry_rows[first] >= 0 && carry_rows[first] == carry_rows[first - 1];
        const long long inherited_row = inherits ? carry_rows[first] : -1;
        if (column == 0) segment_rows[segment] = inherited_row;
        for (long long tile = first; tile < last;) {
            const long long row = carry_rows[tile];
            Value total = 0;
            for (; tile < last && carry_rows[tile] == row; ++tile) {
                if (row >= 0) total += partial_rows[tile * rank + column];
            }
            if (row < 0) continue;
            if (row == inherited_row) {
                segment_sums[item] = total;
            } else {
                out[row * rank + column] += total;
            }
        }
    }
}

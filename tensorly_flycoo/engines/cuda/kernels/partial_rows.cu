// Entry: add what tiles found of the rows that they inherited, after `mttkrp`.
//
// Mapping: a thread has one column of a segment, SEGMENT consecutive tiles.
// Preconditions (the engine's): `carry_rows` rise, but for tiles that inherit nothing (-1).
// Bytes: a row of `partial_rows` for each tile that inherits, a row of `out` in and out for each
//   row that crosses tiles.
// Writes and determinism: a row that begins to be inherited in a segment is added by it, in the
//   order of the tiles. What the segment before was adding to already goes to `segment_sums`, with
//   its row in `segment_rows`: the same kernel adds those, as tiles of tiles, in the next launch.
//   So a row over all tiles takes a logarithm of steps, and the order never changes.
#ifndef VALUE
#error "VALUE: float or double, the type of values and factors"
#endif
#ifndef SEGMENT
#error "SEGMENT: tiles of a segment"
#endif

extern "C" __global__ void add_partial_rows(long long num_tiles, const long long* carry_rows,
                                            int rank, const VALUE* partial_rows, VALUE* out,
                                            long long* segment_rows, VALUE* segment_sums)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    const long long num_segments = (num_tiles + SEGMENT - 1) / SEGMENT;
    long long item = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; item < num_segments * rank; item += num_threads) {
        const long long segment = item / rank, column = item % rank;
        const long long first = segment * SEGMENT;
        const long long last = min(first + SEGMENT, num_tiles);
        const bool inherits =
            first > 0 && carry_rows[first] >= 0 && carry_rows[first] == carry_rows[first - 1];
        const long long inherited_row = inherits ? carry_rows[first] : -1;
        if (column == 0) segment_rows[segment] = inherited_row;
        for (long long tile = first; tile < last;) {
            const long long row = carry_rows[tile];
            VALUE total = 0;
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

// Entry: add the carry-outs of tiles, their partial rows, to the rows that they belong to. Follows
// `mttkrp.cu`, and `ttmc.cu`, whose runs then stand for tiles.
//
// Mapping: a thread has one column of a segment, SEGMENT consecutive tiles.
// Preconditions (the layout's): `carry_rows` ascend, but for tiles that inherit nothing (-1).
// Bytes: a row of `partial_rows` for each tile that inherits, a row of `out` in and out for each
//   row that crosses tiles. None per nonzero.
// Writes and determinism: a segment adds the rows that are first carried into one of its tiles, in
//   the order of the tiles. A row that is carried on from the segment before goes to
//   `segment_sums`, and its number to `segment_rows`: the next launch adds those, with segments for
//   tiles. So a row over all tiles takes a logarithm of launches, and the order never changes.
// Source: none.
#ifndef VALUE
#error "VALUE: float or double, the type of values and factors"
#endif
#ifndef SEGMENT
#error "SEGMENT: tiles of a segment"
#endif

#include "partial_rows.cuh"

extern "C" __global__ void add_partial_rows(long long num_tiles, const long long* carry_rows,
                                            int rank, const VALUE* partial_rows, VALUE* out,
                                            long long* segment_rows, VALUE* segment_sums)
{
    add_segments<SEGMENT>(num_tiles, carry_rows, rank, partial_rows, out, segment_rows,
                          segment_sums);
}

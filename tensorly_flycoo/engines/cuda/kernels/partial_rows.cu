// Entry: add the carry-outs of tiles, their partial rows, to the rows that they belong to. Launched
// after `mttkrp.cu`, and after `ttmc.cu`, whose runs count as tiles here.
//
// Mapping: a thread has one column of a segment, SEGMENT consecutive tiles.
// Preconditions (the layout's): `carry_rows` ascend, except where tiles inherit nothing (-1).
// Bytes: a row of `partial_rows` for each tile that inherits, a row of `out` in and out for each
//   row that crosses tiles. None per nonzero.
// Writes and determinism: a segment adds to `out` the rows first carried into one of its tiles, in
//   the order of the tiles. It writes the sum of a row carried over from the previous segment to
//   `segment_sums`, and the row's number to `segment_rows`; the next launch adds these, with
//   segments as tiles. So even a row over all tiles takes only a logarithmic number of launches,
//   and the order is fixed.
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

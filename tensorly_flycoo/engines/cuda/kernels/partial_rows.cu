// Entry: add the carry-outs of tiles, their partial rows, to the rows that they belong to. Launched
// after `mttkrp.cu`, and after `ttmc.cu`, whose runs count as tiles here.
//
// Mapping: a block has a segment, NUM_WARPS runs of `run` consecutive tiles, and blocks along y have
//   32 columns each; a warp has a run, a lane a column.
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

#include "partial_rows.cuh"

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    add_partial_rows(long long num_tiles, int run, const long long* carry_rows, int rank,
                     const VALUE* partial_rows, VALUE* out, long long* segment_rows,
                     VALUE* segment_sums)
{
    __shared__ Segments<NUM_WARPS, VALUE> segments;
    segments.add(num_tiles, run, carry_rows, rank, partial_rows, out, segment_rows, segment_sums);
}

// Entry: count the empty rows of each block of rows, or list them.
//
// Mapping: a block has ROWS_PER_BLOCK neighbouring rows.
// Preconditions (the engine's): if `rows` is null, `starts` receives the counts; else it holds the
//   sum of the counts of all previous blocks.
// Bytes per row: 1, and sizeof(ROW) for each empty one.
// Writes and determinism: each empty row once, ascending.
// Source: none.
// MACRO ROW: unsigned type of rows
// MACRO ROWS_PER_BLOCK: rows of a block
// MACRO BLOCK_SIZE: threads of a block

#include "empty_rows.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    list_empty_rows(long long num_rows, const bool* is_used, long long* starts, ROW* rows)
{
    list_block<ROWS_PER_BLOCK, BLOCK_SIZE>(num_rows, is_used, starts, rows);
}

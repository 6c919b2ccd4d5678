// Entry: count the empty rows of each block of rows, or list them.
//
// Mapping: a block has ROWS_PER_BLOCK neighbouring rows, a thread every BLOCK_SIZE-th of them.
// Preconditions (the engine's): if `rows` is null, `starts` receives the counts; else it holds the
//   sum of the counts of all previous blocks.
// Bytes per row: 1, and sizeof(ROW) for each empty one.
// Writes and determinism: each empty row once, ascending.
// Source: none.
// MACRO ROW: unsigned type of rows
// MACRO ROWS_PER_BLOCK: rows of a block
// MACRO BLOCK_SIZE: threads of a block

#include "sums.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    list_empty_rows(long long num_rows, const bool* is_used, long long* starts, ROW* rows)
{
    const long long first = static_cast<long long>(blockIdx.x) * ROWS_PER_BLOCK;
    const long long end = min(first + ROWS_PER_BLOCK, num_rows);
    long long next = rows ? starts[blockIdx.x] : 0;
    for (int step = 0; step < ROWS_PER_BLOCK; step += BLOCK_SIZE) {
        const long long row = first + step + threadIdx.x;
        const bool is_empty = row < end && !is_used[row];
        const long long place = take_number<BLOCK_SIZE>(is_empty, next);
        if (rows && is_empty) rows[place] = static_cast<ROW>(row);
    }
    if (!rows && threadIdx.x == 0) starts[blockIdx.x] = next;
}

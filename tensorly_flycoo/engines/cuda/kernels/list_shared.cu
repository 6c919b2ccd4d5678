// Entry: count the nonzeros that share their column and mark their rows, or list them.
//
// Mapping: a block has ENTRIES_PER_BLOCK neighbouring nonzeros.
// Preconditions (the engine's): if `coords` is null, `starts` receives a block's counts of entries
//   and of columns, and `is_free` held true; else `starts` holds the sums of the counts of all
//   previous blocks, whose total is `count`, and `slots` numbers the marked rows.
// Bytes per nonzero: 2; per shared one 4, and later 12 and a slot in, 24 out.
// Writes and determinism: each item once, except `is_free`, which gets the same from each thread.
// Source: none.
// MACRO ENTRIES_PER_BLOCK: nonzeros of a block
// MACRO BLOCK_SIZE: threads of a block

#include "list_shared.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    list_shared(long long nnz, const bool* is_first, const unsigned* rows, const double* values,
                double scale, long long* starts, long long count, bool* is_free,
                const unsigned* slots, long long* coords, double* shared_values)
{
    const SharedEntries target = {count, slots, coords, shared_values};
    list_shared_of_block<ENTRIES_PER_BLOCK, BLOCK_SIZE>(nnz, is_first, rows, values, scale, starts,
                                                        is_free, target);
}

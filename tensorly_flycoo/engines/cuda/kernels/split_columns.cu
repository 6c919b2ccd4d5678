// Entry: split records, in an order in which columns of an unfolding are contiguous, into rows,
// values, and whether each nonzero is the first of its column.
//
// Mapping: a thread has one nonzero, and every num_threads-th after it.
// Preconditions (the engine's): with HAS_PLACES, `places` is a permutation.
// Bytes per nonzero: a record (a sector, if records are not in order) and its place in; 13 out.
// Writes and determinism: each item once, by one thread.
// Source: none.
// MACRO VALUE: float or double, the type of values and factors
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO COLUMNS_LAYOUT: how Python fills struct Columns (see structs.py)
// MACRO HAS_PLACES: 1 if records are read in the order of places, 0 if in their own
// MACRO PLACE: unsigned type of places

#include "layout.cuh"
#include "split_columns.cuh"

using UnfoldingColumns = Columns<NUM_WORDS>;
CHECK_LAYOUT(UnfoldingColumns, COLUMNS_LAYOUT)

extern "C" __global__ void split_columns(const UnfoldingColumns columns, long long nnz,
                                         const unsigned* records, const PLACE* places,
                                         bool* is_first, unsigned* rows, double* values)
{
    split_each<NUM_WORDS, HAS_PLACES, VALUE>(columns, nnz, records, places, is_first, rows,
                                             values);
}

// Entry: split records, in an order in which columns of an unfolding are contiguous, into rows,
// values, and whether each nonzero is the first of its column.
//
// Mapping: a thread has one nonzero.
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
#include "operands.cuh"

// How records hold an unfolding's rows and columns. Filled by Python (`structs.py`).
struct Columns {
    Field row_field;
    unsigned value_slot;       // counted in values
    unsigned masks[NUM_WORDS];  // the bits of all other modes
};
CHECK_LAYOUT(Columns, COLUMNS_LAYOUT)

// One more thread than nonzeros ends the last column.
extern "C" __global__ void split_columns(const Columns columns, long long nnz,
                                         const unsigned* records, const PLACE* places,
                                         bool* is_first, unsigned* rows, double* values)
{
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i == nnz) is_first[nnz] = true;
    if (i >= nnz) return;
    const long long before = i > 0 ? i - 1 : 0;
    const unsigned* record = records + (HAS_PLACES ? places[i] : i) * NUM_WORDS;
    const unsigned* previous = records + (HAS_PLACES ? places[before] : before) * NUM_WORDS;
    unsigned difference = 0;
#pragma unroll
    for (int w = 0; w < NUM_WORDS; ++w) {
        difference |= (record[w] ^ previous[w]) & columns.masks[w];
    }
    is_first[i] = i == 0 || difference != 0;
    rows[i] = read_row<NUM_WORDS>(record, columns.row_field);
    values[i] = read_value<VALUE>(record, columns.value_slot);
}

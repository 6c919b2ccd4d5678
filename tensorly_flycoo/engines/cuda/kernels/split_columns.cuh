// The nonzeros of an unfolding, column by column.
#pragma once

#include "operands.cuh"

// How records hold the rows and the columns of an unfolding. Filled by Python (`structs.py`) and
// passed by value.
template <int NumWords>
struct Columns {
    Field row_field;
    unsigned value_slot;       // counted in values
    unsigned masks[NumWords];  // the bits of all other modes
};

// A thread has a nonzero: its row, its value, and whether its column differs from the one before.
// One more thread ends the last column.
template <int NumWords, bool HasPlaces, typename Value, typename Place>
__device__ __forceinline__ void split_each(const Columns<NumWords>& columns, long long nnz,
                                           const unsigned* records, const Place* places,
                                           bool* is_first, unsigned* rows, double* values)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i < nnz; i += num_threads) {
        const long long before = i > 0 ? i - 1 : 0;
        const unsigned* record = records + (HasPlaces ? places[i] : i) * NumWords;
        const unsigned* previous = records + (HasPlaces ? places[before] : before) * NumWords;
        unsigned difference = 0;
#pragma unroll
        for (int w = 0; w < NumWords; ++w) {
            difference |= (record[w] ^ previous[w]) & columns.masks[w];
        }
        is_first[i] = i == 0 || difference != 0;
        rows[i] = read_row<NumWords>(record, columns.row_field);
        values[i] = read_value<Value>(record, columns.value_slot);
    }
    if (i == nnz) is_first[nnz] = true;
}

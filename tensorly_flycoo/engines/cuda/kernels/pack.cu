// Entry: pack nonzeros into records, and set the flags in `found`: whether any nonzero is out of
// ascending order or a duplicate, lies outside the shape, is not finite, or is zero.
//
// Mapping: a thread has one nonzero, and every num_threads-th after it.
// Preconditions (the engine's): `found` holds four zeros. The engine raises if a flag is an error.
// Bytes per nonzero: its coordinates, its value and the previous coordinates (cached) in, a record
//   out.
// Writes and determinism: each record once; all blocks write the same value to a flag.
// Source: none.
// MACRO COORD: signed or unsigned type of coordinates
// MACRO VALUE: float or double, the type of values and factors
// MACRO NDIM: number of modes
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO PACKING_LAYOUT: how Python fills struct Packing (see structs.py)

#include "layout.cuh"
#include "pack.cuh"

using RecordPacking = Packing<NDIM>;
CHECK_LAYOUT(RecordPacking, PACKING_LAYOUT)

extern "C" __global__ void pack(const RecordPacking packing, long long nnz, const COORD* coords,
                                const VALUE* values, unsigned* records, bool* found)
{
    pack_nonzeros<NDIM, NUM_WORDS>(packing, nnz, coords, values, records, found);
}

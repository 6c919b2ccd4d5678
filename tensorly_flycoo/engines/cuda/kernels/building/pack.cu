// Entry: pack nonzeros into records, and set the flags in `found`: whether any nonzero is out of
// ascending order or a duplicate, lies outside the shape, is not finite, or is zero.
//
// Mapping: a thread has one nonzero.
// Preconditions (the engine's): `found` holds four zeros. The engine raises if a flag is an error.
// Bytes per nonzero: its coordinates and value, and cached ones before it, in; a record out.
// Writes and determinism: each record once; all blocks write the same value to a flag.
// Source: none.
// MACRO COORD: signed or unsigned type of coordinates
// MACRO VALUE: float or double, the type of values and factors
// MACRO NDIM: number of modes
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO PACKING_LAYOUT: how Python fills struct Packing (see structs.py)

#include "items.cuh"
#include "layout.cuh"

// Where each coordinate goes in a record, and the strides of coordinates in memory.
struct Packing {
    long long mode_stride, nonzero_stride;  // counted in coordinates
    unsigned long long sizes[NDIM];
    unsigned words[NDIM];
    unsigned shifts[NDIM];
    unsigned value_slot;  // counted in values
};
CHECK_LAYOUT(Packing, PACKING_LAYOUT)

// A negative coordinate becomes a very large one.
__device__ __forceinline__ unsigned long long read_coord(const COORD* coord)
{
    return static_cast<unsigned long long>(static_cast<long long>(*coord));
}

__device__ __forceinline__ void note(bool* found, bool condition)
{
    if (__syncthreads_or(condition) && threadIdx.x == 0) *found = true;
}

extern "C" __global__ void pack(const Packing packing, long long nnz, const COORD* coords,
                                const VALUE* values, unsigned* records, bool* found)
{
    static_assert(4 * NUM_WORDS % sizeof(VALUE) == 0, "a record is aligned to its value");
    constexpr int values_per_record = 4 * NUM_WORDS / sizeof(VALUE);
    bool is_outside = false, is_unsorted = false, is_infinite = false, is_zero = false;
    for_own_item(nnz, [&](long long i) {
        unsigned words[NUM_WORDS] = {};
        bool is_compared = i == 0;  // an earlier mode differs from the previous nonzero's
#pragma unroll
        for (int n = 0; n < NDIM; ++n) {
            const COORD* coord = coords + n * packing.mode_stride + i * packing.nonzero_stride;
            const unsigned long long row = read_coord(coord);
            is_outside |= row >= packing.sizes[n];
            const unsigned long long bits = row << packing.shifts[n];
#pragma unroll
            for (int w = 0; w < NUM_WORDS; ++w) {
                if (w == packing.words[n]) words[w] |= static_cast<unsigned>(bits);
                if (w == packing.words[n] + 1) words[w] |= static_cast<unsigned>(bits >> 32);
            }
            if (!is_compared) {
                const unsigned long long before = read_coord(coord - packing.nonzero_stride);
                is_unsorted |= row < before;
                is_compared = row != before;
            }
        }
        is_unsorted |= !is_compared;  // a duplicate
        const VALUE value = values[i];
        is_zero |= value == 0;
        is_infinite |= !isfinite(value);
#pragma unroll
        for (int w = 0; w < NUM_WORDS; ++w) records[i * NUM_WORDS + w] = words[w];
        reinterpret_cast<VALUE*>(records)[i * values_per_record + packing.value_slot] = value;
    });
    note(found + 0, is_unsorted);
    note(found + 1, is_outside);
    note(found + 2, is_infinite);
    note(found + 3, is_zero);
}

// Packing of nonzeros into records (see RecordFormat).
#pragma once

// Where each coordinate goes in a record, and the strides of coordinates in memory. Filled by
// Python (`structs.py`) and passed by value.
template <int Ndim>
struct Packing {
    long long mode_stride, nonzero_stride;  // counted in coordinates
    unsigned long long sizes[Ndim];
    unsigned words[Ndim];
    unsigned shifts[Ndim];
    unsigned value_slot;  // counted in values
};

// A negative coordinate becomes a very large one.
template <typename Coord>
__device__ __forceinline__ unsigned long long read_coord(const Coord* coord)
{
    return static_cast<unsigned long long>(static_cast<long long>(*coord));
}

__device__ __forceinline__ void note(bool* found, bool condition)
{
    if (__syncthreads_or(condition) && threadIdx.x == 0) *found = true;
}

template <int Ndim, int NumWords, typename Coord, typename Value>
__device__ __forceinline__ void pack_nonzeros(const Packing<Ndim>& packing, long long nnz,
                                              const Coord* coords, const Value* values,
                                              unsigned* records, bool* found)
{
    static_assert(4 * NumWords % sizeof(Value) == 0, "a record is aligned to its value");
    constexpr int values_per_record = 4 * NumWords / sizeof(Value);
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    bool is_outside = false, is_unsorted = false, is_infinite = false, is_zero = false;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; i < nnz; i += num_threads) {
        unsigned words[NumWords] = {};
        bool is_compared = i == 0;  // an earlier mode differs from the previous nonzero's
#pragma unroll
        for (int n = 0; n < Ndim; ++n) {
            const Coord* coord = coords + n * packing.mode_stride + i * packing.nonzero_stride;
            const unsigned long long row = read_coord(coord);
            is_outside |= row >= packing.sizes[n];
            const unsigned long long bits = row << packing.shifts[n];
#pragma unroll
            for (int w = 0; w < NumWords; ++w) {
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
        const Value value = values[i];
        is_zero |= value == 0;
        is_infinite |= !isfinite(value);
#pragma unroll
        for (int w = 0; w < NumWords; ++w) records[i * NumWords + w] = words[w];
        reinterpret_cast<Value*>(records)[i * values_per_record + packing.value_slot] = value;
    }
    note(found + 0, is_unsorted);
    note(found + 1, is_outside);
    note(found + 2, is_infinite);
    note(found + 3, is_zero);
}

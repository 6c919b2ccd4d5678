// Entry: pack nonzeros into records, and look at them on the way.
//
// Mapping: a thread has a nonzero.
// Preconditions (the engine's): `found` holds zeros.
// Bytes per nonzero: its coordinates and its value in, a record out.
// Writes and determinism: each record once; whoever finds something writes the same.
#ifndef COORD
#error "COORD: signed or unsigned type of coordinates"
#endif
#ifndef VALUE
#error "VALUE: float or double, the type of values and factors"
#endif
#ifndef NDIM
#error "NDIM: number of modes"
#endif
#ifndef NUM_WORDS
#error "NUM_WORDS: 32-bit words of a record"
#endif

// Where in a record each coordinate goes (see RecordFormat), and how coordinates lie in memory.
struct Packing {
    long long mode_stride, nonzero_stride;  // counted in coordinates
    unsigned long long sizes[NDIM];
    unsigned words[NDIM];
    unsigned shifts[NDIM];
    unsigned value_slot;  // counted in values
};

constexpr int VALUES = NUM_WORDS * 4 / sizeof(VALUE);  // that a record has room for

__device__ __forceinline__ unsigned long long read_coord(const COORD* coord)
{
    return static_cast<unsigned long long>(static_cast<long long>(*coord));  // below 0: very large
}

__device__ __forceinline__ void say(bool* found, bool condition)
{
    if (__syncthreads_or(condition) && threadIdx.x == 0) *found = true;
}

extern "C" __global__ void pack(const Packing packing, long long nnz, const COORD* coords,
                                const VALUE* values, unsigned* records, bool* found)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    bool is_outside = false, falls = false, is_infinite = false, is_zero = false;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i < nnz; i += num_threads) {
        unsigned words[NUM_WORDS] = {};
        bool is_known = i == 0;  // how this nonzero stands to the one before
#pragma unroll
        for (int n = 0; n < NDIM; ++n) {
            const COORD* coord =
                coords + n * packing.mode_stride + i * packing.nonzero_stride;
            const unsigned long long row = read_coord(coord);
            is_outside |= row >= packing.sizes[n];
            const unsigned long long bits = row << packing.shifts[n];
#pragma unroll
            for (int w = 0; w < NUM_WORDS; ++w) {
                if (w == packing.words[n]) words[w] |= static_cast<unsigned>(bits);
                if (w == packing.words[n] + 1) words[w] |= static_cast<unsigned>(bits >> 32);
            }
            if (!is_known) {
                const unsigned long long before = read_coord(coord - packing.nonzero_stride);
                falls |= row < before;
                is_known = row != before;
            }
        }
        falls |= !is_known;  // a duplicate
        const VALUE value = values[i];
        is_zero |= value == 0;
        is_infinite |= !isfinite(value);
#pragma unroll
        for (int w = 0; w < NUM_WORDS; ++w) records[i * NUM_WORDS + w] = words[w];
        reinterpret_cast<VALUE*>(records)[i * VALUES + packing.value_slot] = value;
    }
    say(found + 0, falls);
    say(found + 1, is_outside);
    say(found + 2, is_infinite);
    say(found + 3, is_zero);
}

// Entry: add matrices of this GPU and of others.
//
// Mapping: a thread has 16 bytes of the sum where addresses and the size allow it, else as many
//   numbers one by one.
// Preconditions (the caller's): the matrices have no gaps, and this GPU can read the others' memory.
// Bytes: the matrices once, over the links between GPUs if they are elsewhere, and the sum once. To
//   copy them here first would write and read them once more.
// Writes and determinism: the sum, in the order of TREE.
// Source: none.
// MACRO VALUE: type of the numbers
// MACRO NUM_PARTS: the number of matrices
// MACRO TREE: the sum of PART(0), PART(1), ..., an expression

constexpr int LANES = 16 / sizeof(VALUE);

// Filled by Python (`exchange.py`).
struct Parts {
    const VALUE* parts[NUM_PARTS];
};

struct alignas(16) Lanes {
    VALUE values[LANES];
};

extern "C" __global__ void add_arrays(const long long size, const Parts matrices, VALUE* sums)
{
    const VALUE* const* parts = matrices.parts;
    size_t addresses = reinterpret_cast<size_t>(sums);
#pragma unroll
    for (int n = 0; n < NUM_PARTS; ++n) addresses |= reinterpret_cast<size_t>(parts[n]);
    const long long thread = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (addresses % 16 == 0 && size % LANES == 0) {
        const long long first = thread * LANES;
        if (first >= size) return;
        Lanes read[NUM_PARTS], sum;
#pragma unroll
        for (int n = 0; n < NUM_PARTS; ++n)
            read[n] = *reinterpret_cast<const Lanes*>(parts[n] + first);
#define PART(n) read[n].values[lane]
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sum.values[lane] = TREE;
#undef PART
        *reinterpret_cast<Lanes*>(sums + first) = sum;
    } else {
        const long long num_threads = gridDim.x * static_cast<long long>(blockDim.x);
#define PART(n) parts[n][number]
        for (long long number = thread; number < size; number += num_threads) sums[number] = TREE;
#undef PART
    }
}

// Entry: the Khatri-Rao product of the factors of a group of modes; and the contraction of the
// group's MTTKRP with all of them but one, which is the MTTKRP of that one's mode.
//
// Mapping: `combine_rows` has a thread for each value. In `contract_rows` a block has a row of the
//   result and, along y, 32 columns; each of its NUM_WARPS warps adds every NUM_WARPS-th term.
// Preconditions (the engine's): the row of the group for indices i_n is the sum of i_n << bits[n].
// Bytes: each value of `rows` and `out` once; factors come from caches. None per nonzero.
// Writes and determinism: each value is written once. Terms are added in their order by a warp, and
//   the sums of warps in theirs; both orders depend on the sizes only.
// Source: none.
// MACRO VALUE: float or double
// MACRO NUM_FACTORS: those that are multiplied, 1 or more
// MACRO NUM_WARPS: warps of a block that contracts

#include "items.cuh"

struct Factors {
    const VALUE* values[NUM_FACTORS];
    long long row_strides[NUM_FACTORS];
    long long column_strides[NUM_FACTORS];
    int bits[NUM_FACTORS];
    unsigned masks[NUM_FACTORS];
    unsigned sizes[NUM_FACTORS];

    // Multiplies `product` by a column of a row of the group; returns false if it has no indices.
    __device__ __forceinline__ bool multiply(long long row, int column, VALUE& product) const
    {
        bool is_inside = true;
#pragma unroll
        for (int n = 0; n < NUM_FACTORS; ++n) {
            const unsigned index = static_cast<unsigned>(row >> bits[n]) & masks[n];
            is_inside &= index < sizes[n];
            if (index < sizes[n])
                product *= values[n][index * row_strides[n] + column * column_strides[n]];
        }
        return is_inside;
    }
};

extern "C" __global__ void combine_rows(Factors factors, long long num_values, int rank, VALUE* out)
{
    for_own_item(num_values, [&](long long i) {
        VALUE product = 1;
        const bool is_inside = factors.multiply(i / rank, static_cast<int>(i % rank), product);
        out[i] = is_inside ? product : VALUE(0);
    });
}

// The mode that is left has the bits from `below` on, `width` of them; `num_terms` are the rows of
// the group for each of its indices.
extern "C" __global__ void contract_rows(Factors factors, long long num_terms, const VALUE* rows,
                                         const VALUE* weights, VALUE* out, int below, int width,
                                         int rank)
{
    __shared__ VALUE sums[NUM_WARPS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.y * 32 + lane;
    const long long own = static_cast<long long>(blockIdx.x) << below, mask = (1LL << below) - 1;
    VALUE sum = 0;
    if (column < rank) {
#pragma unroll 4
        for (long long term = warp; term < num_terms; term += NUM_WARPS) {
            const long long row = (term >> below << (below + width)) | own | (term & mask);
            VALUE product = rows[row * rank + column];
            if (factors.multiply(row, column, product)) sum += product;
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= rank) return;
    for (int other = 1; other < NUM_WARPS; ++other) sum += sums[other][lane];
    out[static_cast<long long>(blockIdx.x) * rank + column] =
        weights == nullptr ? sum : sum * weights[column];
}

// Entry: add the Gram matrices of many blocks of rows, SEGMENT consecutive ones to one.
//
// Mapping: a block has 256 numbers of a segment, a thread one of them.
// Preconditions: none.
// Bytes: the matrices once. None per nonzero.
// Writes and determinism: one matrix (R, R) for each segment; blocks are added in their order.
// Source: none.
// MACRO RANK: rows and columns of a Gram matrix
// MACRO SEGMENT: blocks that are added to one

#include "product.cuh"

extern "C" __global__ void add_grams(long long num_blocks, const double* blocks, double* sums)
{
    constexpr int size = RANK * RANK;
    const int number = blockIdx.y * blockDim.x + threadIdx.x;
    if (number >= size) return;
    const long long segment = blockIdx.x, first = segment * SEGMENT;
    const long long count = min(static_cast<long long>(SEGMENT), num_blocks - first);
    sums[segment * size + number] = add_blocks(blocks + first * size + number, count, size);
}

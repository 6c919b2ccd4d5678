// Entry: add the parts of a matrix, each with equally many rows.
//
// Mapping: a thread has one number of the sum.
// Preconditions (the caller's): the parts follow each other without gaps.
// Bytes: the parts and the sum once. None per nonzero.
// Writes and determinism: the sum, in the order of TREE.
// Source: none.
// MACRO VALUE: type of the numbers
// MACRO TREE: the sum of PART(0), PART(1), ..., an expression

#define PART(n) parts[(n) * size + number]

extern "C" __global__ void add_parts(long long size, const VALUE* parts, VALUE* sums)
{
    const long long number = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (number < size) sums[number] = TREE;
}

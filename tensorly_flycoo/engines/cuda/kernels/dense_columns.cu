// Entry: fill a dense block with the columns `first` to `last` - 1 of a sparse matrix, transposed;
// and add to the diagonal of a matrix.
//
// Mapping: a thread has one entry or element, and every num_threads-th after it.
// Preconditions (the engine's): `coords` is (column, row) of each entry, columns ascending; `block`
//   held zeros.
// Bytes per entry of the block: 24 in, 8 out at random.
// Writes and determinism: each element once.
// Source: none.
#include "dense_columns.cuh"

extern "C" __global__ void fill_columns(long long nnz, long long first, long long last,
                                        long long size, const long long* coords,
                                        const double* values, double* block)
{
    const long long begin = find_column(nnz, coords, first), end = find_column(nnz, coords, last);
    for_own_items(end - begin, [=](long long item) {
        const long long i = begin + item;
        block[(coords[i] - first) * size + coords[nnz + i]] = values[i];
    });
}

extern "C" __global__ void add_diagonal(long long size, const double* diagonal, double* matrix)
{
    for_own_items(size, [=](long long i) { matrix[i * (size + 1)] += diagonal[i]; });
}

// Entry: find the extreme elements of each column of a matrix; place its columns, some negated,
// and unit vectors in another one.
//
// Mapping: a block has `rows_per_block` neighbouring rows of 32 columns, a lane one column; or a
//   thread has one element, and every num_threads-th after it.
// Preconditions (the engine's): `rows` is null if rows are in order; the target held zeros, or is
//   the matrix itself if no element moves.
// Bytes per element: sizeof(VECTOR) in, sizeof(PLACED) out.
// Writes and determinism: each element once.
// Source: none.
// MACRO VECTOR: float or double, the type of the matrix
// MACRO PLACED: float or double, the type of the target
// MACRO BLOCK_SIZE: threads of a block

#include "place_vectors.cuh"

// `extremes` is (largest or smallest, block, column).
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    find_extremes(long long num_rows, long long rows_per_block, long long num_columns,
                  const VECTOR* x, long long row_stride, long long column_stride, VECTOR* extremes)
{
    find_extremes_of_block<BLOCK_SIZE>(num_rows, rows_per_block, num_columns, x, row_stride,
                                       column_stride, extremes);
}

extern "C" __global__ void place_vectors(long long num_rows, long long num_columns,
                                         const VECTOR* vectors, long long row_stride,
                                         long long column_stride, const long long* rows,
                                         const long long* sources, long long placed_stride,
                                         PLACED* placed)
{
    place_each(num_rows, num_columns, vectors, row_stride, column_stride, rows, sources,
               placed_stride, placed);
}

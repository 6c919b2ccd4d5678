// Entry: add the squares of values that are alone in their column, by row and sign; and work with
// the sums.
//
// Mapping: a thread has one nonzero or row, and every num_threads-th after it.
// Preconditions (the engine's): the sum of all squares is at most 1 after division by `scale`, a
//   power of two; `parts` held zeros before the first entry; `rows` of the last two ascend strictly.
// Bytes per nonzero: 13 in, two additions of 8 bytes in the second-level cache.
// Writes and determinism: atomic additions of integers, the same in any order; everything else once.
//   Each square loses less than 2^-93.
// Source: none.
#include "single_squares.cuh"

extern "C" __global__ void sum_single_squares(long long nnz, const bool* is_first,
                                              const unsigned* rows, const double* values,
                                              double scale, long long num_rows,
                                              long long num_copies, unsigned long long* parts)
{
    add_single_squares(nnz, is_first, rows, values, scale, num_rows, num_copies, parts);
}

// `squares` is (sign, row).
extern "C" __global__ void add_parts(long long count, long long num_rows, long long num_copies,
                                     const unsigned long long* parts, double* squares)
{
    for_own_items(count, [=](long long i) {
        squares[i] = add_copies(i / num_rows, i % num_rows, num_rows, num_copies, parts);
    });
}

extern "C" __global__ void add_signs(long long count, const long long* rows, long long num_rows,
                                     const double* squares, double* sums)
{
    for_own_items(count, [=](long long i) {
        sums[i] = squares[rows[i]] + squares[num_rows + rows[i]];
    });
}

// Keys ascend as sums, which are not negative, descend.
extern "C" __global__ void make_keys(long long num_rows, const double* squares,
                                     unsigned long long* keys)
{
    for_own_items(num_rows, [=](long long row) {
        keys[row] = ~__double_as_longlong(squares[row] + squares[num_rows + row]);
    });
}

// Sets keys to that of a sum of zero.
extern "C" __global__ void exclude_keys(long long count, const long long* rows,
                                        unsigned long long* keys)
{
    for_own_items(count, [=](long long i) { keys[rows[i]] = ~0ull; });
}

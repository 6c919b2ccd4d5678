// Entry: the inner product of two tall matrices, as the sum of those of blocks of their rows.
//
// Mapping: a block has ROWS_PER_BLOCK neighbouring rows, a thread every BLOCK_SIZE-th number.
// Preconditions (the caller's): the numbers of a row are side by side; rows are RANK long, and
//   `a_stride` and `b_stride` numbers apart.
// Bytes: both matrices once.
// Writes and determinism: one sum for each block, in double: BATCH products are added up in their
//   own precision, then threads in an order that never changes.
#ifndef VALUE
#error "VALUE: float or double"
#endif
#ifndef RANK
#error "RANK: columns of both matrices"
#endif
#ifndef ROWS_PER_BLOCK
#error "ROWS_PER_BLOCK: rows of a block"
#endif
#ifndef BLOCK_SIZE
#error "BLOCK_SIZE: threads of a block"
#endif

#include "sums.cuh"

constexpr int BATCH = 8;

extern "C" __global__ void inner_product(long long num_rows, const VALUE* a, long long a_stride,
                                         const VALUE* b, long long b_stride, double* sums)
{
    const long long first = static_cast<long long>(blockIdx.x) * ROWS_PER_BLOCK;
    const long long rows_left = num_rows - first;
    const int size = RANK * static_cast<int>(rows_left < ROWS_PER_BLOCK ? rows_left : ROWS_PER_BLOCK);
    a += first * a_stride;
    b += first * b_stride;
    const auto product = [=](int place) {
        const int row = place / RANK, column = place % RANK;
        return a[row * a_stride + column] * b[row * b_stride + column];
    };
    double sum = 0;
    int place = threadIdx.x;
    for (; place + (BATCH - 1) * BLOCK_SIZE < size; place += BATCH * BLOCK_SIZE) {
        VALUE products = 0;
#pragma unroll
        for (int i = 0; i < BATCH; ++i) products += product(place + i * BLOCK_SIZE);
        sum += products;
    }
    for (; place < size; place += BLOCK_SIZE) sum += product(place);
    sum = sum_of_block<BLOCK_SIZE>(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

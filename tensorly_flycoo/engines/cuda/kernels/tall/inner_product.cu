// Entry: the inner product of two tall matrices, one sum for each block of rows.
//
// Mapping: a block has ROWS_PER_BLOCK neighbouring rows, a thread every BLOCK_SIZE-th number.
// Preconditions (the caller's): rows are contiguous, `a_stride` and `b_stride` numbers apart. The
//   numbers of a block are counted in 32 bits.
// Bytes: both matrices once. None per nonzero.
// Writes and determinism: one sum for each block, in double: eight products at a time are added in
//   their own precision, then the threads' sums in a fixed order.
// Source: none.
// MACRO VALUE: float or double
// MACRO ROWS_PER_BLOCK: rows of a block
// MACRO BLOCK_SIZE: threads of a block

#include "sums.cuh"

extern "C" __global__ void inner_product(long long num_rows, int rank, const VALUE* a,
                                         long long a_stride, const VALUE* b, long long b_stride,
                                         double* sums)
{
    constexpr int batch = 8;
    const long long first = static_cast<long long>(blockIdx.x) * ROWS_PER_BLOCK;
    const long long left = num_rows - first;
    const int rows = static_cast<int>(left < ROWS_PER_BLOCK ? left : ROWS_PER_BLOCK);
    const int size = rank * rows;
    a += first * a_stride;
    b += first * b_stride;
    const auto product = [=](int place) {
        const int row = place / rank, column = place % rank;
        return a[row * a_stride + column] * b[row * b_stride + column];
    };
    double sum = 0;
    int place = threadIdx.x;
    for (; place + (batch - 1) * BLOCK_SIZE < size; place += batch * BLOCK_SIZE) {
        VALUE products = 0;
#pragma unroll
        for (int i = 0; i < batch; ++i) products += product(place + i * BLOCK_SIZE);
        sum += products;
    }
    for (; place < size; place += BLOCK_SIZE) sum += product(place);
    sum = sum_of_block<BLOCK_SIZE>(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

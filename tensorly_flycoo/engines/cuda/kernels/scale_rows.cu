// Entry: multiplies a tall matrix by another one and by scales, in place, and adds up its columns.
//
// Mapping: a block has `rows_per_block` neighbouring rows and, along y, NUM_COLUMNS columns. A warp
//   reads neighbouring columns, and a thread every (BLOCK_SIZE / NUM_COLUMNS)-th row of one column.
// Preconditions (the caller's): each row is contiguous; the rows of `factor` and `scales` are
//   `factor_stride` and `scale_stride` numbers apart, 0 for one row of scales; those of `product`
//   are RANK numbers long and adjacent.
// Bytes: `product` in and out, `factor` and the scales in. None per nonzero.
// Writes and determinism: each number by one thread; `sums` (blocks along x, RANK) in double: a
//   thread adds its rows in their order, then the threads of a column are added in theirs.
// Source: none.
#ifndef VALUE
#error "VALUE: float or double"
#endif
#ifndef NUM_COLUMNS
#error "NUM_COLUMNS: columns of a block, a power of two"
#endif
#ifndef BLOCK_SIZE
#error "BLOCK_SIZE: threads of a block"
#endif

extern "C" __global__ void scale_rows(long long num_rows, long long rows_per_block, int rank,
                                      VALUE* product, const VALUE* factor, long long factor_stride,
                                      const VALUE* scales, long long scale_stride, double* sums)
{
    static_assert(BLOCK_SIZE % NUM_COLUMNS == 0, "threads have equally many columns");
    constexpr int num_lanes = BLOCK_SIZE / NUM_COLUMNS;
    __shared__ double lane_sums[BLOCK_SIZE];
    const int lane = threadIdx.x / NUM_COLUMNS;
    const int column = blockIdx.y * NUM_COLUMNS + threadIdx.x % NUM_COLUMNS;
    const long long first = blockIdx.x * rows_per_block;
    const long long end = min(first + rows_per_block, num_rows);
    double sum = 0;
    if (column < rank) {
#pragma unroll 4
        for (long long row = first + lane; row < end; row += num_lanes) {
            VALUE& number = product[row * rank + column];
            number *= factor[row * factor_stride + column];
            number *= scales[row * scale_stride + column];
            sum += number;
        }
    }
    lane_sums[threadIdx.x] = sum;
    __syncthreads();
    if (lane > 0 || column >= rank) return;
    for (int other = 1; other < num_lanes; ++other) {
        sum += lane_sums[other * NUM_COLUMNS + threadIdx.x];
    }
    sums[static_cast<long long>(blockIdx.x) * rank + column] = sum;
}

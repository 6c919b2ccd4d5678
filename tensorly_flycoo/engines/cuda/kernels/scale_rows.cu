// Entry: a multiplicative update of a tall matrix, in up to three launches.
//
//   invert_sums: scales, the reciprocals of products of the column sums of other matrices.
//   scale_rows: multiplies a tall matrix by another one and by scales, in place, and adds up the
//     columns of each block of rows.
//   add_blocks: adds up the sums of blocks.
//
// Mapping: a block has NUM_COLUMNS columns along y. In `scale_rows` it has `rows_per_block`
//   neighbouring rows, in `add_blocks` all. A warp reads neighbouring columns, and a thread every
//   (BLOCK_SIZE / NUM_COLUMNS)-th row of one column. `invert_sums` has a thread for each column.
// Preconditions (the caller's): each row is contiguous; the rows of `factor` and `scales` are
//   `factor_stride` and `scale_stride` numbers apart, 0 for one row of scales; those of all others
//   are RANK numbers long and adjacent.
// Bytes: `product` in and out, `factor` and the scales in. None per nonzero.
// Writes and determinism: each number by one thread. A thread adds its rows in their order, then the
//   threads of a column are added in theirs; all in double.
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

static_assert(BLOCK_SIZE % NUM_COLUMNS == 0, "threads have equally many columns");
constexpr int num_lanes = BLOCK_SIZE / NUM_COLUMNS;

__device__ __forceinline__ int own_lane() { return threadIdx.x / NUM_COLUMNS; }
__device__ __forceinline__ int own_column()
{
    return blockIdx.y * NUM_COLUMNS + threadIdx.x % NUM_COLUMNS;
}

// Adds up the sums of the threads of each column, and writes them to row `row` of `sums`.
__device__ __forceinline__ void add_lanes(double sum, double* sums, long long row, int rank)
{
    __shared__ double lane_sums[BLOCK_SIZE];
    lane_sums[threadIdx.x] = sum;
    __syncthreads();
    if (own_lane() > 0 || own_column() >= rank) return;
    for (int other = 1; other < num_lanes; ++other) {
        sum += lane_sums[other * NUM_COLUMNS + threadIdx.x];
    }
    sums[row * rank + own_column()] = sum;
}

extern "C" __global__ void invert_sums(int num_modes, int mode, int rank, const double* sums,
                                       VALUE* scales)
{
    const int column = blockIdx.x * BLOCK_SIZE + threadIdx.x;
    if (column >= rank) return;
    double product = 1;
    for (int n = 0; n < num_modes; ++n) {
        if (n != mode) product *= sums[static_cast<long long>(n) * rank + column];
    }
    scales[column] = product > 0 ? static_cast<VALUE>(1 / product) : VALUE(0);
}

extern "C" __global__ void scale_rows(long long num_rows, long long rows_per_block, int rank,
                                      VALUE* product, const VALUE* factor, long long factor_stride,
                                      const VALUE* scales, long long scale_stride, double* sums)
{
    const int column = own_column();
    const long long first = blockIdx.x * rows_per_block;
    const long long end = min(first + rows_per_block, num_rows);
    double sum = 0;
    if (column < rank) {
#pragma unroll 4
        for (long long row = first + own_lane(); row < end; row += num_lanes) {
            VALUE& number = product[row * rank + column];
            number *= factor[row * factor_stride + column];
            number *= scales[row * scale_stride + column];
            sum += number;
        }
    }
    add_lanes(sum, sums, blockIdx.x, rank);
}

extern "C" __global__ void add_blocks(int num_blocks, int rank, const double* block_sums,
                                      double* sums)
{
    const int column = own_column();
    double sum = 0;
    if (column < rank) {
        for (int block = own_lane(); block < num_blocks; block += num_lanes) {
            sum += block_sums[static_cast<long long>(block) * rank + column];
        }
    }
    add_lanes(sum, sums, 0, rank);
}

// Entry: a multiplicative update of a tall matrix, and the extrapolation of two updates.
//   `scale_rows` is the update; the others prepare and complete it:
//
//   invert_sums: scales, the reciprocals of products of the column sums of other matrices.
//   scale_rows: multiplies a tall matrix by another one and by scales, in place, and adds up the
//     columns of each block of rows.
//   measure_steps: adds up the squares of the columns of t1 - t0 and of t2 - 2 t1 + t0.
//   extrapolate: writes t0 + 2 a (t1 - t0) + a^2 (t2 - 2 t1 + t0), or t2 where that is not above 0,
//     and adds up the columns.
//   add_blocks: adds up the sums of blocks.
//
// Mapping: a block has NUM_COLUMNS columns along y. It has `rows_per_block` neighbouring rows,
//   in `add_blocks` all. A warp reads neighbouring columns, and a thread every
//   (BLOCK_SIZE / NUM_COLUMNS)-th row of one column. `invert_sums` has a thread for each column.
// Preconditions (the caller's): each row is contiguous; the rows of `factor` and `scales` are
//   `factor_stride` and `scale_stride` numbers apart, 0 for one row of scales; those of all others
//   are RANK numbers long and adjacent.
// Bytes: each matrix once. None per nonzero.
// Writes and determinism: each number by one thread. A thread adds its rows in their order, then
//   the threads of a column are added in theirs; all in double.
// Source: Varadhan and Roland, Scandinavian Journal of Statistics 35, 2008 (the extrapolation).
// MACRO VALUE: float or double
// MACRO NUM_COLUMNS: columns of a block, a power of two
// MACRO BLOCK_SIZE: threads of a block

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
    __syncthreads();  // others may still read earlier ones
    lane_sums[threadIdx.x] = sum;
    __syncthreads();
    if (own_lane() > 0 || own_column() >= rank) return;
    for (int other = 1; other < num_lanes; ++other) {
        sum += lane_sums[other * NUM_COLUMNS + threadIdx.x];
    }
    sums[row * rank + own_column()] = sum;
}

// A thread's rows of a block, and its column.
struct Rows {
    long long first, end;
    int column;

    __device__ __forceinline__ Rows(long long num_rows, long long rows_per_block, int rank)
        : first(blockIdx.x * rows_per_block + own_lane()),
          end(min((blockIdx.x + 1) * rows_per_block, num_rows)),
          column(own_column())
    {
        if (column >= rank) end = first;
    }
};

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
    const Rows rows(num_rows, rows_per_block, rank);
    double sum = 0;
#pragma unroll 4
    for (long long row = rows.first; row < rows.end; row += num_lanes) {
        VALUE& number = product[row * rank + rows.column];
        number *= factor[row * factor_stride + rows.column];
        number *= scales[row * scale_stride + rows.column];
        sum += number;
    }
    add_lanes(sum, sums, blockIdx.x, rank);
}

extern "C" __global__ void measure_steps(long long num_rows, long long rows_per_block, int rank,
                                         const VALUE* t0, const VALUE* t1, const VALUE* t2,
                                         double* sums)
{
    const Rows rows(num_rows, rows_per_block, rank);
    double change_sum = 0, bend_sum = 0;
#pragma unroll 4
    for (long long row = rows.first; row < rows.end; row += num_lanes) {
        const long long place = row * rank + rows.column;
        const VALUE change = t1[place] - t0[place], bend = t2[place] - t1[place] - change;
        change_sum += static_cast<double>(change) * change;
        bend_sum += static_cast<double>(bend) * bend;
    }
    add_lanes(change_sum, sums, 2LL * blockIdx.x, rank);
    add_lanes(bend_sum, sums, 2LL * blockIdx.x + 1, rank);
}

extern "C" __global__ void extrapolate(long long num_rows, long long rows_per_block, int rank,
                                       const VALUE* t0, const VALUE* t1, const VALUE* t2,
                                       double step, VALUE* out, double* sums)
{
    const Rows rows(num_rows, rows_per_block, rank);
    const VALUE twice = 2 * step, square = step * step;
    double sum = 0;
#pragma unroll 4
    for (long long row = rows.first; row < rows.end; row += num_lanes) {
        const long long place = row * rank + rows.column;
        const VALUE change = t1[place] - t0[place], bend = t2[place] - t1[place] - change;
        const VALUE moved = t0[place] + twice * change + square * bend;
        const VALUE number = moved > 0 ? moved : t2[place];
        out[place] = number;
        sum += number;
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

// Entry: y = x @ inverse for a tall matrix x and a small one; with y.T @ y, and the inner product of
// x and y, of each block of rows. Without a small matrix, only the Gram matrix of x.
//
// Mapping: a block has `rows_per_block` neighbouring rows, GROUP_ROWS * NUM_GROUPS of them at a time,
//   in shared memory beside the small matrix. A group has WIDTH / 16 warps, and each of these a
//   strip of 16 columns of y and 16 rows of y.T @ y.
// Preconditions (the caller's): each row of x is contiguous, and rows are `row_stride` numbers
//   apart. The small matrix (R, R) is contiguous; behind it are the matrix that it inverts, and the
//   condition number of that, which in single precision is not looked at.
// Bytes: x and y once; what blocks write besides is small in comparison. None per nonzero.
// Writes and determinism: all of y (num_rows, y_stride), in its own precision, with zeros past the
//   last column; each block its own (R, R) and its sum, in double precision, of y as rounded. The
//   order of additions depends on the shape alone.
// Source: none.
// MACRO VALUE: float or double
// MACRO WIDTH: columns of the matrix, rounded up to a multiple of 16
// MACRO NUM_GROUPS: groups of warps of a block
// MACRO GROUP_ROWS: rows that a group has at a time, 32, or 16 if more would spill registers

#include "architecture.cuh"
#include "strips.cuh"
#include "sums.cuh"

static_assert(WIDTH % 16 == 0 && WIDTH <= 128, "a warp has a strip of each");

constexpr int strips = WIDTH / 16, tiles = WIDTH / 8;
constexpr int block_size = 32 * strips * NUM_GROUPS;
constexpr int group_rows = GROUP_ROWS, block_rows = group_rows * NUM_GROUPS;
constexpr int pitch = WIDTH + strip_padding;
constexpr double epsilon = 2.220446049250313e-16;
constexpr int max_refinements = 4;

// What the threads of a block share.
struct Shared {
    SmallMatrix<WIDTH> matrix;
    VALUE rows[NUM_GROUPS][2][group_rows][pitch];

    // Begins to copy a group's rows, up to `end`; those after it, and columns past the last one,
    // are zero.
    __device__ __forceinline__ void begin_rows(int group, int turn, int first, int end, int rank,
                                               const VALUE* x, long long row_stride)
    {
        const int thread = threadIdx.x - 32 * strips * group;
        for (int place = thread; place < group_rows * WIDTH; place += 32 * strips) {
            const int row = place / WIDTH, column = place % WIDTH;
            const bool is_inside = first + row < end && column < rank;
            const VALUE* source = is_inside ? x + (first + row) * row_stride + column : x;
            begin_copy(rows[group][turn][row][column], source, is_inside);
        }
        end_copies();
    }
};

extern "C" __global__ void __launch_bounds__(block_size, 1)
    update_rows(long long num_rows, int rows_per_block, int rank, const VALUE* x,
                long long row_stride, const double* inverse, VALUE* y, int y_stride, double* grams,
                double* inner_products)
{
    extern __shared__ double memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / strips;
    // The first strips have the most tiles: warps that share a tensor core have one of the first
    // and one of the last.
    const int place = warp % strips, strip = place < 4 ? place : strips + 3 - place;
    const long long first = static_cast<long long>(blockIdx.x) * rows_per_block;
    const int end = static_cast<int>(min(static_cast<long long>(rows_per_block), num_rows - first));
    x += first * row_stride;
    y += first * y_stride;
    const double* solved = inverse + rank * rank;
    int num_refinements = 0;
    if (inverse) {
        load_matrix<block_size>(shared.matrix, inverse, rank);
        // The residual of y is condition * epsilon: steps of refinement reduce it to sqrt(epsilon).
        const double loss = sizeof(VALUE) == 8 ? solved[rank * rank] * epsilon : 0;
        for (double rest = loss; rest * rest > epsilon; rest *= loss) {
            if (++num_refinements == max_refinements) break;
        }
    }
    // All groups take as many turns: the block's threads refine together.
    const int group_end = (end + block_rows - 1) / block_rows * block_rows;
    double gram[tiles][2][2] = {};
    double inner = 0;
    __syncthreads();
    const int group_first = group * group_rows;
    shared.begin_rows(group, 0, group_first, end, rank, x, row_stride);
    for (int first_row = group_first, turn = 0; first_row < group_end; turn ^= 1) {
        VALUE(*rows)[pitch] = shared.rows[group][turn];
        const int next_row = first_row + block_rows;
        shared.begin_rows(group, turn ^ 1, next_row, end, rank, x, row_stride);
        wait_for_copies_but_last();
        wait_for_group<32 * strips>(group);
        if (inverse) {
            Strip<double, group_rows> sums = {};
            add_product(sums, shared.matrix, rows, strip, lane);
            const auto read = [&](const VALUE* matrix, long long stride, int row, int column) {
                const bool is_inside = first_row + row < end && column < rank;
                return is_inside ? matrix[(first_row + row) * stride + column] : VALUE(0);
            };
#pragma unroll 1
            for (int step = 0; step < num_refinements; ++step) {
                __syncthreads();
                for_strip(sums, strip, lane, [&](double& number, int row, int column) {
                    rows[row][column] = number;
                    const long long to = first_row + row;
                    if (to < end && column < rank) y[to * y_stride + column] = number;
                    number = 0;
                });
                load_matrix<block_size>(shared.matrix, solved, rank);
                __syncthreads();
                add_product(sums, shared.matrix, rows, strip, lane);
                __syncthreads();
                for_strip(sums, strip, lane, [&](double& number, int row, int column) {
                    rows[row][column] = read(x, row_stride, row, column) - number;
                    number = read(y, y_stride, row, column);
                });
                load_matrix<block_size>(shared.matrix, inverse, rank);
                __syncthreads();
                add_product(sums, shared.matrix, rows, strip, lane);
            }
            wait_for_group<32 * strips>(group);
            for_strip(sums, strip, lane, [&](double& number, int row, int column) {
                const VALUE before = num_refinements ? read(x, row_stride, row, column)
                                                     : rows[row][column];
                const VALUE rounded = number;
                rows[row][column] = rounded;
                inner += static_cast<double>(rounded) * before;
            });
            wait_for_group<32 * strips>(group);
            const int num_places = min(group_rows, end - first_row) * WIDTH;
            for (int number = 32 * place + lane; number < num_places; number += 32 * strips) {
                const int row = number / WIDTH, column = number % WIDTH;
                const long long to = first_row + row;
                if (column < y_stride) y[to * y_stride + column] = rows[row][column];
            }
        }
        for (int k = 0; k < group_rows; k += 8) {
            const VALUE* of_lane[2] = {&rows[k + lane % 4][lane / 4],
                                       &rows[k + lane % 4 + 4][lane / 4]};
            double left[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                left[half][0] = of_lane[half][16 * strip];
                left[half][1] = of_lane[half][16 * strip + 8];
            }
#pragma unroll
            for (int j = 0; j < tiles; ++j) {
                if (j < 2 * strip) continue;  // below the diagonal
                const double right[2] = {of_lane[0][8 * j], of_lane[1][8 * j]};
                multiply(gram[j], left, right);
            }
        }
        wait_for_group<32 * strips>(group);  // before these rows are overwritten
        first_row = next_row;
    }
    wait_for_copies();
    // The groups' sums are added in their order, in the place of the small matrix.
    for (int turn = 0; turn < NUM_GROUPS; ++turn) {
        __syncthreads();
        if (group != turn) continue;
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
            if (j < 2 * strip) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                double* total = &shared.matrix[16 * strip + lane / 4 + 8 * (i / 2)]
                                              [8 * j + 2 * (lane % 4) + i % 2];
                *total = gram[j][i / 2][i % 2] + (turn == 0 ? 0 : *total);
            }
        }
    }
    __syncthreads();
    grams += static_cast<long long>(blockIdx.x) * rank * rank;
    for (int number = threadIdx.x; number < rank * rank; number += block_size) {
        const int row = number / rank, column = number % rank;
        const bool is_below = row / 16 > column / 16;
        grams[number] = is_below ? shared.matrix[column][row] : shared.matrix[row][column];
    }
    if (!inverse) return;
    inner = sum_of_block<block_size>(inner);
    if (threadIdx.x == 0) inner_products[blockIdx.x] = inner;
}

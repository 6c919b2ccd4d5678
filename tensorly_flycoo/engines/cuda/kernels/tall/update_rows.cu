// Entry: y = x @ inverse for a tall matrix x and a small one; with y.T @ y, and the inner product of
// x and y, of each block of rows. Without a small matrix, only the Gram matrix of x. If NARROW is
// not VALUE, y is also rounded to numbers that fit narrow rows, and these are written. The factors of
// many models may lie side by side: then each has a small matrix, and columns of its own.
//
// The scales of y's columns follow from all of y, so a first launch finds the largest magnitudes,
// `find_scales` makes the scales of these, and a second launch rounds (see `tall.py`). Of floats
// the first one only solves: `grams` is null; the second has y for x, no small matrix, and finds no
// inner products. Scales of doubles are mostly 1: the first launch rounds by that guess, and the
// second, which is given both, returns at once if it was right, else it does all of it anew.
//
// Mapping: a block has `rows_per_block` neighbouring rows, GROUP_ROWS * NUM_GROUPS of them at a time,
//   in shared memory beside the small matrix. A group has WIDTH / 16 warps, and each of these a
//   strip of 16 columns of y and 16 rows of y.T @ y. Along y a block has a model.
// Preconditions (the caller's): each row of x is contiguous, and rows are `row_stride` numbers
//   apart. The small matrix (R, R) is contiguous; behind it are the matrix that it inverts, and the
//   condition number of that, which in single precision is not looked at; then those of the next
//   model. `largest` begins as zeros.
// Bytes: x, y and narrow rows once; what blocks write besides is small in comparison. None per
//   nonzero.
// Writes and determinism: y (num_rows, y_columns), in its own precision, with zeros past the last
//   column; each block its own (R, R) and its sum, in double precision, of y as rounded: all of a
//   model, then those of the next one. The
//   order of additions depends on the shape alone, and that in which blocks compare magnitudes, by
//   atomics, does not matter.
// Source: none.
// MACRO VALUE: float or double
// MACRO NARROW: its narrow type (see narrow_rows.cuh), or itself
// MACRO WIDTH: columns of the matrix, rounded up to a multiple of 16
// MACRO NUM_GROUPS: groups of warps of a block
// MACRO GROUP_ROWS: rows that a group has at a time, 32, or 16 if more would spill registers

#include "architecture.cuh"
#include "rounding.cuh"
#include "strips.cuh"
#include "sums.cuh"

static_assert(WIDTH % 16 == 0 && WIDTH <= 128, "a warp has a strip of each");

constexpr int strips = WIDTH / 16, tiles = WIDTH / 8;
constexpr int block_size = 32 * strips * NUM_GROUPS;
constexpr int group_rows = GROUP_ROWS, block_rows = group_rows * NUM_GROUPS;
constexpr int pitch = WIDTH + strip_padding;
constexpr double epsilon = 2.220446049250313e-16;
constexpr int max_refinements = 4;
constexpr bool is_narrowing = sizeof(NARROW) < sizeof(VALUE);
constexpr bool rounds_at_once = is_narrowing && sizeof(VALUE) == 8;
constexpr bool rounds_later = is_narrowing && !rounds_at_once;

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

// How to round a column, which may be past the last one, or not be rounded.
__device__ __forceinline__ Rounding<VALUE, NARROW> find_rounding(const VALUE* scales, int column,
                                                                 int rank)
{
    const bool is_rounded = is_narrowing && scales && column < rank;
    return Rounding<VALUE, NARROW>(is_rounded ? scales[column] : VALUE(1));
}

// Calls `use` for each number that a thread stores, and its row: all are of one column. (A template,
// since the oldest NVRTC compiles no generic lambda.)
template <typename Use>
__device__ __forceinline__ void for_own_column(VALUE (*rows)[pitch], int first_place, int first_row,
                                               int num_rows, Use use)
{
    for (int number = first_place; number < num_rows * WIDTH; number += 32 * strips) {
        const int row = number / WIDTH;
        use(rows[row][first_place % WIDTH], static_cast<long long>(first_row + row));
    }
}

// Rounds the two columns of a strip that a lane has; finds what their largest magnitudes were.
struct LaneColumns {
    const Rounding<VALUE, NARROW> roundings[2];
    BitsOf<VALUE> largest[2] = {};

    __device__ __forceinline__ LaneColumns(const VALUE* scales, int first, int rank)
        : roundings{find_rounding(scales, first, rank), find_rounding(scales, first + 8, rank)}
    {
    }

    __device__ __forceinline__ VALUE round(VALUE value, int half)
    {
        largest[half] = max(largest[half], find_magnitude(value));
        if (!rounds_at_once) return value;
        return roundings[half].widen(roundings[half].narrow(value));
    }

    // Compares what a warp found, of which four lanes have the same columns, with all others.
    __device__ __forceinline__ void compare(BitsOf<VALUE>* of_columns, int first, int rank,
                                            int lane)
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            for (int distance = 1; distance < 4; distance *= 2) {
                const auto other = __shfl_xor_sync(0xffffffffu, largest[half], distance);
                largest[half] = max(largest[half], other);
            }
            const int column = first + 8 * half;
            if (lane % 4 == 0 && column < rank) atomicMax(of_columns + column, largest[half]);
        }
    }
};

__device__ __forceinline__ bool are_alike(const VALUE* scales, const VALUE* others, int rank)
{
    for (int column = 0; column < rank; ++column) {
        if (find_bits(scales[column]) != find_bits(others[column])) return false;
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(block_size, 1)
    update_rows(long long num_rows, int rows_per_block, int rank, const VALUE* x,
                long long row_stride, const double* inverse, VALUE* y, long long y_stride,
                int y_columns, double* grams, double* inner_products, NARROW* narrow_rows,
                long long narrow_stride, const VALUE* scales, const VALUE* guessed_scales,
                BitsOf<VALUE>* largest)
{
    const long long model = blockIdx.y, model_column = model * rank;
    if (scales) scales += model_column;
    if (guessed_scales) guessed_scales += model_column;
    if (is_narrowing && guessed_scales && are_alike(scales, guessed_scales, rank)) return;
    extern __shared__ double memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / strips;
    // The first strips have the most tiles: warps that share a tensor core have one of the first
    // and one of the last.
    const int place = warp % strips, strip = place < 4 ? place : strips + 3 - place;
    const long long first = static_cast<long long>(blockIdx.x) * rows_per_block;
    const int end = static_cast<int>(min(static_cast<long long>(rows_per_block), num_rows - first));
    x += first * row_stride + model_column;
    y += first * y_stride + model_column;
    narrow_rows += first * narrow_stride + model_column;
    largest += model_column;
    if (inverse) inverse += model * (2 * rank * rank + 1);
    const int first_column = 16 * strip + lane / 4;
    LaneColumns columns(scales, first_column, rank);
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
    const bool wants_grams = !rounds_later || grams;
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
        const int first_place = 32 * place + lane, own_column = first_place % WIDTH;
        const int num_own_rows = min(group_rows, end - first_row);
        if (rounds_later && !inverse) {
            const auto rounding = find_rounding(scales, own_column, rank);
            const auto round_number = [&](VALUE& number, long long row) {
                if (own_column >= rank) return;
                const NARROW narrow = rounding.narrow(number);
                number = rounding.widen(narrow);
                y[row * y_stride + own_column] = number;
                narrow_rows[row * narrow_stride + own_column] = narrow;
            };
            for_own_column(rows, first_place, first_row, num_own_rows, round_number);
            wait_for_group<32 * strips>(group);
        }
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
                VALUE rounded = number;
                if (is_narrowing) rounded = columns.round(rounded, (column - first_column) / 8);
                rows[row][column] = rounded;
                inner += static_cast<double>(rounded) * before;
            });
            wait_for_group<32 * strips>(group);
            const auto rounding = find_rounding(scales, own_column, rank);
            const auto store_number = [&](VALUE number, long long row) {
                if (own_column < y_columns) y[row * y_stride + own_column] = number;
                if (rounds_at_once && own_column < rank) {
                    narrow_rows[row * narrow_stride + own_column] = rounding.narrow(number);
                }
            };
            for_own_column(rows, first_place, first_row, num_own_rows, store_number);
        }
        for (int k = 0; k < group_rows && wants_grams; k += 8) {
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
    if (is_narrowing && inverse) columns.compare(largest, first_column, rank, lane);
    if (!wants_grams) return;
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
    const long long block = model * gridDim.x + blockIdx.x;
    grams += block * rank * rank;
    for (int number = threadIdx.x; number < rank * rank; number += block_size) {
        const int row = number / rank, column = number % rank;
        const bool is_below = row / 16 > column / 16;
        grams[number] = is_below ? shared.matrix[column][row] : shared.matrix[row][column];
    }
    if (!inverse) return;
    inner = sum_of_block<block_size>(inner);
    if (threadIdx.x == 0) inner_products[block] = inner;
}

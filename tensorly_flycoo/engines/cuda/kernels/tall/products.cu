// Entry: what ALS does with elementwise products of Gram matrices and small matrices (R, R):
//
//   add_grams: adds the Gram matrices of many blocks of rows, SEGMENT consecutive ones to one; of one
//     matrix, or of several that have as many blocks.
//   multiply: computes a product.
//   invert: inverts products, or pseudo-inverts those that are singular to rounding; ADMM adds the
//     mean of the diagonal to the diagonal before.
//   fit: the errors of CP models, |x - model|, from what their last factors were computed with.
//
// Mapping: of `add_grams` a block has 256 numbers of a segment, a thread one of them. Of the others
//   a block has a product, a warp some neighbouring columns and a lane every 32nd row. `fit` adds
//   the numbers up to the square of the model's norm; it also adds up the inner product.
// Preconditions (the caller's): R is at most 32 * TILES. Matrices may have any strides. For more
//   than one product to invert, or model, each of `grams` is a stack with a matrix for each.
// Bytes: the blocks once; none per nonzero. A launch takes less time than a trip to the host.
// Writes and determinism: one matrix (R, R) for each segment, whose blocks are added in their
//   order; the product or its inverse in double precision, in C order, nan if the matrix is not
//   finite, and if wanted the product and its condition number (1 if it is singular), or what was
//   added to the diagonal; a number for each model in double precision, to memory of the GPU or
//   pinned memory of the host. All orders are fixed.
// Source: Hestenes, Journal of the SIAM 6(1), 1958 (one-sided rotations).
// MACRO VALUE: float or double, the type of factors and of small matrices but Gram matrices
// MACRO TILES: rows of a lane, 1, 2 or 4
// MACRO NUM_WARPS: warps of a block: as many as registers are enough for
// MACRO SEGMENT: blocks that `add_grams` adds to one
// MACRO PRODUCT_LAYOUT: how Python fills struct Product (see structs.py)

#include "layout.cuh"
#include "sums.cuh"

constexpr int width = 32 * TILES;
constexpr int num_warps = NUM_WARPS, num_threads = 32 * num_warps;
constexpr int own_columns = width / num_warps;
constexpr int pitch = width + 1;  // puts the numbers of a column in different banks

struct Product {
    static constexpr int max_grams = 8;
    static constexpr int max_matrices = 4;

    const double* grams[max_grams];  // each (num_blocks, R, R), to be added, for each thread block
    long long num_blocks[max_grams];
    const VALUE* matrices[max_matrices];
    long long row_strides[max_matrices];  // 0 where a matrix has one row for all
    long long column_strides[max_matrices];
    int num_grams;
    int num_matrices;
};
CHECK_LAYOUT(Product, PRODUCT_LAYOUT)

// Adds numbers of the blocks of a Gram matrix, `distance` apart, in the order of the blocks. Those
// that are not below `size` are not read. Eight numbers are loaded together.
template <int count>
__device__ __forceinline__ void add_blocks(double (&totals)[count], const double* blocks,
                                           long long num_blocks, long long stride, int distance,
                                           int size)
{
    constexpr int batch = 8 / count;
#pragma unroll 1
    for (long long start = 0; start < num_blocks; start += batch) {
        double parts[batch][count];
#pragma unroll
        for (int b = 0; b < batch; ++b) {
#pragma unroll
            for (int i = 0; i < count; ++i) {
                const bool is_there = start + b < num_blocks && distance * i < size;
                parts[b][i] = is_there ? blocks[(start + b) * stride + distance * i] : 0;
            }
        }
#pragma unroll
        for (int b = 0; b < batch; ++b) {
#pragma unroll
            for (int i = 0; i < count; ++i) totals[i] += parts[b][i];
        }
    }
}

// Reads every 32nd number of a row of a product, from the lane's on; zero past the last column.
__device__ __forceinline__ void read_row(double (&numbers)[TILES], const Product& product, int row,
                                         int rank)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TILES; ++i) numbers[i] = lane + 32 * i < rank;
#pragma unroll 1
    for (int g = 0; g < product.num_grams; ++g) {
        const long long num_blocks = product.num_blocks[g], first = blockIdx.x * num_blocks;
        const double* blocks = product.grams[g] + (first * rank + row) * rank + lane;
        double totals[TILES] = {};
        add_blocks(totals, blocks, num_blocks, rank * rank, 32, rank - lane);
#pragma unroll
        for (int i = 0; i < TILES; ++i) numbers[i] *= totals[i];
    }
    for (int m = 0; m < product.num_matrices; ++m) {
        const VALUE* own = product.matrices[m] + row * product.row_strides[m];
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const int column = min(lane + 32 * i, rank - 1);
            numbers[i] *= own[column * product.column_strides[m]];
        }
    }
}

extern "C" __global__ void add_grams(long long num_blocks, int rank, const double* blocks,
                                     double* sums)
{
    const int size = rank * rank, number = blockIdx.y * blockDim.x + threadIdx.x;
    if (number >= size) return;
    const long long num_segments = (num_blocks + SEGMENT - 1) / SEGMENT;
    const long long matrix = blockIdx.x / num_segments, first = blockIdx.x % num_segments * SEGMENT;
    const long long count = min(static_cast<long long>(SEGMENT), num_blocks - first);
    double total[1] = {};
    add_blocks(total, blocks + (matrix * num_blocks + first) * size + number, count, size, 0, 1);
    sums[static_cast<long long>(blockIdx.x) * size + number] = total[0];
}

extern "C" __global__ void __launch_bounds__(num_threads, 1)
    multiply(const Product product, int rank, double* product_out)
{
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < rank; row += num_warps) {
        double numbers[TILES];
        read_row(numbers, product, row, rank);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const int column = threadIdx.x % 32 + 32 * i;
            if (column < rank) product_out[row * rank + column] = numbers[i];
        }
    }
}

constexpr double epsilon = sizeof(VALUE) == 4 ? 1.1920928955078125e-07 : 2.220446049250313e-16;
constexpr double tiny = sizeof(VALUE) == 4 ? 1.1754943508222875e-38 : 2.2250738585072014e-308;
constexpr int max_sweeps = 40;

using Matrix = double[width][pitch];
using Numbers = double[TILES][own_columns];

// Calls a function of a thread's numbers, their rows (lanes) and columns (warps), if inside.
template <typename Function>
__device__ __forceinline__ void for_own(Numbers& numbers, int rank, Function function)
{
#pragma unroll
    for (int j = 0; j < own_columns; ++j) {
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const int row = threadIdx.x % 32 + 32 * i, column = threadIdx.x / 32 * own_columns + j;
            if (row < rank && column < rank) function(numbers[i][j], row, column);
        }
    }
}

__device__ __forceinline__ double max_of_warp(double largest)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        // Unlike fmax, nan wins.
        const double other = __shfl_xor_sync(0xffffffffu, largest, distance);
        largest = largest >= other || largest != largest ? largest : other;
    }
    return largest;
}

// Returns the largest number of the warps, each of which has one.
__device__ inline double max_of_block(double number)
{
    __shared__ double of_warps[num_warps];
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = number;
    __syncthreads();
    return max_of_warp(of_warps[threadIdx.x % num_warps]);
}

// Returns the largest sum of absolute values in a column.
__device__ inline double norm_of(const Numbers& numbers)
{
    double largest = 0;
#pragma unroll
    for (int j = 0; j < own_columns; ++j) {
        double sum = 0;
#pragma unroll
        for (int i = 0; i < TILES; ++i) sum += fabs(numbers[i][j]);
        sum = sum_of_warp(sum);
        largest = largest >= sum || largest != largest ? largest : sum;
    }
    return max_of_block(largest);
}

// Replaces a symmetric matrix by minus its inverse, which is nan if the matrix is not positive
// definite. It stays symmetric in each step, so its column k stands for its row k too. The columns
// of a warp move by one place in each step, so that all steps are the same code.
__device__ inline void eliminate(Numbers& numbers, int rank)
{
    __shared__ double columns[2][width], inverses[2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto publish = [&](int k) {
        double* column = columns[k % 2];
#pragma unroll
        for (int i = 0; i < TILES; ++i) column[lane + 32 * i] = numbers[i][0];
        __syncwarp();
        if (lane > 0) return;
        const double pivot = column[k];
        inverses[k % 2] = pivot > 0 ? __drcp_rn(pivot) : nan("");
        // So the pivot's row is divided by it in the same way as others are reduced.
        column[k] = pivot - 1;
    };
    if (warp == 0) publish(0);
#pragma unroll 1
    for (int k = 0; k < rank || k % own_columns > 0; ++k) {
        __syncthreads();  // the next but one step overwrites the column: a barrier is in between
        const double* column = columns[k % 2];
        const double inverse = inverses[k % 2];
        double factors[TILES], first[TILES];
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            factors[i] = column[lane + 32 * i] * inverse;
            first[i] = numbers[i][0];
        }
#pragma unroll
        for (int j = 0; j < own_columns; ++j) {
            const double upper = column[warp * own_columns + (k + j + 1) % own_columns];
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                const double before = j + 1 < own_columns ? numbers[i][j + 1] : first[i];
                numbers[i][j] = before - factors[i] * upper;
            }
            // While the other columns are reduced, the next pivot is divided by.
            if (j == 0 && warp == (k + 1) / own_columns) publish(k + 1);
        }
        if (warp != k / own_columns) continue;
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            numbers[i][own_columns - 1] = lane + 32 * i == k ? -inverse : factors[i];
        }
    }
}

// Makes the columns of `left` orthogonal by rotations. The rows of `right` (R, R) become the
// columns of their product.
__device__ inline void orthogonalise(Matrix& left, double* right, int rank)
{
    __shared__ int num_rotations;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int num_columns = rank + rank % 2, others = num_columns - 1;
    for (int place = threadIdx.x; place < rank * rank; place += num_threads) {
        right[place] = place / rank == place % rank;
    }
    for (int sweep = 0; sweep < max_sweeps; ++sweep) {
        __syncthreads();
        if (threadIdx.x == 0) num_rotations = 0;
        // A warp has a pair of columns at a time; as in a round-robin tournament, all pairs meet
        // once. With an odd rank the last column is one of zeros.
        for (int round = 0; round < others; ++round) {
            __syncthreads();
            for (int pair = warp; pair < num_columns / 2; pair += num_warps) {
                const int p = pair == 0 ? others : (round + pair) % others;
                const int q = pair == 0 ? round : (round + others - pair) % others;
                double aa = 0, bb = 0, ab = 0;
#pragma unroll
                for (int i = 0; i < TILES; ++i) {
                    const double a = left[lane + 32 * i][p], b = left[lane + 32 * i][q];
                    aa += a * a;
                    bb += b * b;
                    ab += a * b;
                }
                aa = sum_of_warp(aa), bb = sum_of_warp(bb), ab = sum_of_warp(ab);
                if (!(fabs(ab) > 1e-15 * sqrt(aa) * sqrt(bb))) continue;
                if (lane == 0) num_rotations = 1;
                const double zeta = (bb - aa) / (2 * ab);
                const double tangent = copysign(1 / (fabs(zeta) + sqrt(1 + zeta * zeta)), zeta);
                const double cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
                const auto rotate = [=](double& a, double& b) {
                    const double first = a, second = b;
                    a = cosine * first - sine * second;
                    b = sine * first + cosine * second;
                };
                for (int row = lane; row < rank; row += 32) {
                    rotate(left[row][p], left[row][q]);
                    rotate(right[p * rank + row], right[q * rank + row]);
                }
            }
        }
        __syncthreads();
        if (num_rotations == 0) break;
    }
}

// Writes the pseudo-inverse of a matrix (R, R), given its transpose; a singular value of the scaled
// matrix within rounding of zero counts as zero. Not inlined, so that registers are enough for
// `eliminate`.
__device__ __noinline__ void pseudo_invert(Matrix& left, const double* scales, double* inverse,
                                           int rank)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int row = warp; row < rank; row += num_warps) {
        for (int column = lane; column < rank; column += 32) {
            left[row][column] *= scales[row] * scales[column];
        }
    }
    orthogonalise(left, inverse, rank);
    const auto square_of = [&](int column) {
        double square = 0;
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const double number = left[lane + 32 * i][column];
            square += number * number;
        }
        return sum_of_warp(square);
    };
    double largest = 0;
    for (int column = warp; column < rank; column += num_warps) {
        const double square = square_of(column);
        largest = largest >= square || largest != largest ? largest : square;
    }
    const double smallest = rank * epsilon * sqrt(max_of_block(largest));
    for (int column = warp; column < rank; column += num_warps) {
        const double square = square_of(column);
        for (int row = lane; row < rank; row += 32) {
            left[row][column] = sqrt(square) <= smallest ? 0 : left[row][column] / square;
        }
    }
    __syncthreads();
    // A warp replaces a column of the rotations by one of the inverse.
    for (int column = warp; column < rank; column += num_warps) {
        double rotations[TILES];
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const int k = lane + 32 * i;
            rotations[i] = k < rank ? inverse[k * rank + column] : 0;
        }
        for (int row = 0; row < rank; ++row) {
            double sum = 0;
#pragma unroll
            for (int i = 0; i < TILES; ++i) sum += rotations[i] * left[row][lane + 32 * i];
            sum = sum_of_warp(sum);
            if (lane == 0) inverse[row * rank + column] = sum * (scales[row] * scales[column]);
        }
    }
}

// Adds the mean of the diagonal to it; returns that. All threads of a block call it.
__device__ inline double add_mean(Matrix& matrix, int rank)
{
    const int lane = threadIdx.x % 32;
    double sum = 0;
    for (int i = lane; i < rank; i += 32) sum += matrix[i][i];
    const double mean = sum_of_warp(sum) / rank;
    __syncthreads();
    for (int i = threadIdx.x; i < rank; i += num_threads) matrix[i][i] += mean;
    __syncthreads();
    return mean;
}

// Rows and columns are scaled to a diagonal of ones, so that a component much smaller than another
// does not make the matrix look singular. (One that is so small that underflow takes its digits is
// not scaled: it has vanished, and gets zeros.) Then follows Gauss-Jordan elimination, which needs
// no pivoting as the matrix is symmetric and positive definite. If it is not, or if its condition
// number leaves no digit of a factor's number, the singular value decomposition by Hestenes's
// rotations of pairs of columns replaces it.
//
// `inverses` has (R, R) for each product. If the products are wanted, `products_out` is behind the
// first of these, and behind each of them are (R, R) for the product itself, and a number for its
// condition. With a `penalty`, one number, the mean of the diagonal is written there and added to
// the diagonal.
extern "C" __global__ void __launch_bounds__(num_threads, 1)
    invert(const Product product, int rank, double* inverses, double* products_out, double* penalty)
{
    extern __shared__ double memory[];
    Matrix& matrix = *reinterpret_cast<Matrix*>(memory);
    __shared__ double scales[width];
    const long long stride = products_out ? 2 * rank * rank + 1 : rank * rank;
    double* inverse = inverses + blockIdx.x * stride;
    double* product_out = products_out ? products_out + blockIdx.x * stride : nullptr;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int row = warp; row < width; row += num_warps) {
        double own[TILES] = {};
        if (row < rank) read_row(own, product, row, rank);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const int column = lane + 32 * i;
            matrix[column][row] = own[i];
            if (product_out && row < rank && column < rank) {
                product_out[row * rank + column] = own[i];
            }
        }
    }
    __syncthreads();
    if (penalty) {
        const double mean = add_mean(matrix, rank);
        if (threadIdx.x == 0) *penalty = mean;
    }
    for (int i = threadIdx.x; i < width; i += num_threads) {
        const double diagonal = fabs(matrix[i][i]);
        const bool is_scaled = diagonal > tiny / epsilon && isfinite(diagonal);
        scales[i] = is_scaled ? 1 / sqrt(diagonal) : 1;
    }
    __syncthreads();
    Numbers numbers;
#pragma unroll
    for (int j = 0; j < own_columns; ++j) {
#pragma unroll
        for (int i = 0; i < TILES; ++i) numbers[i][j] = lane + 32 * i == warp * own_columns + j;
    }
    for_own(numbers, rank, [&](double& number, int row, int column) {
        const double scale = scales[row] * scales[column];
        const double left = matrix[row][column] * scale, right = matrix[column][row] * scale;
        number = fabs(left - right) <= width * epsilon ? (left + right) / 2 : nan("");
    });
    double condition = norm_of(numbers);
    eliminate(numbers, rank);
    condition *= norm_of(numbers);
    if (condition * epsilon < 1) {
        for_own(numbers, rank, [&](double& number, int row, int column) {
            inverse[column * rank + row] = -number * (scales[row] * scales[column]);
        });
    } else {
        condition = 1;
        pseudo_invert(matrix, scales, inverse, rank);
    }
    if (product_out && threadIdx.x == 0) product_out[rank * rank] = condition;
}

extern "C" __global__ void __launch_bounds__(num_threads, 1)
    fit(const Product product, int rank, long long num_inner, const double* inner_products,
        double norm_square, double* errors)
{
    double sum = 0;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < rank; row += num_warps) {
        double numbers[TILES];
        read_row(numbers, product, row, rank);
#pragma unroll
        for (int i = 0; i < TILES; ++i) sum += numbers[i];
    }
    inner_products += blockIdx.x * num_inner;
    for (long long i = threadIdx.x; i < num_inner; i += num_threads) sum -= 2 * inner_products[i];
    sum = sum_of_block<num_threads>(sum);
    if (threadIdx.x == 0) errors[blockIdx.x] = sqrt(fabs(norm_square + sum));
}

// Entry: what ALS does with elementwise products of Gram matrices and small matrices (R, R):
//
//   add_grams: adds the Gram matrices of many blocks of rows, SEGMENT consecutive ones to one.
//   invert: inverts products, or pseudo-inverts those that are singular to rounding.
//   fit: the error of a CP model, |x - model|, from what its last factor was computed with.
//
// Mapping: of `add_grams` a block has 256 numbers of a segment, a thread one of them. Of the others
//   a block of 32 warps has a product, and thread (row, column) one number, which `fit` adds up to
//   the square of the model's norm; it also has every 1024th part of the inner product.
// Preconditions (the caller's): matrices may have any strides. To invert more than one product,
//   each of `grams` is a stack with a matrix for each.
// Bytes: the blocks once; none per nonzero. A launch takes less time than a trip to the host.
// Writes and determinism: one matrix (R, R) for each segment, whose blocks are added in their
//   order; the inverse in double precision, in C order, nan if the matrix is not finite; one number
//   in double precision, to memory of the GPU or pinned memory of the host. All orders are fixed.
// Source: Hestenes, Journal of the SIAM 6(1), 1958 (one-sided rotations).
// MACRO RANK: rows and columns of the matrices, 32 or fewer
// MACRO SEGMENT: blocks that `add_grams` adds to one
// MACRO PRODUCT_LAYOUT: how Python fills struct Product (see structs.py)

#include "layout.cuh"
#include "sums.cuh"

static_assert(RANK > 0 && RANK <= 32, "a block has 32 rows of 32 threads");

// Filled by Python (`structs.py`).
struct Product {
    static constexpr int max_grams = 8;
    static constexpr int max_matrices = 4;

    const double* grams[max_grams];  // each (num_blocks, R, R), to be added, for each thread block
    long long num_blocks[max_grams];
    const float* matrices[max_matrices];
    long long row_strides[max_matrices];  // 0 where a matrix has one row for all
    long long column_strides[max_matrices];
    int num_grams;
    int num_matrices;
};
CHECK_LAYOUT(Product, PRODUCT_LAYOUT)

// Adds the blocks of a Gram matrix in their order; eight are loaded together.
__device__ __forceinline__ double add_blocks(const double* blocks, long long num_blocks,
                                             long long stride)
{
    constexpr int batch = 8;
    double total = 0;
    for (long long start = 0; start < num_blocks; start += batch) {
        double parts[batch];
#pragma unroll
        for (int b = 0; b < batch; ++b) {
            parts[b] = start + b < num_blocks ? blocks[(start + b) * stride] : 0;
        }
#pragma unroll
        for (int b = 0; b < batch; ++b) total += parts[b];
    }
    return total;
}

__device__ __forceinline__ double read_product(const Product& product, int row, int column)
{
    double number = 1;
    for (int g = 0; g < product.num_grams; ++g) {
        const long long first = blockIdx.x * product.num_blocks[g];
        const double* blocks = product.grams[g] + (first * RANK + row) * RANK + column;
        number *= add_blocks(blocks, product.num_blocks[g], RANK * RANK);
    }
    for (int m = 0; m < product.num_matrices; ++m) {
        const long long place = row * product.row_strides[m] + column * product.column_strides[m];
        number *= product.matrices[m][place];
    }
    return number;
}

extern "C" __global__ void add_grams(long long num_blocks, const double* blocks, double* sums)
{
    constexpr int size = RANK * RANK;
    const int number = blockIdx.y * blockDim.x + threadIdx.x;
    if (number >= size) return;
    const long long segment = blockIdx.x, first = segment * SEGMENT;
    const long long count = min(static_cast<long long>(SEGMENT), num_blocks - first);
    sums[segment * size + number] = add_blocks(blocks + first * size + number, count, size);
}

constexpr double float_epsilon = 1.1920928955078125e-07;  // of float
constexpr int max_sweeps = 40;
constexpr int pitch = 33;  // puts the numbers of a column in different banks

using Matrix = double[32][pitch];

__device__ __forceinline__ double max_of_warp(double largest)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        // Unlike fmax, nan wins.
        const double other = __shfl_xor_sync(0xffffffffu, largest, distance);
        largest = largest >= other || largest != largest ? largest : other;
    }
    return largest;
}

// Returns the largest sum of absolute values in a column.
__device__ inline double norm_of(const Matrix& matrix, double (&of_columns)[32], int warp, int lane)
{
    const double sum = sum_of_warp(fabs(matrix[lane][warp]));
    if (lane == 0) of_columns[warp] = sum;
    __syncthreads();
    const double norm = max_of_warp(of_columns[lane]);
    __syncthreads();
    return norm;
}

// Replaces a matrix by its inverse, which is not finite if the matrix is singular. A warp has a
// column, a lane a row: a number stays in its register, rows are not exchanged but marked as used.
__device__ inline void eliminate(Matrix& matrix, int column, int row)
{
    __shared__ double columns[2][32], inverses[2];
    __shared__ int pivots[32], steps[32];
    double number = matrix[row][column];
    unsigned used = 0;
    for (int k = 0; k < RANK; ++k) {
        if (column == k) {
            // The largest number, to 17 bits: of a key, the last 6 bits name the row.
            const unsigned size = __float_as_uint(fabsf(static_cast<float>(number))) & ~63u;
            const bool is_free = row < RANK && (used >> row & 1) == 0;
            const int last = 32 - (__reduce_max_sync(0xffffffffu, is_free ? size | (32 - row) : 0) & 63);
            columns[k % 2][row] = number;
            if (row == last) {
                inverses[k % 2] = 1 / number;
                pivots[k] = row;
                steps[row] = k;
            }
        }
        __syncthreads();  // the next but one step overwrites the column: a barrier is in between
        const int pivot = pivots[k];
        const double factor = columns[k % 2][row];
        const double upper = __shfl_sync(0xffffffffu, column == k ? 1 : number, pivot) * inverses[k % 2];
        number = row == pivot ? upper : (column == k ? 0 : number) - factor * upper;
        used |= 1u << pivot;
    }
    if (row < RANK && column < RANK) matrix[steps[row]][pivots[column]] = number;
    __syncthreads();
}

// Makes the columns of `left` orthogonal by rotations, whose product it writes to `right`.
__device__ inline void orthogonalise(Matrix& left, Matrix& right, int warp, int lane)
{
    constexpr int num_columns = RANK + RANK % 2;
    __shared__ int num_rotations;
    right[warp][lane] = warp == lane;
    for (int sweep = 0; sweep < max_sweeps; ++sweep) {
        __syncthreads();
        if (warp == 0 && lane == 0) num_rotations = 0;
        // Each warp has a pair of columns; as in a round-robin tournament, all pairs meet once.
        for (int round = 0; round < num_columns - 1; ++round) {
            __syncthreads();
            if (warp >= num_columns / 2) continue;
            const int others = num_columns - 1;
            const int p = warp == 0 ? others : (round + warp) % others;
            const int q = warp == 0 ? round : (round + others - warp) % others;
            const double a = left[lane][p], b = left[lane][q];
            const double aa = sum_of_warp(a * a), bb = sum_of_warp(b * b);
            const double ab = sum_of_warp(a * b);
            if (!(fabs(ab) > 1e-15 * sqrt(aa) * sqrt(bb))) continue;
            if (lane == 0) num_rotations = 1;
            const double zeta = (bb - aa) / (2 * ab);
            const double tangent = copysign(1 / (fabs(zeta) + sqrt(1 + zeta * zeta)), zeta);
            const double cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
            left[lane][p] = cosine * a - sine * b;
            left[lane][q] = sine * a + cosine * b;
            const double c = right[lane][p], d = right[lane][q];
            right[lane][p] = cosine * c - sine * d;
            right[lane][q] = sine * c + cosine * d;
        }
        __syncthreads();
        if (num_rotations == 0) break;
    }
}

// Rows and columns are scaled to a diagonal of ones, so that a component much smaller than another
// does not make the matrix look singular; then follows Gauss-Jordan elimination with partial
// pivoting. If the condition number leaves no digit of a float, the singular value decomposition by
// Hestenes's rotations of pairs of columns replaces it.
extern "C" __global__ void __launch_bounds__(1024, 1) invert(const Product product, double* inverse)
{
    const int row = threadIdx.x / 32, column = threadIdx.x % 32;
    const bool is_inside = row < RANK && column < RANK;
    __shared__ Matrix scaled, result;
    __shared__ double scales[32], of_columns[32];
    double number = is_inside ? read_product(product, row, column) : 0;
    if (row == column) {
        const double diagonal = fabs(number);
        scales[column] = diagonal > 0 && isfinite(diagonal) ? sqrt(diagonal) : 1;
    }
    __syncthreads();
    const double scale = scales[row] * scales[column];
    scaled[row][column] = number / scale;
    result[row][column] = number / scale;
    __syncthreads();
    eliminate(result, row, column);
    const double condition =
        norm_of(scaled, of_columns, row, column) * norm_of(result, of_columns, row, column);
    number = result[row][column];
    if (!(condition * float_epsilon < 1)) {
        __syncthreads();
        orthogonalise(scaled, result, row, column);
        __syncthreads();
        const double square = sum_of_warp(scaled[column][row] * scaled[column][row]);
        if (column == 0) of_columns[row] = square;
        __syncthreads();
        const double smallest = RANK * float_epsilon * sqrt(max_of_warp(of_columns[column]));
        number = 0;
        for (int k = 0; k < RANK; ++k) {
            if (sqrt(of_columns[k]) <= smallest) continue;
            number += result[row][k] * scaled[column][k] / of_columns[k];
        }
    }
    inverse += static_cast<long long>(blockIdx.x) * RANK * RANK;
    if (is_inside) inverse[row * RANK + column] = number / scale;
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    fit(const Product product, long long num_inner, const double* inner_products,
        double norm_square, double* error)
{
    const int row = threadIdx.x / 32, column = threadIdx.x % 32;
    const bool is_inside = row < RANK && column < RANK;
    double sum = is_inside ? read_product(product, row, column) : 0;
    for (long long i = threadIdx.x; i < num_inner; i += 1024) sum -= 2 * inner_products[i];
    sum = sum_of_block<1024>(sum);
    if (threadIdx.x == 0) *error = sqrt(fabs(norm_square + sum));
}

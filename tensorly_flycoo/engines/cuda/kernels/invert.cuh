// The inverse, or pseudo-inverse, of a product of small matrices.
//
// Rows and columns are scaled to a diagonal of ones, so that a component much smaller than another
// does not make the matrix look singular; then follows Gauss-Jordan elimination with partial
// pivoting. If the condition number leaves no digit of a float, the singular value decomposition by
// Hestenes's rotations of pairs of columns replaces it.
#pragma once

#include "product.cuh"
#include "sums.cuh"

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
template <int Rank>
__device__ inline void eliminate(Matrix& matrix, int column, int row)
{
    __shared__ double columns[2][32], inverses[2];
    __shared__ int pivots[32], steps[32];
    double number = matrix[row][column];
    unsigned used = 0;
    for (int k = 0; k < Rank; ++k) {
        if (column == k) {
            // The largest number, to 17 bits: of a key, the last 6 bits name the row.
            const unsigned size = __float_as_uint(fabsf(static_cast<float>(number))) & ~63u;
            const bool is_free = row < Rank && (used >> row & 1) == 0;
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
    if (row < Rank && column < Rank) matrix[steps[row]][pivots[column]] = number;
    __syncthreads();
}

// Makes the columns of `left` orthogonal by rotations, whose product it writes to `right`.
template <int Rank>
__device__ inline void orthogonalise(Matrix& left, Matrix& right, int warp, int lane)
{
    constexpr int num_columns = Rank + Rank % 2;
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

// A block of 32 warps has one of the products: thread (row, column) has one number.
template <int Rank>
__device__ __forceinline__ void invert_product(const Product& product, double* inverse)
{
    static_assert(Rank > 0 && Rank <= 32, "a block has 32 rows of 32 threads");
    const int row = threadIdx.x / 32, column = threadIdx.x % 32;
    const bool is_inside = row < Rank && column < Rank;
    __shared__ Matrix scaled, result;
    __shared__ double scales[32], of_columns[32];
    double number = is_inside ? read_product<Rank>(product, row, column) : 0;
    if (row == column) {
        const double diagonal = fabs(number);
        scales[column] = diagonal > 0 && isfinite(diagonal) ? sqrt(diagonal) : 1;
    }
    __syncthreads();
    const double scale = scales[row] * scales[column];
    scaled[row][column] = number / scale;
    result[row][column] = number / scale;
    __syncthreads();
    eliminate<Rank>(result, row, column);
    const double condition =
        norm_of(scaled, of_columns, row, column) * norm_of(result, of_columns, row, column);
    number = result[row][column];
    if (!(condition * float_epsilon < 1)) {
        __syncthreads();
        orthogonalise<Rank>(scaled, result, row, column);
        __syncthreads();
        const double square = sum_of_warp(scaled[column][row] * scaled[column][row]);
        if (column == 0) of_columns[row] = square;
        __syncthreads();
        const double smallest = Rank * float_epsilon * sqrt(max_of_warp(of_columns[column]));
        number = 0;
        for (int k = 0; k < Rank; ++k) {
            if (sqrt(of_columns[k]) <= smallest) continue;
            number += result[row][k] * scaled[column][k] / of_columns[k];
        }
    }
    inverse += static_cast<long long>(blockIdx.x) * Rank * Rank;
    if (is_inside) inverse[row * Rank + column] = number / scale;
}

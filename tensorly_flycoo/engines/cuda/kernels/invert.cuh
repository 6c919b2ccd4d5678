// The inverse, or pseudo-inverse, of a small matrix.
//
// Rows and columns are scaled to a diagonal of ones, so that a component much smaller than another
// does not make the matrix look singular; then follows Gauss-Jordan elimination with partial
// pivoting. If the condition number leaves no digit of a float, the singular value decomposition by
// Hestenes's rotations of pairs of columns replaces it.
#pragma once

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

// Replaces a matrix by its inverse, which is not finite if the matrix is singular.
template <int Rank>
__device__ inline void eliminate(Matrix& matrix, int row, int column)
{
    __shared__ int pivots[Rank];
    for (int k = 0; k < Rank; ++k) {
        if (row == 0) {
            const double size = column >= k && column < Rank ? fabs(matrix[column][k]) : -1;
            const unsigned best = __ballot_sync(0xffffffffu, size == max_of_warp(size));
            if (column == 0) pivots[k] = best == 0 ? k : __ffs(best) - 1;  // best: 0 if any is nan
        }
        __syncthreads();
        const int pivot = pivots[k];
        const double upper = matrix[pivot][column], lower = matrix[k][column];
        __syncthreads();
        if (row == 0) matrix[pivot][column] = lower;
        __syncthreads();
        if (row == 0) matrix[k][column] = upper;
        __syncthreads();
        const double scale = 1 / matrix[k][k];
        const double pivot_number = (column == k ? 1 : matrix[k][column]) * scale;
        const double number = column == k ? 0 : matrix[row][column];
        const double factor = matrix[row][k];
        __syncthreads();
        matrix[row][column] = row == k ? pivot_number : number - factor * pivot_number;
        __syncthreads();
    }
    for (int k = Rank - 1; k >= 0; --k) {
        if (column != 0 || pivots[k] == k) continue;
        const double number = matrix[row][k];
        matrix[row][k] = matrix[row][pivots[k]];
        matrix[row][pivots[k]] = number;
    }
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

// A block of 32 warps: thread (row, column) has one number.
template <int Rank>
__device__ __forceinline__ void invert_matrix(const float* matrix, long long row_stride,
                                              long long column_stride, double* inverse)
{
    static_assert(Rank > 0 && Rank <= 32, "a block has 32 rows of 32 threads");
    const int row = threadIdx.x / 32, column = threadIdx.x % 32;
    const bool is_inside = row < Rank && column < Rank;
    __shared__ Matrix scaled, result;
    __shared__ double scales[32], of_columns[32];
    if (row == 0) {
        const double diagonal =
            column < Rank ? fabs(static_cast<double>(matrix[column * (row_stride + column_stride)]))
                          : 1;
        scales[column] = diagonal > 0 && isfinite(diagonal) ? sqrt(diagonal) : 1;
    }
    __syncthreads();
    const double scale = scales[row] * scales[column];
    scaled[row][column] =
        is_inside ? matrix[row * row_stride + column * column_stride] / scale : 0;
    result[row][column] = scaled[row][column];
    __syncthreads();
    eliminate<Rank>(result, row, column);
    const double condition =
        norm_of(scaled, of_columns, row, column) * norm_of(result, of_columns, row, column);
    double number = result[row][column];
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
    if (is_inside) inverse[row * Rank + column] = number / scale;
}

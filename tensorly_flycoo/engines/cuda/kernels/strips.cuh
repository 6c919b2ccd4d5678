// Products of rows and a small matrix (R, R), by tensor cores, in double precision.
//
// R is rounded up to Width, whole strips of 16 columns. A warp computes one strip of a group of rows.
// Matrices and rows in shared memory are padded, so that what a warp reads together lies in different
// banks.
#pragma once

#include "instructions.cuh"

constexpr int strip_padding = 4;

template <int Width>
using SmallMatrix = double[Width][Width + strip_padding];

// A lane's numbers of a strip, for each 8 rows: of the columns lane / 4 and lane / 4 + 8 it has the
// rows 2 * (lane % 4) and the one after it.
template <typename Value, int GroupRows>
using Strip = Value[GroupRows / 8][2][2];

// All threads of a block copy a matrix (rank, rank); the rest is zero.
template <int NumThreads, int Width, int Pitch>
__device__ __forceinline__ void load_matrix(double (&matrix)[Width][Pitch], const double* source,
                                            int rank)
{
    for (int place = threadIdx.x; place < Width * Width; place += NumThreads) {
        const int row = place / Width, column = place % Width;
        const bool is_inside = row < rank && column < rank;
        matrix[row][column] = is_inside ? source[row * rank + column] : 0;
    }
}

// Adds a strip of a group's rows times the matrix; tensor cores compute matrix.T @ rows.T.
template <typename Value, int Width, int Pitch, int NumTiles>
__device__ __forceinline__ void add_product(double (&sums)[NumTiles][2][2],
                                            const double (&matrix)[Width][Pitch],
                                            const Value (*rows)[Pitch], int strip, int lane)
{
#pragma unroll 2
    for (int k = 0; k < Width; k += 8) {
        double left[2][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const double* place = &matrix[k + lane % 4 + 4 * half][16 * strip + lane / 4];
            left[half][0] = place[0];
            left[half][1] = place[8];
        }
#pragma unroll
        for (int n = 0; n < NumTiles; ++n) {
            const Value* place = &rows[8 * n + lane / 4][k + lane % 4];
            const double right[2] = {place[0], place[4]};
            multiply(sums[n], left, right);
        }
    }
}

// Calls a function of a number of a strip, its row and its column, for all numbers of a lane.
template <typename Number, int NumTiles, typename Function>
__device__ __forceinline__ void for_strip(Number (&numbers)[NumTiles][2][2], int strip, int lane,
                                          Function function)
{
#pragma unroll
    for (int n = 0; n < NumTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 8 * n + 2 * (lane % 4) + i % 2;
            function(numbers[n][i / 2][i % 2], row, 16 * strip + lane / 4 + 8 * (i / 2));
        }
    }
}

// The same for two strips at a time.
template <typename Number, typename Other, int NumTiles, typename Function>
__device__ __forceinline__ void for_strips(Number (&numbers)[NumTiles][2][2],
                                           Other (&others)[NumTiles][2][2], int strip, int lane,
                                           Function function)
{
#pragma unroll
    for (int n = 0; n < NumTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 8 * n + 2 * (lane % 4) + i % 2;
            function(numbers[n][i / 2][i % 2], others[n][i / 2][i % 2], row,
                     16 * strip + lane / 4 + 8 * (i / 2));
        }
    }
}

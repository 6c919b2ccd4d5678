// What the kernels for tall float32 matrices (I_n, R) of few columns have in common: blocks of rows,
// and products in double precision by tensor cores, which leave reading to take all the time.
#pragma once

#ifndef RANK
#error "RANK: columns of the matrix, 32 or fewer"
#endif
#ifndef ROWS_PER_BLOCK
#error "ROWS_PER_BLOCK: rows of a block"
#endif
#ifndef BLOCK_SIZE
#error "BLOCK_SIZE: threads of a block"
#endif

constexpr int PAIRS = (RANK + 15) / 16;  // of tiles of 8 columns
constexpr int NUM_WARPS = BLOCK_SIZE / 32;
constexpr int TILES = 2 * PAIRS;
constexpr int WIDTH = 8 * TILES;

// Add to two tiles (8, 8) the products of two tiles (8, 8), one under the other, and a third.
//
// Of the halves (8, 4) of the first two a lane has the number at (lane / 4, lane % 4); of the
// halves (4, 8) of the third that at (lane % 4, lane / 4); of the sums those at
// (lane / 4, 2 * (lane % 4)) and next to it.
__device__ __forceinline__ void add_products(double (&top_sum)[2], double (&bottom_sum)[2],
                                             const double (&top)[2], const double (&bottom)[2],
                                             const double (&right)[2])
{
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(top_sum[0]), "+d"(top_sum[1]), "+d"(bottom_sum[0]), "+d"(bottom_sum[1])
        : "d"(top[0]), "d"(bottom[0]), "d"(top[1]), "d"(bottom[1]), "d"(right[0]), "d"(right[1]));
#elif __CUDA_ARCH__ >= 800
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(top_sum[0]), "+d"(top_sum[1])
            : "d"(top[half]), "d"(right[half]));
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(bottom_sum[0]), "+d"(bottom_sum[1])
            : "d"(bottom[half]), "d"(right[half]));
    }
#endif
}

// A block's neighbouring rows, at which its warps take turns.
struct Block {
    long long row;  // where this warp begins
    long long end;

    __device__ Block(long long num_rows, int rows_of_step)
    {
        const long long first = static_cast<long long>(blockIdx.x) * ROWS_PER_BLOCK;
        row = first + threadIdx.x / 32 * rows_of_step;
        end = min(first + ROWS_PER_BLOCK, num_rows);
    }
};

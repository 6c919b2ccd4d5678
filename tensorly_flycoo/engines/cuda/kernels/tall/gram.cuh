// Shared by the kernels for tall float32 matrices (I_n, R) of few columns: blocks of rows, and
// products in double precision on tensor cores, so fast that reading takes all the time.
#pragma once

#include "architecture.cuh"

template <int Rank, int BlockSize>
struct Tall {
    static_assert(Rank > 0 && Rank <= 32, "a lane has registers for 32 columns");
    static_assert(BlockSize % 32 == 0, "a block is whole warps");
    static constexpr int rank = Rank;
    static constexpr int block_size = BlockSize;
    static constexpr int num_warps = BlockSize / 32;
    static constexpr int tiles = 2 * ((Rank + 15) / 16);  // of 8 columns, in pairs
    static constexpr int width = 8 * tiles;

    // A block's consecutive rows, distributed to its warps round-robin, and counted from its first.
    struct Rows {
        long long first;
        int row;  // where this warp begins
        int end;

        __device__ Rows(long long num_rows, int rows_per_block, int rows_of_step)
        {
            first = static_cast<long long>(blockIdx.x) * rows_per_block;
            row = threadIdx.x / 32 * rows_of_step;
            end = static_cast<int>(min(static_cast<long long>(rows_per_block), num_rows - first));
        }
    };
};

// Adds top @ right and bottom @ right, all tiles (8, 8), to two tiles of sums.
//
// A lane has the number at (lane / 4, lane % 4) of each half (8, 4) of `top` and `bottom`, that at
// (lane % 4, lane / 4) of each half (4, 8) of `right`, and those at (lane / 4, 2 * (lane % 4)) and
// next to it of the sums.
__device__ __forceinline__ void add_products(double (&top_sum)[2], double (&bottom_sum)[2],
                                             const double (&top)[2], const double (&bottom)[2],
                                             const double (&right)[2])
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(top_sum[0]), "+d"(top_sum[1]), "+d"(bottom_sum[0]), "+d"(bottom_sum[1])
        : "d"(top[0]), "d"(bottom[0]), "d"(top[1]), "d"(bottom[1]), "d"(right[0]), "d"(right[1]));
#else
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

// The products of a warp's rows with each other: pairs of tiles on the diagonal and above.
template <typename Tall>
struct GramSums {
    static constexpr int rank = Tall::rank, tiles = Tall::tiles, width = Tall::width;

    double at[tiles][tiles][2] = {};

    // Adds 8 rows. A lane has of each tile of columns the numbers of column lane / 4, of two rows:
    // which rows they are does not matter, as long as the lanes of a column have different ones.
    __device__ __forceinline__ void add(const double (&numbers)[tiles][2])
    {
#pragma unroll
        for (int i = 0; i < tiles; i += 2) {
#pragma unroll
            for (int j = i; j < tiles; ++j) {
                add_products(at[i][j], at[i + 1][j], numbers[i], numbers[i + 1], numbers[j]);
            }
        }
    }

    // Adds the sums of all warps in their order, and writes the block's (rank, rank).
    __device__ __forceinline__ void write(double* products) const
    {
        __shared__ double total[width * width];
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (int turn = 0; turn < Tall::num_warps; ++turn) {
            __syncthreads();
            if (warp != turn) continue;
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
#pragma unroll
                for (int j = i / 2 * 2; j < tiles; ++j) {
                    double* place = total + (8 * i + lane / 4) * width + 8 * j + 2 * (lane % 4);
                    place[0] = at[i][j][0] + (turn == 0 ? 0 : place[0]);
                    place[1] = at[i][j][1] + (turn == 0 ? 0 : place[1]);
                }
            }
        }
        __syncthreads();
        products += static_cast<long long>(blockIdx.x) * rank * rank;
        for (int i = threadIdx.x; i < rank * rank; i += Tall::block_size) {
            const int row = i / rank, column = i % rank;
            const bool is_below = row / 16 > column / 16;
            products[i] = is_below ? total[column * width + row] : total[row * width + column];
        }
    }
};

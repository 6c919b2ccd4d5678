// Records as they lie in memory, and how to move them.
#pragma once

#include "macros.cuh"

// Words are 32 bits, and a record is a multiple of 8 bytes.
constexpr int RECORD_NBYTES = 4 * NUM_WORDS;
static_assert(RECORD_NBYTES % 8 == 0, "records move in pieces of 8 or 16 bytes");

// The largest piece that all records are aligned to.
constexpr int PIECE_NBYTES = RECORD_NBYTES % 16 == 0 ? 16 : 8;
constexpr int PIECES = RECORD_NBYTES / PIECE_NBYTES;

template <int NBYTES>
struct PieceType;
template <>
struct PieceType<8> {
    using type = uint2;
};
template <>
struct PieceType<16> {
    using type = uint4;
};
using Piece = PieceType<PIECE_NBYTES>::type;

// Start a copy of one record from global to shared memory; `wait_for_copies` ends it.
__device__ __forceinline__ void copy_to_shared(Piece* target, const Piece* source)
{
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
#if __CUDA_ARCH__ >= 800
        const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(target + p));
        if (PIECE_NBYTES == 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address),
                         "l"(source + p)
                         : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address),
                         "l"(source + p)
                         : "memory");
        }
#else
        target[p] = source[p];
#endif
    }
}

__device__ __forceinline__ void wait_for_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

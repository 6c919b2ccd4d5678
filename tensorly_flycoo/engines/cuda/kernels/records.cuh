// Records as they lie in memory, and how to move them.
#pragma once

#include "macros.cuh"

// Words are 32 bits, and a record is a multiple of 8 bytes.
constexpr int RECORD_NBYTES = 4 * NUM_WORDS;
static_assert(RECORD_NBYTES % 8 == 0, "records move in pieces of 8 or 16 bytes");

// The largest pieces that all records, and all slots, are aligned to. A slot is a place in shared
// memory: a record comes there, and is unpacked there to an entry (`nonzeros.cuh`).
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

constexpr int SLOT_NBYTES = RECORD_NBYTES > ENTRY_NBYTES ? RECORD_NBYTES : ENTRY_NBYTES;
using Piece = PieceType<RECORD_NBYTES % 16 == 0 ? 16 : 8>::type;
using SlotPiece =
    PieceType<RECORD_NBYTES % 16 == 0 && SLOT_NBYTES % 16 == 0 ? 16 : 8>::type;
constexpr int PIECES = RECORD_NBYTES / sizeof(Piece);
constexpr int SLOT_PIECES = SLOT_NBYTES / sizeof(SlotPiece);
constexpr int PIECES_OF_RECORD = RECORD_NBYTES / sizeof(SlotPiece);

// Groups of lanes read places that lie a run apart, which would lie in the same banks: the lowest
// bits of a place are mixed with the number of its run.
__device__ __forceinline__ SlotPiece* slot_at(SlotPiece* slots, int place)
{
    const int slot = RUN % 8 == 0 ? place ^ ((place / RUN) & 7) : place;
    return slots + slot * SLOT_PIECES;
}

// Start a copy of one record from global to shared memory; `wait_for_copies` ends it.
__device__ __forceinline__ void copy_to_slot(SlotPiece* slot, const Piece* record)
{
    const SlotPiece* source = reinterpret_cast<const SlotPiece*>(record);
#pragma unroll
    for (int p = 0; p < PIECES_OF_RECORD; ++p) {
#if __CUDA_ARCH__ >= 800
        const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(slot + p));
        if (sizeof(SlotPiece) == 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address),
                         "l"(source + p)
                         : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address),
                         "l"(source + p)
                         : "memory");
        }
#else
        slot[p] = source[p];
#endif
    }
}

__device__ __forceinline__ void wait_for_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Records in memory, and the slots in shared memory to which a tile's records are copied.
#pragma once

#include "architecture.cuh"
#include "instructions.cuh"

template <bool IsWide>
__device__ auto zero_piece()
{
    if constexpr (IsWide) return uint4{};
    if constexpr (!IsWide) return uint2{};
}

// A tile in shared memory: a slot for each place.
//
// A slot first holds the record of its place, and then its entry (`nonzeros.cuh`). EntryNbytes is 0
// in kernels that only move records. Run is the number of consecutive places that one group reads.
template <int NumWords, int EntryNbytes, int TileSize, int BlockSize, int Run>
struct Slots {
    static constexpr int record_nbytes = 4 * NumWords;
    static constexpr int slot_nbytes = record_nbytes > EntryNbytes ? record_nbytes : EntryNbytes;
    static constexpr int block_size = BlockSize;
    static constexpr int moves = TileSize / BlockSize;  // records that a thread moves
    static_assert(record_nbytes % 8 == 0, "records move in pieces of 8 or 16 bytes");
    static_assert(EntryNbytes % 8 == 0, "entries are read in pieces of 8 or 16 bytes");
    static_assert(TileSize % BlockSize == 0, "every thread moves equally many records");
    static_assert(TileSize <= 65536, "places within a tile are 16-bit numbers");

    // The largest pieces that divide every record, and every slot.
    using Piece = decltype(zero_piece<record_nbytes % 16 == 0>());
    using SlotPiece = decltype(zero_piece<record_nbytes % 16 == 0 && slot_nbytes % 16 == 0>());
    static constexpr int record_pieces = record_nbytes / sizeof(Piece);
    static constexpr int record_slot_pieces = record_nbytes / sizeof(SlotPiece);
    static constexpr int slot_pieces = slot_nbytes / sizeof(SlotPiece);

    SlotPiece* memory;

    // The groups of a warp read places a run apart, which would lie in the same banks. XORing the
    // lowest bits of a place with the number of its run spreads them.
    __device__ __forceinline__ SlotPiece* at(int place) const
    {
        const int slot = Run % 8 == 0 ? place ^ ((place / Run) & 7) : place;
        return memory + slot * slot_pieces;
    }

    // Starts a copy of one record from global memory; `wait_for_copies` ends it.
    __device__ __forceinline__ void copy_to(int place, const Piece* record) const
    {
        SlotPiece* slot = at(place);
        const SlotPiece* source = reinterpret_cast<const SlotPiece*>(record);
#pragma unroll
        for (int p = 0; p < record_slot_pieces; ++p) {
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
        }
    }
};

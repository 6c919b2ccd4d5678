// Nonzeros unpacked in shared memory, once for all lanes that will read them.
//
// An entry is the value, the output row and the input rows: with three modes and floats it takes 16
// bytes and one load.
#pragma once

#include "operands.cuh"

constexpr int VALUE_WORDS = sizeof(VALUE) / 4;
constexpr int USED_WORDS = VALUE_WORDS + 1 + NUM_INPUTS;
constexpr int ENTRY_WORDS = (USED_WORDS + 1) / 2 * 2;
using EntryPiece = PieceType<ENTRY_WORDS % 4 == 0 ? 16 : 8>::type;
constexpr int ENTRY_PIECES = 4 * ENTRY_WORDS / sizeof(EntryPiece);

struct Entry {
    union {
        unsigned words[ENTRY_WORDS];
        EntryPiece pieces[ENTRY_PIECES];
    };

    __device__ __forceinline__ VALUE value() const
    {
        return *reinterpret_cast<const VALUE*>(words);
    }
    __device__ __forceinline__ unsigned out_row() const { return words[VALUE_WORDS]; }
    __device__ __forceinline__ unsigned input_row(int n) const
    {
        return words[VALUE_WORDS + 1 + n];
    }
};

// Groups of lanes read places that lie a run apart, which would lie in the same banks: the lowest
// bits of a place are mixed with the number of its run.
__device__ __forceinline__ int slot_of(int place)
{
    if (RUN % 8 != 0) return place;
    return place ^ ((place / RUN) & 7);
}

__device__ __forceinline__ Entry read_entry(const EntryPiece* entries, int place)
{
    Entry entry;
#pragma unroll
    for (int p = 0; p < ENTRY_PIECES; ++p) {
        entry.pieces[p] = entries[slot_of(place) * ENTRY_PIECES + p];
    }
    return entry;
}

// Unpacks the records that this thread moved, and fills up a tile with zeros.
__device__ __forceinline__ void unpack_tile(EntryPiece* entries, const Piece* packed, int count,
                                            const Operands& operands)
{
#pragma unroll
    for (int m = 0; m < MOVES; ++m) {
        const int place = threadIdx.x + m * BLOCK_SIZE;
        const unsigned* record = reinterpret_cast<const unsigned*>(packed + place * PIECES);
        Entry entry = {};
        if (place < count) {
            *reinterpret_cast<VALUE*>(entry.words) = read_value(record, operands);
            entry.words[VALUE_WORDS] = read_row(record, operands.out_field);
#pragma unroll
            for (int n = 0; n < NUM_INPUTS; ++n) {
                entry.words[VALUE_WORDS + 1 + n] = read_row(record, operands.input_fields[n]);
            }
        }
#pragma unroll
        for (int p = 0; p < ENTRY_PIECES; ++p) {
            entries[slot_of(place) * ENTRY_PIECES + p] = entry.pieces[p];
        }
    }
}

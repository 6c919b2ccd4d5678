// Nonzeros unpacked in shared memory, once for all lanes that will read them.
//
// An entry is the value, the output row and the input rows: with three modes and floats it takes 16
// bytes and one load.
#pragma once

#include "operands.cuh"

constexpr int ENTRY_PIECES = ENTRY_NBYTES / sizeof(SlotPiece);

union Entry {
    unsigned words[ENTRY_NBYTES / 4];
    SlotPiece pieces[ENTRY_PIECES];

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

__device__ __forceinline__ Entry read_entry(SlotPiece* slots, int place)
{
    const SlotPiece* slot = slot_at(slots, place);
    Entry entry;
#pragma unroll
    for (int p = 0; p < ENTRY_PIECES; ++p) entry.pieces[p] = slot[p];
    return entry;
}

// Unpacks the records that this thread moved, in their slots, and fills up a tile with zeros.
__device__ __forceinline__ void unpack_tile(SlotPiece* slots, int count, const Operands& operands)
{
#pragma unroll
    for (int m = 0; m < MOVES; ++m) {
        const int place = threadIdx.x + m * BLOCK_SIZE;
        SlotPiece* slot = slot_at(slots, place);
        Entry entry = {};
        if (place < count) {
            const unsigned* record = reinterpret_cast<const unsigned*>(slot);
            *reinterpret_cast<VALUE*>(entry.words) = read_value(record, operands);
            entry.words[VALUE_WORDS] = read_row(record, operands.out_field);
            ASSERT(entry.out_row() <= operands.last_out_row);
#pragma unroll
            for (int n = 0; n < NUM_INPUTS; ++n) {
                entry.words[VALUE_WORDS + 1 + n] = read_row(record, operands.input_fields[n]);
                ASSERT(entry.input_row(n) <= operands.last_input_rows[n]);
            }
        }
#pragma unroll
        for (int p = 0; p < ENTRY_PIECES; ++p) slot[p] = entry.pieces[p];
    }
}

// The nonzeros of a tile, unpacked in shared memory once for all lanes that read them.
#pragma once

#include "assertions.cuh"
#include "operands.cuh"
#include "records.cuh"

// A block's tile, cut into runs: a group of GroupSize threads reads each.
template <typename ValueType, int NumInputs, int NumWords, int TileSize, int BlockSize,
          int GroupSize>
struct Nonzeros {
    using Value = ValueType;
    using Operands = ::Operands<Value, NumInputs>;
    static constexpr int num_inputs = NumInputs;
    static constexpr int block_size = BlockSize;
    static constexpr int group_size = GroupSize;
    static constexpr int num_groups = BlockSize / GroupSize;
    static constexpr int run = TileSize / num_groups;
    static_assert(num_groups * GroupSize == BlockSize, "a block is whole groups");
    static_assert(num_groups * run == TileSize, "a tile is whole runs");

    static constexpr int value_words = sizeof(Value) / 4;
    static constexpr int entry_nbytes = (value_words + 1 + NumInputs + 1) / 2 * 8;
    using Slots = ::Slots<NumWords, entry_nbytes, TileSize, BlockSize, run>;
    using SlotPiece = typename Slots::SlotPiece;
    // The last piece may be a part: of merged modes a record may be longer than its entry.
    static constexpr int entry_pieces = (entry_nbytes + sizeof(SlotPiece) - 1) / sizeof(SlotPiece);
    static_assert(entry_pieces <= Slots::slot_pieces, "an entry fits its slot");

    // An entry: the value, the output row, the input rows. Three modes and floats take one load.
    union Entry {
        unsigned words[entry_pieces * sizeof(SlotPiece) / 4];
        SlotPiece pieces[entry_pieces];

        __device__ __forceinline__ Value value() const
        {
            return *reinterpret_cast<const Value*>(words);
        }
        __device__ __forceinline__ unsigned out_row() const { return words[value_words]; }
        __device__ __forceinline__ unsigned input_row(int n) const
        {
            return words[value_words + 1 + n];
        }
    };

    static __device__ __forceinline__ Entry read(Slots slots, int place)
    {
        const SlotPiece* slot = slots.at(place);
        Entry entry;
#pragma unroll
        for (int p = 0; p < entry_pieces; ++p) entry.pieces[p] = slot[p];
        return entry;
    }

    // Unpacks the records that this thread pulled, each in its slot; past the end it puts zeros.
    static __device__ __forceinline__ void unpack(Slots slots, int count, const Operands& operands)
    {
#pragma unroll
        for (int m = 0; m < Slots::moves; ++m) {
            const int place = threadIdx.x + m * BlockSize;
            SlotPiece* slot = slots.at(place);
            Entry entry = {};
            if (place < count) {
                const unsigned* record = reinterpret_cast<const unsigned*>(slot);
                *reinterpret_cast<Value*>(entry.words) =
                    read_value<Value>(record, operands.value_slot);
                entry.words[value_words] = read_row<NumWords>(record, operands.out_field);
                ASSERT(entry.out_row() <= operands.last_out_row);
#pragma unroll
                for (int n = 0; n < NumInputs; ++n) {
                    entry.words[value_words + 1 + n] =
                        read_row<NumWords>(record, operands.input_fields[n]);
                    ASSERT(entry.input_row(n) <= operands.last_input_rows[n]);
                }
            }
#pragma unroll
            for (int p = 0; p < entry_pieces; ++p) slot[p] = entry.pieces[p];
        }
    }
};

// A matrix to write to whose blocks of rows may be in the memory of several GPUs.
#pragma once

// Filled by Python (`structs.py`) and passed by value, so it is in constant memory.
template <typename Value, int NumBlocks>
struct RowBlocks {
    Value* blocks[NumBlocks];
    unsigned block_rows;  // of each block, but the last ones may have fewer

    __device__ __forceinline__ Value* find_row(long long row, int rank) const
    {
        if (NumBlocks == 1) return blocks[0] + row * rank;
        const unsigned block = static_cast<unsigned>(row) / block_rows;
        return blocks[block] + (row - static_cast<long long>(block) * block_rows) * rank;
    }
};

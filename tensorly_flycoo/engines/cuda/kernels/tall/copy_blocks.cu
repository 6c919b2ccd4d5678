// Entry: copy small matrices, of this GPU or of others, to this GPU.
//
// Mapping: along y a block has one matrix; its words of 4 bytes are shared by all threads along x.
// Preconditions (the caller's): this GPU can read the others' memory. Sizes and the distances of
//   rows are multiples of 4 bytes, and less than 2^32 words.
// Bytes: the matrices, read once, over the links between GPUs if they are elsewhere.
// Writes and determinism: rows without gaps. A copy by the driver costs the host several times as
//   much as a launch, for each matrix.
// Source: none.
// MACRO COPIES_LAYOUT: how Python fills struct Copies (see structs.py)

#include "layout.cuh"

// Filled by Python (`structs.py`). All sizes are in words of 4 bytes.
struct Copies {
    static constexpr int max_copies = 16;

    const unsigned* sources[max_copies];
    unsigned* targets[max_copies];
    unsigned num_words[max_copies];
    unsigned row_words[max_copies];
    unsigned pitches[max_copies];  // from row to row of a source
};
CHECK_LAYOUT(Copies, COPIES_LAYOUT)

extern "C" __global__ void copy_blocks(const Copies copies)
{
    const int n = blockIdx.y;
    const unsigned row_words = copies.row_words[n];
    for (unsigned word = blockIdx.x * blockDim.x + threadIdx.x; word < copies.num_words[n];
         word += gridDim.x * blockDim.x) {
        const unsigned row = word / row_words, column = word % row_words;
        copies.targets[n][word] = copies.sources[n][row * copies.pitches[n] + column];
    }
}

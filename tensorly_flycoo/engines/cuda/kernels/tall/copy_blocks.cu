// Entry: copy small matrices, of this GPU or of others, to this GPU.
//
// Mapping: along x a block has one matrix, so that blocks of all are at work together, for some wait
//   for the links between GPUs. All threads along y share its words: of 16 bytes where addresses,
//   rows and their distances allow it, else of 4.
// Preconditions (the caller's): this GPU can read the others' memory. Sizes and the distances of
//   rows are multiples of 4 bytes, and less than 2^32 words.
// Bytes: the matrices, read once, over the links between GPUs if they are elsewhere.
// Writes and determinism: rows without gaps. A copy by the driver costs the host several times as
//   much as a launch, for each matrix.
// Source: none.
// MACRO MAX_COPIES: the most matrices of a launch

// Filled by Python (`exchange.py`). All sizes are in words of 4 bytes.
struct Copies {
    const unsigned* sources[MAX_COPIES];
    unsigned* targets[MAX_COPIES];
    unsigned num_words[MAX_COPIES];
    unsigned row_words[MAX_COPIES];
    unsigned pitches[MAX_COPIES];  // from row to row of a source
};
static_assert(sizeof(Copies) == 28 * MAX_COPIES, "as Python packs it");

template <typename Word>
__device__ void copy_words(const Copies& copies, const int n)
{
    constexpr unsigned size = sizeof(Word) / 4;
    const unsigned num_words = copies.num_words[n] / size;
    const unsigned row_words = copies.row_words[n] / size, pitch = copies.pitches[n] / size;
    const Word* source = reinterpret_cast<const Word*>(copies.sources[n]);
    Word* target = reinterpret_cast<Word*>(copies.targets[n]);
    for (unsigned word = blockIdx.y * blockDim.x + threadIdx.x; word < num_words;
         word += gridDim.y * blockDim.x)
        target[word] = source[size_t(word / row_words) * pitch + word % row_words];
}

extern "C" __global__ void copy_blocks(const Copies copies)
{
    const int n = blockIdx.x;
    const size_t addresses = reinterpret_cast<size_t>(copies.sources[n])
        | reinterpret_cast<size_t>(copies.targets[n]);
    const unsigned words = copies.row_words[n] | copies.pitches[n];
    if (addresses % 16 == 0 && words % 4 == 0)
        copy_words<uint4>(copies, n);
    else
        copy_words<unsigned>(copies, n);
}

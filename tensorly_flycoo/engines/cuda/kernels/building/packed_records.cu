// Entry: count where rows begin, pack the bits of sorted records, and unpack them.
//
// A packed record has, one after the other without gaps: if HAS_ROWS, one bit, which is 1 where
// another row begins than that of the record before; the fields of a record; and, if CODE_WORDS is
// not 0, the number of its value among those that occur. Records follow each other without gaps.
//
// Mapping: a thread counts or unpacks a record. To pack, it has 32 records, which end with a word.
// Preconditions (the caller's): records are sorted by the row, in blocks of BLOCK_SIZE records;
//   behind the packed words is one more word. The first rank of a block is the number of rows that
//   begin before it.
// Bytes: per nonzero a record and a packed one, and with HAS_ROWS 4 bytes of its row, mostly from L1.
// Writes and determinism: each word by one thread.
// Source: none.
// MACRO NUM_WORDS: words of 4 bytes of a record
// MACRO NUM_FIELDS: fields that are kept
// MACRO HAS_ROWS: whether rows are known by where they begin
// MACRO CODE_WORDS: words of a value that is known by its number, or 0
// MACRO BLOCK_SIZE: threads of a block, a multiple of 32

#include "items.cuh"

// Filled by Python (`list_bits_members` in `structs.py`). A field has at most 32 bits, which begin `shift` bits
// after a word does, and may end in the next one.
struct Bits {
    int words[NUM_FIELDS], shifts[NUM_FIELDS], widths[NUM_FIELDS];
    int row_word, row_shift, row_width;
    int value_word, num_codes, code_width;
    int record_bits;  // of a packed record
};

using Word = unsigned;
using TwoWords = unsigned long long;

__device__ __forceinline__ Word keep_bits(const TwoWords bits, const int width)
{
    return static_cast<Word>(bits & ((1ull << width) - 1));
}

// Reads a field of a record.
__device__ __forceinline__ Word read_field(const Word (&record)[NUM_WORDS], const int word,
                                           const int shift, const int width)
{
    TwoWords bits = 0;
#pragma unroll
    for (int w = 0; w < NUM_WORDS; ++w) {
        if (w == word) bits |= record[w];
        if (w == word + 1) bits |= static_cast<TwoWords>(record[w]) << 32;
    }
    return keep_bits(bits >> shift, width);
}

// Writes a field of a record, whose bits are zeros.
__device__ __forceinline__ void write_field(Word (&record)[NUM_WORDS], const int word,
                                            const int shift, const Word number)
{
    const TwoWords bits = static_cast<TwoWords>(number) << shift;
#pragma unroll
    for (int w = 0; w < NUM_WORDS; ++w) {
        if (w == word) record[w] |= static_cast<Word>(bits);
        if (w == word + 1) record[w] |= static_cast<Word>(bits >> 32);
    }
}

__device__ __forceinline__ void load_record(const Word* records, const long long i,
                                            Word (&record)[NUM_WORDS])
{
#pragma unroll
    for (int w = 0; w < NUM_WORDS; ++w) record[w] = records[i * NUM_WORDS + w];
}

__device__ __forceinline__ Word read_row(const Word* records, const long long i, const Bits& bits)
{
    Word record[NUM_WORDS];
    load_record(records, i, record);
    return read_field(record, bits.row_word, bits.row_shift, bits.row_width);
}

__device__ __forceinline__ bool begins_row(const Word* records, const long long i, const Bits& bits)
{
    return i == 0 || read_row(records, i, bits) != read_row(records, i - 1, bits);
}

// Returns how many threads of this block up to this one have a condition, or have it at all.
__device__ __forceinline__ Word count_up_to_own(const bool condition, Word& total)
{
    __shared__ Word of_warps[BLOCK_SIZE / 32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned lanes = __ballot_sync(~0u, condition);
    if (lane == 0) of_warps[warp] = __popc(lanes);
    __syncthreads();
    Word count = __popc(lanes & ((2u << lane) - 1));
    total = 0;
#pragma unroll
    for (unsigned w = 0; w < BLOCK_SIZE / 32; ++w) {
        if (w < warp) count += of_warps[w];
        total += of_warps[w];
    }
    return count;
}

extern "C" __global__ void count_beginnings(const long long nnz, const Bits bits,
                                            const Word* records, Word* counts)
{
    const long long i = static_cast<long long>(blockIdx.x) * BLOCK_SIZE + threadIdx.x;
    Word total;
    count_up_to_own(i < nnz && begins_row(records, i, bits), total);
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// Writes numbers of some bits after each other.
struct Writer {
    Word* target;
    TwoWords bits = 0;
    int num_bits = 0;

    __device__ __forceinline__ void add(const Word number, const int width)
    {
        bits |= static_cast<TwoWords>(number) << num_bits;
        num_bits += width;
        if (num_bits >= 32) {
            *target++ = static_cast<Word>(bits);
            bits >>= 32;
            num_bits -= 32;
        }
    }
};

// Returns the place of a value among those that occur, which ascend.
__device__ __forceinline__ Word find_code(const Word (&record)[NUM_WORDS], const Bits& bits,
                                          const Word* values)
{
    TwoWords value = read_field(record, bits.value_word, 0, 32);
    if (CODE_WORDS == 2)
        value |= static_cast<TwoWords>(read_field(record, bits.value_word + 1, 0, 32)) << 32;
    Word low = 0, high = bits.num_codes;
    while (high - low > 1) {
        const Word middle = (low + high) / 2;
        TwoWords other = values[middle * CODE_WORDS];
        if (CODE_WORDS == 2) other |= static_cast<TwoWords>(values[middle * CODE_WORDS + 1]) << 32;
        (other <= value ? low : high) = middle;
    }
    return low;
}

extern "C" __global__ void pack_bits(const long long nnz, const Bits bits, const Word* records,
                                     const Word* values, Word* packed)
{
    for_own_item((nnz + 31) / 32, [&](const long long group) {
        Writer writer{packed + group * bits.record_bits};
        const long long end = min(32 * group + 32, nnz);
        for (long long i = 32 * group; i < end; ++i) {
            Word record[NUM_WORDS];
            load_record(records, i, record);
            if (HAS_ROWS) writer.add(begins_row(records, i, bits), 1);
#pragma unroll
            for (int n = 0; n < NUM_FIELDS; ++n)
                writer.add(read_field(record, bits.words[n], bits.shifts[n], bits.widths[n]),
                           bits.widths[n]);
            if (CODE_WORDS > 0) writer.add(find_code(record, bits, values), bits.code_width);
        }
        if (writer.num_bits > 0) *writer.target = static_cast<Word>(writer.bits);
    });
}

// Reads numbers of some bits after each other.
struct Reader {
    const Word* words;
    long long bit;

    __device__ __forceinline__ Word read(const int width)
    {
        const long long word = bit / 32;
        const TwoWords both = words[word] | static_cast<TwoWords>(words[word + 1]) << 32;
        const Word number = keep_bits(both >> (bit % 32), width);
        bit += width;
        return number;
    }
};

extern "C" __global__ void unpack_bits(const long long nnz, const Bits bits, const Word* packed,
                                       const Word* first_ranks, const Word* rows,
                                       const Word* values, Word* records)
{
    const long long i = static_cast<long long>(blockIdx.x) * BLOCK_SIZE + threadIdx.x;
    Reader reader{packed, i * bits.record_bits};
    Word record[NUM_WORDS] = {};
    if (HAS_ROWS) {
        const bool begins = i < nnz && reader.read(1);
        Word total;
        const Word rank = first_ranks[blockIdx.x] + count_up_to_own(begins, total) - 1;
        if (i < nnz) write_field(record, bits.row_word, bits.row_shift, rows[rank]);
    }
    if (i >= nnz) return;
#pragma unroll
    for (int n = 0; n < NUM_FIELDS; ++n)
        write_field(record, bits.words[n], bits.shifts[n], reader.read(bits.widths[n]));
    if (CODE_WORDS > 0) {
        const Word code = reader.read(bits.code_width);
#pragma unroll
        for (int w = 0; w < CODE_WORDS; ++w)
            write_field(record, bits.value_word + w, 0, values[code * CODE_WORDS + w]);
    }
#pragma unroll
    for (int w = 0; w < NUM_WORDS; ++w) records[i * NUM_WORDS + w] = record[w];
}

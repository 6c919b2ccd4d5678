// Entry: copy a matrix to one whose rows begin further apart, with zeros in between.
//
// Mapping: a group of GROUP_SIZE lanes has a row, and loads BATCH rows before it stores the first.
// Preconditions (the engine's): each row is contiguous.
// Bytes: each value in once, each row with its padding out once. None per nonzero.
// Writes and determinism: each place is written once.
// Source: none.
// MACRO VALUE: float or double, the type of values and factors
// MACRO GROUP_SIZE: lanes of a group, a power of two up to 32
// MACRO BATCH: rows that a group loads before it stores the first

extern "C" __global__ void pad_rows(long long num_rows, int rank, long long source_stride,
                                    const VALUE* source, int target_stride, VALUE* target)
{
    static_assert(32 % GROUP_SIZE == 0, "a group lies inside a warp");
    static_assert(BATCH > 0, "a group has rows on their way");
    const long long num_groups = static_cast<long long>(gridDim.x) * blockDim.x / GROUP_SIZE;
    long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / GROUP_SIZE;
    for (; first < num_rows; first += BATCH * num_groups) {
        for (int column = threadIdx.x % GROUP_SIZE; column < target_stride; column += GROUP_SIZE) {
            VALUE values[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const long long row = first + b * num_groups;
                const bool is_there = row < num_rows && column < rank;
                values[b] = is_there ? source[row * source_stride + column] : VALUE(0);
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const long long row = first + b * num_groups;
                if (row < num_rows) target[row * target_stride + column] = values[b];
            }
        }
    }
}

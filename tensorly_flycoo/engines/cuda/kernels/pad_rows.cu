// Entry: copy a matrix to one whose rows begin further apart, with zeros in between.
//
// Mapping: a group of GROUP_SIZE lanes has a row, and BATCH of them on their way at once.
// Preconditions (the engine's): columns of a row are side by side.
// Bytes: each value in once, each row with its padding out once.
// Writes and determinism: each place is written once.
#ifndef VALUE
#error "VALUE: float or double, the type of values and factors"
#endif
#ifndef GROUP_SIZE
#error "GROUP_SIZE: lanes of a group, a power of two up to 32"
#endif
#ifndef BATCH
#error "BATCH: rows that a group loads before it stores the first"
#endif

extern "C" __global__ void pad_rows(long long num_rows, int rank, long long source_stride,
                                    const VALUE* source, int target_stride, VALUE* target)
{
    const long long num_groups = static_cast<long long>(gridDim.x) * blockDim.x / GROUP_SIZE;
    long long first =
        (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / GROUP_SIZE;
    for (; first < num_rows; first += BATCH * num_groups) {
        for (int column = threadIdx.x % GROUP_SIZE; column < target_stride;
             column += GROUP_SIZE) {
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

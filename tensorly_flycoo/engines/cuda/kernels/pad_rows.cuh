// Copies a matrix, with padding after each row.
#pragma once

// A group of GroupSize lanes has a row, and loads Batch rows before it stores the first.
template <int GroupSize, int Batch, typename Value>
__device__ __forceinline__ void copy_padded(long long num_rows, int rank, long long source_stride,
                                            const Value* source, int target_stride, Value* target)
{
    static_assert(32 % GroupSize == 0, "a group lies inside a warp");
    static_assert(Batch > 0, "a group has rows on their way");
    const long long num_groups = static_cast<long long>(gridDim.x) * blockDim.x / GroupSize;
    long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / GroupSize;
    for (; first < num_rows; first += Batch * num_groups) {
        for (int column = threadIdx.x % GroupSize; column < target_stride; column += GroupSize) {
            Value values[Batch];
#pragma unroll
            for (int b = 0; b < Batch; ++b) {
                const long long row = first + b * num_groups;
                const bool is_there = row < num_rows && column < rank;
                values[b] = is_there ? source[row * source_stride + column] : Value(0);
            }
#pragma unroll
            for (int b = 0; b < Batch; ++b) {
                const long long row = first + b * num_groups;
                if (row < num_rows) target[row * target_stride + column] = values[b];
            }
        }
    }
}

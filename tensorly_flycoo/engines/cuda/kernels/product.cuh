// The product, element by element, of Gram matrices and small matrices (R, R): what ALS inverts.
#pragma once

// Filled by Python (`structs.py`).
struct Product {
    static constexpr int max_grams = 8;
    static constexpr int max_matrices = 4;

    const double* grams[max_grams];  // each (num_blocks, R, R), to be added, for each thread block
    long long num_blocks[max_grams];
    const float* matrices[max_matrices];
    long long row_strides[max_matrices];  // 0 where a matrix has one row for all
    long long column_strides[max_matrices];
    int num_grams;
    int num_matrices;
};

// Adds the blocks of a Gram matrix in their order; eight are loaded together.
__device__ __forceinline__ double add_blocks(const double* blocks, long long num_blocks,
                                             long long stride)
{
    constexpr int batch = 8;
    double total = 0;
    for (long long start = 0; start < num_blocks; start += batch) {
        double parts[batch];
#pragma unroll
        for (int b = 0; b < batch; ++b) {
            parts[b] = start + b < num_blocks ? blocks[(start + b) * stride] : 0;
        }
#pragma unroll
        for (int b = 0; b < batch; ++b) total += parts[b];
    }
    return total;
}

template <int Rank>
__device__ __forceinline__ double read_product(const Product& product, int row, int column)
{
    double number = 1;
    for (int g = 0; g < product.num_grams; ++g) {
        const long long first = blockIdx.x * product.num_blocks[g];
        const double* blocks = product.grams[g] + (first * Rank + row) * Rank + column;
        number *= add_blocks(blocks, product.num_blocks[g], Rank * Rank);
    }
    for (int m = 0; m < product.num_matrices; ++m) {
        const long long place =
            row * product.row_strides[m] + column * product.column_strides[m];
        number *= product.matrices[m][place];
    }
    return number;
}

// Entry: the error of a CP model, |x - model|, from what its last factor was computed with.
//
// Mapping: one block of 32 warps; thread (row, column) has one number of the product, whose sum is
//   the square of the model's norm, and every 1024th part of the inner product.
// Preconditions: none.
// Bytes: almost none, and none per nonzero.
// Writes and determinism: one number in double precision, to memory of the GPU or to pinned memory
//   of the host. All sums are in double precision, in a fixed order.
// Source: none.
// MACRO RANK: columns of the factors, 32 or fewer
// MACRO PRODUCT_LAYOUT: how Python fills struct Product (see structs.py)

#include "layout.cuh"
#include "product.cuh"
#include "sums.cuh"

CHECK_LAYOUT(Product, PRODUCT_LAYOUT)

extern "C" __global__ void __launch_bounds__(1024, 1)
    fit(const Product product, long long num_inner, const double* inner_products,
        double norm_square, double* error)
{
    const int row = threadIdx.x / 32, column = threadIdx.x % 32;
    const bool is_inside = row < RANK && column < RANK;
    double sum = is_inside ? read_product<RANK>(product, row, column) : 0;
    for (long long i = threadIdx.x; i < num_inner; i += 1024) sum -= 2 * inner_products[i];
    sum = sum_of_block<1024>(sum);
    if (threadIdx.x == 0) *error = sqrt(fabs(norm_square + sum));
}

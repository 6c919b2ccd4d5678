// Entry: invert small matrices (R, R), or pseudo-invert those that are singular to rounding. Each is
// the product, element by element, of Gram matrices and other matrices.
//
// Mapping: a block of 32 warps has a matrix; thread (row, column) has one number. R is RANK, up to
//   32.
// Preconditions (the caller's): matrices may have any strides. For more than one product, each of
//   `grams` is a stack with a matrix for each.
// Bytes: almost none, and none per nonzero. A launch takes less time than a round trip to the host.
// Writes and determinism: the inverse in double precision, in C order; nan if the matrix is not
//   finite. The order of all additions is fixed.
// Source: Hestenes, Journal of the SIAM 6(1), 1958 (one-sided rotations).
// MACRO RANK: rows and columns of the matrix, 32 or fewer
// MACRO PRODUCT_LAYOUT: how Python fills struct Product (see structs.py)

#include "invert.cuh"
#include "layout.cuh"

CHECK_LAYOUT(Product, PRODUCT_LAYOUT)

extern "C" __global__ void __launch_bounds__(1024, 1) invert(const Product product, double* inverse)
{
    invert_product<RANK>(product, inverse);
}

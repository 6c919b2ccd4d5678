// Entry: square a polynomial over bits repeatedly, modulo the characteristic polynomial of MT19937.
//
// Mapping: one block; a thread moves a word by one exponent.
// Preconditions (the engine's): the first polynomial, of 624 words, is there; the others follow it.
// Bytes: almost none, and none per nonzero.
// Writes and determinism: the xor of bits, in shared memory, does not depend on its order.
// Source: Haramoto, Matsumoto, Nishimura, Panneton and L'Ecuyer, INFORMS Journal on Computing 20(3),
//   2008.
// MACRO EXPONENTS: of the characteristic polynomial's terms but the highest, with commas

#include "mersenne_twister.cuh"

__constant__ const int exponents[] = {EXPONENTS};

extern "C" __global__ void square_polynomial(int num_squares, unsigned* polynomials)
{
    for (; num_squares > 0; --num_squares, polynomials += state_words) {
        square(polynomials, exponents, sizeof(exponents) / sizeof(int), polynomials + state_words);
    }
}

// Entries: the uniform numbers of NumPy's RandomState. `square` computes polynomials, `jump` with
// them the states in which chunks begin, and `draw` the numbers of all chunks.
//
// Mapping: one block squares; a block jumps to one state; a block draws from the states of a chunk,
//   one after the other.
// Preconditions (the engine's): `polynomials` begins with t^624, which `square` squares repeatedly;
//   `jump` doubles the number of states, up to num_states.
// Bytes: the numbers once; states and polynomials are small in comparison. None per nonzero.
// Writes and determinism: each number is written once, and has the bits of NumPy's.
// Source: Matsumoto and Nishimura, ACM TOMACS 8(1), 1998; Haramoto, Matsumoto, Nishimura, Panneton
//   and L'Ecuyer, INFORMS Journal on Computing 20(3), 2008 (jumping ahead).
#ifndef VALUE
#error "VALUE: float or double, the type of the numbers"
#endif
#ifndef EXPONENTS
#error "EXPONENTS: of the characteristic polynomial's terms but the first, with commas"
#endif

#include "mersenne_twister.cuh"

__constant__ const int exponents[] = {EXPONENTS};

extern "C" __global__ void square(int num_squares, unsigned* polynomials)
{
    for (; num_squares > 0; --num_squares, polynomials += state_words) {
        square_polynomial(polynomials, exponents, sizeof(exponents) / sizeof(int),
                          polynomials + state_words);
    }
}

extern "C" __global__ void jump(const unsigned* polynomial, long long distance, unsigned* states)
{
    extern __shared__ unsigned window[];
    const unsigned* state = states + static_cast<long long>(blockIdx.x) * state_words;
    jump_ahead(polynomial, state, window, states + (distance + blockIdx.x) * state_words);
}

extern "C" __global__ void draw(int position, long long num_values, long long num_states,
                                long long chunk, const unsigned* states, VALUE* values,
                                unsigned* last_state)
{
    const long long first = chunk * blockIdx.x, end = min(first + chunk, num_states);
    const Draw<VALUE> numbers{position, num_values, values};
    draw_chunk(numbers, states + static_cast<long long>(blockIdx.x) * state_words, first, end,
               num_states, last_state);
}

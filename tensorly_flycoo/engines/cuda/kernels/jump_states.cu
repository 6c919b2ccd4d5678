// Entry: jump ahead from known states of MT19937 to as many new ones, or fewer.
//
// Mapping: a block computes state number `distance` + blockIdx.x from state number blockIdx.x; a
//   thread has a word.
// Preconditions (the engine's): the polynomial is that of `distance` chunks; the known states are
//   the first `distance` ones.
// Bytes: a state in and out, and the polynomial (cached). None per nonzero.
// Writes and determinism: each new state once; all operations are on bits.
// Source: Haramoto, Matsumoto, Nishimura, Panneton and L'Ecuyer, INFORMS Journal on Computing 20(3),
//   2008.
#include "mersenne_twister.cuh"

extern "C" __global__ void jump_states(const unsigned* polynomial, long long distance,
                                       unsigned* states)
{
    extern __shared__ unsigned window[];
    const unsigned* state = states + static_cast<long long>(blockIdx.x) * state_words;
    jump_ahead(polynomial, state, window, states + (distance + blockIdx.x) * state_words);
}

// Entry: draw the uniform numbers of NumPy's RandomState from chunks of MT19937's states.
//
// Mapping: a block makes the states of its chunk one after the other; a thread draws a number of
//   each.
// Preconditions (the engine's): `states` has the state before each chunk.
// Bytes: each number out once. None per nonzero.
// Writes and determinism: each number is written once, with the bits of NumPy's; the block of the
//   last chunk also writes its last state.
// Source: Matsumoto and Nishimura, ACM TOMACS 8(1), 1998.
// MACRO VALUE: float or double, the type of the numbers

#include "mersenne_twister.cuh"

extern "C" __global__ void draw_uniform(int position, long long num_values, long long num_states,
                                        long long chunk, const unsigned* states, VALUE* values,
                                        unsigned* last_state)
{
    const long long first = chunk * blockIdx.x, end = min(first + chunk, num_states);
    const Draw<VALUE> draw{position, num_values, values};
    draw_chunk(draw, states + static_cast<long long>(blockIdx.x) * state_words, first, end,
               num_states, last_state);
}

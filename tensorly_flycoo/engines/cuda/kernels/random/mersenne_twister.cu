// Entry: the uniform numbers of NumPy's RandomState, from chunks of the chain of MT19937's states.
//
//   square_polynomial: squares a polynomial over bits repeatedly, modulo P (see below).
//   jump_states: jumps ahead from known states to as many new ones, or fewer.
//   draw_uniform: draws numbers from chunks of states.
//
// Mapping: one block squares; a thread moves a word by one exponent. To jump, a block computes
//   state number `distance` + blockIdx.x from state number blockIdx.x; a thread has a word. To
//   draw, a block makes the states of its chunk in order; a thread draws a number of each.
// Preconditions (the engine's): the first polynomial, of 624 words, is there, and the others follow
//   it; the polynomial of a jump is that of `distance` chunks, and the known states are the first
//   `distance` ones; to draw, `states` has the state before each chunk.
// Bytes: each number out once; a state in and out for each jump. None per nonzero.
// Writes and determinism: each state once; the xor of bits does not depend on its order. Each
//   number once, with the bits of NumPy's; the block of the last chunk also writes its last state.
// Source: Matsumoto and Nishimura, ACM TOMACS 8(1), 1998; Haramoto, Matsumoto, Nishimura, Panneton
//   and L'Ecuyer, INFORMS Journal on Computing 20(3), 2008 (jumps).
// MACRO VALUE: float or double, the type of the numbers

// The words x[0], x[1], ... of the generator obey a linear recurrence over bits. Its characteristic
// polynomial P has degree 19937, and for any polynomial g that equals t^J modulo P,
//     x[i + J] = xor of x[i + k] over the nonzero coefficients g[k].
// Polynomials are bits here, the constant first, in as many words as a state has.
constexpr int state_words = 624, middle_word = 397, degree = 19937;

// Exponents of P's terms but t^19937; a test checks them against NumPy's generator.
__constant__ const int exponents[] = {
    0, 1189, 1416, 1585, 1643, 1870, 2493, 2773, 3000, 3227, 3454, 3681, 3908, 4135, 4362,
    4753, 5661, 6337, 6569, 7129, 7477, 7525, 7583, 7752, 7979, 8206, 9505, 9901, 9969, 10128,
    10693, 10761, 10920, 11089, 11147, 11157, 11215, 11321, 11374, 11384, 11485, 11611, 11712,
    11717, 11838, 11881, 11944, 11997, 12277, 12335, 12393, 12504, 12509, 12620, 12673, 12731,
    12736, 12789, 12905, 12958, 12963, 13137, 13185, 13190, 13243, 13301, 13412, 13528, 13533,
    13639, 13697, 13760, 13813, 13866, 14093, 14151, 14209, 14320, 14325, 14436, 14547, 14552,
    14605, 14721, 14774, 14779, 14953, 15001, 15006, 15059, 15117, 15228, 15344, 15349, 15455,
    15513, 15576, 15629, 15682, 15909, 15967, 16025, 16136, 16141, 16252, 16363, 16368, 16421,
    16537, 16590, 16595, 16817, 16822, 16875, 16933, 17044, 17160, 17271, 17329, 17445, 17498,
    17725, 17783, 17841, 17952, 18068, 18179, 18237, 18406, 18633, 18691, 18860, 19087, 19314};

// Words of the next state that depend on the current state alone.
constexpr int free_words = state_words - middle_word;

// States that a jump reads: `state_words` words after each of 32 * `state_words` coefficients.
constexpr int window_states = 33;

__device__ __forceinline__ unsigned twist(unsigned word, unsigned after, unsigned middle)
{
    const unsigned joined = (word & 0x80000000u) | (after & 0x7fffffffu);
    return middle ^ (joined >> 1) ^ ((joined & 1) ? 0x9908b0dfu : 0);
}

// A thread makes every 227th word, of which each depends on the one before, so no thread waits.
__device__ __forceinline__ void make_next_state(const unsigned* state, unsigned* next)
{
    for (int first = threadIdx.x; first < free_words; first += blockDim.x) {
        unsigned word = state[first + middle_word];
        for (int i = first; i < state_words; i += free_words) {
            const bool is_last = i + 1 == state_words;  // followed by the first word of `next`
            const unsigned after =
                is_last ? twist(state[0], state[1], state[middle_word]) : state[i + 1];
            word = twist(state[i], after, word);
            next[i] = word;
        }
    }
}

// Moves bit n of 16 to bit 2n: the square of a polynomial over bits has no other terms.
__device__ __forceinline__ unsigned spread_bits(unsigned bits)
{
    bits = (bits | bits << 8) & 0x00ff00ffu;
    bits = (bits | bits << 4) & 0x0f0f0f0fu;
    bits = (bits | bits << 2) & 0x33333333u;
    return (bits | bits << 1) & 0x55555555u;
}

// Writes the squares of each polynomial, modulo P, after it.
extern "C" __global__ void square_polynomial(int num_squares, unsigned* polynomials)
{
    constexpr int num_exponents = sizeof(exponents) / sizeof(int);
    constexpr int step = 16;  // words reduced at once: P's second term is 623 bits below its first
    __shared__ unsigned bits[2 * state_words];
    for (; num_squares > 0; --num_squares, polynomials += state_words) {
        for (int i = threadIdx.x; i < state_words; i += blockDim.x) {
            bits[2 * i] = spread_bits(polynomials[i] & 0xffffu);
            bits[2 * i + 1] = spread_bits(polynomials[i] >> 16);
        }
        for (int end = 2 * state_words; end > state_words; end -= step) {
            __syncthreads();
            for (int item = threadIdx.x; item < step * num_exponents; item += blockDim.x) {
                const int word = end - 1 - item % step;
                const int place = 32 * word - degree + exponents[item / step];
                const unsigned long long moved = static_cast<unsigned long long>(bits[word])
                                                 << place % 32;
                atomicXor(bits + place / 32, static_cast<unsigned>(moved));
                atomicXor(bits + place / 32 + 1, static_cast<unsigned>(moved >> 32));
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < state_words; i += blockDim.x) {
            polynomials[state_words + i] = bits[i];
        }
        __syncthreads();
    }
}

// Writes the states that lie a jump after known ones. The lowest 31 bits of the first word are not
// part of a state: there the result is arbitrary.
extern "C" __global__ void jump_states(const unsigned* polynomial, long long distance,
                                       unsigned* states)
{
    extern __shared__ unsigned words[];  // room for `window_states` states
    const unsigned* state = states + static_cast<long long>(blockIdx.x) * state_words;
    unsigned* result = states + (distance + blockIdx.x) * state_words;
    for (int i = threadIdx.x; i < state_words; i += blockDim.x) words[i] = state[i];
    for (int n = 1; n < window_states; ++n) {
        __syncthreads();
        make_next_state(words + (n - 1) * state_words, words + n * state_words);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < state_words; i += blockDim.x) {
        unsigned word = 0;
        for (int n = 0; n < state_words; ++n) {
            const unsigned bits = polynomial[n];
#pragma unroll
            for (int bit = 0; bit < 32; ++bit) {
                if (bits >> bit & 1) word ^= words[i + 32 * n + bit];
            }
        }
        result[i] = word;
    }
}

__device__ __forceinline__ unsigned temper(unsigned word)
{
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680u;
    word ^= word << 15 & 0xefc60000u;
    return word ^ word >> 18;
}

// Writes the numbers, of two words each, whose second word is in state `number`; `words` has its
// words, after the last one before it. The first number begins at word `position` of state 0.
__device__ __forceinline__ void write_numbers(int position, long long num_values, VALUE* values,
                                              long long number, const unsigned* words)
{
    const int is_odd = position % 2;
    const long long first = number * (state_words / 2) - (position + is_odd) / 2;
    for (int i = threadIdx.x; i < state_words / 2; i += blockDim.x) {
        if (first + i < 0 || first + i >= num_values) continue;
        const unsigned* pair = words + 1 - is_odd + 2 * i;
        const unsigned long long high = temper(pair[0]) >> 5, low = temper(pair[1]) >> 6;
        // The same number as NumPy's, since 53 bits are exact in a double; rounded once as a float.
        values[first + i] = static_cast<VALUE>(high << 26 | low) * VALUE(0x1p-53);
    }
}

// Draws from the `chunk` states after a known one, number `first`, or fewer; and from number 0, of
// which NumPy has not yet used all. Writes state number `num_states` to `last_state`.
extern "C" __global__ void draw_uniform(int position, long long num_values, long long num_states,
                                        long long chunk, const unsigned* states, VALUE* values,
                                        unsigned* last_state)
{
    __shared__ unsigned buffers[2][1 + state_words];
    unsigned *words = buffers[0], *next = buffers[1];
    const unsigned* state = states + static_cast<long long>(blockIdx.x) * state_words;
    const long long first = chunk * blockIdx.x, end = min(first + chunk, num_states);
    for (int i = threadIdx.x; i < state_words; i += blockDim.x) words[1 + i] = state[i];
    __syncthreads();
    if (first == 0) write_numbers(position, num_values, values, 0, words);
    for (long long number = first + 1; number <= end; ++number) {
        make_next_state(words + 1, next + 1);
        if (threadIdx.x == blockDim.x - 1) next[0] = words[state_words];
        __syncthreads();
        unsigned* swapped = words;
        words = next, next = swapped;
        write_numbers(position, num_values, values, number, words);
    }
    if (end == num_states) {
        for (int i = threadIdx.x; i < state_words; i += blockDim.x) last_state[i] = words[1 + i];
    }
}

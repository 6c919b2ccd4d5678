// MT19937 in parallel: the next state, jumps over many states, and uniform numbers.
//
// The words x[0], x[1], ... of the generator obey a linear recurrence over bits. Its characteristic
// polynomial P has degree 19937, and for any polynomial g that equals t^J modulo P,
//     x[i + J] = xor of x[i + k] over the nonzero coefficients g[k].
// Polynomials are bits here, the constant first, in as many words as a state has.
#pragma once

constexpr int state_words = 624, middle_word = 397, degree = 19937;

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

// Squares a polynomial modulo P. `exponents` are those of P's terms but the first.
__device__ __forceinline__ void square(const unsigned* polynomial, const int* exponents,
                                       int num_exponents, unsigned* result)
{
    constexpr int step = 16;  // words reduced at once: P's second term is 623 bits below its first
    __shared__ unsigned bits[2 * state_words];
    for (int i = threadIdx.x; i < state_words; i += blockDim.x) {
        bits[2 * i] = spread_bits(polynomial[i] & 0xffffu);
        bits[2 * i + 1] = spread_bits(polynomial[i] >> 16);
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
    for (int i = threadIdx.x; i < state_words; i += blockDim.x) result[i] = bits[i];
    __syncthreads();
}

// Writes the state that lies a jump after `state`; `words` has room for `window_states` states.
// The lowest 31 bits of the first word are not part of a state: there the result is arbitrary.
__device__ __forceinline__ void jump_ahead(const unsigned* polynomial, const unsigned* state,
                                           unsigned* words, unsigned* result)
{
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

// The same number as NumPy's, since 53 bits are exact in a double; rounded once as a float.
__device__ __forceinline__ void round_uniform(unsigned long long bits, double& number)
{
    number = __ull2double_rn(bits) * 0x1p-53;
}

__device__ __forceinline__ void round_uniform(unsigned long long bits, float& number)
{
    number = __ull2float_rn(bits) * 0x1p-53f;
}

// What to draw: `num_values` numbers of two words each, from word `position` of the first state on.
template <typename Value>
struct Draw {
    int position;
    long long num_values;
    Value* values;

    // Writes the numbers whose second word belongs to the state `number`. `words` are this state's,
    // after the last word of the state before it.
    __device__ __forceinline__ void write(long long number, const unsigned* words) const
    {
        const int is_odd = position % 2;
        const long long first = number * (state_words / 2) - (position + is_odd) / 2;
        for (int i = threadIdx.x; i < state_words / 2; i += blockDim.x) {
            if (first + i < 0 || first + i >= num_values) continue;
            const unsigned* pair = words + 1 - is_odd + 2 * i;
            const unsigned long long high = temper(pair[0]) >> 5, low = temper(pair[1]) >> 6;
            round_uniform(high << 26 | low, values[first + i]);
        }
    }
};

// Draws from the states after `state`, number `first`, up to number `end`; and from number 0, of
// which NumPy has not yet used all. Writes state number `last`, if `end` is it, to `last_state`.
template <typename Value>
__device__ __forceinline__ void draw_chunk(const Draw<Value>& draw, const unsigned* state,
                                           long long first, long long end, long long last,
                                           unsigned* last_state)
{
    __shared__ unsigned states[2][1 + state_words];
    unsigned *words = states[0], *next = states[1];
    for (int i = threadIdx.x; i < state_words; i += blockDim.x) words[1 + i] = state[i];
    __syncthreads();
    if (first == 0) draw.write(0, words);
    for (long long number = first + 1; number <= end; ++number) {
        make_next_state(words + 1, next + 1);
        if (threadIdx.x == blockDim.x - 1) next[0] = words[state_words];
        __syncthreads();
        unsigned* swapped = words;
        words = next, next = swapped;
        draw.write(number, words);
    }
    if (end == last) {
        for (int i = threadIdx.x; i < state_words; i += blockDim.x) last_state[i] = words[1 + i];
    }
}

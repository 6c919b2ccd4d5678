// What CUDA C++ adds to C++, for g++: a block's threads take turns on one thread of the host.
//
// A thread runs until it has to wait for others. Blocks run one after the other, so what a block
// shares can be static.
#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static

using std::copysign;
using std::fabs;
using std::fma;
using std::isfinite;
using std::isnan;
using std::nan;
using std::sqrt;

template <typename Number>
Number min(Number a, Number b)
{
    if constexpr (std::is_floating_point_v<Number>) return std::fmin(a, b);
    return a < b ? a : b;
}

template <typename Number>
Number max(Number a, Number b)
{
    if constexpr (std::is_floating_point_v<Number>) return std::fmax(a, b);
    return a < b ? b : a;
}

struct Index {
    unsigned x, y, z;
};
Index threadIdx, blockIdx, blockDim, gridDim;

constexpr size_t stack_nbytes = 1 << 17, shared_nbytes = 232448;
alignas(16) double memory[shared_nbytes / 8];  // the dynamic shared memory of a block

struct Barrier {
    int num_waiting = 0, generation = 0;
};

// What passes between the lanes of a warp.
struct Warp {
    Barrier barrier;
    double numbers[32], left[32][2][2], right[32][2];
};

// What a thread waits for: a barrier that goes on to its next generation.
struct Wait {
    const Barrier* barrier = nullptr;
    int generation;

    bool is_over() const { return barrier == nullptr || barrier->generation != generation; }
};

struct Block {
    ucontext_t scheduler;
    std::vector<ucontext_t> threads;
    std::vector<Wait> waits;
    std::vector<bool> is_done;
    std::vector<Warp> warps;
    Barrier barrier, of_groups[16];
};
Block* block;
std::vector<std::unique_ptr<char[]>> stacks;  // of a block's threads; the next block's are the same

void yield()
{
    const unsigned thread = threadIdx.x;
    swapcontext(&block->threads[thread], &block->scheduler);
    threadIdx.x = thread;
}

void wait(Barrier& barrier, int num_threads)
{
    const int generation = barrier.generation;
    if (++barrier.num_waiting == num_threads) {
        barrier.num_waiting = 0;
        ++barrier.generation;
        return;
    }
    block->waits[threadIdx.x] = {&barrier, generation};
    yield();  // until that is over
}

Warp& own_warp() { return block->warps[threadIdx.x / 32]; }
void __syncwarp() { wait(own_warp().barrier, 32); }
void __syncthreads() { wait(block->barrier, block->threads.size()); }

// Let `read` look at the numbers of the lanes: it is given a function of the lane.
template <typename Number, typename Read>
void exchange(Number number, Read read)
{
    Warp& warp = own_warp();
    std::memcpy(&warp.numbers[threadIdx.x % 32], &number, sizeof number);
    __syncwarp();
    read([&](int lane) {
        std::memcpy(&number, &warp.numbers[lane], sizeof number);
        return number;
    });
    __syncwarp();
}

template <typename Number>
Number __shfl_sync(unsigned, Number number, int from)
{
    exchange(number, [&](auto number_of) { number = number_of(from % 32); });
    return number;
}

template <typename Number>
Number __shfl_xor_sync(unsigned lanes, Number number, int distance)
{
    return __shfl_sync(lanes, number, threadIdx.x % 32 ^ distance);
}

unsigned __ballot_sync(unsigned, bool is_counted)
{
    unsigned lanes = 0;
    exchange(is_counted, [&](auto number_of) {
        for (int lane = 0; lane < 32; ++lane) lanes |= unsigned(number_of(lane)) << lane;
    });
    return lanes;
}

int __reduce_add_sync(unsigned, int number)
{
    int sum = 0;
    exchange(number, [&](auto number_of) {
        for (int lane = 0; lane < 32; ++lane) sum += number_of(lane);
    });
    return sum;
}
double __drcp_rn(double number) { return 1 / number; }
int __popc(unsigned bits) { return __builtin_popcount(bits); }

template <typename Number>
Number __ldg(const Number* number)
{
    return *number;
}

template <typename Number>
Number atomicMax(Number* address, Number number)
{
    const Number before = *address;
    *address = max(before, number);
    return before;
}

float __uint_as_float(unsigned bits)
{
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

unsigned __float_as_uint(float number)
{
    unsigned bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

unsigned __byte_perm(unsigned low, unsigned high, unsigned places)
{
    const unsigned long long bytes = low | static_cast<unsigned long long>(high) << 32;
    unsigned chosen = 0;
    for (int byte = 0; byte < 4; ++byte) {
        const unsigned place = places >> 4 * byte & 7;
        chosen |= static_cast<unsigned>(bytes >> 8 * place & 0xff) << 8 * byte;
    }
    return chosen;
}

// In place of `instructions.cuh`.

void multiply(double (&sums)[2][2], const double (&left)[2][2], const double (&right)[2])
{
    Warp& warp = own_warp();
    const int lane = threadIdx.x % 32;
    std::memcpy(warp.left[lane], left, sizeof left);
    std::memcpy(warp.right[lane], right, sizeof right);
    __syncwarp();
    for (int k = 0; k < 8; ++k) {
        for (int top = 0; top < 2; ++top) {
            for (int i = 0; i < 2; ++i) {
                const int column = 2 * (lane % 4) + i;
                sums[top][i] += warp.left[lane / 4 * 4 + k % 4][k / 4][top] *
                                warp.right[column * 4 + k % 4][k / 4];
            }
        }
    }
    __syncwarp();
}

template <int NumThreads>
void wait_for_group(int group)
{
    wait(NumThreads == 32 ? own_warp().barrier : block->of_groups[group], NumThreads);
}

template <typename Value>
void begin_copy(Value& to, const Value* from, bool is_wanted)
{
    to = is_wanted ? *from : 0;
}
void end_copies() {}
void wait_for_copies_but_last() {}
void wait_for_copies() {}

template <typename Number>
Number find_larger(Number a, Number b)
{
    return a != a || b != b ? a + b : max(a, b);
}

double convert(float number) { return number; }

template <typename Value>
Value round_to(double number)
{
    return number;
}

// Run all blocks of a grid.

void (*call_kernel)();

void run_thread()
{
    call_kernel();
    block->is_done[threadIdx.x] = true;
    while (true) yield();
}

void run_blocks(void (*kernel)(), int num_blocks_x, int num_blocks_y, int block_size)
{
    call_kernel = kernel;
    blockDim = {unsigned(block_size), 1, 1};
    gridDim = {unsigned(num_blocks_x), unsigned(num_blocks_y), 1};
    std::srand(0);
    bool is_turn;
    for (int number = 0; number < num_blocks_x * num_blocks_y; ++number) {
        blockIdx = {unsigned(number % num_blocks_x), unsigned(number / num_blocks_x), 0};
        std::memset(memory, 0xff, sizeof memory);  // nan
        Block own;
        block = &own;
        own.threads.resize(block_size);
        own.waits.resize(block_size);
        own.is_done.resize(block_size);
        own.warps.resize(block_size / 32);
        while (stacks.size() < block_size) stacks.emplace_back(new char[stack_nbytes]);
        for (int thread = 0; thread < block_size; ++thread) {
            ucontext_t& context = own.threads[thread];
            getcontext(&context);
            context.uc_stack = {stacks[thread].get(), 0, stack_nbytes};
            context.uc_link = nullptr;
            makecontext(&context, run_thread, 0);
        }
        // One warp is slow: what lacks a barrier goes wrong.
        const int slow = std::rand() % own.warps.size();
        for (bool is_done = false; !is_done;) {
            is_done = true;
            for (int thread = 0; thread < block_size; ++thread) {
                if (thread % 32 == 0) is_turn = thread / 32 != slow || std::rand() % 16 == 0;
                if (own.is_done[thread]) continue;
                is_done = false;
                if (!is_turn || !own.waits[thread].is_over()) continue;
                threadIdx = {unsigned(thread), 0, 0};
                swapcontext(&own.scheduler, &own.threads[thread]);
            }
        }
    }
}

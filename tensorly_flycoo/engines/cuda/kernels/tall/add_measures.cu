// Entry: adds up what the blocks of a kernel that updates rows have measured, and finds how many of
//   the steps were enough: so the host need not wait to know whether to take them again.
//
// Mapping: one block. A thread adds a number of the steps over every NUM_PARTS-th of the kernel's
//   blocks; then one thread for each number adds these parts.
// Preconditions (the caller's): at least one block and one step; at most MAX_STEPS.
// Bytes: the measures of the blocks once. None per nonzero.
// Writes and determinism: the measures (num_steps, K) in double precision; if wanted, how many steps
//   are to be taken again, 0 if all that were taken are needed; and, to pinned memory of the host,
//   how many are needed, and the measures. The order of additions depends on the shapes alone.
// Source: none.
// MACRO METHOD: one of `sweeping` and `splitting`
// MACRO NUM_PARTS: into which the kernel's blocks are divided
// MACRO MAX_STEPS: the most steps of a launch
// MACRO STEP_MEASURES_LAYOUT: how Python fills struct StepMeasures (see structs.py)

#include "layout.cuh"
#include "row_rules.cuh"

constexpr int num_measures = count_measures(METHOD);
constexpr int max_numbers = MAX_STEPS * num_measures, block_size = NUM_PARTS * max_numbers;

struct StepMeasures {
    const double* block_sums;  // (num_blocks, num_steps, K)
    double* measures;          // (num_steps, K)
    int* num_again;            // one number, or null
    double* report;            // (1 + num_steps * K,), of the host, or null
    double tolerance;
    int num_blocks;
    int num_steps;
};
CHECK_LAYOUT(StepMeasures, STEP_MEASURES_LAYOUT)

// Whether TensorLy stops after a step, given what it and the first one measured: as `stops_after` in
// `loop/row_updates.py`.
__device__ __forceinline__ bool is_enough(const double* first, const double* last, double tolerance)
{
    if constexpr (METHOD == sweeping) return last[0] < tolerance * first[0];
    return sqrt(last[0]) < tolerance * sqrt(last[1]) && sqrt(last[2]) < tolerance * sqrt(last[3]);
}

// Whether no later step would change anything: as `changes_nothing` there.
__device__ __forceinline__ bool is_final(const double* last)
{
    return METHOD == sweeping && last[1] == 0;
}

extern "C" __global__ void __launch_bounds__(block_size, 1) add_measures(StepMeasures given)
{
    __shared__ double parts[NUM_PARTS][max_numbers];
    const int part = threadIdx.x / max_numbers, number = threadIdx.x % max_numbers;
    const int count = given.num_steps * num_measures;
    double sum = 0;
    if (number < count) {
#pragma unroll 8
        for (int block = part; block < given.num_blocks; block += NUM_PARTS) {
            sum += given.block_sums[static_cast<long long>(block) * count + number];
        }
    }
    parts[part][number] = sum;
    __syncthreads();
    double* sums = parts[0];
    if (part == 0 && number < count) {
        for (int other = 1; other < NUM_PARTS; ++other) sum += parts[other][number];
        sums[number] = sum;
        given.measures[number] = sum;
        if (given.report) given.report[1 + number] = sum;
    }
    __syncthreads();
    if (threadIdx.x > 0 || !given.num_again) return;
    int step = 0;
    const auto is_last = [&](const double* last) {
        return is_enough(sums, last, given.tolerance) || is_final(last);
    };
    while (step + 1 < given.num_steps && !is_last(sums + step * num_measures)) ++step;
    const int num_needed = step + 1;
    // Steps after a final one have changed nothing.
    const bool is_cut = num_needed < given.num_steps && !is_final(sums + step * num_measures);
    *given.num_again = is_cut ? num_needed : 0;
    if (given.report) given.report[0] = num_needed;
}

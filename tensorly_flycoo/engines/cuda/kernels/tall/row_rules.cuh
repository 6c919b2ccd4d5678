// What updates of rows have in common (`row_rules.py`): operators, steps, sums of what they measure.
#pragma once

#include "instructions.cuh"

constexpr int multiplying = 0, sweeping = 1, splitting = 2;  // `Method`: MULTIPLY, HALS, ADMM

__device__ constexpr int count_measures(int method)
{
    return method == splitting ? 4 : method == sweeping ? 2 : 0;
}

// The arguments of a kernel that updates rows. Members that a method has no use for are 0.
template <typename Value, int MaxSteps>
struct RowUpdate {
    const Value* targets;  // (num_rows, rank), rows `target_stride` numbers apart; and so on
    const Value* rows;
    const Value* dual;
    const double* matrix;  // (rank, rank)
    const double* penalty;  // one number
    Value* new_rows;  // (num_rows, new_stride)
    Value* new_dual;
    Value* workspace;  // of `wide_rows.cu`
    double* block_sums;  // what each block measured, (num_steps, K)
    long long num_rows;
    long long target_stride;
    long long row_stride;
    long long dual_stride;
    double low;  // the members of `Operator`
    double high;
    double scale;
    double strength;
    int rank;
    int new_stride;
    int rows_per_block;
    int num_steps;
    // How many steps of an earlier launch to take again, from the same inputs; or null. It has been
    // found meanwhile, by `add_measures.cu`.
    const int* num_again;
    // For `step_rows.cu` with HAS_LEVELS: the level of each step, or nan; and the peaks of each
    // block, (num_steps, rank), or null.
    double levels[MaxSteps];
    Value* block_peaks;

    // Returns how many steps to take: none if those of the earlier launch were not too many.
    __device__ __forceinline__ int count_steps() const
    {
        return num_again ? *num_again : num_steps;
    }
};

// A proximal operator: it subtracts from a number the nearest one between `low` and `high`, and
// multiplies the difference by `scale`; a group lasso, by a factor of the row.
template <typename Value>
struct Operator {
    Value low, high, scale, strength;

    template <int MaxSteps>
    __device__ __forceinline__ explicit Operator(const RowUpdate<Value, MaxSteps>& update)
        : low(update.low), high(update.high), scale(update.scale), strength(update.strength)
    {
    }

    __device__ __forceinline__ Value apply(Value number, Value row_scale) const
    {
        return row_scale * (number - min(max(number, low), high));
    }

    // The factor of a row, given the sum of its squares.
    __device__ __forceinline__ Value find_row_scale(Value squares) const
    {
        const Value norm = sqrt(squares);
        return norm <= strength ? Value(0) : 1 - strength / norm;  // nan stays nan
    }
};

template <typename Value>
__device__ __forceinline__ void add_square(Value& sum, Value number)
{
    sum += number * number;
}

// Ends a step of ADMM for one number x, which becomes `updated`, and its dual d; `solved` is y. Adds
// to the squares of x' - y, of x', of x' - x and of the new d.
template <typename Value>
__device__ __forceinline__ void replace(Value updated, Value solved, Value& x, Value& d,
                                        Value (&squares)[4])
{
    const Value point = solved - d;
    d = updated - point;
    add_square(squares[0], updated - solved);
    add_square(squares[1], updated);
    add_square(squares[2], updated - x);
    add_square(squares[3], d);
    x = updated;
}

// The same with the result of an operator.
template <typename Value>
__device__ __forceinline__ void split(const Operator<Value>& prox, Value row_scale, Value solved,
                                      Value& x, Value& d, Value (&squares)[4])
{
    replace(prox.apply(solved - d, row_scale), solved, x, d, squares);
}

// A step of MULTIPLY for one number: `product` is that of its row and the Gram matrix.
template <typename Value>
__device__ __forceinline__ Value scale_up(Value x, Value target, Value product, Value least)
{
    return x * find_larger(target, least) / find_larger(product, least);
}

// Of a row in a sweep of HALS: the sum of (x_j - x_k)^2 over all j and each new x_k, from sums that
// each new number changes. Numbers are measured from one of the row, so that little cancels.
template <typename Value>
struct Spread {
    Value origin, twice_sum, squares, total;

    __device__ __forceinline__ void start(Value first)
    {
        origin = first;
        twice_sum = squares = total = 0;
    }

    __device__ __forceinline__ void add(Value number)
    {
        twice_sum += 2 * (number - origin);
        add_square(squares, number - origin);
    }

    __device__ __forceinline__ void replace(Value old, Value updated, Value rank)
    {
        const Value distance = updated - origin, change = updated - old;
        total += squares + distance * (rank * distance - twice_sum);
        twice_sum += 2 * change;
        squares += change * fma(Value(2), distance, -change);
    }
};

// Adds four numbers over the lanes of a warp: lane 8 * n gets the sum of number n.
template <typename Value>
__device__ __forceinline__ Value sum_four(const Value (&numbers)[4], int lane)
{
    // Each half of the warp goes on with two of the numbers, and each quarter with one.
    const bool is_high = lane & 16, is_odd = lane & 8;
    Value pair[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const Value other = is_high ? numbers[n] : numbers[n + 2];
        pair[n] = is_high ? numbers[n + 2] : numbers[n];
        pair[n] += __shfl_xor_sync(0xffffffffu, other, 16);
    }
    Value sum = is_odd ? pair[1] : pair[0];
    sum += __shfl_xor_sync(0xffffffffu, is_odd ? pair[0] : pair[1], 8);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    return sum;
}

// What the steps of a launch measured, added up by each warp in the order of its rows.
template <int NumWarps, int MaxSteps, int NumMeasures>
struct Measures {
    static constexpr int most_measures = 4;
    double of_warps[NumWarps][MaxSteps * most_measures];

    // The caller waits at a barrier then.
    __device__ __forceinline__ void clear()
    {
        double* sums = &of_warps[0][0];
        for (int n = threadIdx.x; n < NumWarps * MaxSteps * most_measures; n += 32 * NumWarps) {
            sums[n] = 0;
        }
    }

    __device__ __forceinline__ void add(int warp, int step, int measure, double sum)
    {
        of_warps[warp][step * NumMeasures + measure] += sum;
    }

    // Writes the sums over the block's warps; all of its threads call it.
    __device__ __forceinline__ void write(double* block_sums, int num_steps) const
    {
        __syncthreads();
        const int count = num_steps * NumMeasures;
        for (int n = threadIdx.x; n < count; n += 32 * NumWarps) {
            double sum = 0;
            for (int warp = 0; warp < NumWarps; ++warp) sum += of_warps[warp][n];
            block_sums[static_cast<long long>(blockIdx.x) * count + n] = sum;
        }
    }
};

// Entry: steps of any method for the rows of a factor of any rank, on any GPU: what `sweep_rows.cu`
//   and `step_rows.cu` leave. `row_rules.py` says what a step computes.
//
// Mapping: a block has `rows_per_block` neighbouring rows, and each of its warps takes NUM_ROWS of
//   them at a time, so that each number of the small matrix is loaded once for all of them. Lanes
//   have neighbouring columns, every 32nd one each. The state is in the results' memory.
// Preconditions (the caller's): each row is contiguous. A launch has at most MAX_STEPS. `workspace`
//   has 2 * NUM_ROWS rows (R) for each warp; HALS needs none. What is written may be what is read,
//   with the same strides.
// Bytes: the state and the small matrix in each step, mostly from caches. None per nonzero.
// Writes and determinism: as `sweep_rows.cu` and `step_rows.cu`.
// Source: as theirs.
// MACRO VALUE: float or double
// MACRO METHOD: one of `multiplying`, `sweeping` and `splitting`
// MACRO IS_GROUP_LASSO: whether the operator needs the norm of a row
// MACRO NUM_ROWS: rows of a warp
// MACRO NUM_WARPS: warps of a block
// MACRO MAX_STEPS: the most steps of a launch
// MACRO ROW_UPDATE_LAYOUT: how Python fills struct RowUpdate (see structs.py)

#include "architecture.cuh"
#include "layout.cuh"
#include "row_rules.cuh"
#include "sums.cuh"

using OwnUpdate = RowUpdate<VALUE, MAX_STEPS>;
CHECK_LAYOUT(OwnUpdate, ROW_UPDATE_LAYOUT)

constexpr int num_measures = count_measures(METHOD);

// A matrix whose rows are contiguous.
template <typename Number>
struct Matrix {
    Number* at;
    long long stride;

    __device__ __forceinline__ Number* operator[](long long row) const { return at + row * stride; }
    __device__ __forceinline__ Matrix skip(long long rows) const { return {(*this)[rows], stride}; }
};

// What the threads of a block share.
using Shared = Measures<NUM_WARPS, MAX_STEPS, num_measures>;

// Some rows of a warp, with what belongs to them.
struct Rows {
    int count, rank;
    Matrix<const VALUE> targets;
    Matrix<VALUE> x, d, factors, products;  // the factors are multiplied by the small matrix
    const double* matrix;

    // Calls a function of each row and each column of the lane.
    template <typename Function>
    __device__ __forceinline__ void for_numbers(Function function) const
    {
        for (int column = threadIdx.x % 32; column < rank; column += 32) {
#pragma unroll
            for (int row = 0; row < NUM_ROWS; ++row) {
                if (row < count) function(row, column);
            }
        }
        __syncwarp();  // others may read what this lane wrote
    }

    __device__ __forceinline__ void multiply() const
    {
        for (int column = threadIdx.x % 32; column < rank; column += 32) {
            double sums[NUM_ROWS] = {};
            for (int j = 0; j < rank; ++j) {
                const double number = matrix[static_cast<long long>(j) * rank + column];
#pragma unroll
                for (int row = 0; row < NUM_ROWS; ++row) {
                    if (row < count) sums[row] += factors[row][j] * number;
                }
            }
#pragma unroll
            for (int row = 0; row < NUM_ROWS; ++row) {
                if (row < count) products[row][column] = sums[row];
            }
        }
        __syncwarp();
    }

    // A step of multiplicative updates.
    __device__ __forceinline__ void scale(VALUE least) const
    {
        for_numbers([&](int row, int column) { factors[row][column] = x[row][column]; });
        multiply();
        for_numbers([&](int row, int column) {
            VALUE& number = x[row][column];
            number = scale_up(number, targets[row][column], products[row][column], least);
        });
    }

    // A step of ADMM; returns the lane's part of what it measures.
    __device__ __forceinline__ void split_all(const Operator<VALUE>& prox, VALUE penalty,
                                              VALUE (&squares)[4]) const
    {
        for_numbers([&](int row, int column) {
            const VALUE guess = x[row][column] + d[row][column];
            factors[row][column] = targets[row][column] + penalty * guess;
        });
        multiply();
        VALUE scales[NUM_ROWS], sums[NUM_ROWS] = {};
        if (IS_GROUP_LASSO) {
            for_numbers([&](int row, int column) {
                add_square(sums[row], products[row][column] - d[row][column]);
            });
        }
#pragma unroll
        for (int row = 0; row < NUM_ROWS; ++row) {
            scales[row] = prox.scale;
            if (IS_GROUP_LASSO) scales[row] = prox.find_row_scale(sum_of_warp(sums[row]));
        }
        for_numbers([&](int row, int column) {
            split(prox, scales[row], products[row][column], x[row][column], d[row][column],
                  squares);
        });
    }

    // A sweep of HALS; returns the sum of squares and the number of changes.
    __device__ __forceinline__ void sweep(VALUE strength, double& squares, double& num_changes)
    {
        Spread<VALUE> spreads[NUM_ROWS];
        start_spreads(spreads);
        num_changes = 0;
        for (int k = 0; k < rank; ++k) {
            const double* numbers = matrix + static_cast<long long>(k) * rank;
            if (VALUE(numbers[k]) == 0) continue;
            VALUE sums[NUM_ROWS] = {};
            for_numbers([&](int row, int j) {
                if (j != k) sums[row] += VALUE(numbers[j]) * x[row][j];
            });
#pragma unroll
            for (int row = 0; row < NUM_ROWS; ++row) {
                const VALUE others = sum_of_warp(sums[row]);
                if (row >= count) continue;
                const VALUE old = x[row][k];
                const VALUE least = (targets[row][k] - strength - others) / VALUE(numbers[k]);
                const VALUE updated = find_larger(least, VALUE(0));
                spreads[row].replace(old, updated, rank);
                num_changes += updated != old;
                __syncwarp();  // before another lane's copy of the old number is gone
                if (threadIdx.x % 32 == 0) x[row][k] = updated;
            }
            __syncwarp();
        }
        squares = 0;
#pragma unroll
        for (int row = 0; row < NUM_ROWS; ++row) {
            if (row < count) squares += find_larger(spreads[row].total, VALUE(0));
        }
    }

    __device__ __forceinline__ void start_spreads(Spread<VALUE> (&spreads)[NUM_ROWS]) const
    {
#pragma unroll
        for (int row = 0; row < NUM_ROWS; ++row) spreads[row].start(row < count ? x[row][0] : 0);
        for_numbers([&](int row, int column) { spreads[row].add(x[row][column]); });
#pragma unroll
        for (int row = 0; row < NUM_ROWS; ++row) {
            spreads[row].twice_sum = sum_of_warp(spreads[row].twice_sum);
            spreads[row].squares = sum_of_warp(spreads[row].squares);
        }
    }
};

// Copies rows, which may be the same, and fills those of the copy with zeros.
__device__ __forceinline__ void copy_rows(Matrix<const VALUE> from, Matrix<VALUE> to, int count,
                                          int rank)
{
    for (int column = threadIdx.x % 32; column < to.stride; column += 32) {
        for (int row = 0; row < count; ++row) {
            to[row][column] = column < rank ? from[row][column] : VALUE(0);
        }
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 4) wide_rows(OwnUpdate update)
{
    const int num_steps = update.count_steps();
    if (num_steps == 0) return;
    __shared__ Shared measures;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rank = update.rank, new_stride = update.new_stride;
    const Operator<VALUE> prox(update);
    const VALUE penalty = METHOD == splitting ? *update.penalty : 0;
    const long long start = static_cast<long long>(blockIdx.x) * update.rows_per_block;
    const long long end = min(start + update.rows_per_block, update.num_rows);
    const long long own_warp = static_cast<long long>(blockIdx.x) * NUM_WARPS + warp;
    const Matrix<VALUE> workspace = {update.workspace + own_warp * 2 * NUM_ROWS * rank, rank};
    measures.clear();
    __syncthreads();
    for (long long first = start + warp * NUM_ROWS; first < end; first += NUM_WARPS * NUM_ROWS) {
        const int count = static_cast<int>(min(static_cast<long long>(NUM_ROWS), end - first));
        const Matrix<const VALUE> rows = {update.rows, update.row_stride};
        const Matrix<const VALUE> dual = {update.dual, update.dual_stride};
        const Matrix<const VALUE> targets = {update.targets, update.target_stride};
        Rows tile = {count,
                     rank,
                     targets.skip(first),
                     {update.new_rows + first * new_stride, new_stride},
                     {update.new_dual + first * new_stride, new_stride},
                     workspace,
                     workspace.skip(NUM_ROWS),
                     update.matrix};
        copy_rows(rows.skip(first), tile.x, count, rank);
        if (METHOD == splitting) copy_rows(dual.skip(first), tile.d, count, rank);
        for (int step = 0; step < num_steps; ++step) {
            if constexpr (METHOD == splitting) {
                VALUE squares[4] = {};
                tile.split_all(prox, penalty, squares);
                const VALUE sum = sum_four(squares, lane);
                if (lane % 8 == 0) measures.add(warp, step, lane / 8, sum);
            } else if constexpr (METHOD == sweeping) {
                double squares, num_changes;
                tile.sweep(prox.strength, squares, num_changes);
                if (lane == 0) {
                    measures.add(warp, step, 0, squares);
                    measures.add(warp, step, 1, num_changes);
                }
            } else {
                tile.scale(prox.strength);
            }
        }
    }
    measures.write(update.block_sums, num_steps);
}

// Entry: steps of ADMM, or of multiplicative updates, for the rows of a factor: `row_rules.py` says
//   what a step computes. All steps of a row are taken while it is on the chip.
//
// Mapping: as in `update_rows.cu`: a block has `rows_per_block` neighbouring rows, GROUP_ROWS *
//   NUM_GROUPS of them at a time. A group has WIDTH / 16 warps, and each of these a strip of 16
//   columns, which its lanes hold in registers. Shared memory has the small matrix, and the rows that
//   a step multiplies by it.
// Preconditions (the caller's): each row is contiguous; strides are below 2^26 numbers; WIDTH is at
//   least `rank` and `new_stride`. A launch has at most MAX_STEPS. What is written may be what is
//   read, with the same strides.
// Bytes: each input and each result once. None per nonzero.
// Writes and determinism: all of the new rows, and of the new dual variable (num_rows, new_stride),
//   with zeros past the last column; each block what it measured (num_steps, 4), in double precision,
//   and if wanted its peaks (num_steps, rank): of each step and column the largest y - d.
//   Products are in double precision, all else in that of VALUE. The order of additions depends on
//   the shape alone.
// Source: Huang, Sidiropoulos and Liavas, IEEE Transactions on Signal Processing 64(19), 2016 (ADMM);
//   Lee and Seung, Advances in Neural Information Processing Systems 13, 2000 (multiplicative).
// MACRO VALUE: float or double
// MACRO METHOD: one of `multiplying` and `splitting`
// MACRO IS_GROUP_LASSO: whether the operator needs the norm of a row
// MACRO HAS_LEVELS: whether steps of ADMM may have levels, and peaks may be wanted
// MACRO WIDTH: columns of the matrix, rounded up to a multiple of 16
// MACRO NUM_GROUPS: groups of warps of a block
// MACRO GROUP_ROWS: rows that a group has at a time, 32, or 16 if more would spill registers
// MACRO MIN_BLOCKS: blocks for which a multiprocessor's registers suffice
// MACRO MAX_STEPS: the most steps of a launch
// MACRO SHARED_NBYTES: bytes of `Shared`, and of `Peaks` if there may be levels (see tuning.py)
// MACRO ROW_UPDATE_LAYOUT: how Python fills struct RowUpdate (see structs.py)

#include "architecture.cuh"
#include "layout.cuh"
#include "row_rules.cuh"
#include "strips.cuh"

using OwnUpdate = RowUpdate<VALUE, MAX_STEPS>;
CHECK_LAYOUT(OwnUpdate, ROW_UPDATE_LAYOUT)
static_assert(WIDTH % 16 == 0 && WIDTH <= 128, "a warp has a strip of each");

constexpr int strips = WIDTH / 16, num_warps = strips * NUM_GROUPS;
constexpr int block_size = 32 * num_warps, block_rows = GROUP_ROWS * NUM_GROUPS;
constexpr int pitch = WIDTH + strip_padding;

// One number of a factor, and what belongs to it.
struct Number {
    VALUE target, x, d;
};

// What the threads of a block share.
struct Shared {
    SmallMatrix<WIDTH> matrix;
    Measures<num_warps, MAX_STEPS, count_measures(METHOD)> measures;
    VALUE rows[NUM_GROUPS][2][GROUP_ROWS][pitch];   // of two steps: one is written, one is read
    VALUE squares[NUM_GROUPS][GROUP_ROWS][strips];  // of a strip of each row, added up
};

// The largest y - d of the rows of each group; in shared memory, after `Shared`.
struct Peaks {
    VALUE of_groups[NUM_GROUPS][MAX_STEPS][WIDTH];
};

static_assert(sizeof(Shared) + (HAS_LEVELS ? sizeof(Peaks) : 0) == SHARED_NBYTES,
              "tuning.py: shared memory of another size");

__device__ __forceinline__ VALUE minus_infinity() { return __uint_as_float(0xff800000u); }

// A warp's strip of the rows of a group.
struct Place {
    int group, strip, lane;

    __device__ __forceinline__ Place()
        : group(threadIdx.x / 32 / strips),
          strip(threadIdx.x / 32 % strips),
          lane(threadIdx.x % 32)
    {
    }

    __device__ __forceinline__ void wait() const { wait_for_group<32 * strips>(group); }
};

// Multiplies the rows by the matrix, or for ADMM the targets plus the penalty times x + d.
__device__ __forceinline__ void multiply_rows(Shared& shared, const Place& place, int turn,
                                              VALUE penalty, Strip<Number, GROUP_ROWS>& numbers,
                                              Strip<double, GROUP_ROWS>& products)
{
    VALUE(*factors)[pitch] = shared.rows[place.group][turn];
    for_strip(numbers, place.strip, place.lane, [&](Number& number, int row, int column) {
        factors[row][column] = METHOD == splitting
                                   ? number.target + penalty * (number.x + number.d)
                                   : number.x;
    });
    place.wait();
    add_product(products, shared.matrix, factors, place.strip, place.lane);
}

// Ends a step of multiplicative updates, with the products that are its denominators.
__device__ __forceinline__ void end_scaling(const Place& place, VALUE least, int rank,
                                            Strip<double, GROUP_ROWS>& products,
                                            Strip<Number, GROUP_ROWS>& numbers)
{
    for_strips(numbers, products, place.strip, place.lane,
               [&](Number& number, double product, int, int column) {
                   if (column >= rank) return;  // it may be 0 / 0
                   const VALUE denominator = round_to<VALUE>(product);
                   number.x = scale_up(number.x, number.target, denominator, least);
               });
}

// Returns, of a group lasso, the factor of the row whose number in the group is the lane's.
__device__ __forceinline__ VALUE find_row_scale(const Operator<VALUE>& prox, Shared& shared,
                                                const Place& place,
                                                const Strip<double, GROUP_ROWS>& products,
                                                const Strip<Number, GROUP_ROWS>& numbers)
{
    VALUE(*squares)[strips] = shared.squares[place.group];
#pragma unroll
    for (int n = 0; n < GROUP_ROWS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            VALUE sum = 0;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const VALUE solved = round_to<VALUE>(products[n][half][i]);
                add_square(sum, solved - numbers[n][half][i].d);
            }
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, distance);
            }
            const int row = 8 * n + 2 * (place.lane % 4) + i;
            if (place.lane < 4) squares[row][place.strip] = sum;
        }
    }
    place.wait();
    VALUE sum = 0;
#pragma unroll
    for (int s = 0; s < strips; ++s) sum += squares[place.lane % GROUP_ROWS][s];
    return prox.find_row_scale(sum);
}

// Adds what a lane's numbers measure to what their warp has measured.
__device__ __forceinline__ void measure(Shared& shared, const Place& place, int step,
                                        const VALUE (&squares)[4])
{
    const VALUE sum = sum_four(squares, place.lane);
    if (place.lane % 8 == 0) {
        shared.measures.add(threadIdx.x / 32, step, place.lane / 8, sum);
    }
}

// Ends a step of ADMM, with the products of which it gets y, and adds up what it measures.
__device__ __forceinline__ void end_splitting(const Operator<VALUE>& prox, Shared& shared,
                                              const Place& place, int step,
                                              Strip<double, GROUP_ROWS>& products,
                                              Strip<Number, GROUP_ROWS>& numbers)
{
    VALUE own_scale = prox.scale;
    if (IS_GROUP_LASSO) own_scale = find_row_scale(prox, shared, place, products, numbers);
    VALUE squares[4] = {};
    for_strips(numbers, products, place.strip, place.lane,
               [&](Number& number, double product, int row, int) {
                   VALUE row_scale = prox.scale;
                   if (IS_GROUP_LASSO) row_scale = __shfl_sync(0xffffffffu, own_scale, row);
                   split(prox, row_scale, round_to<VALUE>(product), number.x, number.d,
                         squares);
               });
    measure(shared, place, step, squares);
}

// The same for a step to a level: all numbers of the first `num_rows` rows become it.
__device__ __forceinline__ void move_to_level(VALUE level, Shared& shared, const Place& place,
                                              int step, int num_rows, int rank,
                                              Strip<double, GROUP_ROWS>& products,
                                              Strip<Number, GROUP_ROWS>& numbers)
{
    VALUE squares[4] = {};
    for_strips(numbers, products, place.strip, place.lane,
               [&](Number& number, double product, int row, int column) {
                   if (row >= num_rows || column >= rank) return;  // what pads them stays 0
                   replace(level, round_to<VALUE>(product), number.x, number.d, squares);
               });
    measure(shared, place, step, squares);
}

__device__ __forceinline__ void clear(Peaks& peaks)
{
    VALUE* all = &peaks.of_groups[0][0][0];
    for (int n = threadIdx.x; n < NUM_GROUPS * MAX_STEPS * WIDTH; n += block_size) {
        all[n] = minus_infinity();
    }
}

// Raises the peaks of a step to those of the group's first `num_rows` rows.
__device__ __forceinline__ void raise(Peaks& peaks, const Place& place, int step, int num_rows,
                                      const Strip<double, GROUP_ROWS>& products,
                                      const Strip<Number, GROUP_ROWS>& numbers)
{
    VALUE* own_peaks = peaks.of_groups[place.group][step] + 16 * place.strip;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        VALUE peak = minus_infinity();
#pragma unroll
        for (int n = 0; n < GROUP_ROWS / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = 8 * n + 2 * (place.lane % 4) + i;
                const VALUE solved = round_to<VALUE>(products[n][half][i]);
                if (row < num_rows) peak = max(peak, solved - numbers[n][half][i].d);
            }
        }
        // Four neighbouring lanes have all rows of a column.
        peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
        peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
        VALUE& highest = own_peaks[place.lane / 4 + 8 * half];
        if (place.lane % 4 == 0) highest = max(highest, peak);
    }
}

// Writes the peaks of the block; all of its threads call it.
__device__ __forceinline__ void write(const Peaks& peaks, VALUE* block_peaks, int num_steps,
                                      int rank)
{
    __syncthreads();
    const int count = num_steps * rank;
    for (int n = threadIdx.x; n < count; n += block_size) {
        VALUE peak = minus_infinity();
        for (int group = 0; group < NUM_GROUPS; ++group) {
            peak = max(peak, peaks.of_groups[group][n / rank][n % rank]);
        }
        block_peaks[static_cast<long long>(blockIdx.x) * count + n] = peak;
    }
}

extern "C" __global__ void __launch_bounds__(block_size, MIN_BLOCKS) step_rows(OwnUpdate update)
{
    const int num_steps = update.count_steps();
    if (num_steps == 0) return;
    extern __shared__ double memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Place place;
    const Operator<VALUE> prox(update);
    const VALUE penalty = METHOD == splitting ? *update.penalty : 0;
    const int rank = update.rank, new_stride = update.new_stride;
    const long long start = static_cast<long long>(blockIdx.x) * update.rows_per_block;
    const int end = min(static_cast<long long>(update.rows_per_block), update.num_rows - start);
    load_matrix<block_size>(shared.matrix, update.matrix, rank);
    shared.measures.clear();
    Peaks& peaks = *reinterpret_cast<Peaks*>(&shared + 1);
    if (HAS_LEVELS) clear(peaks);
    __syncthreads();
    int turn = 0;
    for (int first = place.group * GROUP_ROWS; first < end; first += block_rows) {
        // Distances within a group fit an int.
        const auto read = [&](const VALUE* from, long long stride, int row, int column) {
            from += (start + first) * stride;
            const bool is_inside = first + row < end && column < rank;
            return is_inside ? from[row * static_cast<int>(stride) + column] : VALUE(0);
        };
        const auto write = [&](VALUE* to, VALUE number, int row, int column) {
            to += (start + first) * new_stride;
            if (first + row >= end || column >= new_stride) return;
            to[row * new_stride + column] = column < rank ? number : VALUE(0);
        };
        Strip<Number, GROUP_ROWS> numbers;
        for_strip(numbers, place.strip, place.lane, [&](Number& number, int row, int column) {
            number.target = read(update.targets, update.target_stride, row, column);
            number.x = read(update.rows, update.row_stride, row, column);
            number.d = 0;
            if (METHOD == splitting) number.d = read(update.dual, update.dual_stride, row, column);
        });
#pragma unroll 1
        for (int step = 0; step < num_steps; ++step, turn ^= 1) {
            Strip<double, GROUP_ROWS> products = {};
            multiply_rows(shared, place, turn, penalty, numbers, products);
            if (HAS_LEVELS) raise(peaks, place, step, end - first, products, numbers);
            const bool has_level = HAS_LEVELS && !isnan(update.levels[step]);
            if (has_level) {
                const VALUE level = update.levels[step];
                move_to_level(level, shared, place, step, end - first, rank, products, numbers);
            } else if constexpr (METHOD == splitting) {
                end_splitting(prox, shared, place, step, products, numbers);
            } else {
                end_scaling(place, prox.strength, rank, products, numbers);
            }
        }
        for_strip(numbers, place.strip, place.lane, [&](Number& number, int row, int column) {
            write(update.new_rows, number.x, row, column);
            if (METHOD == splitting) write(update.new_dual, number.d, row, column);
        });
    }
    shared.measures.write(update.block_sums, num_steps);
    if (HAS_LEVELS && update.block_peaks) write(peaks, update.block_peaks, num_steps, rank);
}

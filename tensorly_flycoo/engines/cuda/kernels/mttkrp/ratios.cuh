// Values divided or multiplied by those of a CP model, and the sum of values times logarithms of the model.
#pragma once

#include "mttkrp.cuh"

// Explicit, so that the compiler does not contract a product and a sum.
__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

// What is done with the model's values (`macros.Ratios`). DIVIDE_AND_LOG also adds up the values
// times the logarithms of the model.
enum RatioKind { NONE, DIVIDE, DIVIDE_AND_LOG, MULTIPLY };

// What `Mttkrp::compute_tile` multiplies by: the value over the model's, which is the inner product
// of the other modes' rows, multiplied, with the row of the output's own factor.
//
// Lanes exchange their parts of the inner products of a batch so that each lane ends up with those
// of some nonzeros only: it divides and takes logarithms for these, and then tells the others. All
// lanes of a warp stay in step for that: exchanges among some of them take more instructions.
//
// The inner product adds columns in pairs, by the bits of their numbers from the lowest to the
// highest, and blocks of columns one after the other, however lanes load columns.
template <typename Tile, int NumParts, bool IsWhole, RatioKind Kind>
struct Ratios {
    using Value = typename Tile::Value;
    using Columns = typename Tile::Columns;
    using Entry = typename Tile::Entry;
    using Operands = typename Tile::Operands;
    using Slots = typename Tile::Slots;
    static constexpr int batch = Tile::batch;
    static constexpr int group_size = Tile::group_size;
    static constexpr int load_columns = Tile::load_columns;
    static constexpr int lane_loads = Tile::lane_columns / load_columns;
    static constexpr int num_warps = Tile::block_size / 32;
    static constexpr bool in_step = true;
    // After the exchange, lane l has the nonzeros l % width, l % width + width, ... of a batch.
    static constexpr int width = batch < group_size ? batch : group_size;
    static constexpr int num_own = batch / width;

    const Operands& operands;
    const Value* factor;  // of the output's mode
    unsigned row_nbytes;
    Value smallest;  // the model divides as this where it is smaller
    int rank;
    int column;
    Columns own = {};  // this lane's columns of the factor's current row, 0 past the last
    Value ratios[batch];
    double log_sum = 0;
    // A lane takes the logarithms of one nonzero in group_size.
    Value log_value = 0, log_model = 1;

    __device__ __forceinline__ int lane() const { return threadIdx.x % group_size; }

    __device__ __forceinline__ void begin_row(unsigned out_row)
    {
        own = read_columns(find_row(out_row), column);
    }

    __device__ __forceinline__ const char* find_row(unsigned out_row) const
    {
        return reinterpret_cast<const char*>(factor) +
               static_cast<unsigned long long>(out_row) * row_nbytes;
    }

    // Sets those of a lane's columns to 0 that are past the last.
    __device__ __forceinline__ void clear_past(Columns& columns, int first) const
    {
        if (IsWhole) return;
#pragma unroll
        for (int c = 0; c < Tile::lane_columns; ++c) {
            const int place =
                first + c / load_columns * Tile::group_load_columns + c % load_columns;
            if (place >= rank) columns.at[c] = 0;
        }
    }

    // Reads a lane's columns of a row, with 0 for those past the last.
    __device__ __forceinline__ Columns read_columns(const char* start, int first) const
    {
        const int readable = Tile::readable_column(first, rank);
        Columns columns = Tile::read_columns(start + sizeof(Value) * readable, first, rank);
        clear_past(columns, first);
        return columns;
    }

    // Adds up the products of a row's columns that this lane has, each load's to one sum.
    static __device__ __forceinline__ void multiply_columns(Value (&sums)[lane_loads],
                                                            const Columns& a, const Columns& b)
    {
#pragma unroll
        for (int l = 0; l < lane_loads; ++l) {
            Value terms[load_columns];
#pragma unroll
            for (int c = 0; c < load_columns; ++c) {
                const int place = l * load_columns + c;
                terms[c] = rounded_product(a.at[place], b.at[place]);
            }
#pragma unroll
            for (int stride = 1; stride < load_columns; stride *= 2) {
#pragma unroll
                for (int c = 0; c < load_columns; c += 2 * stride) terms[c] += terms[c + stride];
            }
            sums[l] = terms[0];
        }
    }

    // Adds up the sums of each nonzero over the lanes of the group; a lane gets those of its own.
    __device__ __forceinline__ void add_lanes(Value (&sums)[batch][lane_loads]) const
    {
        int count = batch;
#pragma unroll
        for (int offset = 1; offset < group_size; offset *= 2) {
            const bool is_upper = lane() & offset;
            const bool halves = offset < width;
            if (halves) count /= 2;
#pragma unroll
            for (int b = 0; b < count; ++b) {
#pragma unroll
                for (int l = 0; l < lane_loads; ++l) {
                    Value kept = sums[b][l], sent = kept;
                    if (halves) {
                        const Value lower = sums[2 * b][l], upper = sums[2 * b + 1][l];
                        kept = is_upper ? upper : lower;
                        sent = is_upper ? lower : upper;
                    }
                    sums[b][l] = kept + __shfl_xor_sync(0xffffffffu, sent, offset);
                }
            }
        }
#pragma unroll
        for (int b = 0; b < num_own; ++b) {
#pragma unroll
            for (int stride = 1; stride < lane_loads; stride *= 2) {
#pragma unroll
                for (int l = 0; l < lane_loads; l += 2 * stride) {
                    sums[b][l] += sums[b][l + stride];
                }
            }
        }
    }

    // Multiplies the rows of the other modes, for the columns of a block.
    __device__ __forceinline__ Columns multiply_rows(const Entry& entry, int first) const
    {
        Columns product;
#pragma unroll
        for (int c = 0; c < Tile::lane_columns; ++c) product.at[c] = 1;
#pragma unroll
        for (int n = 0; n < Tile::num_inputs; ++n) {
            const char* start = static_cast<const char*>(operands.factors[n]) +
                                static_cast<unsigned long long>(entry.input_row(n)) *
                                    operands.row_nbytes[n];
            const Columns columns = read_columns(start, first);
#pragma unroll
            for (int c = 0; c < Tile::lane_columns; ++c) {
                product.at[c] = n == 0 ? columns.at[c] : product.at[c] * columns.at[c];
            }
        }
        return product;
    }

    // Computes the ratios of the nonzeros from `start` on, given the products of their rows for the
    // columns of this block. Those past the last column may be anything; they become 0.
    __device__ __forceinline__ void find(Slots slots, Columns (&products)[batch], int begin,
                                         int start, int end, bool stays_in_row)
    {
        Value models[num_own], own_ratios[num_own];
#pragma unroll 1
        for (int part = 0; part < NumParts; ++part) {
            Value sums[batch][lane_loads];
            const int parts_on = NumParts == 1 ? 0 : part - static_cast<int>(blockIdx.y);
            if (parts_on == 0 && Tile::num_inputs > 0) {
#pragma unroll
                for (int b = 0; b < batch; ++b) clear_past(products[b], column);
                if (stays_in_row) {
#pragma unroll
                    for (int b = 0; b < batch; ++b) multiply_columns(sums[b], products[b], own);
                } else {
#pragma unroll
                    for (int b = 0; b < batch; ++b) {
                        begin_row(Tile::Nonzeros::read(slots, start + b).out_row());
                        multiply_columns(sums[b], products[b], own);
                    }
                }
            } else {  // for columns that other blocks have
                const int first = column + parts_on * group_size * Tile::lane_columns;
#pragma unroll
                for (int b = 0; b < batch; ++b) {
                    const Entry entry = Tile::Nonzeros::read(slots, start + b);
                    const Columns columns = read_columns(find_row(entry.out_row()), first);
                    multiply_columns(sums[b], multiply_rows(entry, first), columns);
                }
            }
            add_lanes(sums);
#pragma unroll
            for (int n = 0; n < num_own; ++n) models[n] = part == 0 ? sums[n][0] : models[n] + sums[n][0];
        }
#pragma unroll
        for (int n = 0; n < num_own; ++n) {
            const int first = start + n * width, place = first + lane() % width;
            const Value value = Tile::Nonzeros::read(slots, place).value();
            own_ratios[n] = Kind == MULTIPLY
                                ? rounded_product(value, models[n])
                                : value / (models[n] > smallest ? models[n] : smallest);
            if (Kind == DIVIDE_AND_LOG) note_log(place < end, value, models[n], place - begin, first - begin);
        }
#pragma unroll
        for (int b = 0; b < batch; ++b) {
            ratios[b] = __shfl_sync(0xffffffffu, own_ratios[b / width], b % width, group_size);
        }
    }

    __device__ __forceinline__ Value read(const Entry&, int b) const { return ratios[b]; }

    // Keeps a nonzero until all lanes have one.
    __device__ __forceinline__ void note_log(bool exists, Value value, Value model, int place,
                                             int first)
    {
        if (exists && place % group_size == lane()) {
            log_value = value;
            log_model = model;
        }
        if ((first + width) % group_size == 0) add_log();
    }

    __device__ __forceinline__ void add_log()
    {
        log_sum += log_value * log(static_cast<double>(log_model));
        log_value = 0;
        log_model = 1;
    }

    // Writes the sum of each warp to its place of `log_sums` (num_tiles, num_warps).
    __device__ __forceinline__ void write_logs(double* log_sums, long long tile)
    {
        if (Kind != DIVIDE_AND_LOG || blockIdx.y > 0) return;
        add_log();
        double sum = log_sum;
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        }
        if (threadIdx.x % 32 == 0) log_sums[tile * num_warps + threadIdx.x / 32] = sum;
    }
};

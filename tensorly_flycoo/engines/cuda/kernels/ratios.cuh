// Values divided by those of a CP model, and the sum of values times logarithms of the model.
#pragma once

#include "mttkrp.cuh"

// Explicit, so that the compiler does not contract a product and a sum.
__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

// What `Mttkrp::compute_tile` multiplies by: the value over the model's, which is the inner product
// of the other modes' rows, multiplied, with the row of the output's own factor.
//
// The inner product adds columns in pairs, by the bits of their numbers from the lowest to the
// highest, and blocks of columns one after the other: an order that does not depend on how lanes
// load columns.
template <typename Tile, bool WantsLogs>
struct Ratios {
    using Value = typename Tile::Value;
    using Columns = typename Tile::Columns;
    using Entry = typename Tile::Entry;
    using Operands = typename Tile::Operands;
    static constexpr int group_size = Tile::group_size;
    static constexpr int load_columns = Tile::load_columns;
    static constexpr int lane_loads = Tile::lane_columns / load_columns;
    static constexpr int num_warps = Tile::block_size / 32;

    const Operands& operands;
    const Value* factor;  // of the output's mode
    unsigned row_nbytes;
    Value smallest;  // the model divides as this where it is smaller
    int rank;
    int column;
    const char* row = nullptr;  // the factor's current row
    Columns own = {};           // this lane's columns of it, 0 past the last
    double log_sum = 0;
    // A lane takes the logarithms of one nonzero in group_size.
    double log_value = 0, log_model = 1;

    __device__ __forceinline__ void begin_row(unsigned out_row)
    {
        row = reinterpret_cast<const char*>(factor) +
              static_cast<unsigned long long>(out_row) * row_nbytes;
        own = read_columns(row, column);
    }

    // Reads a lane's columns of a row, with 0 for those past the last.
    __device__ __forceinline__ Columns read_columns(const char* start, int first) const
    {
        const int readable = Tile::readable_column(first, rank);
        Columns columns =
            Tile::read_columns(start + sizeof(Value) * readable, first, rank);
#pragma unroll
        for (int c = 0; c < Tile::lane_columns; ++c) {
            const int place =
                first + c / load_columns * Tile::group_load_columns + c % load_columns;
            if (place >= rank) columns.at[c] = 0;
        }
        return columns;
    }

    // Adds up the products of a row's columns over the lanes of a group; all lanes get the sum.
    static __device__ __forceinline__ Value add_columns(const Columns& a, const Columns& b,
                                                        unsigned lanes)
    {
        Value sums[lane_loads];
#pragma unroll
        for (int l = 0; l < lane_loads; ++l) {
            Value terms[load_columns];
#pragma unroll
            for (int c = 0; c < load_columns; ++c) {
                const int place = l * load_columns + c;
                // Past the last column b is 0, and a may be anything.
                terms[c] = b.at[place] == 0 ? Value(0) : rounded_product(a.at[place], b.at[place]);
            }
#pragma unroll
            for (int stride = 1; stride < load_columns; stride *= 2) {
#pragma unroll
                for (int c = 0; c < load_columns; c += 2 * stride) terms[c] += terms[c + stride];
            }
            sums[l] = terms[0];
        }
#pragma unroll
        for (int offset = 1; offset < group_size; offset *= 2) {
#pragma unroll
            for (int l = 0; l < lane_loads; ++l) {
                sums[l] += __shfl_xor_sync(lanes, sums[l], offset);
            }
        }
#pragma unroll
        for (int stride = 1; stride < lane_loads; stride *= 2) {
#pragma unroll
            for (int l = 0; l < lane_loads; l += 2 * stride) sums[l] += sums[l + stride];
        }
        return sums[0];
    }

    // Multiplies the rows of the other modes, for the columns of another block.
    __device__ __forceinline__ Columns multiply_elsewhere(const Entry& entry, int first) const
    {
        Columns product;
#pragma unroll
        for (int c = 0; c < Tile::lane_columns; ++c) product.at[c] = 1;
#pragma unroll
        for (int n = 0; n < Tile::num_inputs; ++n) {
            const char* start = reinterpret_cast<const char*>(operands.factors[n]) +
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

    // Returns the model's value at a nonzero, given the product of its rows for this block.
    __device__ __forceinline__ Value evaluate(const Entry& entry, const Columns& product,
                                              unsigned lanes) const
    {
        if (gridDim.y == 1) return add_columns(product, own, lanes);
        const int part_columns = group_size * Tile::lane_columns;
        Value model = 0;
        for (int part = 0; part < static_cast<int>(gridDim.y); ++part) {
            if (part == static_cast<int>(blockIdx.y)) {
                model += add_columns(product, own, lanes);
            } else {
                const int first = column + (part - static_cast<int>(blockIdx.y)) * part_columns;
                model += add_columns(multiply_elsewhere(entry, first), read_columns(row, first),
                                     lanes);
            }
        }
        return model;
    }

    __device__ __forceinline__ Value read(const Entry& entry, const Columns& product, int place)
    {
        const int lane = threadIdx.x % group_size;
        const unsigned lanes = (0xffffffffu >> (32 - group_size)) << (threadIdx.x % 32 - lane);
        Columns others = product;
        if (Tile::num_inputs == 0) others = multiply_elsewhere(entry, column);
        const Value value = entry.value(), model = evaluate(entry, others, lanes);
        if (WantsLogs) {
            if (place % group_size == lane) {
                log_value = value;
                log_model = model;
            }
            if (place % group_size == group_size - 1) add_log();
        }
        return value / (model > smallest ? model : smallest);
    }

    __device__ __forceinline__ void add_log()
    {
        log_sum += log_value * log(log_model);
        log_value = 0;
        log_model = 1;
    }

    // Writes the sum of each warp to its place of `log_sums` (num_tiles, num_warps).
    __device__ __forceinline__ void write_logs(double* log_sums, long long tile)
    {
        if (!WantsLogs || blockIdx.y > 0) return;
        add_log();
        double sum = log_sum;
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        }
        if (threadIdx.x % 32 == 0) log_sums[tile * num_warps + threadIdx.x / 32] = sum;
    }
};

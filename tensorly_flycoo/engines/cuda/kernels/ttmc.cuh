// TTMc of one tile whose nonzeros are unpacked in shared memory.
#pragma once

#include "nonzeros.cuh"

// The number of columns of each factor. Filled by Python (`structs.py`) and passed by value.
template <int MaxInputs>
struct Ranks {
    int at[MaxInputs];
};

// A thread has LaneColumns columns of an output row, group_size apart.
template <typename TileNonzeros, int LaneColumns>
struct Ttmc {
    using Nonzeros = TileNonzeros;
    using Value = typename Nonzeros::Value;
    using Entry = typename Nonzeros::Entry;
    using Operands = typename Nonzeros::Operands;
    using Slots = typename Nonzeros::Slots;
    using Ranks = ::Ranks<Operands::max_inputs>;
    static constexpr int num_inputs = Nonzeros::num_inputs;
    static constexpr int group_size = Nonzeros::group_size;
    static constexpr int num_groups = Nonzeros::num_groups;
    static constexpr int run = Nonzeros::run;
    static_assert(LaneColumns > 0, "a thread has a column");

    // For each of a thread's columns, the column of each factor. Columns past the last one read the
    // first one and are not written.
    struct FactorColumns {
        int at[LaneColumns][Operands::max_inputs];
    };

    struct Totals {
        Value at[LaneColumns];
    };

    static __device__ __forceinline__ long long first_column()
    {
        return static_cast<long long>(blockIdx.y) * (group_size * LaneColumns) +
               threadIdx.x % group_size;
    }

    static __device__ __forceinline__ FactorColumns split_columns(long long column,
                                                                  long long columns,
                                                                  const Ranks& ranks)
    {
        FactorColumns split;
#pragma unroll
        for (int c = 0; c < LaneColumns; ++c) {
            long long rest = column + c * group_size;
            if (rest >= columns) rest = 0;
#pragma unroll
            for (int n = num_inputs - 1; n >= 0; --n) {
                split.at[c][n] = static_cast<int>(rest % ranks.at[n]);
                rest /= ranks.at[n];
            }
        }
        return split;
    }

    static __device__ __forceinline__ void add_nonzero(Totals& totals, const Entry& entry,
                                                       const Operands& operands,
                                                       const FactorColumns& split)
    {
        Totals products;
#pragma unroll
        for (int c = 0; c < LaneColumns; ++c) products.at[c] = 1;
#pragma unroll
        for (int n = 0; n < num_inputs; ++n) {
            const unsigned long long offset =
                static_cast<unsigned long long>(entry.input_row(n)) * operands.row_nbytes[n];
            const Value* row = reinterpret_cast<const Value*>(
                reinterpret_cast<const char*>(operands.factors[n]) + offset);
#pragma unroll
            for (int c = 0; c < LaneColumns; ++c) products.at[c] *= row[split.at[c][n]];
        }
#pragma unroll
        for (int c = 0; c < LaneColumns; ++c) {
            // Explicit, so that the result does not depend on what a compiler contracts.
            totals.at[c] = fma(entry.value(), products.at[c], totals.at[c]);
        }
    }

    // Writes the totals to a row, and clears them.
    static __device__ __forceinline__ void store(Value* target, long long column,
                                                 long long columns, Totals& totals)
    {
#pragma unroll
        for (int c = 0; c < LaneColumns; ++c) {
            const long long own = column + c * group_size;
            if (own < columns) target[own] = totals.at[c];
            totals.at[c] = 0;
        }
    }

    // Computes the tile's rows: writes a run's sum for a row that began before it to
    // `partial_rows`, all others to `out`. `row_of` maps an index to its row of `out`.
    template <typename RowOf>
    static __device__ __forceinline__ void compute_tile(Slots slots, const Operands& operands,
                                                        const FactorColumns& split, RowOf row_of,
                                                        const long long* carry_rows,
                                                        long long tile, int count,
                                                        long long column, long long columns,
                                                        Value* out, long long* run_rows,
                                                        Value* partial_rows)
    {
        const int group = threadIdx.x / group_size, lane = threadIdx.x % group_size;
        const long long run_number = tile * num_groups + group;
        const int begin = group * run, end = min(begin + run, count);
        bool inherits = false;
        unsigned index = 0;
        if (begin < end) {
            index = Nonzeros::read(slots, begin).out_row();
            inherits = group == 0 ? carry_rows[tile] >= 0
                                  : index == Nonzeros::read(slots, begin - 1).out_row();
        }
        if (blockIdx.y == 0 && lane == 0) run_rows[run_number] = inherits ? row_of(index) : -1;
        Totals totals = {};
        const auto flush = [&]() {
            Value* target =
                inherits ? partial_rows + run_number * columns : out + row_of(index) * columns;
            store(target, column, columns, totals);
            inherits = false;
        };
        for (int place = begin; place < end; ++place) {
            const Entry entry = Nonzeros::read(slots, place);
            if (entry.out_row() != index) {
                ASSERT(entry.out_row() > index);
                flush();
                index = entry.out_row();
            }
            add_nonzero(totals, entry, operands, split);
        }
        if (begin < end) flush();
    }
};

// MTTKRP of one tile whose nonzeros are unpacked in shared memory.
#pragma once

#include "ids.cuh"
#include "narrow_rows.cuh"
#include "nonzeros.cuh"

// Explicit, so that the result does not depend on what a compiler contracts.
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

// The values that MTTKRP multiplies: those of the entries. (`ratios.cuh` has others.)
struct EntryValues {
    // Whether the lanes of a warp go from batch to batch together, and add a batch that stays in a
    // row without looking at each row number. It would spill registers here.
    static constexpr bool in_step = false;

    __device__ __forceinline__ void begin_row(unsigned) {}

    template <typename Slots, typename Products>
    __device__ __forceinline__ void find(Slots, Products&, int, int, int, bool)
    {
    }

    template <typename Entry>
    __device__ __forceinline__ auto read(const Entry& entry, int) const
    {
        return entry.value();
    }
};

// A lane has LaneLoads * LoadColumns columns of a row. Each load of a group reads neighbouring
// columns. If a group holds too few, blocks along y have the remaining ones. Factors have rows of
// FactorNumber: narrow ones are cut as whole ones are, so the order of additions is the same.
template <typename TileNonzeros, int LoadColumns, int StoreColumns, int LaneLoads, int Batch,
          typename FactorNumber = typename TileNonzeros::Value>
struct Mttkrp {
    using Nonzeros = TileNonzeros;
    using Value = typename Nonzeros::Value;
    using Entry = typename Nonzeros::Entry;
    using Operands = typename Nonzeros::Operands;
    using Slots = typename Nonzeros::Slots;
    static constexpr int num_inputs = Nonzeros::num_inputs;
    static constexpr int max_inputs = Operands::max_inputs;
    static constexpr int block_size = Nonzeros::block_size;
    static constexpr int group_size = Nonzeros::group_size;
    static constexpr int num_groups = Nonzeros::num_groups;
    static constexpr int run = Nonzeros::run;
    static constexpr int load_columns = LoadColumns;
    static constexpr int batch = Batch;
    static constexpr int lane_columns = LoadColumns * LaneLoads;
    static constexpr int group_load_columns = group_size * LoadColumns;
    static_assert(32 % group_size == 0, "a group lies inside a warp");
    static_assert(run % Batch == 0, "a run is whole batches");
    static_assert(LoadColumns % StoreColumns == 0, "a load is whole stores");
    static_assert(sizeof(Value) * LoadColumns <= 16, "a load is 16 bytes at most");

    using Columns = Together<Value, lane_columns>;
    using Load = Together<FactorNumber, LoadColumns>;
    using Store = Together<Value, StoreColumns>;

    // Carry-outs between the groups of a block: a group's sum for the row that the previous group
    // ends with. In shared memory; Python reserves it (`structs.py`).
    struct Carries {
        Columns sums[block_size];     // by thread
        bool inherits[num_groups];    // the run begins with the row that the previous run ends with
        bool is_one_row[num_groups];  // and that row fills the whole run
    };

    // The first of a lane's columns. Its loads are group_load_columns apart.
    static __device__ __forceinline__ int first_column()
    {
        return blockIdx.y * group_size * lane_columns + threadIdx.x % group_size * LoadColumns;
    }

    // With a single load, a lane past the last column reads the last columns instead of branching.
    static __device__ __forceinline__ int readable_column(int column, int rank)
    {
        return LaneLoads == 1 ? min(column, (rank - 1) / LoadColumns * LoadColumns) : column;
    }

    // Reads a lane's columns of a row; `source` points at the row's readable column.
    static __device__ __forceinline__ Columns read_columns(const char* source, int column,
                                                           int rank)
    {
        Columns columns;
#pragma unroll
        for (int l = 0; l < LaneLoads; ++l) {
            Load load = {};
            if (LaneLoads == 1 || column + l * group_load_columns < rank) {
                load = reinterpret_cast<const Load*>(source)[l * group_size];
            }
#pragma unroll
            for (int c = 0; c < LoadColumns; ++c) widen(columns.at[l * LoadColumns + c], load, c);
        }
        return columns;
    }

    // Writes a lane's columns to the row at `target`, except those past the last column.
    static __device__ __forceinline__ void write_columns(Value* target, int column, int rank,
                                                         const Columns& columns)
    {
#pragma unroll
        for (int first = 0; first < lane_columns; first += StoreColumns) {
            Store store;
#pragma unroll
            for (int c = 0; c < StoreColumns; ++c) store.at[c] = columns.at[first + c];
            const int place =
                column + first / LoadColumns * group_load_columns + first % LoadColumns;
            if (place < rank) *reinterpret_cast<Store*>(target + place) = store;
        }
    }

    // Clears this tile's share of the empty rows.
    template <typename EmptyRow, typename Rows>
    static __device__ __forceinline__ void clear_rows(const EmptyRow* empty_rows,
                                                      long long num_empty, long long share,
                                                      long long tile, int column, int rank,
                                                      const Rows& out, const Operands& operands)
    {
        const long long end = min((tile + 1) * share, num_empty);
        for (long long e = tile * share + threadIdx.x / group_size; e < end; e += num_groups) {
            ASSERT(empty_rows[e] <= operands.last_out_row);
            write_columns(out.find_row(empty_rows[e], rank), column, rank, {});
        }
    }

    // Adds to `total` the sums of the groups after `group` for its last row.
    static __device__ __forceinline__ void add_following(Columns& total, const Carries& carries,
                                                         int group)
    {
        const int lane = threadIdx.x % group_size;
        for (int next = group + 1; next < num_groups && carries.inherits[next]; ++next) {
            const Columns columns = carries.sums[next * group_size + lane];
#pragma unroll
            for (int c = 0; c < lane_columns; ++c) total.at[c] += columns.at[c];
            if (!carries.is_one_row[next]) break;
        }
    }

    // Loads and multiplies the rows of a batch. Places past the end of the order read row 0.
    static __device__ __forceinline__ void multiply_rows(
        Columns (&products)[Batch], Slots slots, int start, const Operands& operands,
        const char* const (&factors)[max_inputs], int column, int rank)
    {
        Entry entries[Batch];
#pragma unroll
        for (int b = 0; b < Batch; ++b) entries[b] = Nonzeros::read(slots, start + b);
#pragma unroll
        for (int n = 0; n < num_inputs; ++n) {
#pragma unroll
            for (int b = 0; b < Batch; ++b) {
                const unsigned long long offset =
                    static_cast<unsigned long long>(entries[b].input_row(n)) *
                    operands.row_nbytes[n];
                const Columns columns = read_columns(factors[n] + offset, column, rank);
#pragma unroll
                for (int c = 0; c < lane_columns; ++c) {
                    products[b].at[c] = n == 0 ? columns.at[c] : products[b].at[c] * columns.at[c];
                }
            }
        }
    }

    static __device__ __forceinline__ void point_at_columns(const char* (&factors)[max_inputs],
                                                            const Operands& operands, int column,
                                                            int rank)
    {
#pragma unroll
        for (int n = 0; n < num_inputs; ++n) {
            const auto* factor = static_cast<const FactorNumber*>(operands.factors[n]);
            const FactorNumber* first = factor + readable_column(column, rank);
            factors[n] = reinterpret_cast<const char*>(first);
        }
    }

    // Computes the tile's rows: writes those that begin in it to `out`, and the carry-out of a row
    // that began in an earlier tile to `partial_rows`; both times the weights. `values` finds what
    // the products of a batch are multiplied by, from these and the entries, and returns it.
    template <typename Values, typename Rows>
    static __device__ __forceinline__ void compute_tile(Slots slots, Carries& carries,
                                                        const Operands& operands,
                                                        bool tile_inherits, long long tile,
                                                        int count, int rank, int column,
                                                        const Value* weights, const Rows& out,
                                                        Value* partial_rows, Values& values)
    {
        const int group = threadIdx.x / group_size;
        const int begin = group * run, end = min(begin + run, count);
        const char* factors[max_inputs];
        point_at_columns(factors, operands, column, rank);
        const auto store = [&](Value* target, Columns columns) {
            if (weights != nullptr) {
#pragma unroll
                for (int c = 0; c < lane_columns; ++c) {
                    const int place =
                        column + c / LoadColumns * group_load_columns + c % LoadColumns;
                    columns.at[c] *= weights[min(place, rank - 1)];
                }
            }
            write_columns(target, column, rank, columns);
        };

        bool inherits = false, is_first_row = true;
        unsigned row = 0;
        if (begin < end) {
            row = Nonzeros::read(slots, begin).out_row();
            inherits =
                group == 0 ? tile_inherits : row == Nonzeros::read(slots, begin - 1).out_row();
            values.begin_row(row);
        }
        Columns total = {};
        const auto add_product = [&](const Entry& entry, const Columns& product, int b) {
            const Value value = values.read(entry, b);
#pragma unroll
            for (int c = 0; c < lane_columns; ++c) {
                total.at[c] = fused(value, num_inputs == 0 ? Value(1) : product.at[c], total.at[c]);
            }
        };
        const int loop_end = Values::in_step ? begin + run : end;
        for (int start = begin; start < loop_end; start += Batch) {
            Columns products[Batch];
            multiply_rows(products, slots, start, operands, factors, column, rank);
            // Rows ascend: if the last one is the current one, all are.
            const bool stays_in_row = Values::in_step && start + Batch <= end &&
                                      Nonzeros::read(slots, start + Batch - 1).out_row() == row;
            values.find(slots, products, begin, start, end, stays_in_row);
            if (stays_in_row) {
#pragma unroll
                for (int b = 0; b < Batch; ++b) {
                    add_product(Nonzeros::read(slots, start + b), products[b], b);
                }
                continue;
            }
#pragma unroll
            for (int b = 0; b < Batch; ++b) {
                if (start + b >= end) break;
                // Read again instead of kept: registers limit the size of a batch.
                const Entry entry = Nonzeros::read(slots, start + b);
                if (entry.out_row() != row) {
                    ASSERT(entry.out_row() > row);
                    if (is_first_row && inherits) {
                        carries.sums[threadIdx.x] = total;
                    } else {
                        store(out.find_row(row, rank), total);
                    }
                    total = {};
                    row = entry.out_row();
                    is_first_row = false;
                }
                add_product(entry, products[b], b);
            }
        }
        const bool is_one_row = inherits && is_first_row;
        if (is_one_row) carries.sums[threadIdx.x] = total;
        if (threadIdx.x % group_size == 0) {
            carries.inherits[group] = inherits;
            carries.is_one_row[group] = is_one_row;
        }
        __syncthreads();
        if (begin < end && !is_one_row) {
            add_following(total, carries, group);
            store(out.find_row(row, rank), total);
        }
        if (group == 0 && inherits) {
            total = carries.sums[threadIdx.x];
            if (is_one_row) add_following(total, carries, group);
            store(partial_rows + tile * rank, total);
        }
    }
};

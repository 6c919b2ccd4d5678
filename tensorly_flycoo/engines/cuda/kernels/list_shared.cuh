// A list of the nonzeros that share their column.
#pragma once

// Where they are written: `coords` is (column, slot of the row) of `count` entries. Columns are
// numbered from 0.
struct SharedEntries {
    long long count;
    const unsigned* slots;
    long long* coords;
    double* values;
};

// A block has EntriesPerBlock neighbouring nonzeros. Without `target.coords` it counts in `starts`
// the entries and the columns that begin, and marks rows; with them, it lists entries from `starts`
// on.
template <int EntriesPerBlock, int BlockSize>
__device__ __forceinline__ void list_shared_of_block(long long nnz, const bool* is_first,
                                                     const unsigned* rows, const double* values,
                                                     double scale, long long* starts, bool* is_free,
                                                     const SharedEntries& target)
{
    static_assert(BlockSize % 32 == 0, "a block is whole warps");
    constexpr int num_warps = BlockSize / 32;
    __shared__ int num_entries[num_warps], num_columns[num_warps];
    const long long first = static_cast<long long>(blockIdx.x) * EntriesPerBlock;
    const long long end = min(first + EntriesPerBlock, nnz);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned lower_lanes = (1u << lane) - 1;
    starts += 2ll * blockIdx.x;
    long long next_entry = target.coords ? starts[0] : 0;
    long long next_column = target.coords ? starts[1] : 0;
    for (int step = 0; step < EntriesPerBlock; step += BlockSize) {
        const long long i = first + step + threadIdx.x;
        const bool begins = i < end && is_first[i];
        const bool is_shared = i < end && !(begins && is_first[i + 1]);
        const unsigned entries = __ballot_sync(0xffffffffu, is_shared);
        const unsigned columns = __ballot_sync(0xffffffffu, is_shared && begins);
        if (lane == 0) {
            num_entries[warp] = __popc(entries);
            num_columns[warp] = __popc(columns);
        }
        __syncthreads();
        // The column of a nonzero is the last one that began, at the latest with itself.
        long long place = next_entry + __popc(entries & lower_lanes);
        long long column = next_column + __popc(columns & (lower_lanes | 1u << lane)) - 1;
        for (int w = 0; w < num_warps; ++w) {
            if (w < warp) {
                place += num_entries[w];
                column += num_columns[w];
            }
            next_entry += num_entries[w];
            next_column += num_columns[w];
        }
        if (is_shared && !target.coords) is_free[rows[i]] = false;
        if (is_shared && target.coords) {
            target.coords[place] = column;
            target.coords[target.count + place] = target.slots[rows[i]];
            target.values[place] = values[i] / scale;
        }
        __syncthreads();
    }
    if (!target.coords && threadIdx.x == 0) {
        starts[0] = next_entry;
        starts[1] = next_column;
    }
}

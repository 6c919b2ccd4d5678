// Entry: read everything that an MTTKRP of one mode reads, and write nothing: its lower bound.
//
// Mapping: as mttkrp.cu, tile by tile in row order, but a lane adds all its products, whatever
//   their rows; there are no partial rows and groups do not communicate.
// Preconditions: as mttkrp.cu, for sorted records that are not pulled through ids.
// Bytes per nonzero: a record and NUM_INPUTS rows of `rank` values.
// Writes: none. `impossible` is nan, which equals no sum; the compiler does not know that, so it
//   must compute the sums and read all their operands.
#include "mttkrp.cuh"
#include "tiles.cuh"

#ifndef MIN_BLOCKS
#error "MIN_BLOCKS is missing: blocks per multiprocessor that the registers must allow"
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, MIN_BLOCKS)
    gather_only(long long first_tile, const Operands operands, long long nnz, const Piece* records,
                int rank, VALUE impossible, Columns* out)
{
    extern __shared__ uint4 shared[];
    SlotPiece* slots = reinterpret_cast<SlotPiece*>(shared);
    const int column = first_column();
    const char* factors[MAX_INPUTS];
    point_at_columns(factors, operands, column, rank);

    const long long first = (first_tile + blockIdx.x) * TILE_SIZE;
    const int count = static_cast<int>(min(static_cast<long long>(TILE_SIZE), nnz - first));
    pull_records(slots, records + first * PIECES, nnz - first, nullptr, count);
    wait_for_copies();
    unpack_tile(slots, count, operands);
    __syncthreads();
    Columns total = zeros();
    const int begin = threadIdx.x / GROUP_SIZE * RUN, end = min(begin + RUN, count);
    for (int start = begin; start < end; start += BATCH) {
        Columns products[BATCH];
        multiply_rows(products, slots, start, operands, factors, column, rank);
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            // Entries past the end of a tile are zero.
            const VALUE value = read_entry(slots, start + b).value();
#pragma unroll
            for (int c = 0; c < LANE_COLUMNS; ++c) {
                total.at[c] = fused(value, products[b].at[c], total.at[c]);
            }
        }
    }
    if (total.at[0] == impossible) *out = total;
}

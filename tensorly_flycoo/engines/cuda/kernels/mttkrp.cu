// Entry: MTTKRP of one mode; with REMAP also dynamic remapping to the next mode's storage.
//
// Mapping, preconditions, bytes, determinism and source: tiles.cuh for how records move, mttkrp.cuh
// for how a tile is computed. A block has a tile, and its share of the rows without a nonzero.
#include "mttkrp.cuh"
#include "tiles.cuh"

#ifndef MIN_BLOCKS
#error "MIN_BLOCKS: blocks of a multiprocessor that registers should be enough for"
#endif
#ifndef EMPTY_ROW
#error "EMPTY_ROW: unsigned type of the list of empty rows"
#endif
#if !defined(PULL) || !defined(REMAP)
#error "PULL, REMAP: 1 or 0, whether records are pulled through ids, and pushed on"
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, MIN_BLOCKS)
    mttkrp(long long first_tile, const Operands operands, long long nnz, long long num_empty,
           long long empty_share, long long bucket_size, const long long* carry_rows,
           const EMPTY_ROW* empty_rows, const Piece* records, const PULL_ID* pull_ids,
           Piece* spare, const REMAP_ID* remap_ids, const unsigned short* write_order, int rank,
           VALUE* out, VALUE* partial_rows)
{
    extern __shared__ uint4 shared[];
    SlotPiece* slots = reinterpret_cast<SlotPiece*>(shared);
    Carries& carries = *reinterpret_cast<Carries*>(slots + TILE_SIZE * SLOT_PIECES);
    const int column = first_column();
    const bool remaps = REMAP && blockIdx.y == 0;

    const long long tile = first_tile + blockIdx.x, first = tile * TILE_SIZE;
    const int count = static_cast<int>(min(static_cast<long long>(TILE_SIZE), nnz - first));
    const long long base = PULL ? bucket_start(first, bucket_size) : first;
    Targets targets;
    pull_records(slots, records + base * PIECES, nnz - base, PULL ? pull_ids + first : nullptr,
                 count);
    if (remaps) read_targets(targets, remap_ids + first, write_order + first, nnz, count);
    // Rows without a nonzero: each tile has its share of them.
    const long long end = min((tile + 1) * empty_share, num_empty);
    for (long long e = tile * empty_share + threadIdx.x / GROUP_SIZE; e < end; e += NUM_GROUPS) {
        ASSERT(empty_rows[e] <= operands.last_out_row);
        write_columns(out + static_cast<long long>(empty_rows[e]) * rank, column, rank, zeros());
    }
    wait_for_copies();
    if (remaps) {
        __syncthreads();
        push_records(spare, slots, targets, count);
        __syncthreads();  // before any of them is unpacked
    }
    unpack_tile(slots, count, operands);
    __syncthreads();
    compute_tile(slots, carries, operands, carry_rows[tile] >= 0, tile, count, rank, column, out,
                 partial_rows);
}

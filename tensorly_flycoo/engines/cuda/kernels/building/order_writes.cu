// Entry: sort the remap ids of each tile, ascending and in place, and write the place of each.
//
// Mapping: a block has a tile, which it sorts in shared memory.
// Preconditions (the layout's): remap ids are unique.
// Bytes per nonzero: an id in and out, and 2 for the place.
// Writes and determinism: ids are unique, so only one order is possible.
// Source: Batcher, Sorting networks and their applications, AFIPS 1968 (the bitonic network).
// MACRO REMAP_ID: unsigned type of remap ids
// MACRO TILE_SIZE: nonzeros of a tile
// MACRO BLOCK_SIZE: threads of a block

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    order_writes(long long first_tile, long long nnz, REMAP_ID* remap_ids,
                 unsigned short* write_order)
{
    static_assert((TILE_SIZE & (TILE_SIZE - 1)) == 0, "the network sorts powers of two");
    static_assert(TILE_SIZE <= 65536, "places are written as 16 bits");
    const long long first = (first_tile + blockIdx.x) * TILE_SIZE;
    __shared__ unsigned long long keys[TILE_SIZE];  // an id, and its place in the lowest bits
    for (int place = threadIdx.x; place < TILE_SIZE; place += BLOCK_SIZE) {
        const bool is_there = first + place < nnz;
        const unsigned long long id = is_there ? remap_ids[first + place] : 0;
        keys[place] = is_there ? id * TILE_SIZE + place : ~0ull;  // places past the end come last
    }
    __syncthreads();
    for (int size = 2; size <= TILE_SIZE; size *= 2) {
        for (int distance = size / 2; distance > 0; distance /= 2) {
            for (int pair = threadIdx.x; pair < TILE_SIZE / 2; pair += BLOCK_SIZE) {
                const int low = 2 * pair - (pair & (distance - 1));
                const unsigned long long a = keys[low], b = keys[low + distance];
                const bool is_ascending = (low & size) == 0;
                if ((a > b) == is_ascending) {
                    keys[low] = b;
                    keys[low + distance] = a;
                }
            }
            __syncthreads();
        }
    }
    for (int place = threadIdx.x; place < TILE_SIZE; place += BLOCK_SIZE) {
        if (first + place < nnz) {
            remap_ids[first + place] = static_cast<REMAP_ID>(keys[place] / TILE_SIZE);
            write_order[first + place] = static_cast<unsigned short>(keys[place] % TILE_SIZE);
        }
    }
}

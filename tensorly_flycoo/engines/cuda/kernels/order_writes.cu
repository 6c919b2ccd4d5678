// Entry: put the remap ids of each tile in rising order, and say which place each is of.
//
// Mapping: a block has a tile, and sorts it in shared memory by a bitonic network.
// Preconditions (the engine's): TILE_SIZE is a power of two; ids differ.
// Bytes per nonzero: an id in and out, and 2.
// Writes and determinism: ids differ, so there is one order.
#ifndef REMAP_ID
#error "REMAP_ID: unsigned type of remap ids"
#endif
#ifndef TILE_SIZE
#error "TILE_SIZE: nonzeros of a tile"
#endif
#ifndef BLOCK_SIZE
#error "BLOCK_SIZE: threads of a block"
#endif

static_assert((TILE_SIZE & (TILE_SIZE - 1)) == 0, "the network sorts powers of two");
static_assert(TILE_SIZE <= 65536, "places are written as 16 bits");

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    order_writes(long long first_tile, long long nnz, REMAP_ID* remap_ids,
                 unsigned short* write_order)
{
    __shared__ unsigned long long keys[TILE_SIZE];  // an id, and its place in the lowest bits
    const long long first = (first_tile + blockIdx.x) * TILE_SIZE;
    for (int place = threadIdx.x; place < TILE_SIZE; place += BLOCK_SIZE) {
        const bool is_there = first + place < nnz;
        const unsigned long long id = is_there ? remap_ids[first + place] : 0;
        keys[place] = is_there ? id * TILE_SIZE + place : ~0ull;  // what is not there comes last
    }
    __syncthreads();
    for (int size = 2; size <= TILE_SIZE; size *= 2) {
        for (int distance = size / 2; distance > 0; distance /= 2) {
            for (int pair = threadIdx.x; pair < TILE_SIZE / 2; pair += BLOCK_SIZE) {
                const int low = 2 * pair - (pair & (distance - 1));
                const unsigned long long a = keys[low], b = keys[low + distance];
                const bool rises = (low & size) == 0;
                if ((a > b) == rises) {
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

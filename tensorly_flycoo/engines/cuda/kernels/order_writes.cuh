// Sorts a tile's remap ids.
#pragma once

// Sorts in shared memory with a bitonic network.
template <int TileSize, int BlockSize, typename RemapId>
__device__ __forceinline__ void order_tile(long long first, long long nnz, RemapId* remap_ids,
                                           unsigned short* write_order)
{
    static_assert((TileSize & (TileSize - 1)) == 0, "the network sorts powers of two");
    static_assert(TileSize <= 65536, "places are written as 16 bits");
    __shared__ unsigned long long keys[TileSize];  // an id, and its place in the lowest bits
    for (int place = threadIdx.x; place < TileSize; place += BlockSize) {
        const bool is_there = first + place < nnz;
        const unsigned long long id = is_there ? remap_ids[first + place] : 0;
        keys[place] = is_there ? id * TileSize + place : ~0ull;  // places past the end come last
    }
    __syncthreads();
    for (int size = 2; size <= TileSize; size *= 2) {
        for (int distance = size / 2; distance > 0; distance /= 2) {
            for (int pair = threadIdx.x; pair < TileSize / 2; pair += BlockSize) {
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
    for (int place = threadIdx.x; place < TileSize; place += BlockSize) {
        if (first + place < nnz) {
            remap_ids[first + place] = static_cast<RemapId>(keys[place] / TileSize);
            write_order[first + place] = static_cast<unsigned short>(keys[place] % TileSize);
        }
    }
}

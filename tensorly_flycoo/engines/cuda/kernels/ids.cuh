// Ids of a tile's records, packed in the order in which threads read them.
//
// Thread t of a block has the places t, t + BlockSize, ... of its tile: Moves places. What it reads
// is stored together, and the last tile is whole, so a few wide loads bring all of it.
#pragma once

// Zero as an unsigned number of so many bytes.
template <int NumBytes>
__device__ constexpr auto unsigned_zero()
{
    if constexpr (NumBytes == 1) return static_cast<unsigned char>(0);
    if constexpr (NumBytes == 2) return static_cast<unsigned short>(0);
    if constexpr (NumBytes == 4) return 0u;
    if constexpr (NumBytes == 8) return 0ull;
}

// Count numbers that are loaded together.
template <typename Number, int Count>
struct alignas(sizeof(Number) * Count < 16 ? sizeof(Number) * Count : 16) Together {
    Number at[Count];
};

// Ids whose low bits are numbers; the other HighBits of a thread's ids share one number.
template <typename LowBits, int HighBits, int TileSize, int BlockSize>
struct PackedIds {
    static_assert(LowBits(-1) > LowBits(0), "ids are unsigned");
    static constexpr int moves = TileSize / BlockSize;
    static constexpr int low_bits = 8 * sizeof(LowBits), high_bits = HighBits;
    static constexpr int high_nbytes = HighBits == 0 ? 1 : moves * HighBits / 8;
    using Low = LowBits;
    using Lows = Together<Low, moves>;
    using Highs = decltype(unsigned_zero<high_nbytes>());
    using Id = decltype(unsigned_zero<sizeof(Low) == 8 ? 8 : 4>());
    static_assert(HighBits == 0 || 8 * high_nbytes == moves * HighBits, "high bits fill bytes");
    static_assert(low_bits + HighBits <= 8 * sizeof(Id), "ids fit their type");

    const Lows* lows;    // for each thread of each tile
    const Highs* highs;  // the same; null without high bits

    __device__ __forceinline__ void read(Id (&ids)[moves], long long tile, int thread) const
    {
        const long long number = tile * BlockSize + thread;
        const Lows low = lows[number];
        const Highs high = HighBits == 0 ? Highs(0) : highs[number];
#pragma unroll
        for (int m = 0; m < moves; ++m) ids[m] = join(low.at[m], high, m);
    }

    static __device__ __forceinline__ Id join(Low low, Highs high, int move)
    {
        if constexpr (HighBits == 0) {
            return low;
        } else {
            const Id others = static_cast<Id>(high >> move * HighBits) & ((1u << HighBits) - 1);
            return low | others << low_bits;
        }
    }

    // One id; `place` counts from the first tile.
    __device__ __forceinline__ Id at(long long place) const
    {
        const int in_tile = static_cast<int>(place % TileSize);
        const long long number = place / TileSize * BlockSize + in_tile % BlockSize;
        const Highs high = HighBits == 0 ? Highs(0) : highs[number];
        return join(lows[number].at[in_tile / BlockSize], high, in_tile / BlockSize);
    }
};

// How a thread finds the records of its places: `PLACES` if places are positions, `IN_ORDER` if
// each place has an id, in their order, and `PACKED` for packed ids.
enum Pull { PLACES, IN_ORDER, PACKED };

template <Pull How, typename LowBits, int HighBits, int TileSize, int BlockSize>
struct Sources {
    static constexpr int moves = TileSize / BlockSize;
    using Packed = PackedIds<LowBits, HighBits, TileSize, BlockSize>;
    using Id = typename Packed::Id;

    const void* ids;    // null without ids
    const void* highs;  // null unless packed

    __device__ __forceinline__ void read(Id (&positions)[moves], long long tile, int count) const
    {
        if constexpr (How == PACKED) {
            using Lows = typename Packed::Lows;
            using Highs = typename Packed::Highs;
            const Packed packed{static_cast<const Lows*>(ids), static_cast<const Highs*>(highs)};
            packed.read(positions, tile, threadIdx.x);
        } else {
            const LowBits* of_tile = static_cast<const LowBits*>(ids) + tile * TileSize;
#pragma unroll
            for (int m = 0; m < moves; ++m) {
                const int place = threadIdx.x + m * BlockSize;
                if (place < count) positions[m] = How == IN_ORDER ? of_tile[place] : place;
            }
        }
    }
};

// Ids that ascend within each tile, as runs of consecutive ids.
template <typename Shift, int TileSize, int BlockSize>
struct Runs {
    static_assert(Shift(-1) > Shift(0), "remap ids are unsigned");
    static constexpr int moves = TileSize / BlockSize, num_warps = BlockSize / 32;
    using Id = Shift;
    using Words = Together<unsigned, moves>;
    using Counts = Together<unsigned short, moves>;

    // For each warp of each tile, and each of its moves of 32 places:
    const Words* starts;   // a bit for each place: a run starts there
    const Counts* counts;  // the runs of the tile that start before these places
    const Shift* shifts;   // a row for each tile: for each run, its ids less their places
    int max_runs;          // numbers in a row

    // Finds the runs of a thread's places.
    __device__ __forceinline__ void find(int (&runs)[moves], long long tile, int thread) const
    {
        const long long number = tile * num_warps + thread / 32;
        const Words words = starts[number];
        const Counts before = counts[number];
#pragma unroll
        for (int m = 0; m < moves; ++m) {
            runs[m] = before.at[m] + __popc(words.at[m] & (~0u >> (31 - thread % 32))) - 1;
        }
    }

    __device__ __forceinline__ Shift at(long long tile, int run, int place) const
    {
        return shifts[tile * max_runs + run] + static_cast<Shift>(place);
    }
};

// Ids in as few bytes as they need.
#pragma once

template <int NumBytes>
struct IdType {
    using type = unsigned;
};
template <>
struct IdType<8> {
    using type = unsigned long long;
};

// Ids whose low bits are whole words, and of whose HighBits others as many share a byte as fit.
// A null `low` stands for places that are positions.
template <typename LowWord, int HighBits>
struct Ids {
    static_assert(LowWord(-1) > LowWord(0), "ids are unsigned");
    static_assert(HighBits == 0 || 8 % HighBits == 0, "a byte has whole parts of ids");
    using Low = LowWord;
    using Id = typename IdType<sizeof(Low)>::type;
    static_assert(8 * sizeof(Low) + HighBits <= 8 * sizeof(Id), "ids fit their type");
    static constexpr int high_bits = HighBits;
    static constexpr int low_bits = 8 * sizeof(Low);
    static constexpr int per_byte = HighBits == 0 ? 1 : 8 / HighBits;

    const Low* low;
    const unsigned char* high;  // null without high bits

    __device__ __forceinline__ Id at(long long place) const
    {
        Id id = low[place];
        if constexpr (HighBits > 0) {
            const unsigned shared = high[place / per_byte];
            const unsigned others = shared >> static_cast<int>(place % per_byte) * HighBits;
            id |= static_cast<Id>(others & ((1u << HighBits) - 1)) << low_bits;
        }
        return id;
    }
};

// The ids of tiles, ascending within each, as runs of consecutive ids.
template <typename Shift>
struct Runs {
    static_assert(Shift(-1) > Shift(0), "remap ids are unsigned");
    using Id = Shift;

    const unsigned* starts;        // a bit for each place: a run starts there
    const unsigned short* counts;  // the runs of the tile that start before each 32 places
    const Shift* shifts;           // a row for each tile: for each run, its ids less their places
    int max_runs;                  // numbers in a row

    // The id at a place of a tile; `first` is the tile's first place.
    template <int TileSize>
    __device__ __forceinline__ Shift at(long long tile, int place) const
    {
        const long long word = tile * (TileSize / 32) + place / 32;
        const unsigned up_to_place = ~0u >> (31 - place % 32);
        const int run = counts[word] + __popc(starts[word] & up_to_place) - 1;
        return shifts[tile * max_runs + run] + static_cast<Shift>(place);
    }
};

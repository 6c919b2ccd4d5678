// Entry: read the rows of one or several modes of each record as a key, and mark the keys in use
// (`read_keys`); and find the row that each tile inherits, or -1 (`find_carry_rows`).
//
// Mapping: a thread has one place, or one tile.
// Preconditions (the engine's): a key fits KEY. `places` is null if places are positions; `keys` or
//   `is_used` may be null. `is_used` has a flag for each possible key. For tiles, NUM_FIELDS is 1,
//   and records are sorted by this field, in the order of `places`.
// Bytes per nonzero: a record, sizeof(PLACE) and sizeof(KEY), and the line of a flag. Per tile: two
//   places and records in, 8 out.
// Writes and determinism: each key and each row once; all threads write the same value to a flag.
// Source: none.
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO NUM_FIELDS: modes of a key
// MACRO KEY: unsigned type of keys
// MACRO PLACE: unsigned type of places
// MACRO KEY_FIELDS_LAYOUT: how Python fills struct KeyFields (see structs.py)

#include "items.cuh"
#include "layout.cuh"
#include "operands.cuh"

// Fields that form one key, the most significant first. Filled by Python (`structs.py`).
struct KeyFields {
    Field at[NUM_FIELDS];
};
CHECK_LAYOUT(KeyFields, KEY_FIELDS_LAYOUT)

__device__ __forceinline__ unsigned long long read_key(const unsigned* records,
                                                       const PLACE* places, long long number,
                                                       const KeyFields& fields)
{
    const long long place = places ? static_cast<long long>(places[number]) : number;
    const unsigned* record = records + place * NUM_WORDS;
    unsigned long long key = 0;
#pragma unroll
    for (int n = 0; n < NUM_FIELDS; ++n) {
        const Field field = fields.at[n];
        key = key << __popc(field.mask) | read_row<NUM_WORDS>(record, field);
    }
    return key;
}

extern "C" __global__ void read_keys(const KeyFields fields, long long count,
                                     const unsigned* records, const PLACE* places, KEY* keys,
                                     bool* is_used)
{
    for_own_item(count, [&](long long i) {
        const unsigned long long key = read_key(records, places, i, fields);
        if (keys) keys[i] = static_cast<KEY>(key);
        if (is_used) is_used[key] = true;
    });
}

extern "C" __global__ void find_carry_rows(const KeyFields fields, long long num_tiles,
                                           long long tile_size, const unsigned* records,
                                           const PLACE* places, long long* carry_rows)
{
    for_own_item(num_tiles, [&](long long tile) {
        const long long first = tile * tile_size;
        const unsigned long long row = read_key(records, places, first, fields);
        const bool inherits = tile > 0 && read_key(records, places, first - 1, fields) == row;
        carry_rows[tile] = inherits ? static_cast<long long>(row) : -1;
    });
}

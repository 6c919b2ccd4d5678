// Entry: find the row that each tile inherits, or -1.
//
// Mapping: a thread has one tile, and every num_threads-th after it.
// Preconditions (the layout's): the records, in the order of `places`, are sorted by their row.
//   `places` is null if the records are in that order.
// Bytes per tile: two places and records in, 8 out.
// Writes and determinism: each row once.
// Source: none.
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO PLACE: unsigned type of places
// MACRO KEY_FIELDS_LAYOUT: how Python fills struct KeyFields (see structs.py)

#include "keys.cuh"
#include "layout.cuh"

using Fields = KeyFields<1>;
CHECK_LAYOUT(Fields, KEY_FIELDS_LAYOUT)

extern "C" __global__ void find_carry_rows(const Fields fields, long long num_tiles,
                                           long long tile_size, const unsigned* records,
                                           const PLACE* places, long long* carry_rows)
{
    find_each_carry_row<NUM_WORDS>(fields, num_tiles, tile_size, records, places, carry_rows);
}

// Entry: read the rows of one or several modes of each record as a key, and mark the keys in use.
//
// Mapping: a thread has one place, and every num_threads-th after it.
// Preconditions (the engine's): a key fits KEY. `places` is null if places are positions; `keys` or
//   `is_used` may be null. `is_used` has a flag for each possible key.
// Bytes per nonzero: a record, sizeof(PLACE) and sizeof(KEY), and the line of a flag.
// Writes and determinism: each key once; all threads write the same value to a flag.
// Source: none.
// MACRO NUM_WORDS: 32-bit words of a record
// MACRO NUM_FIELDS: modes of a key
// MACRO KEY: unsigned type of keys
// MACRO PLACE: unsigned type of places
// MACRO KEY_FIELDS_LAYOUT: how Python fills struct KeyFields (see structs.py)

#include "keys.cuh"
#include "layout.cuh"

using Fields = KeyFields<NUM_FIELDS>;
CHECK_LAYOUT(Fields, KEY_FIELDS_LAYOUT)

extern "C" __global__ void read_keys(const Fields fields, long long count, const unsigned* records,
                                     const PLACE* places, KEY* keys, bool* is_used)
{
    read_each_key<NUM_WORDS>(fields, count, records, places, keys, is_used);
}

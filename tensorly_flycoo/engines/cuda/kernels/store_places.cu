// Entry: store an order of nonzeros as places, and the position of each.
//
// Mapping: a thread has one item, and every num_threads-th after it.
// Preconditions (the engine's): `order` is a permutation. `places` is null if places are items;
//   `target` or `positions` may be null.
// Bytes per nonzero: 8 and sizeof(PLACE) in, 2 sizeof(PLACE) out; places and positions at random.
// Writes and determinism: each element once.
// Source: none.
// MACRO PLACE: unsigned type of places

#include "orders.cuh"

extern "C" __global__ void store_places(long long count, const long long* order,
                                        const PLACE* places, PLACE* target, PLACE* positions)
{
    store_each_place(count, order, places, target, positions);
}

// Entry: store an order of nonzeros as places, and the position of each.
//
// Mapping: a thread has one item.
// Preconditions (the engine's): `order` is that of the items after a sort, a permutation. `places`
//   has where they were, or is null if item i was at i; `target` or `positions` may be null.
// Bytes per nonzero: 8 and sizeof(PLACE) in, 2 sizeof(PLACE) out; places and positions at random.
// Writes and determinism: each element once.
// Source: none.
// MACRO PLACE: unsigned type of places

#include "items.cuh"

extern "C" __global__ void store_places(long long count, const long long* order,
                                        const PLACE* places, PLACE* target, PLACE* positions)
{
    for_own_item(count, [=](long long i) {
        const long long item = order[i];
        if (target) target[i] = places ? places[item] : static_cast<PLACE>(item);
        if (positions) positions[item] = static_cast<PLACE>(i);
    });
}

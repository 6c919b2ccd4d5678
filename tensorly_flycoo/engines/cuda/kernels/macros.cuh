// What a specialisation is made of. Each macro comes from the loader, by -D.
#pragma once

#ifndef NUM_WORDS
#error "NUM_WORDS: 32-bit words of a record"
#endif
#ifndef TILE_SIZE
#error "TILE_SIZE: nonzeros of a tile"
#endif
#ifndef PULL_ID
#error "PULL_ID: unsigned type of pull ids"
#endif
#ifndef REMAP_ID
#error "REMAP_ID: unsigned type of remap ids"
#endif
#ifndef BLOCK_SIZE
#error "BLOCK_SIZE: threads of a block"
#endif

static_assert(TILE_SIZE % BLOCK_SIZE == 0, "every thread moves equally many records");
static_assert(TILE_SIZE <= 65536, "places within a tile are 16-bit numbers");
#include "assertions.cuh"

constexpr int MOVES = TILE_SIZE / BLOCK_SIZE;

// Entry: add what tiles found of the rows that they inherited, after `mttkrp`.
//
// Mapping: a thread has one column of a chain of tiles that inherit the same row.
// Preconditions (the engine's): `carry_rows` rise, but for tiles that inherit nothing (-1).
// Bytes: a row of `partial_rows` for each tile that inherits, a row of `out` in and out per chain.
// Writes and determinism: the first tile of a chain adds the whole chain, in the order of tiles.
// Source: DESIGN of this package; the paper has no row that two thread blocks share.
#ifndef VALUE
#error "VALUE: float or double, the type of values and factors"
#endif

extern "C" __global__ void add_partial_rows(long long num_tiles, const long long* carry_rows,
                                            int rank, const VALUE* partial_rows, VALUE* out)
{
    const long long num_threads = static_cast<long long>(gridDim.x) * blockDim.x;
    long long item = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; item < num_tiles * rank; item += num_threads) {
        const long long tile = item / rank, column = item % rank;
        const long long row = carry_rows[tile];
        if (row < 0 || (tile > 0 && carry_rows[tile - 1] == row)) continue;
        VALUE total = 0;
        for (long long next = tile; next < num_tiles && carry_rows[next] == row; ++next) {
            total += partial_rows[next * rank + column];
        }
        out[row * rank + column] += total;
    }
}

// Entry: the nonzeros of an unfolding, split by `split_columns.cu`, and its Gram matrix.
//
//   sum_single_squares: adds the squares of values that are alone in their column, by row and sign,
//     as integers, in several copies; add_parts: adds the copies.
//   add_signs, make_keys, exclude_keys: work with these sums.
//   list_shared: counts the nonzeros that share their column and marks their rows, or lists them.
//   count_pairs: counts the pairs of entries of each column, an entry with itself too.
//   add_pairs: adds the products of all pairs of a column's entries to the lower triangle of a
//     matrix, as integers; finish_pairs: makes them the symmetric matrix.
//   fill_columns: fills a dense block with the columns `first` to `last` - 1, transposed.
//   add_diagonal: adds to the diagonal of a matrix.
//
// Mapping: a thread has one nonzero, row or element. In `list_shared` a block has
//   ENTRIES_PER_BLOCK neighbouring nonzeros.
// Preconditions (the engine's). Of squares: the sum of all is at most 1 after division by `scale`,
//   a power of two; `parts` held zeros; `rows` of `add_signs` and `exclude_keys` ascend strictly.
//   Of `list_shared`: if `coords` is null, `starts` receives a block's counts of entries and of
//   columns, and `is_free` held true; else `starts` holds the sums of the counts of all previous
//   blocks, whose total is `count`, and `slots` numbers the marked rows. Of `fill_columns`:
//   `coords` is (column, row) of each entry, columns ascending; `block` held zeros. Of `add_pairs`:
//   the same, rows of a column ascending, all squares add up to at most 1, `parts` held zeros.
// Bytes per nonzero: for its square 13 in, two additions of 8 bytes in the second-level cache; 2 to
//   list it, if it is shared 4, and later 12 and a slot in, 24 out; in a dense block 24 in, 8 out
//   at random; for each pair in a column 24 in from the nearest cache, and two additions.
// Writes and determinism: atomic additions of integers, the same in any order; `is_free` gets the
//   same from each thread; everything else once. Each square or product loses less than 2^-93.
// Source: none.
// MACRO ENTRIES_PER_BLOCK: nonzeros of a block of `list_shared`
// MACRO BLOCK_SIZE: threads of a block

#include "items.cuh"
#include "sums.cuh"

// The high part counts units of 2^-62, the low part units of 2^-93. All squares together are at
// most 1, so the high parts fit 63 bits and a sign; up to 2^33 low parts fit 64.
__device__ __forceinline__ void add_exactly(double product, unsigned long long* high,
                                            unsigned long long* low)
{
    const double scaled = product * 4611686018427387904.0;  // 2^62
    const double whole = floor(scaled);
    const double rest = (scaled - whole) * 2147483648.0;  // 2^31
    if (whole != 0) atomicAdd(high, static_cast<unsigned long long>(static_cast<long long>(whole)));
    if (rest > 0) atomicAdd(low, static_cast<unsigned long long>(rest));
}

__device__ __forceinline__ double read_sum(unsigned long long high, unsigned long long low)
{
    return static_cast<long long>(high) * 0x1p-62 + low * 0x1p-93;
}

// `parts` is (copy, sign, high or low, row).
extern "C" __global__ void sum_single_squares(long long nnz, const bool* is_first,
                                              const unsigned* rows, const double* values,
                                              double scale, long long num_rows,
                                              long long num_copies, unsigned long long* parts)
{
    for_own_item(nnz, [=](long long i) {
        if (!is_first[i] || !is_first[i + 1]) return;
        const long long copy = i % num_copies, sign = values[i] < 0;
        unsigned long long* high = parts + (2 * copy + sign) * 2 * num_rows + rows[i];
        const double value = values[i] / scale;
        add_exactly(value * value, high, high + num_rows);
    });
}

// `squares` is (sign, row).
extern "C" __global__ void add_parts(long long count, long long num_rows, long long num_copies,
                                     const unsigned long long* parts, double* squares)
{
    for_own_item(count, [=](long long i) {
        unsigned long long high = 0, low = 0;
        const unsigned long long* part = parts + 2 * (i / num_rows) * num_rows + i % num_rows;
        for (long long copy = 0; copy < num_copies; ++copy, part += 4 * num_rows) {
            high += part[0];
            low += part[num_rows];
        }
        squares[i] = read_sum(high, low);
    });
}

extern "C" __global__ void add_signs(long long count, const long long* rows, long long num_rows,
                                     const double* squares, double* sums)
{
    for_own_item(count, [=](long long i) {
        sums[i] = squares[rows[i]] + squares[num_rows + rows[i]];
    });
}

// Keys ascend as sums, which are not negative, descend.
extern "C" __global__ void make_keys(long long num_rows, const double* squares,
                                     unsigned long long* keys)
{
    for_own_item(num_rows, [=](long long row) {
        keys[row] = ~__double_as_longlong(squares[row] + squares[num_rows + row]);
    });
}

// Sets keys to that of a sum of zero.
extern "C" __global__ void exclude_keys(long long count, const long long* rows,
                                        unsigned long long* keys)
{
    for_own_item(count, [=](long long i) { keys[rows[i]] = ~0ull; });
}

// Entries are written to `coords`, (column, slot of the row) of `count` entries, and
// `shared_values`. Columns are numbered from 0.
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE)
    list_shared(long long nnz, const bool* is_first, const unsigned* rows, const double* values,
                double scale, long long* starts, long long count, bool* is_free,
                const unsigned* slots, long long* coords, double* shared_values)
{
    const long long first = static_cast<long long>(blockIdx.x) * ENTRIES_PER_BLOCK;
    const long long end = min(first + ENTRIES_PER_BLOCK, nnz);
    starts += 2ll * blockIdx.x;
    long long next_entry = coords ? starts[0] : 0;
    long long next_column = coords ? starts[1] : 0;
    for (int step = 0; step < ENTRIES_PER_BLOCK; step += BLOCK_SIZE) {
        const long long i = first + step + threadIdx.x;
        const bool begins = i < end && is_first[i];
        const bool is_shared = i < end && !(begins && is_first[i + 1]);
        const long long place = take_number<BLOCK_SIZE>(is_shared, next_entry);
        // The column of a nonzero is the last one that began, at the latest with itself.
        const long long column =
            take_number<BLOCK_SIZE>(is_shared && begins, next_column) - !begins;
        if (is_shared && !coords) is_free[rows[i]] = false;
        if (is_shared && coords) {
            coords[place] = column;
            coords[count + place] = slots[rows[i]];
            shared_values[place] = values[i] / scale;
        }
    }
    if (!coords && threadIdx.x == 0) {
        starts[0] = next_entry;
        starts[1] = next_column;
    }
}

// The first place of `columns`, which ascend, that does not come before `column`.
__device__ __forceinline__ long long find_column(long long count, const long long* columns,
                                                 long long column)
{
    long long first = 0, last = count;
    while (first < last) {
        const long long middle = (first + last) / 2;
        if (columns[middle] < column) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}

extern "C" __global__ void fill_columns(long long nnz, long long first, long long last,
                                        long long size, const long long* coords,
                                        const double* values, double* block)
{
    const long long begin = find_column(nnz, coords, first), end = find_column(nnz, coords, last);
    for_own_item(end - begin, [=](long long item) {
        const long long i = begin + item;
        block[(coords[i] - first) * size + coords[nnz + i]] = values[i];
    });
}

extern "C" __global__ void count_pairs(long long nnz, const long long* columns,
                                       unsigned long long* num_pairs)
{
    for_own_item(nnz, [=](long long i) {
        if (i + 1 < nnz && columns[i + 1] == columns[i]) return;
        const unsigned long long count = i + 1 - find_column(i, columns, columns[i]);
        atomicAdd(num_pairs, count * (count + 1) / 2);
    });
}

// `parts` is (high or low, row, row).
extern "C" __global__ void add_pairs(long long nnz, long long size, const long long* coords,
                                     const double* values, unsigned long long* parts)
{
    for_own_item(nnz, [=](long long i) {
        unsigned long long* high = parts + coords[nnz + i] * size;
        for (long long j = i; j >= 0 && coords[j] == coords[i]; --j) {
            unsigned long long* place = high + coords[nnz + j];
            add_exactly(values[i] * values[j], place, place + size * size);
        }
    });
}

// The matrix takes the place of the high parts.
extern "C" __global__ void finish_pairs(long long count, long long size,
                                        unsigned long long* parts)
{
    for_own_item(count, [=](long long i) {
        const long long row = i / size, column = i % size;
        if (column > row) return;
        const double sum = read_sum(parts[i], parts[size * size + i]);
        double* matrix = reinterpret_cast<double*>(parts);
        matrix[i] = sum;
        matrix[column * size + row] = sum;
    });
}

extern "C" __global__ void add_diagonal(long long size, const double* diagonal, double* matrix)
{
    for_own_item(size, [=](long long i) { matrix[i * (size + 1)] += diagonal[i]; });
}

// Entry: sweeps of HALS over the rows of a non-negative factor: `row_rules.py` says what one does.
//   All sweeps over a row are done while it is in registers.
//
// Mapping: a block has `rows_per_block` neighbouring rows, and each of its warps takes tiles of them.
//   A lane has NUM_ROWS rows of a tile in registers, so that each number of the Gram matrix is
//   loaded once for all of them; the targets of the tile are in shared memory. The code for a column
//   is repeated CHUNK times, and then the rows are rotated by as many columns: so indices into them
//   are constants.
// Preconditions (the caller's): each row is contiguous; WIDTH is at least `rank` and `new_stride`.
//   A launch has at most MAX_STEPS. What is written may be what is read, with the same strides.
// Bytes: each input and each result once. None per nonzero.
// Writes and determinism: all of the new rows (num_rows, new_stride), with zeros past the last
//   column; each block what it measured (num_steps, 2), in double precision: sums of squares, and
//   numbers of changes. Each row depends on its old value, its target and the Gram matrix alone. The
//   order of additions depends on the shape alone.
// Source: Cichocki and Phan, IEICE Transactions on Fundamentals E92-A(3), 2009 (fast HALS).
// MACRO VALUE: float or double
// MACRO WIDTH: columns of the factor, or more
// MACRO CHUNK: columns for which the code is repeated; it divides WIDTH
// MACRO NUM_ROWS: rows of a lane
// MACRO NUM_WARPS: warps of a block
// MACRO MIN_BLOCKS: blocks for which a multiprocessor's registers suffice
// MACRO MAX_STEPS: the most steps of a launch
// MACRO SHARED_NBYTES: bytes of `Shared` (see tuning.py)
// MACRO ROW_UPDATE_LAYOUT: how Python fills struct RowUpdate (see structs.py)

#include "architecture.cuh"
#include "layout.cuh"
#include "row_rules.cuh"
#include "sums.cuh"

using OwnUpdate = RowUpdate<VALUE, MAX_STEPS>;
CHECK_LAYOUT(OwnUpdate, ROW_UPDATE_LAYOUT)

constexpr int load_columns = 16 / sizeof(VALUE);
constexpr int num_loads = WIDTH / load_columns;
constexpr int block_size = 32 * NUM_WARPS, tile_rows = 32 * NUM_ROWS;
constexpr int pitch = WIDTH + 1;  // puts the numbers of a column in different banks

static_assert(WIDTH % CHUNK == 0 && CHUNK % load_columns == 0, "a chunk is whole loads");
static_assert(CHUNK <= 32, "a chunk's columns have a bit each");

struct alignas(16) Load {
    VALUE at[load_columns];
};

// What the threads of a block share.
struct Shared {
    // Row k is that of the Gram matrix, divided by its diagonal element, with columns rotated as
    // those of the rows in registers are when k's turn comes.
    Load gram[WIDTH][num_loads];
    VALUE inverses[WIDTH];           // of the diagonal, 0 where that is 0
    unsigned solved[WIDTH / CHUNK];  // of each chunk, a bit for each column whose inverse is not 0
    Measures<NUM_WARPS, MAX_STEPS, count_measures(sweeping)> measures;
    VALUE tiles[NUM_WARPS][tile_rows][pitch];

    __device__ __forceinline__ void load_gram(const double* source, int rank)
    {
        for (int place = threadIdx.x; place < WIDTH * WIDTH; place += block_size) {
            const int k = place / WIDTH, n = place % WIDTH, j = (k / CHUNK * CHUNK + n) % WIDTH;
            const double diagonal = k < rank ? source[k * rank + k] : 0;
            const bool is_solved = VALUE(diagonal) != 0;
            gram[k][n / load_columns].at[n % load_columns] =
                is_solved && j < rank ? source[k * rank + j] / diagonal : 0;
            if (n == 0) inverses[k] = is_solved ? 1 / diagonal : 0;
        }
        __syncthreads();
        for (int chunk = threadIdx.x; chunk < WIDTH / CHUNK; chunk += block_size) {
            unsigned bits = 0;
            for (int i = 0; i < CHUNK; ++i) bits |= (inverses[chunk * CHUNK + i] != 0) << i;
            solved[chunk] = bits;
        }
    }
};

static_assert(sizeof(Shared) == SHARED_NBYTES, "tuning.py: shared memory of another size");

// The numbers of a tile that a lane copies: of neighbouring columns by neighbouring lanes.
struct Share {
    static constexpr int lane_columns = WIDTH < 32 ? WIDTH : 32, rows_at_once = 32 / lane_columns;

    // Calls a function of each row below `count`, and each column.
    template <typename Function>
    __device__ __forceinline__ static void for_numbers(int count, int lane, Function function)
    {
        for (int column = lane % lane_columns; column < WIDTH; column += lane_columns) {
#pragma unroll 4
            for (int row = lane / lane_columns; row < count; row += rows_at_once) {
                function(row, column);
            }
        }
    }
};

// Copies a tile of a matrix to shared memory; rows from `count` on, and columns past the last one,
// are zero.
__device__ __forceinline__ void load_tile(VALUE (&tile)[tile_rows][pitch], const VALUE* source,
                                          long long stride, int count, int rank, int lane)
{
    __syncwarp();  // others may still read what was there
    Share::for_numbers(count, lane, [&](int row, int column) {
        const bool is_inside = column < rank;
        begin_copy(tile[row][column], source + row * stride + (is_inside ? column : 0), is_inside);
    });
    for (int row = count + lane; row < tile_rows; row += 32) {
        for (int column = 0; column < WIDTH; ++column) tile[row][column] = 0;
    }
    wait_for_copies();
    __syncwarp();
}

// Makes of a tile of targets the minimisers where all other columns are zero. A lane has its own
// rows.
__device__ __forceinline__ void find_minimisers(VALUE (&tile)[tile_rows][pitch],
                                                const VALUE (&inverses)[WIDTH], int count,
                                                VALUE strength, int lane)
{
    for (int row = lane; row < tile_rows; row += 32) {
        for (int k = 0; k < WIDTH; ++k) {
            const VALUE minimiser = (tile[row][k] - strength) * inverses[k];
            tile[row][k] = row < count ? minimiser : VALUE(0);  // other rows stay zero
        }
    }
}

// Copies a tile from shared memory to rows that are adjacent.
__device__ __forceinline__ void store_tile(VALUE* to, int stride,
                                           const VALUE (&tile)[tile_rows][pitch], int count,
                                           int lane)
{
    __syncwarp();
    Share::for_numbers(count, lane, [&](int row, int column) {
        if (column < stride) to[static_cast<long long>(row) * stride + column] = tile[row][column];
    });
}

// The rows of a lane, and the numbers that changed in a sweep.
struct Rows {
    VALUE at[NUM_ROWS][WIDTH];
    Spread<VALUE> spreads[NUM_ROWS];
    int num_changes;

    // Sets each column to its minimiser while the others are fixed. Column k of the lane's targets
    // is the minimiser where all others are zero.
    __device__ __forceinline__ void sweep(const Shared& shared, const VALUE (*targets)[pitch],
                                          int rank)
    {
        num_changes = 0;
#pragma unroll
        for (int r = 0; r < NUM_ROWS; ++r) {
            spreads[r].start(at[r][0]);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                if (j < rank) spreads[r].add(at[r][j]);
            }
        }
#pragma unroll 1
        for (int first = 0; first < WIDTH; first += CHUNK) {
            const unsigned solved = shared.solved[first / CHUNK];
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) {
                if (solved >> i & 1) update(shared, targets, rank, first + i, i);
            }
            rotate();
        }
    }

    // Updates column k, which is now at place i.
    __device__ __forceinline__ void update(const Shared& shared, const VALUE (*targets)[pitch],
                                           int rank, int k, int i)
    {
        VALUE updated[NUM_ROWS];
#pragma unroll
        for (int r = 0; r < NUM_ROWS; ++r) updated[r] = targets[32 * r][k];
        // What was updated last comes last: all else need not wait for it.
#pragma unroll
        for (int turn = 1; turn <= num_loads; ++turn) {
            const int load = (i / load_columns + turn) % num_loads;
            const Load numbers = shared.gram[k][load];
#pragma unroll
            for (int n = 1; n <= load_columns; ++n) {
                const int j = load * load_columns + (i + n) % load_columns;
                if (j == i) continue;
#pragma unroll
                for (int r = 0; r < NUM_ROWS; ++r) {
                    updated[r] -= numbers.at[j % load_columns] * at[r][j];
                }
            }
        }
#pragma unroll
        for (int r = 0; r < NUM_ROWS; ++r) {
            updated[r] = find_larger(updated[r], VALUE(0));
            spreads[r].replace(at[r][i], updated[r], rank);
            num_changes += updated[r] != at[r][i];
            at[r][i] = updated[r];
        }
    }

    // Moves the first chunk of each row behind the others.
    __device__ __forceinline__ void rotate()
    {
#pragma unroll
        for (int r = 0; r < NUM_ROWS; ++r) {
            VALUE rotated[WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) rotated[j] = at[r][(j + CHUNK) % WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) at[r][j] = rotated[j];
        }
    }

    // Adds the sums of squares of all rows.
    __device__ __forceinline__ double add_spreads() const
    {
        double sum = 0;
#pragma unroll
        for (int r = 0; r < NUM_ROWS; ++r) sum += find_larger(spreads[r].total, VALUE(0));
        return sum;
    }
};

extern "C" __global__ void __launch_bounds__(block_size, MIN_BLOCKS) sweep_rows(OwnUpdate update)
{
    const int num_steps = update.count_steps();
    if (num_steps == 0) return;
    extern __shared__ Load memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    VALUE(&tile)[tile_rows][pitch] = shared.tiles[warp];
    const int rank = update.rank;
    const VALUE strength = update.strength;
    const long long start = static_cast<long long>(blockIdx.x) * update.rows_per_block;
    const int end = min(static_cast<long long>(update.rows_per_block), update.num_rows - start);
    shared.load_gram(update.matrix, rank);
    shared.measures.clear();
    __syncthreads();
    for (int first = warp * tile_rows; first < end; first += NUM_WARPS * tile_rows) {
        const int count = min(tile_rows, end - first);
        const long long row = start + first;
        load_tile(tile, update.rows + row * update.row_stride, update.row_stride, count, rank, lane);
        Rows own;
#pragma unroll
        for (int r = 0; r < NUM_ROWS; ++r) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) own.at[r][j] = tile[32 * r + lane][j];
        }
        load_tile(tile, update.targets + row * update.target_stride, update.target_stride, count,
                  rank, lane);
        find_minimisers(tile, shared.inverses, count, strength, lane);
        double squares = 0;
        int num_changes = 1;
        for (int step = 0; step < num_steps; ++step) {
            if (num_changes > 0) {  // else the sweep is as the last one
                own.sweep(shared, &tile[lane], rank);
                squares = sum_of_warp(own.add_spreads());
                num_changes = __reduce_add_sync(0xffffffffu, own.num_changes);
            }
            if (lane == 0) {
                shared.measures.add(warp, step, 0, squares);
                shared.measures.add(warp, step, 1, num_changes);
            }
        }
#pragma unroll
        for (int r = 0; r < NUM_ROWS; ++r) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) tile[32 * r + lane][j] = own.at[r][j];
        }
        store_tile(update.new_rows + (start + first) * update.new_stride, update.new_stride, tile,
                   count, lane);
    }
    shared.measures.write(update.block_sums, num_steps);
}

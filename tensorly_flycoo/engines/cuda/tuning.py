"""How the kernels are cut, as data: what was found best, and on what it was measured."""

from dataclasses import dataclass

#: Threads of a block. Few: a block waits for its records and at barriers while others compute.
BLOCK_SIZE = 128

#: The most nonzeros of a tile: 8 for each thread, whose ids are asked for together.
MAX_TILE_SIZE = 1024

#: Nonzeros of a bucket: with 16-byte records 4 MB, which stays in the L2 cache.
#: Measured on an H200 (DESIGN 3.5).
BUCKET_SIZE = 2**18

#: Tiles whose partial rows one thread adds up.
SEGMENT = 64

#: Rows of a tall matrix that a block has: few enough to keep a GPU evenly busy, so many that what
#: blocks find is small beside what they read.
ROWS_PER_BLOCK = 8192

#: The same where blocks find nothing that is to be added up: factors of few rows keep a GPU busy.
ROWS_PER_SMALL_BLOCK = 1024

#: The most columns of a tall matrix for which a lane has registers enough to keep the products.
MAX_TALL_RANK = 32

#: Bytes of a row that a lane has: what one load can bring.
_LANE_NBYTES = 16

#: Bytes that memory moves at once.
_LINE_NBYTES = 64


@dataclass(frozen=True)
class RankCut:
    """Say how the columns of a row are dealt out to lanes.

    Attributes
    ----------
    load_columns, store_columns : int
        Neighbouring columns that one load brings, and that one store writes.
    lane_columns : int
        Columns of a lane, which it loads at once or in parts.
    group_size : int
        Lanes of a group, a power of two.
    num_parts : int
        Blocks along y, each with ``group_size * lane_columns`` columns.
    """

    load_columns: int
    store_columns: int
    lane_columns: int
    group_size: int
    num_parts: int


def cut_rank(rank, itemsize, load_alignment, store_alignment):
    """Choose for a rank, and what rows of all factors and of the result are aligned to, in bytes.

    Lanes are as many for rows that are not aligned: one that read a single column each would leave
    a quarter of the nonzeros to a warp (rank 25 took 2.1 times as long as 32: vast shape, H200).

    Examples
    --------
    >>> cut_rank(32, 4, 16, 16)
    RankCut(load_columns=4, store_columns=4, lane_columns=4, group_size=8, num_parts=1)
    >>> cut_rank(25, 4, 16, 4)
    RankCut(load_columns=4, store_columns=1, lane_columns=4, group_size=8, num_parts=1)
    >>> cut_rank(200, 8, 16, 16).num_parts
    4
    """
    lane_columns = min(_LANE_NBYTES // itemsize, 1 << (rank - 1).bit_length())
    load_columns = min(lane_columns, load_alignment // itemsize)
    store_columns = min(load_columns, store_alignment // itemsize)
    num_lanes = -(-rank // lane_columns)
    group_size = min(32, 1 << (num_lanes - 1).bit_length())
    num_parts = -(-num_lanes // group_size)
    return RankCut(load_columns, store_columns, lane_columns, group_size, num_parts)


def choose_row_nbytes(row_nbytes):
    """Choose how far apart rows should begin, so that they touch no more lines than they must.

    Examples
    --------
    >>> [choose_row_nbytes(n) for n in (4, 12, 28, 48, 100, 128)]
    [4, 16, 32, 48, 128, 128]
    """
    if row_nbytes % _LANE_NBYTES == 0 or row_nbytes & (row_nbytes - 1) == 0:
        return row_nbytes
    if row_nbytes < _LINE_NBYTES:
        return 1 << row_nbytes.bit_length()
    return -(-row_nbytes // _LINE_NBYTES) * _LINE_NBYTES


#: How often a row must be read at least, by what it is aligned to in bytes, for a copy to pay that
#: is aligned to what one load brings. (Ranks 7, 31 and 50, five shapes, H200: at 4 bytes a copy
#: gained a fifth of the time with 10 reads and lost little with 8.5, at 8 bytes it lost with 24.)
_READS_TO_ALIGN = {4: 9, 8: 32}


def pays_to_align(num_rows, alignment, nnz, num_inputs):
    """Say whether copying `num_rows` rows costs less than reading them where they are not aligned.

    Examples
    --------
    >>> pays_to_align(10, 4, nnz=45, num_inputs=2), pays_to_align(10, 8, nnz=45, num_inputs=2)
    (True, False)
    """
    return _READS_TO_ALIGN[alignment] * num_rows <= nnz * num_inputs


@dataclass(frozen=True)
class Occupancy:
    """Say how much a multiprocessor has in flight.

    Attributes
    ----------
    batch : int
        Nonzeros of which a lane loads the rows before it uses the first.
    min_blocks : int
        Blocks of a multiprocessor that its registers and shared memory should be enough for.
    """

    batch: int
    min_blocks: int


def choose_occupancy(num_inputs):
    """Choose for a number of input modes (rank 32, H200; shapes of nell-1, delicious and vast)."""
    if num_inputs <= 2:
        return Occupancy(batch=8, min_blocks=4)
    if num_inputs == 3:
        return Occupancy(batch=4, min_blocks=5)
    return Occupancy(batch=2, min_blocks=8 if num_inputs == 4 else 4)


def slot_nbytes(record_nbytes, ndim, itemsize):
    """Return the bytes of a place in shared memory: of a record, or of a nonzero unpacked.

    Unpacked (`nonzeros.cuh`) it is a value and a row for each mode.
    """
    return max(record_nbytes, -(-(itemsize + 4 * ndim) // 8) * 8)


def choose_tile_size(slot_nbytes, num_inputs, shared_nbytes):
    """Choose the nonzeros of a tile, so that blocks enough share three quarters of shared memory.

    The rest is a cache of rows (vast shape: 1.1 times the time if tiles are twice as long).
    """
    room = shared_nbytes * 3 // 4 // choose_occupancy(num_inputs).min_blocks
    room -= 20 * BLOCK_SIZE + 2**10  # for what groups tell each other, and the system's share
    tile_size = MAX_TILE_SIZE
    while tile_size > BLOCK_SIZE and tile_size * slot_nbytes > room:
        tile_size //= 2
    return tile_size


#: Columns of TTMc that a thread has where there are as many, since what is read of a nonzero serves
#: all of them; and the most inputs for which that leaves it enough registers.
_TTMC_LANE_COLUMNS = 4
_TTMC_MAX_INPUTS = 3


@dataclass(frozen=True)
class ColumnCut:
    """Say how the columns of TTMc are dealt out to threads.

    Attributes
    ----------
    lane_columns : int
        Columns of a thread, a group apart.
    group_size : int
        Threads of a group, a power of two.
    num_parts : int
        Blocks along y, each with ``group_size * lane_columns`` columns.
    """

    lane_columns: int
    group_size: int
    num_parts: int


def cut_columns(num_columns, num_inputs):
    """Choose for a number of columns and of modes whose factors are read.

    Examples
    --------
    >>> cut_columns(256, 2)
    ColumnCut(lane_columns=4, group_size=64, num_parts=1)
    >>> cut_columns(9, 2)
    ColumnCut(lane_columns=1, group_size=16, num_parts=1)
    """
    has_many = num_columns >= 32 * _TTMC_LANE_COLUMNS and num_inputs <= _TTMC_MAX_INPUTS
    lane_columns = _TTMC_LANE_COLUMNS if has_many else 1
    num_lanes = -(-num_columns // lane_columns)
    group_size = min(BLOCK_SIZE, 1 << (num_lanes - 1).bit_length())
    return ColumnCut(lane_columns, group_size, -(-num_lanes // group_size))

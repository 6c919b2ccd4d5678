"""How the kernels are cut, as data: what was found best, and on what it was measured."""

from dataclasses import dataclass

#: Threads of a block.
BLOCK_SIZE = 256

#: Nonzeros of a tile, where shared memory has room for them: 8 for each thread. With 16 their ids
#: take too many registers (nell-1 shape, rank 32, H200: 1.3 times the time with remapping).
MAX_TILE_SIZE = 2048

#: Nonzeros of a bucket: with 16-byte records 4 MB, which stays in the L2 cache.
#: Measured on an H200 (DESIGN 3.5).
BUCKET_SIZE = 2**18

#: Blocks of a multiprocessor that its registers and shared memory should be enough for.
MIN_BLOCKS = 2

#: Tiles whose partial rows one thread adds up.
SEGMENT = 32

#: Bytes of a row that a lane has: what one load can bring.
_LANE_NBYTES = 16


@dataclass(frozen=True)
class RankCut:
    """Say how the columns of a row are dealt out to lanes.

    Attributes
    ----------
    load_columns : int
        Neighbouring columns that one load brings.
    lane_columns : int
        Columns of a lane, which it loads at once or in parts.
    group_size : int
        Lanes of a group, a power of two.
    num_parts : int
        Blocks along y, each with ``group_size * lane_columns`` columns.
    """

    load_columns: int
    lane_columns: int
    group_size: int
    num_parts: int


def cut_rank(rank, itemsize, alignment):
    """Choose for a rank, where rows and their bases are aligned to `alignment` bytes at least.

    Lanes are as many for rows that are not aligned: one that read a single column each would leave
    a quarter of the nonzeros to a warp (rank 25 took 2.1 times as long as 32: vast shape, H200).

    Examples
    --------
    >>> cut_rank(32, 4, 16)
    RankCut(load_columns=4, lane_columns=4, group_size=8, num_parts=1)
    >>> cut_rank(25, 4, 16)
    RankCut(load_columns=1, lane_columns=4, group_size=8, num_parts=1)
    >>> cut_rank(200, 8, 16).num_parts
    4
    """
    lane_columns = min(_LANE_NBYTES // itemsize, 1 << (rank - 1).bit_length())
    load_columns = lane_columns
    while rank % load_columns or alignment % (load_columns * itemsize):
        load_columns //= 2
    num_lanes = -(-rank // lane_columns)
    group_size = min(32, 1 << (num_lanes - 1).bit_length())
    return RankCut(load_columns, lane_columns, group_size, -(-num_lanes // group_size))


def choose_batch(num_inputs, remaps, capability):
    """Choose of how many nonzeros a lane loads the rows before it uses the first.

    As many as there are registers for without a spill, up to 4: with 8 the nell-1 shape took 1.03
    times as long (H200, rank 32).
    """
    if capability >= 90:
        return 4 if num_inputs <= (2 if remaps else 4) else 2
    return 4 if num_inputs <= 2 else (1 if remaps else 2)


def slot_nbytes(record_nbytes, ndim, itemsize):
    """Return the bytes of a place in shared memory: of a record, or of a nonzero unpacked.

    Unpacked (`nonzeros.cuh`) it is a value and a row for each mode.
    """
    return max(record_nbytes, -(-(itemsize + 4 * ndim) // 8) * 8)


def choose_tile_size(slot_nbytes, shared_nbytes):
    """Choose the nonzeros of a tile, so that `MIN_BLOCKS` tiles fit in `shared_nbytes`."""
    room = shared_nbytes // MIN_BLOCKS - 2**13  # for what the groups of a block share
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

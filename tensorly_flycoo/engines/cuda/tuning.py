"""Sizes into which work is cut for the kernels: tables of the best, and where they were measured.

To add a GPU, measure with `examples/benchmark_gpu` and add rows. The cut fixes the order of
additions: another cut changes the last bits of results. `launch.py` makes grids of these sizes. The
CPU's sizes are in `engines/cpu/engine.py` (tiles, buckets) and `engines/cpu/threads.py` (parts of a
loop), or at the head of the file of the loop that they cut. So are sizes of a single kernel that
were not tuned by GPU: see the heads of `carries.py`, `group_products.py`, `updates.py`, `engine.py`
and `mersenne_twister.py`, and `NUM_WARPS` in `macros.py`.
"""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...format.packing import round_up

#: Sums of squares that threads add to at a time: fewer would be contended.
NUM_SQUARE_SUMS = 2**16

#: The most copies of a row's sum, which one thread adds.
MAX_SQUARE_COPIES = 2**10

#: The fewest rows of which a block finds the extremes, and the most blocks: the host compares them.
MIN_EXTREME_ROWS = 64
MAX_EXTREME_BLOCKS = 2**10

#: Threads of a block, and the fewest of a tile's. Few, so that others compute while a block waits
#: for records or at a barrier. Measured on an H200: nell-1, delicious and vast shapes.
BLOCK_SIZE = 128

#: The most nonzeros of a tile for each thread, which loads their ids together. Measured on an H200:
#: nell-1, delicious and vast shapes.
MAX_MOVES = 8

#: The most nonzeros of a tile, on any GPU.
MAX_TILE_SIZE = 2048

#: Nonzeros of a bucket: 4 MB of 16-byte records, which stay in the L2 cache. Measured on an
#: H200: 2^16 to 2^18, nell-1, delicious and vast shapes.
BUCKET_SIZE = 2**18

#: The most tiles whose partial rows one block adds. A multiprocessor reads so slowly that a second
#: launch is quicker than 4,096 tiles (40 to 60 us; H100, shapes of FROSTT's uber and vast).
SEGMENT = 512

#: The most rows of a tall matrix for each block: few enough to keep a GPU evenly busy, many enough
#: that a block writes little compared with what it reads. Measured on an H100: 25.5M rows, rank 32.
ROWS_PER_BLOCK = 4096

#: The fewest: `cut_tall` gives a block no more rows at a time.
LEAST_ROWS_PER_BLOCK = BLOCK_SIZE

#: Blocks among which the rows of a factor that is not very tall are divided. Not measured.
NUM_ROW_BLOCKS = 512

#: Gram matrices of blocks of rows that one block adds to one; as many need not be added first, up
#: to a rank: larger ones take a single multiprocessor long to read.
GRAM_SEGMENT = 64
MAX_SMALL_RANK = 32

#: The most columns of a tall matrix whose products fit a lane's registers.
MAX_TALL_RANK = 128

#: The most warps of a block for tall matrices.
_MAX_TALL_WARPS = 8

#: Bytes of a row for each lane: the most that one load reads.
_LANE_NBYTES = 16

#: Bytes of one memory access.
_LINE_NBYTES = 64

#: No limit.
_ANY = sys.maxsize

_AS_9 = "not measured; as 9.0"
_SPILLS = "not timed; no register spills on 8.0, 9.0 and 10.0"

#: The compute capability of the GPUs on which the rest was measured.
_MEASURED = (9, 0)


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU on which the cut depends."""

    capability: tuple[int, int]  # compute capability, major and minor
    shared_nbytes: int  # of a multiprocessor


@dataclass(frozen=True)
class Occupancy:
    """The work that a multiprocessor has in flight: a row of `OCCUPANCIES`.

    A row is for GPUs of its compute capability, and of higher ones up to the next row's. The larger
    a tile, the more of its records go to the same bucket, and the less room for other blocks. All
    ranks have one row: tiles are cut before a rank is known.
    """

    capability: tuple[int, int]
    max_inputs: int  # the most input modes that the row is for
    batch: int  # nonzeros whose rows a lane loads before it uses the first
    num_threads: int  # whose blocks should fit a multiprocessor's registers and memory
    max_tile_size: int  # nonzeros
    measured: str  # on what, if at all


#: By compute capability; within one, the first row that fits is used. After the capability: the
#: most inputs, batch, threads, tile size. Names are the benchmark's tensors.
OCCUPANCIES = (
    Occupancy((8, 0), 2, 4, 1024, 2048, _AS_9),
    Occupancy((8, 0), 3, 4, 640, 1024, _AS_9),
    Occupancy((8, 0), 4, 2, 1024, 1024, _AS_9),
    Occupancy((8, 0), _ANY, 2, 512, 1024, _AS_9),
    Occupancy((9, 0), 1, 8, 1024, 2048, "H200, rank 32: nell-2, nell-1, darpa in groups"),
    Occupancy((9, 0), 2, 4, 1024, 2048, "H200, rank 32: nell-1, nell-2, amazon"),
    Occupancy((9, 0), 3, 4, 640, 1024, "H200, rank 32: delicious, uber"),
    Occupancy((9, 0), 4, 2, 1024, 1024, "H200, rank 32: vast"),
    Occupancy((9, 0), _ANY, 2, 512, 1024, _SPILLS),
    Occupancy((10, 0), 2, 4, 1024, 2048, _AS_9),
    Occupancy((10, 0), 3, 4, 640, 1024, _AS_9),
    Occupancy((10, 0), 4, 2, 1024, 1024, _AS_9),
    Occupancy((10, 0), _ANY, 2, 512, 1024, _AS_9),
)

#: The lowest compute capability that the kernels compile for (`architecture.cuh`).
LEAST_CAPABILITY = min(row.capability for row in OCCUPANCIES)


def check_capability(capability: tuple[int, int], device_id: int) -> None:
    """Refuse a GPU that the kernels do not compile for: compute capability below 8.0."""
    if capability < LEAST_CAPABILITY:
        major, minor = capability
        least_major, least_minor = LEAST_CAPABILITY
        raise RuntimeError(
            f"GPU {device_id} has compute capability {major}.{minor}, expected "
            f"{least_major}.{least_minor} or higher: "
            'choose another GPU, or the CPU with tensorly_flycoo.set_device("cpu")'
        )


@functools.cache
def choose_occupancy(gpu: Gpu, num_inputs: int) -> Occupancy:
    """Look up the row of `OCCUPANCIES` for a GPU and a number of input modes.

    >>> choose_occupancy(Gpu((9, 0), 228 * 1024), num_inputs=3).num_threads
    640
    """
    rows = [
        row
        for row in OCCUPANCIES
        if num_inputs <= row.max_inputs and row.capability <= gpu.capability
    ]
    return max(rows, key=lambda row: row.capability)  # the first of the highest


def choose_tile_size(slot_nbytes: int, num_inputs: int, gpu: Gpu) -> int:
    """Choose the nonzeros of a tile, so that `num_threads` fit three quarters of shared memory.

    The rest caches rows (tiles twice as long took 1.1 times the time; vast shape, H200).
    """
    occupancy = choose_occupancy(gpu, num_inputs)
    tile_size = min(MAX_TILE_SIZE, occupancy.max_tile_size)
    while tile_size > BLOCK_SIZE:
        block_size = choose_block_size(tile_size)
        num_blocks = occupancy.num_threads // block_size
        block_nbytes = gpu.shared_nbytes * 3 // 4 // num_blocks
        other_nbytes = 20 * block_size + 2**10  # carry-outs, and the system's share
        if tile_size * slot_nbytes + other_nbytes <= block_nbytes:
            break
        tile_size //= 2
    return tile_size


def choose_block_size(tile_size: int) -> int:
    """Choose the threads of a block that computes or moves a tile.

    >>> [choose_block_size(n) for n in (128, 1024, 2048)]
    [128, 128, 256]
    """
    return max(BLOCK_SIZE, tile_size // MAX_MOVES)


@dataclass(frozen=True)
class RankCut:
    """The distribution of a row's columns over lanes."""

    load_columns: int  # neighbouring columns that one load reads
    store_columns: int  # neighbouring columns that one store writes
    lane_columns: int  # columns of a lane, read by one or more loads
    group_size: int  # lanes of a group, a power of two
    num_parts: int  # blocks along y, each with ``group_size * lane_columns`` columns
    is_whole: bool  # whether there are as many columns as these have
    num_loads: int = 1  # of 16 bytes, or as many shorter ones, by which a lane reads its columns


def cut_rank(
    rank: int, itemsize: int, load_alignment: int, store_alignment: int, num_loads: int = 1
) -> RankCut:
    """Choose the cut for a rank, given the alignment in bytes of the factors' and result's rows.

    `num_loads` is what `choose_num_loads` returns, or 1.

    Unaligned rows take no more lanes: with a single column for each lane, a warp would compute a
    quarter of the nonzeros (rank 25 took 2.1 times as long as 32; vast shape, H200).

    >>> cut = cut_rank(25, 4, 16, 4)
    >>> cut.load_columns, cut.store_columns, cut.lane_columns, cut.group_size, cut.is_whole
    (4, 1, 4, 8, False)
    >>> cut_rank(32, 4, 16, 16).is_whole, cut_rank(200, 8, 16, 16).num_parts
    (True, 4)
    """
    piece_columns = min(_LANE_NBYTES // itemsize, _next_power_of_two(rank))
    lane_columns = piece_columns * num_loads
    load_columns = min(piece_columns, load_alignment // itemsize)
    # One column where rows are not aligned: to have fewer kernels to compile.
    store_columns = load_columns if load_columns * itemsize <= store_alignment else 1
    num_lanes = -(-rank // lane_columns)
    group_size = min(32, _next_power_of_two(num_lanes))
    num_parts = -(-num_lanes // group_size)
    return RankCut(
        load_columns=load_columns,
        store_columns=store_columns,
        lane_columns=lane_columns,
        group_size=group_size,
        num_parts=num_parts,
        is_whole=rank == num_parts * group_size * lane_columns,
        num_loads=num_loads,
    )


#: By the inputs and the loads of a lane: the threads of MTTKRP with whole rows, and with narrow
#: ones. Measured on an H200 with two inputs: nell-2 and 700K x 1M x 1.3M, ranks 33, 48, 65, 96, 100
#: and 200. With three inputs there are no spills on 8.0, 9.0 and 10.0.
_THREADS_OF_LOADS = {
    (2, 2): (1024, 1024),
    (2, 3): (640, 768),
    (3, 2): (640, 640),
    (3, 3): (640, 640),
}

#: The batch of lanes with several loads; and their threads on GPUs that were not measured.
_BATCH_OF_LOADS = 2
_UNMEASURED_THREADS_OF_LOADS = 512


def choose_num_loads(rank: int, itemsize: int, num_inputs: int) -> int:
    """Choose by how many loads a lane reads its columns of a row, whole or narrow, in MTTKRP.

    Groups have a power of two of lanes. Where a load for each leaves many of them idle, or takes
    several blocks along y of which the last is not full, rows of float64 are read by two or three.

    >>> [choose_num_loads(rank, 8, num_inputs=2) for rank in (32, 33, 64, 65, 100, 128)]
    [1, 3, 1, 3, 2, 1]
    """
    single = cut_rank(rank, itemsize, _LANE_NBYTES, _LANE_NBYTES)
    is_measured = itemsize == 8 and rank > 32 and num_inputs in (2, 3)
    if single.is_whole or not is_measured:
        return 1

    def count_columns_and_parts(num_loads: int) -> tuple[int, int]:
        cut = cut_rank(rank, itemsize, _LANE_NBYTES, _LANE_NBYTES, num_loads)
        return cut.num_parts * cut.group_size * cut.lane_columns, cut.num_parts

    # With all 32 lanes of a warp, two loads took less time for 200 columns than three for 192.
    counts = range(1, 4 if rank <= 96 else 3)
    return min(counts, key=count_columns_and_parts)


def _next_power_of_two(number: int) -> int:
    """Round up to a power of two.

    >>> [_next_power_of_two(n) for n in (1, 2, 3, 32)]
    [1, 2, 4, 32]
    """
    return 1 << (number - 1).bit_length()


def choose_work(
    occupancy: Occupancy, num_inputs: int, itemsize: int, cut: RankCut, is_narrow: bool
) -> tuple[int, int]:
    """Choose the batch and the threads of MTTKRP, so that no registers spill.

    >>> h100 = choose_occupancy(Gpu((9, 0), 228 * 1024), num_inputs=3)
    >>> choose_work(h100, 3, 4, cut_rank(32, 4, 16, 16), is_narrow=False)
    (4, 640)
    """
    is_measured = occupancy.capability == _MEASURED
    if cut.num_loads > 1:
        num_threads = _UNMEASURED_THREADS_OF_LOADS
        if is_measured:
            num_threads = _THREADS_OF_LOADS[num_inputs, cut.num_loads][is_narrow]
        return _BATCH_OF_LOADS, num_threads
    batch = limit_batch(occupancy, itemsize, cut)
    num_threads = limit_threads(occupancy, itemsize)
    if not is_narrow:
        return batch, num_threads
    row = next(row for row in NARROW_OCCUPANCIES if num_inputs <= row.max_inputs)
    narrow_batch, narrow_threads = row.float32 if itemsize == 4 else row.float64
    if is_measured:
        return narrow_batch, narrow_threads
    return min(narrow_batch, occupancy.batch), num_threads


def limit_threads(occupancy: Occupancy, itemsize: int) -> int:
    """Return the threads of an occupancy; fewer where float64 would spill registers."""
    # With 1024 threads TTMc of three modes spilled on 8.0, and their MTTKRP at rank 7 on 10.0.
    if itemsize > 4 and occupancy.capability != _MEASURED:
        return min(896, occupancy.num_threads)
    return occupancy.num_threads


def limit_batch(occupancy: Occupancy, itemsize: int, cut: RankCut) -> int:
    """Return the batch of an occupancy; at most 4 where longer ones would spill registers."""
    is_aligned = cut.store_columns == cut.lane_columns
    if itemsize == 4 and is_aligned:
        return occupancy.batch
    return min(4, occupancy.batch)


@dataclass(frozen=True)
class NarrowOccupancy:
    """The work of MTTKRP with narrow rows: a row of `NARROW_OCCUPANCIES`."""

    max_inputs: int  # the most input modes that the row is for
    float32: tuple[int, int]  # the batch and the threads, by the dtype of the values
    float64: tuple[int, int]
    measured: str  # on what, if at all


#: Narrow rows leave registers for longer batches. The first row that fits is used.
NARROW_OCCUPANCIES = (
    NarrowOccupancy(1, (4, 1024), (4, 1024), _SPILLS),
    NarrowOccupancy(2, (4, 1024), (4, 1024), "H200, ranks 32 to 128: nell-2, flat20"),
    NarrowOccupancy(3, (8, 640), (8, 512), "H200, ranks 32 and 64: delicious"),
    NarrowOccupancy(4, (2, 1024), (2, 1024), _SPILLS),
    NarrowOccupancy(_ANY, (2, 512), (2, 512), _SPILLS),
)


#: Rows of no more bytes gain nothing by being narrow. Measured on an H200, float32, rank 16:
#: nell-2, nell-1, delicious and flat (2M x 3M x 4M) gained 0 to 10 %, and lost it to the rounding.
_SHORT_ROW_NBYTES = 64

#: How often each row must be read in a sweep for rounding it to pay, by the most bytes of a row.
#: Measured on an H200, rounding included: rows of 128 bytes lost up to 4 % with 28 reads (nell-1),
#: and gained 3 to 15 % with 40 (flat) and more; longer ones gained 9 to 47 % with 28. With 13
#: (fb-m) all lost.
_READS_TO_NARROW = {128: 30, _ANY: 20}

#: Bytes of rows that a sweep reads, below which it may gain less than the launches of the rounding
#: take. Not measured: a sweep of these takes about a millisecond on an H100.
_LEAST_READ_NBYTES = 2**33


def narrow_pays(shape: Sequence[int], nnz: int, rank: int, dtype: np.dtype) -> bool:
    """Implement `Engine.narrow_pays`, with each factor rounded once a sweep.

    >>> narrow_pays((12_092, 9_184, 28_818), 76_900_000, 32, np.dtype("f4"))
    True
    >>> narrow_pays((12_092, 9_184, 28_818), 76_900_000, 16, np.dtype("f4"))
    False
    """
    ndim = len(shape)
    row_nbytes = rank * dtype.itemsize
    num_reads = nnz * ndim * (ndim - 1)
    least_reads = next(n for nbytes, n in _READS_TO_NARROW.items() if row_nbytes <= nbytes)
    return (
        row_nbytes > _SHORT_ROW_NBYTES
        and num_reads >= least_reads * sum(shape)
        and num_reads * row_nbytes >= _LEAST_READ_NBYTES
    )


#: By the most inputs, the batch and the threads of MTTKRP of ratios, without and with logarithms.
#: Measured on an H100 at rank 32 in float32: nell-2, uber, vast; the last row has no spills.
RATIO_OCCUPANCIES = {
    2: ((4, 768), (2, 1024)),
    3: ((4, 768), (2, 768)),
    4: ((2, 1024), (2, 1024)),
    _ANY: ((2, 512), (2, 512)),
}


def choose_ratio_occupancy(
    occupancy: Occupancy, num_inputs: int, cut: RankCut, itemsize: int, adds_logs: bool
) -> tuple[int, int]:
    """Choose the batch and the threads of MTTKRP of ratios, so that no registers spill.

    >>> h100 = choose_occupancy(Gpu((9, 0), 228 * 1024), num_inputs=2)
    >>> choose_ratio_occupancy(h100, 2, cut_rank(32, 4, 16, 16), 4, adds_logs=False)
    (4, 768)
    """
    max_inputs = next(n for n in RATIO_OCCUPANCIES if num_inputs <= n)
    batch, num_threads = RATIO_OCCUPANCIES[max_inputs][adds_logs]
    # Less where registers would spill: blocks along y, wide values, GPUs that were not measured.
    is_measured = occupancy.capability == _MEASURED
    is_wide = itemsize > 4
    if cut.num_parts > 1 or not is_measured or (is_wide and num_inputs > 2):
        batch = 2
    if cut.num_parts > 1 or is_wide:
        most_threads = 768 if is_measured else 640
        num_threads = min(most_threads, num_threads)
    return batch, num_threads


@functools.cache
def choose_row_nbytes(row_nbytes: int) -> int:
    """Choose the row pitch, so that rows touch as few memory lines as possible.

    >>> [choose_row_nbytes(n) for n in (4, 12, 28, 48, 100, 128, 132)]
    [4, 16, 32, 48, 128, 128, 144]
    """
    if row_nbytes % _LANE_NBYTES == 0 or row_nbytes == _next_power_of_two(row_nbytes):
        return row_nbytes
    if row_nbytes < _LINE_NBYTES:
        return _next_power_of_two(row_nbytes)
    # The last line of a row may hold its end and the begin of the next row: H100, rank 33, 20M
    # nonzeros, 0.93 of the time with rows of whole lines.
    is_end_short = row_nbytes % _LINE_NBYTES <= _LANE_NBYTES
    return round_up(row_nbytes, _LANE_NBYTES if is_end_short else _LINE_NBYTES)


#: By the alignment of rows in bytes: how often a row must be read for an aligned copy to pay.
#: Measured on an H200, ranks 7, 31 and 50, five shapes: at 4 bytes a copy gained a fifth of the
#: time with 10 reads and lost little with 8.5; at 8 bytes it lost with 24.
_READS_TO_ALIGN = {4: 9, 8: 32}


def pays_to_align(num_rows: int, alignment: int, nnz: int, num_inputs: int) -> bool:
    """Return whether copying `num_rows` rows costs less than reading them unaligned.

    >>> pays_to_align(10, 4, nnz=45, num_inputs=2), pays_to_align(10, 8, nnz=45, num_inputs=2)
    (True, False)
    """
    return _READS_TO_ALIGN[alignment] * num_rows <= nnz * num_inputs


@functools.lru_cache(maxsize=1024)
def choose_rows_per_block(num_rows: int, step: int = LEAST_ROWS_PER_BLOCK) -> int:
    """Choose the rows of a tall matrix for each block of kernels that add up blocks.

    They are a multiple of `step`.

    >>> [choose_rows_per_block(n) for n in (100, 200_000, 25_500_000)]
    [128, 512, 4096]
    """
    rows_per_block = -(-num_rows // NUM_ROW_BLOCKS)
    whole_steps = round_up(max(1, rows_per_block), step)
    return min(ROWS_PER_BLOCK // step * step, whole_steps)


@dataclass(frozen=True)
class TallCut:
    """The distribution of a tall matrix's columns over warps, in `update_rows.cu`."""

    width: int  # columns, rounded up to whole strips of 16
    num_groups: int  # of as many warps as there are strips
    group_rows: int  # that a group has at a time
    shared_nbytes: int  # of a block
    block_size: int


@functools.cache
def cut_tall(rank: int, itemsize: int) -> TallCut:
    """Choose the cut for a rank up to `MAX_TALL_RANK`.

    >>> cut_tall(20, 4).num_groups, cut_tall(100, 8).block_size
    (4, 224)
    """
    num_strips = -(-rank // 16)
    width = 16 * num_strips
    group_rows = 16 if itemsize == 8 and width >= 64 else 32  # 32 would spill registers
    num_groups = min(LEAST_ROWS_PER_BLOCK // 32, max(1, _MAX_TALL_WARPS // num_strips))
    num_rows = 2 * group_rows * num_groups  # of two turns: one is copied while one is computed
    # The inverse in float64, and these rows; each row is padded by 4 against bank conflicts.
    shared_nbytes = (width * 8 + num_rows * itemsize) * (width + 4)
    return TallCut(
        width=width,
        num_groups=num_groups,
        group_rows=group_rows,
        shared_nbytes=shared_nbytes,
        block_size=32 * num_strips * num_groups,
    )


#: The most steps of one launch that updates rows: sums for each are in shared memory.
MAX_ROW_STEPS = 16

#: Parts into which `add_measures.cu` divides the blocks whose measures it adds. Not measured.
NUM_MEASURE_PARTS = 16

#: Bytes of what a warp measures in a launch: up to four numbers a step.
_WARP_MEASURES_NBYTES = MAX_ROW_STEPS * 4 * 8


@dataclass(frozen=True)
class StepCut:
    """The distribution of rows over warps, in `step_rows.cu`."""

    width: int  # columns, rounded up to whole strips of 16
    num_groups: int  # of as many warps as there are strips
    group_rows: int  # that a group has at a time
    min_blocks: int  # of a multiprocessor
    shared_nbytes: int  # of a block
    block_size: int


#: Warps of a block of `step_rows.cu`, if strips are few, and of a multiprocessor: as many as
#: registers are enough for. Not timed; no register spills on 8.0, 9.0 and 10.0.
_STEP_WARPS = 4
_MAX_STEP_WARPS = 16
_FEW_STEP_WARPS = 8  # with norms of rows, with 32 rows of float64, or with peaks of float64


@functools.cache
def cut_steps(
    rank: int, itemsize: int, *, has_norms: bool = False, has_levels: bool = False
) -> StepCut:
    """Choose the cut for a rank up to `MAX_TALL_RANK`.

    It is with or without norms of rows, and with or without peaks of steps that may have levels.

    >>> cut = cut_steps(32, 4, has_norms=False)
    >>> cut.num_groups, cut.min_blocks
    (2, 4)
    """
    tall = cut_tall(rank, itemsize)
    num_strips = tall.width // 16
    num_groups = max(1, _STEP_WARPS // num_strips)
    num_warps = num_strips * num_groups
    has_many_numbers = itemsize * tall.group_rows > 128
    has_wide_peaks = has_levels and itemsize == 8
    needs_registers = has_norms or has_many_numbers or has_wide_peaks
    most_warps = _FEW_STEP_WARPS if needs_registers else _MAX_STEP_WARPS
    # Two turns of rows, of which each is padded by 4, and a sum of squares for each strip of a row.
    row_numbers = 2 * (tall.width + 4) + num_strips
    num_peaks = num_groups * MAX_ROW_STEPS * tall.width if has_levels else 0
    return StepCut(
        width=tall.width,
        num_groups=num_groups,
        group_rows=tall.group_rows,
        min_blocks=most_warps // _next_power_of_two(num_warps),
        shared_nbytes=(
            8 * tall.width * (tall.width + 4)
            + num_groups * tall.group_rows * row_numbers * itemsize
            + num_warps * _WARP_MEASURES_NBYTES
            + num_peaks * itemsize
        ),
        block_size=32 * num_warps,
    )


@dataclass(frozen=True)
class SweepCut:
    """The distribution of rows over lanes, in `sweep_rows.cu`."""

    width: int  # columns, rounded up
    num_rows: int  # of a lane: as many as fit its registers, so that a load serves many
    chunk: int  # columns for which code is repeated
    num_warps: int  # of a block
    min_blocks: int  # of a multiprocessor
    shared_nbytes: int  # of a block


#: By the bytes of a number and the width: the rows of a lane, the repeated columns, the warps of a
#: block, and the blocks whose registers fit a multiprocessor. Width 32 of float32 and 16 of float64
#: are the best of six to eleven on an H200; the others were not timed. No register spills on 8.0,
#: 9.0 and 10.0.
SWEEP_CUTS = {
    4: {
        8: (8, 8, 4, 3),
        16: (4, 8, 4, 2),
        32: (2, 8, 4, 4),
        64: (2, 8, 4, 2),
        96: (1, 8, 4, 2),
        128: (1, 8, 8, 1),
    },
    8: {
        8: (4, 8, 4, 2),
        16: (2, 16, 4, 3),
        32: (2, 8, 4, 2),
        64: (1, 8, 8, 1),
    },
}


@functools.cache
def cut_sweep(rank: int, itemsize: int) -> SweepCut | None:
    """Choose the cut for a rank; None if rows are too long for registers.

    >>> cut_sweep(20, 4).width, cut_sweep(20, 8).num_rows, cut_sweep(129, 4)
    (32, 2, None)
    """
    cuts = SWEEP_CUTS[itemsize]
    width = min((width for width in cuts if width >= rank), default=None)
    if width is None:
        return None
    num_rows, chunk, num_warps, min_blocks = cuts[width]
    gram_nbytes = width * (width + 1) * itemsize  # and the inverses of its diagonal
    bits_nbytes = round_up(width // chunk * 4, 16)
    warp_nbytes = 32 * num_rows * (width + 1) * itemsize + _WARP_MEASURES_NBYTES
    return SweepCut(
        width=width,
        num_rows=num_rows,
        chunk=chunk,
        num_warps=num_warps,
        min_blocks=min_blocks,
        shared_nbytes=gram_nbytes + bits_nbytes + num_warps * warp_nbytes,
    )


#: Rows that a warp of `wide_rows.cu` has at a time, warps of a block, and the most blocks.
WIDE_ROWS = 4
WIDE_WARPS = 4
_MAX_WIDE_BLOCKS = 2**10


def choose_wide_rows_per_block(num_rows: int) -> int:
    """Choose the rows of a block of `wide_rows.cu`.

    >>> [choose_wide_rows_per_block(n) for n in (1, 20_000)]
    [16, 32]
    """
    return round_up(-(-num_rows // _MAX_WIDE_BLOCKS), WIDE_ROWS * WIDE_WARPS)


@dataclass(frozen=True)
class ColumnCut:
    """The distribution of TTMc's columns over threads."""

    lane_columns: int  # of a thread, `group_size` apart: it reads a nonzero once for all of them
    group_size: int  # threads of a group, a power of two
    num_parts: int  # blocks along y, each with ``group_size * lane_columns`` columns


def cut_columns(num_columns: int, num_inputs: int) -> ColumnCut:
    """Choose the cut for a number of columns and of input modes.

    >>> cut_columns(256, 2)
    ColumnCut(lane_columns=4, group_size=64, num_parts=1)
    >>> cut_columns(9, 2)
    ColumnCut(lane_columns=1, group_size=16, num_parts=1)
    """
    # 4 columns were not timed: up to three inputs spill no registers on 8.0, 9.0 and 10.0.
    lane_columns = 4 if num_inputs <= 3 and num_columns >= 128 else 1
    num_lanes = -(-num_columns // lane_columns)
    group_size = min(BLOCK_SIZE, _next_power_of_two(num_lanes))
    num_parts = -(-num_lanes // group_size)
    return ColumnCut(lane_columns, group_size, num_parts)

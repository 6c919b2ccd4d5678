"""Exchanges between GPUs in one launch: many small arrays are copied, or parts of one added."""

from collections.abc import Sequence

import cupy

from ...base.array_modules import GpuArray as Array
from ...format import tree as trees
from . import tuning
from .launch import get_direct_kernel

#: The most copies of a launch, and the types of `Copies` in `copy_blocks.cu`.
_MAX_COPIES = 16
_COPIES_FORMAT = f"{2 * _MAX_COPIES}Q{3 * _MAX_COPIES}I"

#: The most arrays of `add_arrays`, whose addresses are arguments of its kernel.
MAX_ARRAYS = 32

#: The most blocks along y of one launch.
_MAX_GRID_Y = 2**16 - 1


def copy_blocks(copies: Sequence[tuple[cupy.cuda.MemoryPointer, Array]]) -> None:
    """Copy arrays to addresses on the current GPU, which can read them, on its current stream.

    They are contiguous, or matrices whose rows are; elements have a multiple of 4 bytes.
    """
    kernel = get_direct_kernel(
        "copy_blocks.cu",
        "copy_blocks",
        _COPIES_FORMAT,
        cupy.cuda.runtime.getDevice(),
        MAX_COPIES=_MAX_COPIES,
    )
    for start in range(0, len(copies), _MAX_COPIES):
        batch = copies[start : start + _MAX_COPIES]
        # The members of `Copies`: five arrays of a number for each copy, one after the other.
        members = [0] * (5 * _MAX_COPIES)
        most_words = 0
        for n, (target, array) in enumerate(batch):
            num_words, row_words, row_stride = _count_words(array)
            members[n::_MAX_COPIES] = [
                array.data.ptr,
                target.ptr,
                num_words,
                row_words,
                row_stride,
            ]
            most_words = max(most_words, num_words)
        num_blocks = min(-(-most_words // (4 * tuning.BLOCK_SIZE)), _MAX_GRID_Y)
        kernel((len(batch), num_blocks), tuning.BLOCK_SIZE, *members)


def _count_words(array: Array) -> tuple[int, int, int]:
    """Count words of 4 bytes: of an array, of a row, and from the start of a row to the next."""
    num_words = array.nbytes // 4
    if array.flags.c_contiguous:  # as a single row, whatever its shape
        return num_words, num_words, num_words
    return num_words, num_words // array.shape[0], array.strides[0] // 4


def add_parts(rows: Array, tree: trees.Tree, out: Array | None = None) -> Array:
    """Run `tree.add_parts` on a contiguous matrix of the current GPU."""
    if isinstance(tree, int) and out is None:
        return rows
    num_parts = trees.count_parts(tree)
    if num_parts > MAX_ARRAYS:
        return trees.add_parts(rows, tree, out)
    num_rows = rows.shape[0] // num_parts
    parts = [rows[number * num_rows : (number + 1) * num_rows] for number in range(num_parts)]
    return add_arrays(parts, tree, out)


def add_arrays(arrays: Sequence[Array], tree: trees.Tree, out: Array | None = None) -> Array:
    """Add arrays along a tree of their places, on the current GPU, which can read them.

    They and `out` are contiguous; they are at most `MAX_ARRAYS`.
    """
    first = arrays[0]
    sums = cupy.empty(first.shape, first.dtype) if out is None else out
    kernel = get_direct_kernel(
        "add_arrays.cu",
        "add_arrays",
        f"q{len(arrays)}QQ",
        cupy.cuda.runtime.getDevice(),
        VALUE=first.dtype,
        NUM_PARTS=len(arrays),
        TREE=trees.express(tree, "PART"),
    )
    if sums.size > 0:
        values_per_block = tuning.BLOCK_SIZE * (16 // first.itemsize)
        grid = (-(-sums.size // values_per_block), 1)
        addresses = [array.data.ptr for array in arrays]
        kernel(grid, tuning.BLOCK_SIZE, sums.size, *addresses, sums.data.ptr)
    return sums

"""Exchanges between GPUs in one launch: many small arrays are copied, or parts of one added."""

from collections.abc import Sequence

import cupy

from ...base.array_modules import GpuArray as Array
from ...format import tree as trees
from . import tuning
from .launch import get_direct_kernel
from .structs import COPIES, MAX_COPIES, allocate_struct


def copy_blocks(copies: Sequence[tuple[cupy.cuda.MemoryPointer, Array]]) -> None:
    """Copy arrays to addresses on the current GPU, which can read them, on its current stream.

    They are contiguous, or matrices whose rows are; elements have a multiple of 4 bytes.
    """
    gpu, layout = cupy.cuda.runtime.getDevice(), f"{COPIES.itemsize}s"
    kernel = get_direct_kernel("copy_blocks.cu", "copy_blocks", layout, gpu, COPIES_LAYOUT=COPIES)
    for start in range(0, len(copies), MAX_COPIES):
        own, given = copies[start : start + MAX_COPIES], allocate_struct(COPIES)
        for n, (target, array) in enumerate(own):
            given.sources[n], given.targets[n] = array.data.ptr, target.ptr
            given.num_words[n], given.row_words[n], given.pitches[n] = _count_words(array)
        grid = (-(-max(given.num_words) // tuning.BLOCK_SIZE), len(own))
        kernel(grid, tuning.BLOCK_SIZE, bytes(given))


def _count_words(array: Array) -> tuple[int, int, int]:
    """Return an array's words of 4 bytes, those of a row, and those from row to row."""
    num_words = array.nbytes // 4
    if array.flags.c_contiguous:
        return num_words, num_words, num_words
    return num_words, num_words // array.shape[0], array.strides[0] // 4


def add_parts(rows: Array, tree: trees.Tree) -> Array:
    """Run `tree.add_parts` on a contiguous matrix of the current GPU."""
    if isinstance(tree, int) or rows.size == 0:
        return trees.add_parts(rows, tree)
    num_rows = rows.shape[0] // trees.count_parts(tree)
    sums = cupy.empty((num_rows, *rows.shape[1:]), rows.dtype)
    macros = {"VALUE": rows.dtype, "TREE": trees.express(tree, "PART")}
    kernel = get_direct_kernel("add_parts.cu", "add_parts", "qQQ", rows.data.device_id, **macros)
    grid = (-(-sums.size // tuning.BLOCK_SIZE), 1)
    kernel(grid, tuning.BLOCK_SIZE, sums.size, rows.data.ptr, sums.data.ptr)
    return sums

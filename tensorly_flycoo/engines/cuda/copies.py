"""Copy many small arrays from any GPUs to the current one in one launch."""

import functools
from collections.abc import Sequence

import cupy

from ...array_modules import Array
from . import launch, tuning
from .direct import DirectKernel
from .macros import copies_macros
from .structs import MAX_COPIES

#: `structs.copies_dtype`, as the module `struct` names its members.
_COPIES = f"{2 * MAX_COPIES}Q{3 * MAX_COPIES}I"


def copy_blocks(copies: Sequence[tuple[cupy.cuda.MemoryPointer, Array]]) -> None:
    """Copy arrays to addresses on the current GPU, which can read them, on its current stream.

    They are contiguous, or matrices whose rows are; elements have a multiple of 4 bytes.
    """
    kernel = _get_kernel(cupy.cuda.runtime.getDevice())
    for start in range(0, len(copies), MAX_COPIES):
        own = copies[start : start + MAX_COPIES]
        sizes = [_count_words(array) for _, array in own]
        unused = [0] * (MAX_COPIES - len(own))
        grid = (-(-max(num_words for num_words, _, _ in sizes) // tuning.BLOCK_SIZE), len(own))
        kernel(
            grid, tuning.BLOCK_SIZE,
            *[array.data.ptr for _, array in own], *unused,
            *[target.ptr for target, _ in own], *unused,
            *[num_words for num_words, _, _ in sizes], *unused,
            *[row_words for _, row_words, _ in sizes], *unused,
            *[pitch for _, _, pitch in sizes], *unused,
        )  # fmt: skip


def _count_words(array: Array) -> tuple[int, int, int]:
    """Return an array's words of 4 bytes, those of a row, and those from row to row."""
    num_words = array.nbytes // 4
    if array.flags.c_contiguous:
        return num_words, num_words, num_words
    return num_words, num_words // array.shape[0], array.strides[0] // 4


@functools.cache
def _get_kernel(device_id: int) -> DirectKernel:
    """Return the kernel for the current device, `device_id`."""
    kernel = launch.get_kernel("copy_blocks.cu", "copy_blocks", **copies_macros())
    return DirectKernel(kernel, _COPIES)

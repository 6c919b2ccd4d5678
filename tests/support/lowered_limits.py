"""The limits of the library, and lower values for tests: ``pytest --lowered LIMIT``.

With a limit lowered, small data take the code paths that otherwise only large data take. A test's
own settings take precedence, and processes that a test starts have the usual limits.
"""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from tensorly_flycoo.format.packing import RecordFormat

_lay_out = RecordFormat.of


def lay_out_long_modes(shape, dtype, word_dtype, groups=None, num_prefixes=0):
    """Stand in for `RecordFormat.of`: fields cross words of 32 bits, and two fill 64.

    The fields of a group stay narrow, as its combinations are numbered in 32 bits; but those of a
    group whose prefixes are numbered have any size.
    """
    narrow = {mode for group in groups or () if len(group) > 1 for mode in group}
    if num_prefixes:
        narrow -= set(groups[0])
    longer = [size if mode in narrow else max(size, 2**31) for mode, size in enumerate(shape)]
    number = num_prefixes and max(num_prefixes, 2**31)
    laid_out = _lay_out(longer, dtype, word_dtype, groups, number)
    return replace(laid_out, shape=tuple(shape), num_prefixes=num_prefixes)


def choose_three(nnz, num_devices=1, streamed_nbytes=None):
    """Stand in for `memory.choose_num_slabs`."""
    return 3


def choose_remap(engine, name, *sizes):
    """Stand in for `memory.choose_layout`."""
    return "remap" if name == "auto" else name


#: For each limit, the names to replace and their new values.
LOWERED = {
    # As with more than 2**31 indices or nonzeros: narrow types number only a few items.
    "index": {
        "format.primitives.INDEX_LIMITS": {
            np.dtype(np.uint16): 2,
            np.dtype(np.uint32): 8,
            np.dtype(np.uint64): 2**64,
            np.dtype(np.int32): 8,
            np.dtype(np.int64): 2**63,
        },
    },
    # As with data too large for one launch, or for one block of a loop over blocks.
    "grid": {
        "engines.cuda.launch.MAX_GRID": 3,
        "engines.cuda.tuning.ROWS_PER_BLOCK": 200,
        "engines.cuda.tuning.LEAST_ROWS_PER_BLOCK": 40,
        "engines.cuda.tuning.GRAM_SEGMENT": 2,
        "engines.cpu.engine.CPU.block_size": 7,
        "engines.cuda.engine.CUDA.block_size": 3000,
        "engines.cuda.engine.CUDA.staging_size": 700,
        "engines.cuda.mersenne_twister.MIN_CHUNK": 2,
        "engines.cuda.mersenne_twister.MAX_CHUNKS": 5,
        "engines.protocol._DRAW_BLOCK": 7,
        "format.ordering._MASK_BLOCK": 101,
        "base.checks._CHECK_BLOCK": 5,
        "ops.cp_entries._CPU_BLOCK_NUMBERS": 100,
        "ops.cp_entries._GPU_BLOCK_NUMBERS": 3000,
        "engines.cpu.row_updates._MAX_BLOCKS": 2,
        "spread.array_admm._BLOCK_ROWS": 3,
        "io.saving._CHECK_BLOCK": 7,
        "svd.eigen._VECTORS_AT_ONCE": 1,
        "ops.ttmc._BLOCK_SIZE": 40,
    },
    # Rows over many tiles and buckets. A kernel's tile is a multiple of its block's threads, and
    # its bucket a power of two.
    "tiles": {
        "engines.cpu.engine.TILE_SIZE": 3,
        "engines.cpu.engine.BUCKET_SIZE": 6,
        "engines.cuda.tuning.MAX_TILE_SIZE": 128,
        "engines.cuda.tuning.BUCKET_SIZE": 256,
        "engines.cuda.tuning.SEGMENT": 2,
    },
    # As with more than 2**32 nonzeros.
    "slabs": {"spread.memory.choose_num_slabs": choose_three},
    # As on a GPU.
    "remap": {"spread.memory.choose_layout": choose_remap},
    # As with modes of 2**31 indices or more.
    "record": {"format.packing.RecordFormat.of": lay_out_long_modes},
    # As with many nonzeros for each combination of the indices of adjacent modes.
    "groups": {"format.groups._LEAST_NNZ": 0, "format.groups._LEAST_NONZEROS": 1e-3},
    # As with many nonzeros for each combination that occurs of the first modes' indices.
    "prefixes": {
        "format.groups._LEAST_NNZ": 0,
        "format.groups._FEW_ROWS": 0,
        "format.primitives.Primitives.least_repeats": 0,
        "engines.cuda.primitives.CudaPrimitives.least_repeats": 0,
    },
}

#: Modules that import CuPy are left out where it is not installed.
_OF_CUPY = (
    "engines.cuda.launch",
    "engines.cuda.engine",
    "engines.cuda.mersenne_twister",
    "engines.cuda.primitives",
)


def lower_limit(name, patch=None):
    """Lower one limit, permanently unless `patch`, a `pytest.MonkeyPatch`, is undone."""
    patch, has_cupy = patch or pytest.MonkeyPatch(), importlib.util.find_spec("cupy") is not None
    for place, value in LOWERED[name].items():
        if has_cupy or not place.startswith(_OF_CUPY):
            patch.setattr(f"tensorly_flycoo.{place}", value)

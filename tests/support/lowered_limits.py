"""The limits of the library, and lower values for tests: ``pytest --lowered LIMIT``.

With a limit lowered, small data take the code paths that otherwise only large data take. A test's
own settings take precedence, and processes that a test starts have the usual limits.
"""

import importlib.util

import numpy as np
import pytest


def widen_field(size):
    """Stand in for `packing.field_width`: fields cross words of 32 bits, and two fill 64."""
    return max(31, (size - 1).bit_length())


def choose_three(nnz, num_devices=1, streamed_nbytes=None):
    """Stand in for `choosing.choose_num_slabs`."""
    return 3


def choose_remap(engine, name, *sizes):
    """Stand in for `building.choose_layout`."""
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
        "engines.cpu.engine._SWEEP_ROWS": 3,
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
    "slabs": {"spread.choosing.choose_num_slabs": choose_three},
    # As on a GPU.
    "remap": {"spread.choosing.choose_layout": choose_remap},
    # As with modes of 2**31 indices or more, which form groups only if their combinations are
    # numbered.
    "record": {
        "format.packing.field_width": widen_field,
        "format.groups.field_width": widen_field,
    },
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

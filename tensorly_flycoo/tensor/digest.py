"""A digest of a tensor's nonzeros, by which a checkpoint tells tensors of one shape apart."""

from __future__ import annotations

import hashlib
import weakref

import numpy as np

from ..base.array_modules import Array
from .pieces import Piece, map_pieces
from .tensor import FlycooTensor

#: Odd multipliers of the coordinates and the value: digits of pi, the golden ratio and others.
_FIRST, _NEXT = 0x243F6A8885A308D3, 0x9E3779B97F4A7C15
_MASK = 2**64 - 1

#: Nonzeros hashed at a time: few enough for the cache of a CPU, enough to fill a GPU.
_CPU_BLOCK, _GPU_BLOCK = 2**14, 2**20

_digests: weakref.WeakKeyDictionary[FlycooTensor, str] = weakref.WeakKeyDictionary()


def find_digest(x: FlycooTensor) -> str:
    """Return 32 hexadecimal digits that depend on shape, dtype and nonzeros only.

    They do not depend on the layout, the device or the order in which distinct nonzeros were given
    (duplicates are summed in that order, which may change the last bits of their sums). Two
    different tensors have the same digest with a probability of about 2**-64. It takes one pass
    over the nonzeros, and is kept.

    >>> x = FlycooTensor([[0, 1], [2, 0]], [3.0, 4.0], (3, 3))
    >>> y = FlycooTensor([[1, 0], [0, 2]], [4.0, 3.0], (3, 3), layout="indexed")
    >>> find_digest(x) == find_digest(y), find_digest(x) == find_digest(2 * x)
    (True, False)
    """
    if x not in _digests:
        facts = (x.shape, x.dtype.name, x.nnz, _sum_hashes(x))
        _digests[x] = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
    return _digests[x]


def _sum_hashes(x: FlycooTensor) -> int:
    """Add the hashes of all nonzeros, in any order, modulo 2**64."""
    return sum(int(part) for part in map_pieces(_hash_piece, x._layout, x._engine)) & _MASK


def _hash_piece(piece: Piece) -> np.ndarray:
    total, block_size = 0, _CPU_BLOCK if piece.xp is np else _GPU_BLOCK
    for coords, values in piece.iterate_nonzeros(block_size):
        total += int(_hash(coords, values).sum())
    return np.asarray(total & _MASK, np.uint64)


def _hash(coords: Array, values: Array) -> Array:
    """Hash each nonzero to a uint64: a linear function of its words, then a mixing of the bits."""
    bits = values.copy().view(f"u{values.dtype.itemsize}")
    hashes: Array = 0
    multiplier = _FIRST
    for word in [*coords, bits]:
        hashes = hashes + word.astype(np.uint64) * np.uint64(multiplier)
        multiplier = multiplier * _NEXT & _MASK
    for _ in range(2):
        hashes = (hashes ^ hashes >> np.uint64(32)) * np.uint64(_NEXT)
    return hashes ^ hashes >> np.uint64(32)

"""How many bits an id takes on a GPU. This module needs no GPU."""

from dataclasses import dataclass

import numpy as np

from . import tuning

#: Types of the low bits of packed ids, and how many more bits an id may have.
_LOW_DTYPES = tuple(map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64)))
_HIGH_BITS = (0, 1, 2, 4, 8)


@dataclass(frozen=True)
class IdBits:
    """The bits of an id: a number for some, and the others in one number with those of other ids.

    Packed ids are stored in the order in which threads read them, as `ids.cuh` says; others are in
    their own order, and have no high bits.
    """

    low_dtype: np.dtype  # of the number for the low bits
    high_bits: int = 0  # how many other bits there are
    is_packed: bool = False

    @classmethod
    def of(cls, limit: int, tile_size: int) -> "IdBits":
        """Choose the fewest bits for packed ids below `limit`.

        >>> bits = IdBits.of(2**18, tile_size=1024)
        >>> bits.low_dtype, bits.high_bits
        (dtype('uint16'), 2)
        """
        moves = tile_size // tuning.choose_block_size(tile_size)
        sizes = [
            (8 * low.itemsize + high, high, low)
            for low in _LOW_DTYPES
            for high in (_HIGH_BITS if low.itemsize < 4 else (0,))
            if moves * high % 8 == 0  # a thread's are whole bytes
        ]
        _, high_bits, low_dtype = min(size for size in sizes if 2 ** size[0] >= limit)
        return cls(low_dtype, high_bits, is_packed=True)

    def count_nbytes(self, nnz: int, tile_size: int) -> int:
        """Count the bytes of packed ids; the last tile is stored whole.

        >>> IdBits.of(2**18, tile_size=1024).count_nbytes(2000, tile_size=1024)
        4608
        """
        num_places = -(-nnz // tile_size) * tile_size
        return num_places * self.low_dtype.itemsize + num_places * self.high_bits // 8

"""How many bits an id takes on a GPU. This module needs no GPU."""

import functools
from dataclasses import dataclass

import numpy as np

#: Words for the low bits of ids, and how many more bits may share bytes with those of other ids.
_LOW_WORDS = (np.uint8, np.uint16, np.uint32, np.uint64)
_HIGH_BITS = (0, 1, 2, 4, 8)


@dataclass(frozen=True)
class IdBits:
    """The bits of an id: some in a word of its own, the others in a byte that ids share.

    Attributes
    ----------
    low_dtype : numpy.dtype
        The word of the low bits.
    high_bits : int
        The number of other bits, which divides 8.
    """

    low_dtype: np.dtype
    high_bits: int = 0

    @classmethod
    @functools.cache
    def of(cls, count: int) -> "IdBits":
        """Choose the fewest bits for ids below `count`.

        Examples
        --------
        >>> IdBits.of(2**18)
        IdBits(low_dtype=dtype('uint16'), high_bits=2)
        """
        sizes = [
            (8 * np.dtype(low).itemsize + high, high, np.dtype(low))
            for low in _LOW_WORDS
            for high in (_HIGH_BITS if np.dtype(low).itemsize < 4 else (0,))
        ]
        _, high_bits, low_dtype = min(size for size in sizes if 2 ** size[0] >= count)
        return cls(low_dtype, high_bits)

    def count_bytes(self, count: int) -> tuple[int, int]:
        """Count the bytes of `count` ids' low bits, and of their high bits."""
        per_byte = 8 // self.high_bits if self.high_bits else count + 1
        return count * self.low_dtype.itemsize, -(-count // per_byte) if self.high_bits else 0

"""Memory that a worker uses again."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import numpy as np

#: Bytes of the smallest array that the C library maps page by page, and of the largest one for
#: which that takes long: NumPy asks for larger pages beyond it.
_MIN_NBYTES, _MAX_NBYTES = 2**17, 2**22


class SpareMemory:
    """Memory of arrays that nobody holds any more, for new ones of as many bytes.

    Dask has the C library give back to the system what is freed, at once. Mapping it again takes
    longer than most of what a worker computes in it.
    """

    def __init__(self) -> None:
        self._spare: dict[int, list[bytearray]] = {}

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return an array whose elements are not set."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not _MIN_NBYTES <= nbytes <= _MAX_NBYTES:
            return np.empty(shape, dtype)
        spare = self._spare.setdefault(nbytes, [])
        block = spare.pop() if spare else bytearray(nbytes)
        array = np.frombuffer(block, dtype)  # views hold it, since it does not own its memory
        weakref.finalize(array, spare.append, block).atexit = False
        return array.reshape(shape)

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Put matrices below each other."""
        shape = (sum(x.shape[0] for x in arrays), *arrays[0].shape[1:])
        return np.concatenate(arrays, out=self.empty(shape, arrays[0].dtype))

    def clear(self) -> None:
        """Give it back."""
        self._spare.clear()

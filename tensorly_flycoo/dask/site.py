"""What a worker is to the functions that run there."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..base.array_modules import Array
from ..format.packing import RecordFormat
from ..tensor.memory import format_nbytes

if TYPE_CHECKING:
    from ..engines.cuda.processes import NcclLink
    from ..engines.protocol import Engine
    from ..format.layout import Layout
    from .partitions import Partition


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

    def clear(self) -> None:
        """Give it back."""
        self._spare.clear()


class Site:
    """A worker's engine, and the memory that it may use.

    `count_room` counts the bytes of host memory that the worker may still use; None if that is
    unknown. `link_type` is what connects its device to those of other workers. `partitions` are
    those that are being loaded.
    """

    def __init__(
        self,
        engine: Engine,
        count_room: Callable[[], int | None],
        link_type: type[NcclLink] | None = None,
    ) -> None:
        self.engine = engine
        self.link_type = link_type
        self.partitions: dict[int, Partition] = {}
        self._count_room = count_room
        self.spare_memory = SpareMemory()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Return an array on the engine's device whose elements are not set."""
        xp = self.engine.xp
        return self.spare_memory.empty(shape, dtype) if xp is np else xp.empty(shape, dtype)

    def join(self, arrays: Sequence[Array]) -> Array:
        """Put matrices on the engine's device below each other."""
        xp = self.engine.xp
        if xp is not np:
            return xp.concatenate(arrays)
        shape = (sum(x.shape[0] for x in arrays), *arrays[0].shape[1:])
        return np.concatenate(arrays, out=self.empty(shape, arrays[0].dtype))

    def count_free_nbytes(self) -> int | None:
        """Count the bytes that may still be allocated; None if that is unknown."""
        counts = [self.engine.count_free_nbytes(), self._count_room()]
        return min((count for count in counts if count is not None), default=None)

    def check_room(self, nbytes: int, task: str) -> None:
        """Refuse to begin what needs more memory than there is."""
        free = self.count_free_nbytes()
        if free is not None and nbytes > free:
            raise MemoryError(f"{task} needs {format_nbytes(nbytes)}")


class SlabFacts(NamedTuple):
    """What the client knows of a slab."""

    name: str
    nnz: int
    norm: float
    nbytes: int
    record_format: RecordFormat


def describe_slab(x: Layout) -> SlabFacts:
    """Return what the client wants to know of a slab."""
    return SlabFacts(x.name, x.nnz, x.norm, x.nbytes, x.record_format)

"""A matrix whose rows are on several devices, and the operations on factors that TensorLy uses.

Elementwise operations run block by block. Sums over rows are sums of each block, added in float64
along the tree of `format.tree`; the small results are plain arrays on the first device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..base.array_modules import Array, array_module
from ..base.devices import Devices, bring_to_each
from ..format.tree import fold_tree
from .sharding import Sharding

#: Elementwise functions that run block by block.
_UFUNCS = {
    np.add, np.subtract, np.multiply, np.true_divide, np.negative, np.positive, np.power, np.sign,
    np.conjugate, np.absolute, np.sqrt, np.square, np.maximum, np.minimum, np.isfinite,
    np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal,
}  # fmt: skip

#: NumPy's functions for row-sharded matrices; `sharded` fills it.
FUNCTIONS: dict[Callable, Callable] = {}


class Memo:
    """What has been computed of a matrix, which never changes; shared with its transpose."""

    def __init__(self) -> None:
        self.gram: Array = None  # (R, R)
        self.products: list[Array] = []  # Gram matrices of all blocks, on their devices
        self.replicated: Any = None  # the Gram matrix as `Devices.replicate` returns it
        self.known: Any = None  # the same, and more, as `ops.gram_products` needs it
        self.suits: bool | None = None  # whether an engine's kernels suit all blocks
        self.whole: dict[int, Array] = {}  # (I, R), by the devices where it is gathered


class RowShards(NDArrayOperatorsMixin):
    """An immutable matrix (I, R), or its transpose, in blocks of rows on several devices.

    Everything depends on the blocks only, not on the devices that hold them. Operands are numbers,
    arrays of the same shape or that broadcast along the rows, such as (R,), and matrices sharded in
    the same way. Other operations raise a TypeError that names them; `to_numpy` gathers the matrix
    on the host. Blocks must not be changed any more; a transpose shares its matrix's `memo`.

    >>> from tensorly_flycoo.base.devices import OneDevice
    >>> from tensorly_flycoo.spread.sharding import cut_evenly
    >>> sharding = Sharding.of(cut_evenly(5, 3), OneDevice(count=2))
    >>> x = RowShards.scatter(np.arange(10.0).reshape(5, 2), sharding)
    >>> x, np.dot(x.T, x)
    (<RowShards: shape=(5, 2), dtype=float64, 3 blocks>, array([[120., 140.],
           [140., 165.]]))
    >>> np.linalg.norm(x / x.sum(axis=0), axis=0).round(3)
    array([0.548, 0.514])
    """

    ndim: ClassVar[int] = 2

    def __init__(
        self,
        blocks: Sequence[Array],
        sharding: Sharding,
        is_transposed: bool = False,
        memo: Memo | None = None,
    ) -> None:
        self.blocks = tuple(blocks)
        self.sharding = sharding
        self.is_transposed = is_transposed
        self.memo = memo or Memo()
        first = self.blocks[0]
        shape = (sharding.edges[-1], first.shape[1])
        self.shape: tuple[int, int] = shape[::-1] if is_transposed else shape
        self.dtype: np.dtype = first.dtype

    @classmethod
    def scatter(cls, array: Array, sharding: Sharding) -> RowShards:
        """Copy the rows of a matrix (I, R) to their devices."""
        if array.ndim != 2 or array.shape[0] != sharding.edges[-1]:
            raise ValueError(f"array has shape {array.shape}, expected ({sharding.edges[-1]}, R)")
        blocks = []
        for block, home in zip(sharding.cut(array), sharding.homes, strict=True):
            with sharding.devices.use(home):
                blocks.append(block.copy())
        return cls(blocks, sharding)

    def to_numpy(self) -> np.ndarray:
        """Gather all rows in host memory."""
        matrix = np.concatenate(self.sharding.devices.fetch(self.blocks))
        return matrix.T if self.is_transposed else matrix

    @property
    def T(self) -> RowShards:
        return RowShards(self.blocks, self.sharding, not self.is_transposed, self.memo)

    @property
    def xp(self) -> ModuleType:
        """The array module of the blocks."""
        return array_module(self.blocks[0])

    def replace(self, blocks: Sequence[Array], is_transposed: bool) -> RowShards:
        """Make a matrix of other blocks that is sharded in the same way."""
        return RowShards(blocks, self.sharding, is_transposed)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<RowShards: shape={self.shape}, dtype={self.dtype}, {len(self.blocks)} blocks>"

    # Block by block

    def map_blocks(self, function: Callable[..., Array], *others: Any) -> RowShards:
        """Apply a function to each block and to the matching parts of other operands.

        The function is called on the block's device with arrays (rows, R), where numbers and arrays
        that broadcast are passed as they are, and returns an array (rows, any).
        """
        return self.replace(self.apply(function, *others), self.is_transposed)

    def apply(
        self, function: Callable[..., Any], *others: Any, matrix: Array | None = None
    ) -> list[Any]:
        """Return what the function of `map_blocks` returns for each block.

        The function's last argument is the whole `matrix`, if there is one.
        """
        devices, homes, results = self.sharding.devices, self.sharding.homes, []
        # First all copies, then all work: a copy waits for the work that is under way.
        parts = [self._split(x) for x in others]
        if matrix is not None:
            parts.append(self._bring(matrix))
        for home, *own in zip(homes, self.blocks, *parts, strict=True):
            with devices.use(home):
                results.append(function(*own))
        return results

    def _split(self, other: Any) -> Sequence[Any]:
        """Return the part of an operand for each block, on its device."""
        if isinstance(other, RowShards):
            if (other.sharding, other.is_transposed) != (self.sharding, self.is_transposed):
                raise ValueError(f"{other} and {self} are not sharded in the same way")
            return other.blocks
        if not hasattr(other, "ndim") or isinstance(other, np.generic):
            return [other] * len(self.blocks)
        if other.shape == self.shape:
            return self.sharding.cut(other.T if self.is_transposed else other)
        if other.ndim == 0:
            return self._bring(other)
        shape = (1,) * (2 - other.ndim) + other.shape
        row_axis, rank = 1 if self.is_transposed else 0, self.blocks[0].shape[1]
        if len(shape) != 2 or shape[row_axis] != 1 or shape[1 - row_axis] not in (1, rank):
            raise ValueError(
                f"an array of shape {other.shape} does not broadcast along the rows of {self}: "
                "scatter it, or gather the factor with tl.to_numpy"
            )
        other = other.reshape(shape)  # as it broadcasts to blocks (rows, R)
        return self._bring(other.T if self.is_transposed else other)

    def _bring(self, array: Array) -> list[Array]:
        """Return a small array on the device of each block."""
        own = bring_to_each(self.sharding.devices, array, self.sharding.homes)
        return [own[home] for home in self.sharding.homes]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.matmul and method == "__call__" and not options:
            return FUNCTIONS[np.dot](*inputs)
        # ``x += y`` makes another matrix, as for any immutable object.
        if set(options) == {"out"} and all(out is inputs[0] for out in options["out"]):
            options = {}
        if ufunc not in _UFUNCS or method != "__call__" or options:
            name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            refuse(f"numpy.{name}" + (f" with {', '.join(options)}" if options else ""))
        if ufunc is np.conjugate:
            return self  # values are real
        first = next(x for x in inputs if isinstance(x, RowShards))
        place = next(n for n, x in enumerate(inputs) if x is first)
        others = [x for n, x in enumerate(inputs) if n != place]
        return first.map_blocks(lambda x, *y: ufunc(*y[:place], x, *y[place:]), *others)

    def __array_function__(
        self, function: Callable, types: Any, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        if function not in FUNCTIONS:
            refuse(f"{function.__module__}.{function.__name__}")
        return FUNCTIONS[function](*args, **kwargs)

    __array_priority__ = 1000  # above CuPy's: its arrays defer to us

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse("numpy.asarray")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError("row-sharded factors are immutable: factor.to_numpy() copies all rows")

    def __getitem__(self, index: Any) -> RowShards:
        """Take columns, by a slice or a list: ``x[:, :3]``."""
        is_pair = isinstance(index, tuple) and len(index) == 2
        if self.is_transposed or not is_pair or index[0] != slice(None):
            refuse(f"indexing with {index!r}")
        if not isinstance(index[1], slice | list | np.ndarray):
            refuse(f"indexing with {index!r}")
        return self.map_blocks(lambda block: block[:, index[1]])

    # Over all rows

    def is_transpose_of(self, other: Any) -> bool:
        """Return whether this is ``x.T`` of a matrix `other`, x, with blocks of rows."""
        is_same = isinstance(other, RowShards) and self.memo is other.memo
        return is_same and self.is_transposed and not other.is_transposed

    def reduce(
        self,
        function: Callable[..., Array],
        *others: RowShards,
        add: Callable[[Array, Array], Array] = operator.add,
    ) -> Array:
        """Add ``function(block, ...)`` of all blocks, in float64, along the tree.

        The sum is where what belongs to no slab is.
        """
        parts = self.apply(
            lambda *blocks: function(*blocks).astype(np.float64, copy=False), *others
        )
        return fold_tree(self.sharding.devices.collect(parts), add)

    # Methods of arrays

    def copy(self, memo: Any = None) -> RowShards:
        """Return the matrix itself, which never changes; neither do real ones when conjugated."""
        return self

    conj = __copy__ = __deepcopy__ = copy

    def transpose(self, *axes: Any) -> RowShards:
        return FUNCTIONS[np.transpose](self, axes or None)

    def astype(self, dtype: Any, copy: bool = True) -> RowShards:
        return self.map_blocks(lambda block: block.astype(dtype, copy=copy))

    def sum(self, axis: int | None = None) -> Array:
        return FUNCTIONS[np.sum](self, axis)

    def dot(self, other: Any) -> Any:
        return FUNCTIONS[np.dot](self, other)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(_describe(name))


def gather_each(
    matrices: Iterable[Array | RowShards], devices: Devices, homes: Iterable[int]
) -> list[dict[int, Array]]:
    """Return each of some matrices, or other arrays, whole, on each of some devices.

    Missing copies are made in one exchange; gathered copies of row-sharded matrices are cached.
    """
    matrices = list(matrices)
    found = [x.memo.whole if isinstance(x, RowShards) else {} for x in matrices]
    missing = [(n, home) for n in range(len(found)) for home in homes if home not in found[n]]
    requests = []
    for n, home in missing:
        x = matrices[n]
        requests.append((x.blocks if isinstance(x, RowShards) else (x,), home))
    for (n, home), array in zip(missing, devices.gather(requests), strict=True):
        found[n][home] = array
    return found


def _describe(name: str) -> str:
    return f"{name} is not done for row-sharded factors: gather them with tl.to_numpy"


def refuse(name: str) -> NoReturn:
    raise TypeError(_describe(name))

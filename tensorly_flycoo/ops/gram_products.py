"""Products of Gram matrices as parafac forms them, computed only when they are solved with.

TensorLy's parafac multiplies the Gram matrices of all factors but one, elementwise, scales the
product by the weights, and solves with it. On a GPU each of these operations on a small matrix
would be a launch, which takes longer than the work: a `GramProduct` collects them for one kernel.

A factor's Gram matrix is needed for every other mode, and for the error. `solve` gets it, and the
inner product with the MTTKRP, in the same pass over the rows that computes the factor. A
`GramMemory`, one for each call of parafac, keeps them until the error is known. That is right only
where nothing writes to a factor in the meantime: from the beginning of an iteration of TensorLy's
own loop to its error, where only TensorLy's code runs.
"""

import threading
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy
from ..engines.tall_skinny import gpu_kernels, solve
from ..spread import sharded
from ..spread.row_shards import RowShards

if TYPE_CHECKING:
    from ..engines.cuda.tall import Scale


class _CachedGram(NamedTuple):
    """What is known of a factor: blocks of its Gram matrix, and of an inner product with it."""

    factor: "weakref.ref[Array]"
    grams: Any
    mttkrp: "weakref.ref[Array] | None" = None
    inner: Any = None


class GramMemory:
    """What one call of parafac remembers of its factors, from their updates to the error."""

    def __init__(self) -> None:
        self.known: list[_CachedGram] = []  # to be cleared where factors may change
        self.num_solves = 0  # systems that were solved with a `GramProduct`


class _OfThread(threading.local):
    memory: GramMemory | None = None


_of_thread = _OfThread()


def find_open() -> GramMemory | None:
    """Return the memory of the call of parafac that multiplies Gram matrices on this thread."""
    return _of_thread.memory


def stop() -> None:
    """End what `start_product` began: `tl.dot` of factors is a plain product again."""
    _of_thread.memory = None


class GramProduct:
    """An elementwise product (R, R) of Gram matrices of float32 CuPy factors and small matrices.

    Any operation that this class does not define turns it into a CuPy array first.
    """

    ndim = 2
    dtype = np.dtype(np.float32)
    __array_ufunc__ = None  # CuPy's and NumPy's arrays leave products with them to this class

    def __init__(
        self,
        kernels: ModuleType,
        rank: int,
        grams: tuple[Any, ...] = (),
        scales: "tuple[Scale, ...]" = (),
        memory: GramMemory | None = None,
    ) -> None:
        self._kernels, self._memory = kernels, memory
        self.rank, self.shape = rank, (rank, rank)
        self.grams = grams
        self.scales = scales

    @classmethod
    def of(cls, factor: Array, memory: GramMemory | None = None) -> "GramProduct":
        """Return the Gram matrix of a factor."""
        kernels = gpu_kernels()
        assert kernels is not None
        return cls(kernels, factor.shape[1], (_find_gram(factor, memory).grams,), (), memory)

    @property
    def T(self) -> "GramProduct":
        """The transpose: Gram matrices are symmetric."""
        scales = tuple((array, column, row) for array, row, column in self.scales)
        return GramProduct(self._kernels, self.rank, self.grams, scales, self._memory)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, GramProduct):
            grams, scales = other.grams, other.scales
        else:
            grams, scales = (), _as_scales(other, self.rank)
        grams, scales = self.grams + grams, self.scales + scales
        fits = len(grams) <= self._kernels.MAX_GRAMS and len(scales) <= self._kernels.MAX_SCALES
        if fits and (isinstance(other, GramProduct) or len(scales) > len(self.scales)):
            return GramProduct(self._kernels, self.rank, grams, scales, self._memory)
        return self.to_array() * (other.to_array() if isinstance(other, GramProduct) else other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return self if type(other) is int and other == 0 else self.to_array() + other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.to_array(), name)

    def __array_function__(
        self, function: Any, types: Any, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        args = tuple(a.to_array() if isinstance(a, GramProduct) else a for a in args)
        return function(*args, **kwargs)

    def to_array(self) -> Array:
        """Compute the product, as a float32 CuPy array."""
        import cupy

        product = cupy.ones((self.rank, self.rank), np.float64)
        for blocks in self.grams:
            product *= blocks.to_array().sum(axis=0)
        for array, row_stride, column_stride in self.scales:
            strides = (row_stride * array.itemsize, column_stride * array.itemsize)
            product *= cupy.lib.stride_tricks.as_strided(array, product.shape, strides)
        return product.astype(np.float32)

    def solve(self, b: Array) -> Array:
        """Solve ``self @ x = b``; see `tall_skinny.solve`."""
        rows, fits = b.T, b.ndim == 2 and b.shape[0] == self.rank
        kernels = _find_kernels(rows) if fits else None
        if kernels is None:
            return (sharded.solve if isinstance(b, RowShards) else solve)(self.to_array(), b)
        inverse = self._kernels.invert_product(self.grams, self.T.scales, self.rank)
        factor, grams, inner = kernels.solve_rows(rows, inverse)
        known = _CachedGram(weakref.ref(_owner(factor)), grams, weakref.ref(_owner(rows)), inner)
        _remember(factor, known, self._memory)
        if self._memory is not None:
            self._memory.num_solves += 1
        return factor.T


def suits_gram(a: Array, b: Array) -> bool:
    """Return whether ``a @ b`` is a Gram matrix that `GramProduct.of` suits."""
    return _is_transpose(a, b) and _find_kernels(b) is not None


def start_product(memory: GramMemory, rank: int, dtype: Any, on_gpu: bool) -> GramProduct | None:
    """Let `tl.dot` of this thread return Gram matrices that `memory` remembers, until `stop`.

    Returns a product of no Gram matrices, to begin with; None if the kernels do not suit.
    """
    _of_thread.memory = memory
    kernels = gpu_kernels() if on_gpu else None
    if kernels is None or not kernels.suits_rank(rank, dtype):
        return None
    return GramProduct(kernels, rank, memory=memory)


def _as_scales(array: Any, rank: int) -> "tuple[Scale, ...]":
    """Return an array that a product (R, R) can be multiplied by as a `Scale`, or nothing."""
    if not is_cupy(array) or array.ndim != 2 or array.dtype != np.float32:
        return ()
    (num_rows, num_columns), (row_nbytes, column_nbytes) = array.shape, array.strides
    if num_rows not in (1, rank) or num_columns not in (1, rank):
        return ()
    row_stride = 0 if num_rows == 1 else row_nbytes // array.itemsize
    return ((array, row_stride, 0 if num_columns == 1 else column_nbytes // array.itemsize),)


def compute_fit(
    norm: float,
    weights: Array | None,
    factors: Sequence[Array],
    mttkrp: Array,
    memory: GramMemory | None = None,
) -> float | None:
    """Compute the norm of the difference of a tensor and a CP model, in float64.

    `norm` is the tensor's, `mttkrp` that of the last mode. None if the kernels do not suit.
    Otherwise the host has waited for the GPU, once.
    """
    own_kernels = _find_kernels(mttkrp)
    if own_kernels is None or not all(_find_kernels(factor) for factor in factors):
        return None
    kernels = gpu_kernels()
    if kernels is None or len(factors) > kernels.MAX_GRAMS:
        return None
    rank, known = factors[0].shape[1], [_find_gram(factor, memory) for factor in factors]
    scales: tuple[Scale, ...] = ()
    if weights is not None:
        column, row = weights.reshape(-1, 1), weights.reshape(1, -1)
        scales = (*_as_scales(column, rank), *_as_scales(row, rank))
        if len(scales) < 2:
            return None
    last = known[-1]
    is_known = last.mttkrp is not None and last.mttkrp() is _owner(mttkrp)
    inner = last.inner if is_known else own_kernels.inner_blocks(mttkrp, factors[-1])
    return kernels.compute_fit([k.grams for k in known], scales, rank, inner, float(norm) ** 2)


def _find_kernels(operand: Any) -> "ModuleType | ShardedKernels | None":
    """Return the kernels that suit a matrix, which may be row-sharded."""
    kernels = gpu_kernels() if _is_on_gpu(operand) else None
    if kernels is None:
        return None
    own = ShardedKernels(kernels) if isinstance(operand, RowShards) else kernels
    return own if own.suits_tensor_cores(operand) else None


def _is_on_gpu(x: Any) -> bool:
    return array_module(x) is not np


def _is_transpose(a: Any, b: Any) -> bool:
    """Return whether `a` is the transpose of a matrix `b`, in the same memory."""
    if isinstance(b, RowShards):
        return isinstance(a, RowShards) and a.is_transpose_of(b)
    if not is_cupy(a) or b.ndim != 2:
        return False
    shapes_suit, strides_suit = a.shape == b.shape[::-1], a.strides == b.strides[::-1]
    return shapes_suit and strides_suit and _address(a) == _address(b)


def _find_gram(factor: Array, memory: GramMemory | None) -> _CachedGram:
    """Return what is known of a factor; compute its Gram matrix if it is not known."""
    owner = _owner(factor)
    if isinstance(factor, RowShards):
        if factor.memo.known is not None:
            return factor.memo.known
    elif memory is not None and _is_whole(factor):
        for known in memory.known:
            if known.factor() is owner and known.grams.shape[-1] == factor.shape[1]:
                return known
    kernels = _find_kernels(factor)
    assert kernels is not None
    known = _CachedGram(weakref.ref(owner), kernels.gram_blocks(factor))
    _remember(factor, known, memory)
    return known


def _remember(factor: Array, known: _CachedGram, memory: GramMemory | None) -> None:
    """Remember it in `memory`; of a row-sharded factor, which never changes, while it lives."""
    if isinstance(factor, RowShards):
        factor.memo.known = known
    elif memory is not None and _is_whole(factor):
        memory.known = [other for other in memory.known if other.factor() is not None]
        memory.known.append(known)


def _is_whole(array: Array) -> bool:
    """Return whether a matrix has all rows, and the first columns, of the owner of its memory."""
    owner = _owner(array)
    begins_alike = _address(owner) == _address(array) and owner.strides == array.strides
    return begins_alike and owner.shape[0] == array.shape[0]


def _owner(array: Any) -> Any:
    """Return the array that owns the memory of a view; of row-sharded ones what all views share."""
    if isinstance(array, RowShards):
        return array.memo
    return array if array.base is None else array.base


def _address(array: Array) -> int:
    return array.data.ptr


class ShardedKernels:
    """Kernels of `engines.cuda.tall` for row-sharded matrices; small ones are on the first device.

    Each block is computed on its device. Small results, one or a few for each block, are collected
    on the first device, where other kernels add them in that order.
    """

    def __init__(self, kernels: ModuleType) -> None:
        self._kernels = kernels

    def suits_tensor_cores(self, x: RowShards) -> bool:
        if x.memo.suits is None:
            x.memo.suits = all(map(self._kernels.suits_tensor_cores, x.blocks))
        return x.memo.suits

    def gram_blocks(self, x: RowShards) -> Any:
        (grams,) = self._collect(x, x.apply(self._kernels.gram_blocks))
        return grams

    def inner_blocks(self, a: RowShards, b: RowShards) -> Any:
        (inner,) = self._collect(a, a.apply(self._kernels.inner_blocks, b))
        return inner

    def solve_rows(self, x: RowShards, inverse: Any) -> tuple[RowShards, Any, Any]:
        kernels = self._kernels

        def solve(block: Array, matrix: Array) -> tuple[Array, Any, Any]:
            return kernels.solve_rows(block, kernels.as_blocks(matrix))

        solved = x.apply(solve, matrix=inverse.to_array())
        rows, grams, inner = zip(*solved, strict=True)
        return x.replace(rows, False), *self._collect(x, grams, inner)

    def _collect(self, x: RowShards, *results: Sequence[Any]) -> list[Any]:
        """Return `Blocks` of all blocks of rows, one after the other, on the first device."""
        requests = [([blocks.to_array() for blocks in own], 0) for own in results]
        return [self._kernels.as_blocks(array) for array in x.sharding.devices.gather(requests)]

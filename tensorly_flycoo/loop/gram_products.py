"""Products of Gram matrices as parafac forms them, computed only when they are solved with.

TensorLy's parafac multiplies the Gram matrices of all factors but one, elementwise, scales the
product by the weights, and solves with it. On a GPU each of these operations on a small matrix
would be a launch, which takes longer than the work: a `GramProduct` collects them for one kernel.

A factor's Gram matrix is needed for every other mode, and for the error. `solve` gets it, and the
inner product with the MTTKRP, in the same pass over the rows that computes the factor. A
`GramMemory`, one for each call of parafac, keeps them: until the error is known if then a callback
may write to a factor, else as long as the factor lives, since only TensorLy's own loop runs. What
it keeps of NumPy factors is in `host_grams`.

TensorLy asks for a Gram matrix by ``dot(conj(transpose(factor)), factor)``, with new views at each
time. So a factor is known by where it is in memory, while the array that owns this memory lives.
"""

import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy
from ..base.devices import Devices, bring_each
from ..engines.tall import gpu_kernels, solve
from ..spread import row_shards
from ..spread.row_shards import RowShards
from .host_grams import HostGrams

if TYPE_CHECKING:
    from ..engines.cuda.tall import Scale


@dataclass(slots=True)
class _CachedGram:
    """A factor's Gram matrix, and blocks of an inner product with it."""

    product: "GramProduct"
    owner: "weakref.ref[Any]"  # of the factor's memory
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    mttkrp: "weakref.ref[Any] | None" = None  # with which `inner` is; also the owner
    inner: Any = None


class GramMemory:
    """The memory of one call of parafac for its factors, from their updates to the error."""

    def __init__(self) -> None:
        #: By address; to be cleared where factors may change.
        self.known: dict[int, _CachedGram] = {}
        self.num_solves = 0  # systems that were solved with a `GramProduct`
        self.host = HostGrams()
        self.factors_may_change = True  # between iterations, by a callback
        self.has_unit_weights = False  # whether all weights are known to be 1

    def end_iteration(self) -> None:
        """Forget what may not hold in the next iteration."""
        if self.factors_may_change:
            self.known.clear()
            self.host = HostGrams()

    def find(self, factor: Array) -> _CachedGram | None:
        """Return the Gram matrix known of a factor, maybe by another view of the same numbers."""
        known = self.known.get(_address(factor))
        if known is None or known.shape != factor.shape or known.strides != factor.strides:
            return None
        # Another array may have got the memory of one that is gone.
        return known if known.owner() is _owner(factor) else None

    def keep(self, factor: Array, known: _CachedGram) -> None:
        """Keep what is known of a factor while that lives."""
        self.known = {at: other for at, other in self.known.items() if other.owner() is not None}
        self.known[_address(factor)] = known


class _OfThread(threading.local):
    memory: GramMemory | None = None


_of_thread = _OfThread()


def stop() -> None:
    """End what `start_product` began: `tl.dot` of factors is a plain product again."""
    _of_thread.memory = None


@dataclass(eq=False, repr=False)
class GramProduct:
    """An elementwise product (R, R) of Gram matrices of CuPy factors and small matrices.

    Any operation that this class does not define turns it into a CuPy array first.
    """

    _kernels: ModuleType
    rank: int
    dtype: np.dtype
    grams: tuple[Any, ...] = ()
    scales: "tuple[Scale, ...]" = ()
    _memory: GramMemory | None = None
    _transpose: "GramProduct | None" = None  # of which this is the transpose

    ndim = 2
    __array_ufunc__ = None  # CuPy's and NumPy's arrays leave products with them to this class

    def __post_init__(self) -> None:
        self.shape = (self.rank, self.rank)

    @staticmethod
    def of(factor: Array, memory: GramMemory | None = None) -> "GramProduct | None":
        """Return the Gram matrix of a factor; None if no kernels suit."""
        known = _find_known(factor, memory)
        return None if known is None else known.product

    @property
    def T(self) -> "GramProduct":
        """The transpose: Gram matrices are symmetric."""
        if self._transpose is not None:
            return self._transpose
        scales = tuple([(array, column, row) for array, row, column in self.scales])
        sizes = self._kernels, self.rank, self.dtype
        return GramProduct(*sizes, self.grams, scales, self._memory, self)

    def __mul__(self, other: Any) -> Any:
        is_product = type(other) is GramProduct
        grams = self.grams + other.grams if is_product else self.grams
        added = other.scales if is_product else _as_scales(other, self)
        are_weights = added and not is_product and other.shape != self.shape
        if are_weights and self._memory is not None and self._memory.has_unit_weights:
            return self
        scales = self.scales + added
        fits = len(grams) <= self._kernels.MAX_GRAMS and len(scales) <= self._kernels.MAX_SCALES
        if fits and (is_product or added):
            sizes = self._kernels, self.rank, self.dtype
            return GramProduct(*sizes, grams, scales, self._memory)
        return self.to_array() * (other.to_array() if is_product else other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return self if type(other) is int and other == 0 else self.to_array() + other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.to_array(), name)

    def __array_function__(self, function: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        args = tuple(a.to_array() if isinstance(a, GramProduct) else a for a in args)
        return function(*args, **kwargs)

    def to_array(self) -> Array:
        """Compute the product, as a CuPy array."""
        import cupy

        product = cupy.ones((self.rank, self.rank), np.float64)
        for blocks in self.grams:
            product *= blocks.to_array().sum(axis=0)
        for array, row_stride, column_stride in self.scales:
            strides = (row_stride * array.itemsize, column_stride * array.itemsize)
            product *= cupy.lib.stride_tricks.as_strided(array, product.shape, strides)
        return product.astype(self.dtype)

    def solve(self, b: Any) -> Array:
        """Solve ``self @ x = b``; see `engines.tall.solve`."""
        rows = b.T
        fits = b.ndim == 2 and b.shape[0] == self.rank
        kernels = _find_kernels(rows) if fits else None
        if kernels is None:
            return (row_shards.solve if isinstance(b, RowShards) else solve)(self.to_array(), b)
        inverse = kernels.invert_product(self.grams, self.T.scales, self.rank, self.dtype)
        factor, grams, inner = kernels.solve_rows(rows, inverse)
        known = _keep(factor, grams, self._memory)
        known.mttkrp = weakref.ref(_owner(rows))
        known.inner = inner
        if self._memory is not None:
            self._memory.num_solves += 1
        return factor.T


def solve_on_host(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve ``a @ x = b``, and remember x.T if parafac solves it on this thread."""
    memory = _of_thread.memory
    return solve(a, b) if memory is None or b.ndim != 2 else memory.host.solve(a, b.T).T


def find_gram(a: Any, b: Any) -> Any:
    """Return ``a @ b`` if it is a Gram matrix that parafac multiplies on this thread, else None."""
    memory = _of_thread.memory
    if memory is None:
        return None
    if isinstance(b, RowShards):
        is_gram = isinstance(a, RowShards) and a.is_transpose_of(b)
        product = GramProduct.of(b, memory) if is_gram else None
        return row_shards.replicate_gram(a, b) if product is None else product
    if not is_cupy(b):
        is_on_host = type(a) is type(b) is np.ndarray
        return memory.host.find_gram(a, b) if is_on_host else None
    is_alike = type(a) is type(b) and b.ndim == 2 and a.shape == b.shape[::-1]
    if not is_alike or a.strides != b.strides[::-1] or _address(a) != _address(b):
        return None
    return GramProduct.of(b, memory)


def start_product(memory: GramMemory, rank: int, dtype: Any, on_gpu: bool) -> GramProduct | None:
    """Let `tl.dot` of this thread return Gram matrices that `memory` remembers, until `stop`.

    Returns a product of no Gram matrices, to begin with; None if the kernels do not suit.
    """
    _of_thread.memory = memory
    kernels = gpu_kernels() if on_gpu else None
    if kernels is None or not kernels.suits_rank(rank, dtype):
        return None
    return GramProduct(kernels, rank, np.dtype(dtype), _memory=memory)


def _as_scales(array: Any, product: GramProduct) -> "tuple[Scale, ...]":
    """Return an array that a product (R, R) can be multiplied by as a `Scale`, or nothing."""
    rank = product.rank
    if not is_cupy(array) or array.ndim != 2 or array.dtype != product.dtype:
        return ()
    (num_rows, num_columns), (row_nbytes, column_nbytes) = array.shape, array.strides
    if num_rows not in (1, rank) or num_columns not in (1, rank):
        return ()
    row_stride = 0 if num_rows == 1 else row_nbytes // array.itemsize
    return ((array, row_stride, 0 if num_columns == 1 else column_nbytes // array.itemsize),)


def compute_fit(
    norm: float,
    weights: Array | None,
    factors: Sequence[Any],
    mttkrp: Any,
    memory: GramMemory | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> float | None:
    """Compute the norm of the difference of a tensor and a CP model, in float64.

    `norm` is the tensor's, `mttkrp` that of the last mode. None if the kernels do not suit.
    Otherwise the host has waited for the GPU, once; before that it has called `meanwhile`.
    """
    if memory is not None and type(mttkrp) is np.ndarray and not _is_on_gpu(mttkrp):
        return memory.host.compute_fit(norm, weights, factors, mttkrp)
    own_kernels = _find_kernels(mttkrp)
    kernels = None if own_kernels is None else gpu_kernels()
    if own_kernels is None or kernels is None or len(factors) > kernels.MAX_GRAMS:
        return None
    found = (_find_known(factor, memory) for factor in factors)
    known = [of_factor for of_factor in found if of_factor is not None]
    if len(known) < len(factors):
        return None
    of_last = known[-1].product
    scales: tuple[Scale, ...] = ()
    if weights is not None:
        column = weights.reshape(-1, 1)
        row = weights.reshape(1, -1)
        scales = (*_as_scales(column, of_last), *_as_scales(row, of_last))
        if len(scales) < 2:
            return None
    last = known[-1]
    is_known = last.mttkrp is not None and last.mttkrp() is _owner(mttkrp)
    inner = last.inner if is_known else own_kernels.inner_blocks(mttkrp, factors[-1])
    grams = [of_factor.product.grams[0] for of_factor in known]
    sizes = (of_last.rank, of_last.dtype)
    return kernels.compute_fit(grams, scales, *sizes, inner, float(norm) ** 2, meanwhile)


def _find_kernels(operand: Any) -> "ModuleType | ShardedKernels | None":
    """Return the kernels that suit a matrix, which may be row-sharded."""
    kernels = gpu_kernels() if _is_on_gpu(operand) else None
    if kernels is None:
        return None
    is_sharded = isinstance(operand, RowShards)
    own = ShardedKernels(kernels, operand.sharding.devices) if is_sharded else kernels
    return own if own.suits_tensor_cores(operand) else None


def _is_on_gpu(x: Any) -> bool:
    return array_module(x) is not np


def _find_known(factor: Any, memory: GramMemory | None) -> _CachedGram | None:
    """Return the Gram matrix of a factor, known or computed; None if no kernels suit."""
    if isinstance(factor, RowShards):
        known = factor.memo.known
    else:
        known = None if memory is None else memory.find(factor)
    if known is None and (kernels := _find_kernels(factor)) is not None:
        known = _keep(factor, kernels.gram_blocks(factor), memory)
    return known


def _keep(factor: Array, grams: Any, memory: GramMemory | None) -> _CachedGram:
    """Keep the Gram matrix of a factor; of a row-sharded one, which never changes, for its life."""
    kernels = gpu_kernels()
    assert kernels is not None
    product = GramProduct(kernels, factor.shape[1], factor.dtype, (grams,))
    if isinstance(factor, RowShards):
        factor.memo.known = known = _CachedGram(product, weakref.ref(factor.memo))
    else:
        known = _CachedGram(product, weakref.ref(_owner(factor)), factor.shape, factor.strides)
        if memory is not None:
            memory.keep(factor, known)
    return known


def _owner(array: Any) -> Any:
    """Return the array that owns the memory of a view; of row-sharded ones what all views share."""
    if isinstance(array, RowShards):
        return array.memo
    return array if array.base is None else array.base


_address = operator.attrgetter("data.ptr")


class ShardedKernels:
    """Kernels of `engines.cuda.tall` for row-sharded matrices.

    Each block is computed on its device. Small results, one or a few for each block, are collected,
    where other kernels add them in that order: Gram matrices on each device, others on the first.
    """

    def __init__(self, kernels: ModuleType, devices: Devices) -> None:
        self._kernels = kernels
        self._devices = devices
        self._homes = range(devices.count)

    def suits_tensor_cores(self, x: RowShards) -> bool:
        if x.memo.suits is None:
            # A cluster, which has no such kernels, is to find the bits of one process in float64.
            is_small = x.dtype == np.float32 and x.shape[1] <= 32
            x.memo.suits = is_small and all(map(self._kernels.suits_tensor_cores, x.blocks))
        return x.memo.suits

    def gram_blocks(self, x: RowShards) -> Any:
        grams = _as_arrays(x.apply(self._kernels.gram_blocks))
        return self._keep_copies(self._devices.gather([(grams, home) for home in self._homes]))

    def inner_blocks(self, a: RowShards, b: RowShards) -> Any:
        inner = _as_arrays(a.apply(self._kernels.inner_blocks, b))
        return self._kernels.as_blocks(self._devices.gather([(inner, 0)])[0])

    def invert_product(
        self, grams: Sequence[Any], scales: "Sequence[Scale]", rank: int, dtype: np.dtype
    ) -> list[Any]:
        """Return the inverse on each device, which computes it if it has the Gram matrices."""
        devices = self._devices
        invert = self._kernels.invert_product
        if scales or not grams or not all(gram.copies for gram in grams):
            inverse = invert(grams, scales, rank, dtype).to_array()
            copies = bring_each(devices, [inverse] * devices.count, self._homes)
            return list(map(self._kernels.as_blocks, copies))
        by_device = enumerate(zip(*[gram.copies for gram in grams], strict=True))
        return [devices.run(home, invert, own, (), rank, dtype) for home, own in by_device]

    def solve_rows(self, x: RowShards, inverses: Sequence[Any]) -> tuple[RowShards, Any, Any]:
        """Solve for a factor; gather it with its Gram matrix if other modes' MTTKRPs read it."""
        devices = self._devices
        solved = []
        for home, block in zip(x.sharding.homes, x.blocks, strict=True):
            with devices.use(home):
                solved.append(self._kernels.solve_rows(block, inverses[home]))
        blocks, grams, inner = zip(*solved, strict=True)
        factor = RowShards(blocks, x.sharding)
        replicated = [_as_arrays(grams), *([blocks] if x.sharding.is_read_whole else [])]
        requests = [(arrays, home) for arrays in replicated for home in self._homes]
        *gathered, total = devices.gather([*requests, (_as_arrays(inner), 0)])
        factor.memo.whole.update(enumerate(gathered[devices.count :]))
        known = self._keep_copies(gathered[: devices.count])
        return factor, known, self._kernels.as_blocks(total)

    def _keep_copies(self, gathered: Sequence[Array]) -> Any:
        """Return the first device's `BlockSums`, with those of each device."""
        known = self._kernels.as_blocks(gathered[0])
        known.copies = [self._kernels.as_blocks(array) for array in gathered]
        return known


def _as_arrays(blocks: Iterable[Any]) -> list[Array]:
    return [own.to_array() for own in blocks]

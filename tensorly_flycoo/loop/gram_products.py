"""Products of Gram matrices as parafac forms them, computed only when they are solved with.

TensorLy's parafac multiplies the Gram matrices of all factors but one, elementwise, scales the
product by the weights, and solves with it. On a GPU each of these operations on a small matrix
would be a launch, which takes longer than the work: a `GramProduct` collects them for one kernel.

A factor's Gram matrix is needed for every other mode, and for the error. `solve` gets it, and the
inner product with the MTTKRP, in the same pass over the rows that computes the factor. A
`GramMemory`, one for each call of parafac, keeps them: until the error is known if then a callback
may write to a factor, else as long as the factor lives, since only TensorLy's own loop runs. What
it keeps of NumPy factors is in `host_grams`.

TensorLy's loop passes no argument of ours on, so the memory travels in a keyword of its own and
then waits in a variable of the thread:

    decomposition/parafac               whole = WholeTensor(x), with whole.memory = GramMemory()
    TensorLy's loop, for each mode
      tl.context(whole)                 {"dtype": ..., "device": ..., "memory": whole.memory}
      tl.ones((R, R), **context)        start_product: BEGIN, the thread has this memory
      tl.dot(tl.transpose(f), f)        find_gram: the memory's Gram matrix of f, on a GPU lazy
      product * tl.dot(...)             GramProduct.__mul__: collected, not computed
      tl.solve(product, mttkrp)         GramProduct.solve, or solve_on_host: the memory keeps what
                                        the pass over the rows has found beside the factor
    TensorLy's loop, for its error
      error_calc (replacements)         whole.end_products: END, the thread has none
                                        compute_fit(..., whole.memory)
                                        memory.end_iteration: drop what a callback may change
    decomposition/parafac, at the end   whole.end_products: END, also after an error

TensorLy asks for a Gram matrix by ``dot(conj(transpose(factor)), factor)``, with new views at each
time. So a factor is known by where it is in memory, while the array that owns this memory lives.
"""

import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy
from ..base.devices import Devices, bring_each
from ..engines.tall import gpu_kernels, solve
from ..spread import row_shards
from ..spread.row_shards import RowShards, find_owner
from .host_grams import HostGrams

if TYPE_CHECKING:
    from ..engines.cuda.tall import Scale
    from .precision import NarrowFactors


@dataclass(slots=True)
class CachedGram:
    """A factor's Gram matrix, and blocks of an inner product with it."""

    product: "GramProduct"
    owner: "weakref.ref[Any]"  # of the factor's memory
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    mttkrp: "weakref.ref[Any] | None" = None  # with which `inner` is; also the owner
    inner: Any = None

    @property
    def sums(self) -> Any:
        """The Gram matrices of blocks of rows."""
        return self.product.grams[0]

    def is_of(self, factor: Array) -> bool:
        """Say whether this is still the Gram matrix of a factor at its address."""
        if self.shape != factor.shape or self.strides != factor.strides:
            return False
        # Another array may have got the memory of one that is gone.
        return self.owner() is find_owner(factor)

    def note_solved(self, mttkrp: Any, inner: Any) -> None:
        """Note that the factor solves the system of an MTTKRP, with this inner product."""
        self.mttkrp = weakref.ref(find_owner(mttkrp))
        self.inner = inner

    def is_solution_of(self, mttkrp: Any) -> bool:
        """Say whether the factor solves the system of an MTTKRP, so that `inner` is with it."""
        return self.mttkrp is not None and self.mttkrp() is find_owner(mttkrp)


class GramMemory:
    """The memory of one call of parafac for its factors, from their updates to the error."""

    def __init__(self) -> None:
        self.grams: dict[int, CachedGram] = {}  # of CuPy factors, by their addresses
        self.host = HostGrams()  # of NumPy factors
        self.is_on_gpu = False  # whether factors are CuPy's: `start_product` says so
        self.num_solves = 0  # systems that were solved with a `GramProduct`
        self.factors_may_change = True  # between iterations, by a callback
        self.has_unit_weights = False  # whether all weights are known to be 1
        self.narrow: NarrowFactors | None = None  # of a run in mixed precision
        self.ahead: ComputedAhead | None = None  # what a GPU computes before it is asked for

    def end_iteration(self) -> None:
        """Drop Gram matrices of factors that a callback may have changed."""
        if self.factors_may_change:
            self.grams.clear()
            self.host = HostGrams()

    def forget(self, factor: Any) -> None:
        """Drop what is known of a factor, which was written to."""
        if isinstance(factor, np.ndarray):
            self.host.forget(factor)
        elif not isinstance(factor, RowShards):  # which never change
            self.grams.pop(find_address(factor), None)

    def find(self, factor: Array) -> CachedGram | None:
        """Return the Gram matrix known of a factor, maybe by another view of the same numbers."""
        cached = self.grams.get(find_address(factor))
        if cached is None or not cached.is_of(factor):
            return None
        return cached

    def keep(self, factor: Array, cached: CachedGram) -> None:
        """Keep what is known of a factor while that lives."""
        for address, old in list(self.grams.items()):
            if old.owner() is None:
                del self.grams[address]
        self.grams[find_address(factor)] = cached


class ComputedAhead(Protocol):
    """Results that a GPU computes before the loop asks for them: see `ahead.IterationsAhead`."""

    def find_product(self, factors: Sequence[Array], mode: int) -> Array | None:
        """Return the MTTKRP of a mode if it is computed of these factors."""

    def find_solution(
        self, mttkrp: Array, gram_sums: tuple[Any, ...]
    ) -> tuple[Array, CachedGram] | None:
        """Return the factor that solves for an MTTKRP and these Gram matrices, if it is computed.

        With it comes what is known of it.
        """

    def find_error(self, grams: Sequence[CachedGram]) -> "PendingError | None":
        """Return the error of the factors with these Gram matrices if it is computed."""

    def launch(self, factors: Sequence[Array]) -> bool:
        """Launch the iteration that starts from these factors; return whether one does."""

    def end(self) -> None:
        """Wait for what is under way, and let go of all memory."""


class PendingError(Protocol):
    """An error that a GPU computes."""

    def wait(self) -> float:
        """Wait for the error, and return it."""


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
        cached = _find_or_compute(factor, memory)
        return None if cached is None else cached.product

    def _with(
        self,
        grams: tuple[Any, ...],
        scales: "tuple[Scale, ...]",
        transpose: "GramProduct | None" = None,
    ) -> "GramProduct":
        """Make a product of other members, of the same rank and dtype."""
        return GramProduct(
            self._kernels, self.rank, self.dtype, grams, scales, self._memory, transpose
        )

    @property
    def T(self) -> "GramProduct":
        """The transpose: Gram matrices are symmetric."""
        if self._transpose is not None:
            return self._transpose
        scales = tuple([(array, column, row) for array, row, column in self.scales])
        return self._with(self.grams, scales, transpose=self)

    def __mul__(self, other: Any) -> Any:
        if type(other) is GramProduct:
            product = self._collect(other.grams, other.scales)
            if product is None:
                return self.to_array() * other.to_array()
            return product
        added = _as_scales(other, self)
        if not added:
            return self.to_array() * other
        are_weights = other.shape != self.shape
        if are_weights and self._memory is not None and self._memory.has_unit_weights:
            return self
        product = self._collect((), added)
        if product is None:
            return self.to_array() * other
        return product

    __rmul__ = __mul__

    def _collect(self, grams: tuple[Any, ...], scales: "tuple[Scale, ...]") -> "GramProduct | None":
        """Return the product with further members; None if the kernels do not take so many."""
        all_grams = self.grams + grams
        all_scales = self.scales + scales
        if len(all_grams) > self._kernels.MAX_GRAMS or len(all_scales) > self._kernels.MAX_SCALES:
            return None
        return self._with(all_grams, all_scales)

    def __add__(self, other: Any) -> Any:
        if type(other) is int and other == 0:  # TensorLy's l2_reg
            return self
        return self.to_array() + other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.to_array(), name)

    def __array_function__(self, function: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        arrays = [arg.to_array() if isinstance(arg, GramProduct) else arg for arg in args]
        return function(*arrays, **kwargs)

    def to_array(self) -> Array:
        """Compute the product, as a CuPy array."""
        return self.compute().astype(self.dtype, copy=False)

    def compute(self) -> Array:
        """Compute the product in float64."""
        return self._kernels.multiply_product(self.grams, self.scales, self.rank, self.dtype)

    def solve(self, b: Any) -> Array:
        """Solve ``self @ x = b``; see `engines.tall.solve`."""
        rows = b.T
        fits = b.ndim == 2 and b.shape[0] == self.rank
        kernels = _find_kernels(rows) if fits else None
        if kernels is None and isinstance(b, RowShards):
            return row_shards.solve(self.to_array(), b)
        if kernels is None:
            return solve(self.to_array(), b)
        memory = self._memory
        if memory is not None and memory.ahead is not None and not self.scales:
            solution = memory.ahead.find_solution(rows, self.grams)
            if solution is not None:
                factor, cached = solution
                memory.keep(factor, cached)
                return factor.T
        inverse = kernels.invert_product(self.grams, self.T.scales, self.rank, self.dtype)
        narrow = None if self._memory is None else self._memory.narrow
        if narrow is None or not narrow.is_rounding or isinstance(kernels, ShardedKernels):
            factor, grams, inner = kernels.solve_rows(rows, inverse)
        else:
            factor, grams, inner, narrow_rows = kernels.solve_and_round_rows(rows, inverse)
            narrow.keep_solved(factor, narrow_rows)
        cached = _keep(factor, grams, self._memory)
        if inner is not None:
            cached.note_solved(rows, inner)
        if self._memory is not None:
            self._memory.num_solves += 1
        return factor.T


def solve_on_host(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve ``a @ x = b``, and remember x.T if parafac solves it on this thread."""
    memory = _of_thread.memory
    if memory is None or b.ndim != 2:
        return solve(a, b)
    narrow = memory.narrow
    rounds = narrow is not None and narrow.is_rounding
    factor, rows = memory.host.solve_factor(a, b.T, rounds)
    if narrow is not None and rows is not None:
        narrow.keep_solved(factor, rows)
    return factor.T


def find_gram(a: Any, b: Any) -> Any:
    """Return ``a @ b`` if it is a Gram matrix that parafac multiplies on this thread, else None."""
    memory = _of_thread.memory
    if memory is None:
        return None
    if isinstance(b, RowShards):
        return _find_sharded_gram(a, b, memory)
    if memory.is_on_gpu and is_cupy(b):
        return GramProduct.of(b, memory) if _is_transpose(a, b) else None
    if type(a) is type(b) is np.ndarray:
        return memory.host.find_gram(a, b)
    return None


def _find_sharded_gram(a: Any, b: RowShards, memory: GramMemory) -> Any:
    """Return ``a @ b`` if `a` is the transpose of row shards `b`: lazy if the kernels suit."""
    if isinstance(a, RowShards) and a.is_transpose_of(b):
        product = GramProduct.of(b, memory)
        if product is not None:
            return product
    return row_shards.replicate_gram(a, b)


def _is_transpose(a: Any, b: Array) -> bool:
    """Say whether `a` is a view of the CuPy matrix `b`, transposed."""
    is_alike = type(a) is type(b) and b.ndim == 2 and a.shape == b.shape[::-1]
    return is_alike and a.strides == b.strides[::-1] and find_address(a) == find_address(b)


def start_product(memory: GramMemory, rank: int, dtype: Any, on_gpu: bool) -> GramProduct | None:
    """Let `tl.dot` of this thread return Gram matrices that `memory` remembers, until `stop`.

    Returns a product of no Gram matrices, to begin with; None if the kernels do not suit.
    """
    _of_thread.memory = memory
    memory.is_on_gpu = on_gpu
    kernels = gpu_kernels() if on_gpu else None
    if kernels is None or not kernels.suits_rank(rank, dtype):
        return None
    return GramProduct(kernels, rank, np.dtype(dtype), _memory=memory)


def collect_grams(
    factors: Sequence[Array], memory: GramMemory, skip: int | None = None
) -> GramProduct | None:
    """Return the product of the Gram matrices of CuPy factors, but for that of mode `skip`.

    None if no kernels suit, or if nothing is left.
    """
    kernels = gpu_kernels()
    kept = [factor for n, factor in enumerate(factors) if n != skip]
    if kernels is None or not 0 < len(kept) <= kernels.MAX_GRAMS:
        return None
    cached = _find_all(kept, memory)
    if cached is None:
        return None
    first = cached[0].product
    sums = tuple([of_factor.product.grams[0] for of_factor in cached])
    return GramProduct(kernels, first.rank, first.dtype, sums, (), memory)


def _as_scales(array: Any, product: GramProduct) -> "tuple[Scale, ...]":
    """Return an array that a product (R, R) can be multiplied by as a `Scale`, or nothing."""
    rank = product.rank
    if not is_cupy(array) or array.ndim != 2 or array.dtype != product.dtype:
        return ()
    if array.shape[0] not in (1, rank) or array.shape[1] not in (1, rank):
        return ()
    row_stride = _find_stride(array, 0)
    column_stride = _find_stride(array, 1)
    return ((array, row_stride, column_stride),)


def _find_stride(array: Array, axis: int) -> int:
    """Return the stride of an axis in elements, 0 of an axis that is broadcast.

    >>> _find_stride(np.ones((3, 4)), 0), _find_stride(np.ones((3, 1)), 1)
    (4, 0)
    """
    return 0 if array.shape[axis] == 1 else array.strides[axis] // array.itemsize


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
        weights_that_matter = None if memory.has_unit_weights else weights
        return memory.host.compute_fit(norm, weights_that_matter, factors, mttkrp)
    kernels_of_mttkrp = _find_kernels(mttkrp)
    if kernels_of_mttkrp is None:
        return None
    # Gram matrices, which are plain arrays even of sharded factors, are multiplied on one device.
    kernels = gpu_kernels()
    if kernels is None or len(factors) > kernels.MAX_GRAMS:
        return None
    cached = _find_all(factors, memory)
    if cached is None:
        return None
    if memory is not None and memory.ahead is not None:
        pending = memory.ahead.find_error(cached)
        if pending is not None:
            meanwhile()
            return pending.wait()
    scales = _scale_by_weights(weights, cached[-1].product)
    if scales is None:
        return None
    arguments = _list_fit_arguments(norm, scales, cached, factors[-1], mttkrp, kernels_of_mttkrp)
    return kernels.compute_fit(*arguments, meanwhile)


def launch_fit(
    norm: float, factors: Sequence[Array], mttkrp: Array, memory: GramMemory, address: int
) -> None:
    """Launch the kernels of `compute_fit`, which write its result to an address of the host.

    They suit the factors, whose weights are ones.
    """
    kernels = gpu_kernels()
    cached = _find_all(factors, memory)
    assert kernels is not None
    assert cached is not None
    arguments = _list_fit_arguments(norm, (), cached, factors[-1], mttkrp, kernels)
    kernels.launch_fit(*arguments, address)


def _list_fit_arguments(
    norm: float,
    scales: "tuple[Scale, ...]",
    cached: Sequence[CachedGram],
    last_factor: Any,
    mttkrp: Any,
    kernels_of_mttkrp: "ModuleType | ShardedKernels",
) -> tuple[Any, ...]:
    """List the arguments of the kernels' `compute_fit` and `launch_fit`, but for their last."""
    last = cached[-1]
    if last.is_solution_of(mttkrp):
        inner = last.inner
    else:
        inner = kernels_of_mttkrp.inner_blocks(mttkrp, last_factor)
    sums = [of_factor.product.grams[0] for of_factor in cached]
    return sums, scales, last.product.rank, last.product.dtype, inner, float(norm) ** 2


def _find_all(factors: Sequence[Any], memory: GramMemory | None) -> list[CachedGram] | None:
    """Return the Gram matrices of all factors; None if no kernels suit one of them."""
    grams = [_find_or_compute(factor, memory) for factor in factors]
    suitable = [gram for gram in grams if gram is not None]
    if len(suitable) < len(factors):
        return None
    return suitable


def _scale_by_weights(weights: Array | None, product: GramProduct) -> "tuple[Scale, ...] | None":
    """Return weights (R,) as scales of both sides of a product; None if they cannot be."""
    if weights is None:
        return ()
    column = _as_scales(weights.reshape(-1, 1), product)
    row = _as_scales(weights.reshape(1, -1), product)
    return (*column, *row) if column and row else None


def _find_kernels(operand: Any) -> "ModuleType | ShardedKernels | None":
    """Return the kernels that suit a matrix, which may be row-sharded."""
    if not _is_on_gpu(operand):
        return None
    plain_kernels = gpu_kernels()
    if plain_kernels is None:
        return None
    kernels: ModuleType | ShardedKernels = plain_kernels
    if isinstance(operand, RowShards):
        kernels = ShardedKernels(plain_kernels, operand.sharding.devices)
    return kernels if kernels.suits_tensor_cores(operand) else None


def _is_on_gpu(x: Any) -> bool:
    return array_module(x) is not np


def _find_or_compute(factor: Any, memory: GramMemory | None) -> CachedGram | None:
    """Return the Gram matrix of a factor; None if it is not known and no kernels suit."""
    cached = None
    if isinstance(factor, RowShards):
        cached = factor.memo.known
    elif memory is not None:
        cached = memory.find(factor)
    if cached is not None:
        return cached
    kernels = _find_kernels(factor)
    if kernels is None:
        return None
    return _keep(factor, kernels.gram_blocks(factor), memory)


def _keep(factor: Array, grams: Any, memory: GramMemory | None) -> CachedGram:
    """Keep the Gram matrix of a factor; of a row-sharded one, which never changes, for its life."""
    cached = make_cached(factor, grams)
    if isinstance(factor, RowShards):
        factor.memo.known = cached
    elif memory is not None:
        memory.keep(factor, cached)
    return cached


def make_cached(factor: Array, grams: Any) -> CachedGram:
    """Make what is known of a factor, which nobody keeps yet."""
    kernels = gpu_kernels()
    assert kernels is not None
    product = GramProduct(kernels, factor.shape[1], factor.dtype, (grams,))
    owner = weakref.ref(find_owner(factor))
    if isinstance(factor, RowShards):
        return CachedGram(product, owner)
    return CachedGram(product, owner, factor.shape, factor.strides)


find_address = operator.attrgetter("data.ptr")


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
        gathered = self._devices.gather([(grams, home) for home in self._homes])
        return self._keep_copies(gathered)

    def inner_blocks(self, a: RowShards, b: RowShards) -> Any:
        inner = _as_arrays(a.apply(self._kernels.inner_blocks, b))
        (gathered,) = self._devices.gather([(inner, 0)])
        return self._kernels.as_blocks(gathered)

    def invert_product(
        self, grams: Sequence[Any], scales: "Sequence[Scale]", rank: int, dtype: np.dtype
    ) -> list[Any]:
        """Return the inverse on each device, which computes it if it has the Gram matrices."""
        devices = self._devices
        invert = self._kernels.invert_product
        if scales or not grams or not all(gram.copies for gram in grams):
            inverse = invert(grams, scales, rank, dtype).to_array()
            copies = bring_each(devices, [inverse] * devices.count, self._homes)
            return [self._kernels.as_blocks(copy) for copy in copies]
        grams_by_device = zip(*[gram.copies for gram in grams], strict=True)
        return [
            devices.run(home, invert, grams_there, (), rank, dtype)
            for home, grams_there in enumerate(grams_by_device)
        ]

    def solve_rows(self, x: RowShards, inverses: Sequence[Any]) -> tuple[RowShards, Any, Any]:
        """Solve for a factor; gather it with its Gram matrix if other modes' MTTKRPs read it."""
        devices = self._devices
        solved = []
        for home, block in zip(x.sharding.homes, x.blocks, strict=True):
            with devices.use(home):
                solved.append(self._kernels.solve_rows(block, inverses[home]))
        blocks, grams, inner = zip(*solved, strict=True)
        factor = RowShards(blocks, x.sharding)

        # All in one request, since each waits for the devices: first the Gram matrices on each
        # device, then the whole factor on each if it is read so, at last the inner products.
        gram_arrays = _as_arrays(grams)
        requests: list[Any] = [(gram_arrays, home) for home in self._homes]
        if x.sharding.is_read_whole:
            requests += [(blocks, home) for home in self._homes]
        requests.append((_as_arrays(inner), 0))
        *copies, inner_products = devices.gather(requests)
        gram_copies = copies[: devices.count]
        factor_copies = copies[devices.count :]
        factor.memo.whole.update(enumerate(factor_copies))
        return factor, self._keep_copies(gram_copies), self._kernels.as_blocks(inner_products)

    def _keep_copies(self, gathered: Sequence[Array]) -> Any:
        """Return the first device's `BlockSums`, with those of each device."""
        gram = self._kernels.as_blocks(gathered[0])
        gram.copies = [self._kernels.as_blocks(array) for array in gathered]
        return gram


def _as_arrays(all_blocks: Iterable[Any]) -> list[Array]:
    return [blocks.to_array() for blocks in all_blocks]

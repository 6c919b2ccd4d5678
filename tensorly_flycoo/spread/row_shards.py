"""A matrix whose rows are on several devices, and the operations on factors that TensorLy uses.

Elementwise operations run block by block. Sums over rows are sums of each block, added in float64
along the tree of `format.tree`; the small results are plain arrays on the first device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import accumulate, chain, pairwise
from types import ModuleType
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..base.array_modules import Array, array_module, remote_aware
from ..base.devices import Devices, Request, assign_homes, bring_each
from ..engines import engine_of, tall
from ..engines.narrow_rows import NarrowRows
from ..engines.row_rules import RowRule
from ..format.tree import fold_tree

#: Elementwise functions that run block by block.
_UFUNCS = {
    np.add,
    np.subtract,
    np.multiply,
    np.true_divide,
    np.negative,
    np.positive,
    np.power,
    np.sign,
    np.conjugate,
    np.absolute,
    np.sqrt,
    np.square,
    np.maximum,
    np.minimum,
    np.isfinite,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    np.equal,
    np.not_equal,
}


@dataclass(frozen=True)
class Sharding:
    """Blocks of rows of a matrix, on which alone results depend, and the device of each."""

    edges: tuple[int, ...]  # of the blocks (num_blocks + 1,): ascending, from 0
    homes: tuple[int, ...]  # the device of each; the first one holds results of all blocks
    devices: Devices
    is_read_whole: bool = field(default=False, compare=False)  # by each device, in MTTKRPs

    @classmethod
    def of(cls, edges: Sequence[int], devices: Devices, is_read_whole: bool = False) -> Sharding:
        """Give each device equally many neighbouring blocks."""
        homes = assign_homes(len(edges) - 1, devices.count)
        return cls(tuple(edges), homes, devices, is_read_whole)

    def cut(self, array: Array) -> list[Array]:
        """Return the blocks of a matrix on their devices."""
        blocks = [array[start:stop] for start, stop in pairwise(self.edges)]
        return bring_each(self.devices, blocks, self.homes)


def cut_evenly(num_rows: int, num_blocks: int) -> tuple[int, ...]:
    """Return edges of blocks with equally many rows, the last ones with fewer.

    Equal blocks let devices exchange them in one all-gather.

    >>> cut_evenly(10, 4)
    (0, 3, 6, 9, 10)
    """
    length = -(-num_rows // num_blocks)
    return tuple(min(block * length, num_rows) for block in range(num_blocks + 1))


@dataclass(eq=False)
class Memo:
    """Results computed of a matrix, which never changes; shared with its transpose."""

    gram: Array = None  # (R, R)
    products: Sequence[Array] = ()  # Gram matrices of all blocks, on their devices
    replicated: Any = None  # the Gram matrix as `Devices.replicate` returns it
    known: Any = None  # the Gram matrix as `loop.gram_products` caches it
    suits: bool | None = None  # whether an engine's kernels suit all blocks
    whole: dict[int, Array] = field(default_factory=dict)  # (I, R), by the devices that have it


class RowShards(NDArrayOperatorsMixin):
    """An immutable matrix (I, R), or its transpose, in blocks of rows on several devices.

    Everything depends on the blocks only, not on the devices that hold them. Operands are numbers,
    arrays of the same shape or that broadcast along the rows, such as (R,), and matrices sharded in
    the same way. Other operations raise a TypeError that names them; `to_numpy` gathers the matrix
    on the host. Blocks must not be changed any more; a transpose shares its matrix's `memo`.
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
        num_rows = sharding.edges[-1]
        rank = self.blocks[0].shape[1]
        self.shape: tuple[int, int] = (num_rows, rank)
        if is_transposed:
            self.shape = (rank, num_rows)
        self.dtype: np.dtype = self.blocks[0].dtype

    @classmethod
    def scatter(cls, array: Array, sharding: Sharding) -> RowShards:
        """Copy the rows of a matrix (I, R) to their devices."""
        if array.ndim != 2 or array.shape[0] != sharding.edges[-1]:
            raise ValueError(f"array has shape {array.shape}, expected ({sharding.edges[-1]}, R)")
        views = cls(sharding.cut(array), sharding)
        return views.map_blocks(lambda block: block.copy())  # the array may change

    def to_numpy(self) -> np.ndarray:
        """Gather all rows in host memory."""
        matrix = self.sharding.devices.fetch(self.blocks)
        if self.is_transposed:
            return matrix.T
        return matrix

    @property
    def T(self) -> RowShards:
        return RowShards(self.blocks, self.sharding, not self.is_transposed, self.memo)

    @property
    def xp(self) -> ModuleType:
        return array_module(self.blocks[0])

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<RowShards: shape={self.shape}, dtype={self.dtype}, {len(self.blocks)} blocks>"

    # Block by block

    def map_blocks(self, function: Callable[..., Array], *operands: Any) -> RowShards:
        """Apply a function to each block and to the matching parts of other operands.

        The function is called on the block's device with arrays (rows, R), where numbers and arrays
        that broadcast are passed as they are, and returns an array (rows, any).
        """
        return RowShards(self.apply(function, *operands), self.sharding, self.is_transposed)

    def apply(
        self, function: Callable[..., Any], *operands: Any, matrix: Array | None = None
    ) -> list[Any]:
        """Return the results of `map_blocks`; `matrix`, whole, is the function's last argument."""
        devices = self.sharding.devices
        homes = self.sharding.homes
        # First all copies, then all work: a copy waits for the work that is under way.
        parts = [self._split(operand) for operand in operands]
        if matrix is not None:
            parts.append(self._bring(matrix))
        results = []
        for home, *arguments in zip(homes, self.blocks, *parts, strict=True):
            with devices.use(home):
                results.append(function(*arguments))
        return results

    def _split(self, operand: Any) -> Sequence[Any]:
        """Return the part of an operand for each block, on its device."""
        if isinstance(operand, RowShards):
            if not self._is_sharded_like(operand):
                raise ValueError(f"{operand} and {self} are not sharded in the same way")
            return operand.blocks
        is_number = not hasattr(operand, "ndim") or isinstance(operand, np.generic)
        if is_number:
            return [operand] * len(self.blocks)
        if operand.shape == self.shape:
            if self.is_transposed:
                operand = operand.T
            return self.sharding.cut(operand)
        if operand.ndim == 0:
            return self._bring(operand)
        return self._bring(self._as_row(operand))

    def _is_sharded_like(self, matrix: RowShards) -> bool:
        is_alike = self.is_transposed == matrix.is_transposed
        return is_alike and self.sharding == matrix.sharding

    def _as_row(self, array: Array) -> Array:
        """Return an array that broadcasts along the rows in the shape (1, R) or (1, 1)."""
        row = array.reshape((1,) * (2 - array.ndim) + array.shape)  # a matrix, as NumPy broadcasts
        if self.is_transposed:
            row = row.T
        rank = self.blocks[0].shape[1]
        if row.shape not in ((1, 1), (1, rank)):
            raise ValueError(
                f"an array of shape {array.shape} does not broadcast along the rows of {self}: "
                "scatter it, or gather the factor with tl.to_numpy"
            )
        return row

    def _bring(self, array: Array) -> list[Array]:
        """Return a small array on the device of each block."""
        homes = self.sharding.homes
        (copies,) = gather_each([array], self.sharding.devices, dict.fromkeys(homes))
        return [copies[home] for home in homes]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.matmul and method == "__call__" and not options:
            return dot(*inputs)
        # ``x += y`` makes another matrix, as for any immutable object.
        if is_in_place(inputs, options):
            options = {}
        if ufunc not in _UFUNCS or method != "__call__" or options:
            name = f"numpy.{ufunc.__name__}"
            if method != "__call__":
                name += f".{method}"
            if options:
                name += f" with {', '.join(options)}"
            refuse(name)
        if ufunc is np.conjugate:
            return self  # values are real
        first = next(x for x in inputs if isinstance(x, RowShards))
        # The first argument is the block of `first`, which is among the parts of `inputs` too.
        return first.map_blocks(lambda _, *parts: ufunc(*parts), *inputs)

    def __array_function__(self, function: Callable, types: Any, args: tuple, kwargs: dict) -> Any:
        if function not in _FUNCTIONS:
            refuse(f"{function.__module__}.{function.__name__}")
        return _FUNCTIONS[function](*args, **kwargs)

    __array_priority__ = 1000  # above CuPy's: its arrays defer to us

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse("numpy.asarray")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError("row-sharded factors are immutable: factor.to_numpy() copies all rows")

    def __getitem__(self, index: Any) -> RowShards:
        """Take columns, by a slice or a list: ``x[:, :3]``."""
        is_pair = isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None)
        if self.is_transposed or not is_pair:
            refuse(f"indexing with {index!r}")
        columns = index[1]
        if not isinstance(columns, slice | list | np.ndarray):
            refuse(f"indexing with {index!r}")
        return self.map_blocks(lambda block: block[:, columns])

    # Over all rows

    def is_transpose_of(self, x: Any) -> bool:
        """Return whether this is ``x.T`` of a matrix `x` with blocks of rows."""
        is_same = isinstance(x, RowShards) and self.memo is x.memo
        return is_same and self.is_transposed and not x.is_transposed

    def reduce(
        self,
        function: Callable[..., Array],
        *operands: RowShards,
        add: Callable[[Array, Array], Array] = operator.add,
        matrix: Array | None = None,
    ) -> Array:
        """Add the results of `apply`, in float64, along the tree, on the home device."""

        def compute(*arguments: Array) -> Array:
            return function(*arguments).astype(np.float64, copy=False)

        parts = self.apply(compute, *operands, matrix=matrix)
        return fold_tree(self.sharding.devices.collect(parts), add)

    # Methods of arrays

    def copy(self, memo: Any = None) -> RowShards:
        """Return the matrix itself, which never changes; neither do real ones when conjugated."""
        return self

    conj = __copy__ = __deepcopy__ = copy

    def transpose(self, axes: Any = None, *later_axes: int) -> RowShards:
        order = axes
        if later_axes:  # given one by one
            order = (axes, *later_axes)
        if order is None or tuple(order) == (1, 0):
            return self.T
        if tuple(order) == (0, 1):
            return self
        refuse(f"transpose to {order}")

    def astype(self, dtype: Any, copy: bool = True) -> RowShards:
        return self.map_blocks(lambda block: block.astype(dtype, copy=copy))

    def sum(self, axis: int | None = None) -> Array:
        """Sum over the rows, or everything, in float64; return the dtype of the matrix."""
        _check_rows(self, axis, "sum")
        dtype = self.dtype
        if dtype.kind != "f":  # booleans, which are counted
            dtype = np.dtype(np.int64)
        sums = self.reduce(tall.sum_columns)
        if axis is None:
            sums = sums.sum()
        return sums.astype(dtype)

    def dot(self, b: Any) -> Any:
        return dot(self, b)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(name, AttributeError)


def is_in_place(inputs: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a ufunc is called as ``x += y`` calls it: its first input is to be written."""
    if set(options) != {"out"}:
        return False
    return all(out is inputs[0] for out in options["out"])


def gather_each(
    matrices: Iterable[Array | RowShards], devices: Devices, homes: Iterable[int]
) -> list[dict[int, Array]]:
    """Return each of some matrices, or other arrays, whole, on each of some devices.

    Missing copies are made in one exchange; gathered copies of row-sharded matrices are cached.
    """
    copies_of_all: list[dict[int, Array]] = []  # of each matrix, by device
    missing: list[tuple[dict[int, Array], int]] = []  # where each request's result belongs
    requests: list[Request] = []
    for matrix in matrices:
        copies: dict[int, Array] = {}
        blocks: Sequence[Array] = (matrix,)
        if isinstance(matrix, RowShards):
            copies = matrix.memo.whole
            blocks = matrix.blocks
        copies_of_all.append(copies)
        for home in homes:
            if home not in copies:
                missing.append((copies, home))
                requests.append((blocks, home))
    for (copies, home), array in zip(missing, devices.gather(requests), strict=True):
        copies[home] = array
    return copies_of_all


def gather(array: Any) -> Any:
    """Return a row-sharded matrix as a plain one, on the first device; else the array itself."""
    if not isinstance(array, RowShards):
        return array
    devices = array.sharding.devices
    with devices.use(0):
        (copies,) = gather_each([array], devices, [0])
        (whole,) = devices.collect([copies[0]])
    return whole


def find_owner(array: Any) -> Any:
    """Return the array that owns the memory of a view; of row-sharded ones what all views share."""
    if isinstance(array, RowShards):
        return array.memo
    return array if array.base is None else array.base


def refuse(name: str, error: type[Exception] = TypeError) -> NoReturn:
    """Refuse an operation that row-sharded factors lack."""
    raise error(f"{name} is not supported for row-sharded factors: gather them with tl.to_numpy")


# NumPy's functions. Blocks are computed as plain matrices are; sums over rows are then added along
# the tree.


def dot(a: Any, b: Any) -> Any:
    """Multiply x.T (R, I) by y (I, S), sharded in the same way, or x by a plain matrix."""
    if isinstance(a, RowShards) and isinstance(b, RowShards):
        if not a.is_transposed or b.is_transposed:
            refuse(f"the product of {a} and {b}")
        if a.is_transpose_of(b):
            return _compute_gram(b).copy()
        product = a.T.reduce(tall.transposed_product, b)
        return product.astype(np.result_type(a.dtype, b.dtype))
    if isinstance(a, RowShards) and not a.is_transposed and b.ndim == 2:
        return RowShards(a.apply(operator.matmul, matrix=b), a.sharding)
    if isinstance(b, RowShards) and b.is_transposed and a.ndim == 2:
        return dot(b.T, a.T).T
    refuse(f"the product of {a!r} and {b!r}")


def replicate_gram(a: Any, b: Any) -> Any:
    """Return ``a @ b`` as `Devices.replicate` does if it is a Gram matrix, else None."""
    if not (isinstance(a, RowShards) and a.is_transpose_of(b)):
        return None
    if b.memo.replicated is None:
        add = partial(_add_products, b.dtype)
        b.memo.replicated = b.sharding.devices.replicate(_multiply_blocks(b), add)
    return b.memo.replicated


def _compute_gram(x: RowShards) -> Array:
    """Return the Gram matrix (R, R) on the first device; computed once."""
    if x.memo.gram is None:
        products = x.sharding.devices.collect(_multiply_blocks(x))
        x.memo.gram = _add_products(x.dtype, *products)
    return x.memo.gram


def _multiply_blocks(x: RowShards) -> Sequence[Array]:
    """Return the Gram matrix of each block, in float64, on its device; computed once."""
    if not x.memo.products:
        multiply = tall.transposed_product
        x.memo.products = x.apply(
            lambda block: multiply(block, block).astype(np.float64, copy=False)
        )
    return x.memo.products


def _add_products(dtype: np.dtype, *products: Array) -> Array:
    return fold_tree(products, operator.add).astype(dtype)


def inner_product_with_grams(a: RowShards, factors: Sequence[RowShards]) -> Array:
    """Return the inner product of `a` and the last factor; find all Gram matrices with it."""
    product = a * factors[-1]
    parts = [_multiply_blocks(factor) for factor in factors]
    parts.append(product.apply(tall.sum_columns))
    # One exchange for all: a device waits for each.
    collected = a.sharding.devices.collect(list(chain.from_iterable(parts)))
    starts = accumulate(map(len, parts), initial=0)
    *grams, sums = (
        fold_tree(collected[start:stop], operator.add) for start, stop in pairwise(starts)
    )
    for factor, gram in zip(factors, grams, strict=True):
        factor.memo.gram = gram.astype(factor.dtype)
    return sums.astype(product.dtype).sum()


def solve(a: Array, b: Array) -> RowShards:
    """Solve ``a @ x = b`` for b (R, I), block by block."""
    if not isinstance(b, RowShards) or not b.is_transposed or isinstance(a, RowShards):
        refuse("numpy.linalg.solve with such arguments")
    return RowShards(b.apply(solve_block, matrix=a), b.sharding, is_transposed=True)


@remote_aware
def solve_block(rows: Array, matrix: Array) -> Array:
    """Solve ``matrix @ x.T = rows.T``."""
    return tall.solve(matrix, rows.T).T


def round_rows(x: RowShards) -> tuple[RowShards, NarrowRows]:
    """Round to numbers that fit narrow rows, and return these too; see `Engine.round_rows`.

    Narrow rows are sharded likewise, so that devices exchange half the bytes.
    """
    scales_of_blocks = x.sharding.devices.collect(x.apply(find_block_scales))
    scales = reduce(np.maximum, scales_of_blocks)
    rounded = RowShards(x.apply(round_block, matrix=scales), x.sharding)
    narrow_blocks = rounded.apply(narrow_block, matrix=scales)
    return rounded, NarrowRows(RowShards(narrow_blocks, x.sharding), scales)


@remote_aware
def find_block_scales(block: Array) -> Array:
    return engine_of(block).find_scales(block)


@remote_aware
def round_block(block: Array, scales: Array) -> Array:
    rounded = block.copy()
    engine_of(block).round_rows(rounded, scales)
    return rounded


@remote_aware
def narrow_block(block: Array, scales: Array) -> Array:
    """Return narrow rows of numbers that are rounded, which rounding again does not change."""
    return engine_of(block).round_rows(block, scales).rows


def update_rows(
    rule: RowRule,
    targets: Any,
    matrix: Array,
    penalty: Array | None,
    rows: Any,
    dual: Any,
    num_steps: int,
) -> tuple[Any, Any, Array]:
    """Run `Engine.update_rows` on a factor, which may be row-sharded."""
    updated, updated_dual, measures = take_steps(
        update_block, targets, rows, dual, rule, num_steps, penalty, matrix=matrix
    )
    if dual is None:
        return updated, None, measures
    return updated, updated_dual, measures


def find_peaks(
    rule: RowRule, targets: Any, matrix: Array, penalty: Array, rows: Any, dual: Any
) -> Array:
    """Run `Engine.find_peaks` on a factor, which may be row-sharded."""
    if not isinstance(targets, RowShards):
        return find_block_peaks(targets, rows, dual, rule, penalty, matrix)
    parts = targets.apply(find_block_peaks, rows, dual, rule, penalty, matrix=matrix)
    return fold_tree(targets.sharding.devices.collect(parts), np.maximum)


@remote_aware
def find_block_peaks(
    targets: Array, rows: Array, dual: Array, rule: RowRule, penalty: Array, matrix: Array
) -> Array:
    """Run `Engine.find_peaks` on a block of rows, where it is."""
    exact_matrix = matrix.astype(np.float64, copy=False)
    engine = engine_of(targets)
    return engine.find_peaks(rule, targets, rows, dual, penalty, exact_matrix)


def take_steps(
    function: Callable[..., tuple[Any, Any, Array]], targets: Any, *operands: Any, matrix: Array
) -> tuple[Any, Any, Array]:
    """Call a function that returns rows, their dual variable and measures, on each block.

    Measures of blocks are added on the first device. Targets that are not row-sharded are one
    block. `matrix`, whole, is the function's last argument.
    """
    if not isinstance(targets, RowShards):
        return function(targets, *operands, matrix)
    results = targets.apply(function, *operands, matrix=matrix)
    blocks, duals, parts = zip(*results, strict=True)
    sharding = targets.sharding
    measures = fold_tree(sharding.devices.collect(parts), operator.add)
    return RowShards(blocks, sharding), RowShards(duals, sharding), measures


@remote_aware
def update_block(
    targets: Array,
    rows: Array,
    dual: Array | None,
    rule: RowRule,
    num_steps: int,
    penalty: Array | None,
    matrix: Array,
) -> tuple[Array, Array, Array]:
    """Run `Engine.update_rows` on a block of rows, where it is.

    A missing dual variable is empty.
    """
    exact_matrix = matrix.astype(np.float64, copy=False)
    updated, updated_dual, measures = engine_of(targets).update_rows(
        rule, targets, rows, dual, num_steps, penalty, exact_matrix
    )
    if updated_dual is None:
        updated_dual = updated[:0]
    return updated, updated_dual, measures


def norm(x: RowShards, ord: Any = None, axis: int | None = None) -> Array:
    """Return the 2-norm of each column, or of everything."""
    if ord not in (None, 2) or (ord == 2 and axis is None):
        refuse(f"numpy.linalg.norm with ord={ord}")
    _check_rows(x, axis, "norm")
    squares = x.reduce(lambda block: tall.sum_columns(np.square(block)))
    if axis is None:
        squares = squares.sum()
    return np.sqrt(squares).astype(x.dtype)


def _check_rows(x: RowShards, axis: Any, name: str) -> None:
    """Refuse a reduction along an axis other than the sharded one; None is both."""
    sharded_axis = 1 if x.is_transposed else 0
    if axis is not None and axis % 2 != sharded_axis:
        refuse(f"{name} with axis={axis}, along each row,")


def qr(x: RowShards, mode: str = "reduced") -> tuple[RowShards, Array]:
    """Decompose each block, and then the triangles of all blocks together."""
    if mode != "reduced" or x.is_transposed or x.shape[0] < x.shape[1]:
        refuse(f"numpy.linalg.qr of {x} with mode={mode!r}")
    sharding = x.sharding
    bases, triangles = zip(*x.apply(tall.qr), strict=True)
    collected = sharding.devices.collect(triangles)
    xp = array_module(collected[0])
    basis, triangle = xp.linalg.qr(xp.concatenate(collected))
    # Below each other are the rows of `basis` by which the basis of each block is multiplied.
    edges = tuple(accumulate((block.shape[0] for block in triangles), initial=0))
    parts = Sharding(edges, sharding.homes, sharding.devices).cut(basis)
    product = RowShards(bases, sharding).map_blocks(operator.matmul, RowShards(parts, sharding))
    return product, triangle


def _find_extreme(
    function: Callable, of_two: np.ufunc, x: RowShards, axis: int | None = None
) -> Array:
    """Return the largest or smallest element of each column, or of everything."""
    _check_rows(x, axis, function.__name__)
    worst = -np.inf if of_two is np.maximum else np.inf

    def find(block: Array) -> Array:
        if block.shape[0] == 0:
            return array_module(block).full(block.shape[1], worst)
        if axis is None:
            # CuPy finds extremes of columns with one thread block: 0.2 s for 50M elements.
            return function(block, keepdims=True)
        return function(block, axis=0)

    extremes = x.reduce(find, add=of_two).astype(x.dtype)
    if axis is None:
        return function(extremes)
    return extremes


def clip(x: Any, a_min: Any = None, a_max: Any = None) -> RowShards:
    """Limit the elements to numbers."""
    are_numbers = not any(getattr(limit, "ndim", 0) for limit in (a_min, a_max))
    if not isinstance(x, RowShards) or not are_numbers:
        refuse("numpy.clip to arrays")
    return x.map_blocks(lambda block: np.clip(block, a_min, a_max))


def concatenate(arrays: Sequence[Any], axis: int = 0) -> RowShards:
    """Put matrices side by side."""
    are_columns = all(isinstance(x, RowShards) and not x.is_transposed for x in arrays)
    if axis not in (1, -1) or not are_columns:
        refuse("numpy.concatenate, except of columns that are sharded,")
    first, *rest = arrays
    return first.map_blocks(lambda *blocks: np.concatenate(list(blocks), axis=1), *rest)


def where(condition: RowShards, x: Any, y: Any) -> RowShards:
    """Choose elements of `x` where a sharded condition is true, else of `y`."""
    if not isinstance(condition, RowShards):
        refuse("numpy.where with a condition that is not sharded")
    return condition.map_blocks(np.where, x, y)


#: NumPy's functions for row-sharded matrices, which may have its parameters.
_FUNCTIONS: dict[Callable, Callable] = {
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.copy: lambda x, order="K", subok=False: x.copy(),
    np.transpose: RowShards.transpose,
    np.dot: dot,
    np.sum: RowShards.sum,
    np.max: partial(_find_extreme, np.max, np.maximum),
    np.min: partial(_find_extreme, np.min, np.minimum),
    np.clip: clip,
    np.concatenate: concatenate,
    np.where: where,
    np.linalg.solve: solve,
    np.linalg.norm: norm,
    np.linalg.qr: qr,
}

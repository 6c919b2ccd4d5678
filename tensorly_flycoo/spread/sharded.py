"""NumPy's functions, with its parameters, for row-sharded matrices.

Blocks are computed as plain matrices are; sums over rows are then added along the tree.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, remote_aware
from ..base.devices import bring_each
from ..engines import tall_skinny
from ..format.tree import fold_tree
from .row_shards import FUNCTIONS, RowShards, refuse


def transpose(x: RowShards, axes: Any = None) -> RowShards:
    """Return the transpose, without copying."""
    if axes is not None and tuple(axes) not in {(1, 0), (0, 1), ((1, 0),), ((0, 1),)}:
        refuse(f"transpose to {axes}")
    return x if axes is not None and tuple(axes) in {(0, 1), ((0, 1),)} else x.T


def dot(a: Any, b: Any) -> Any:
    """Multiply x.T (R, I) by y (I, S), sharded in the same way, or x by a plain matrix."""
    if isinstance(a, RowShards) and isinstance(b, RowShards):
        if not a.is_transposed or b.is_transposed:
            refuse(f"the product of {a} and {b}")
        if a.is_transpose_of(b):
            return _find_gram(b)
        product = a.T.reduce(tall_skinny.transposed_product, b)
        return product.astype(np.result_type(a.dtype, b.dtype))
    if isinstance(a, RowShards) and not a.is_transposed and b.ndim == 2:
        return a.replace(a.apply(operator.matmul, matrix=b), False)
    if isinstance(b, RowShards) and b.is_transposed and a.ndim == 2:
        return dot(b.T, a.T).T
    refuse(f"the product of {a!r} and {b!r}")


def _find_gram(x: RowShards) -> Array:
    """Return ``x.T @ x``, computed once."""
    if x.memo.gram is None:
        x.memo.gram = _add_products(x.dtype, *x.sharding.devices.collect(_find_products(x)))
    return x.memo.gram.copy()


def replicate_gram(a: Any, b: Any) -> Any:
    """Return ``a @ b`` as `Devices.replicate` does if it is a Gram matrix, else None."""
    if not (isinstance(a, RowShards) and a.is_transpose_of(b)):
        return None
    if b.memo.replicated is None:
        add = partial(_add_products, b.dtype)
        b.memo.replicated = b.sharding.devices.replicate(_find_products(b), add)
    return b.memo.replicated


def _find_products(x: RowShards) -> list[Array]:
    """Return the Gram matrix of each block, in float64, on its device; computed once."""
    if not x.memo.products:
        multiply = tall_skinny.transposed_product
        x.memo.products = x.apply(lambda b: multiply(b, b).astype(np.float64, copy=False))
    return x.memo.products


def _add_products(dtype: np.dtype, *products: Array) -> Array:
    return fold_tree(products, operator.add).astype(dtype)


def inner_product(a: RowShards, factors: Sequence[RowShards]) -> Array:
    """Return the inner product of `a` and the last factor; find all Gram matrices with it."""
    product = a * factors[-1]
    parts = [_find_products(x) for x in factors]
    parts.append(product.apply(tall_skinny.sum_columns))
    collected = iter(a.sharding.devices.collect([x for own in parts for x in own]))
    *grams, sums = (fold_tree([next(collected) for _ in own], operator.add) for own in parts)
    for factor, gram in zip(factors, grams, strict=True):
        factor.memo.gram = gram.astype(factor.dtype)
    return sums.astype(product.dtype).sum()


def solve(a: Array, b: RowShards) -> RowShards:
    """Solve ``a @ x = b`` for b (R, I), block by block."""
    if not isinstance(b, RowShards) or not b.is_transposed or isinstance(a, RowShards):
        refuse("numpy.linalg.solve with such arguments")
    return b.replace(b.apply(solve_rows, matrix=a), True)


@remote_aware
def solve_rows(rows: Array, matrix: Array) -> Array:
    """Solve ``matrix @ x.T = rows.T``."""
    return tall_skinny.solve(matrix, rows.T).T


def sum_rows(x: RowShards, axis: int | None = None) -> Array:
    """Sum over the rows, or over everything: in float64, returned in the dtype of `x`."""
    _check_rows(x, axis, "sum")
    kept = x.dtype if x.dtype.kind == "f" else np.dtype(np.int64)
    sums = x.reduce(tall_skinny.sum_columns)
    return sums.sum().astype(kept) if axis is None else sums.astype(kept)


def norm(x: RowShards, ord: Any = None, axis: int | None = None) -> Array:
    """Return the 2-norm of each column, or of everything."""
    if ord not in (None, 2) or (ord == 2 and axis is None):
        refuse(f"numpy.linalg.norm with ord={ord}")
    _check_rows(x, axis, "norm")
    squares = x.reduce(lambda block: tall_skinny.sum_columns(np.square(block)))
    squares = squares.sum() if axis is None else squares
    return np.sqrt(squares).astype(x.dtype)


def _check_rows(x: RowShards, axis: Any, name: str) -> None:
    if axis is not None and axis % 2 != (1 if x.is_transposed else 0):
        refuse(f"{name} with axis={axis}, along each row,")


def qr(x: RowShards, mode: str = "reduced") -> tuple[RowShards, Array]:
    """Decompose each block, and then the triangles of all blocks together."""
    if mode != "reduced" or x.is_transposed or x.shape[0] < x.shape[1]:
        refuse(f"numpy.linalg.qr of {x} with mode={mode!r}")
    devices, homes = x.sharding.devices, x.sharding.homes
    bases, triangles = zip(*x.apply(tall_skinny.qr), strict=True)
    collected = devices.collect(triangles)
    xp = array_module(collected[0])
    basis, triangle = xp.linalg.qr(xp.concatenate(collected))
    edges = accumulate((own.shape[0] for own in triangles), initial=0)
    parts = [basis[start:stop] for start, stop in pairwise(edges)]
    blocks = []
    for own, part, home in zip(bases, bring_each(devices, parts, homes), homes, strict=True):
        with devices.use(home):
            blocks.append(own @ part)
    return x.replace(blocks, False), triangle


def _find_extreme(
    function: Callable, of_two: np.ufunc, x: RowShards, axis: int | None = None
) -> Array:
    """Return the largest or smallest element of each column, or of everything."""
    _check_rows(x, axis, function.__name__)
    worst = -np.inf if of_two is np.maximum else np.inf

    def find(block: Array) -> Array:
        if block.shape[0] == 0:
            return array_module(block).full(block.shape[1], worst)
        return function(block, axis=0)

    extremes = x.reduce(find, add=of_two).astype(x.dtype)
    return function(extremes) if axis is None else extremes


def clip(x: RowShards, a_min: Any = None, a_max: Any = None) -> RowShards:
    """Limit the elements to numbers."""
    if isinstance(x, RowShards) and not any(getattr(n, "ndim", 0) for n in (a_min, a_max)):
        return x.map_blocks(lambda block: np.clip(block, a_min, a_max))
    refuse("numpy.clip to arrays")


def concatenate(arrays: Sequence[RowShards], axis: int = 0) -> RowShards:
    """Put matrices side by side."""
    if axis not in (1, -1) or not all(isinstance(x, RowShards) for x in arrays):
        refuse("numpy.concatenate, except of columns that are sharded,")
    if any(x.is_transposed for x in arrays):
        refuse("numpy.concatenate of transposes")

    return arrays[0].map_blocks(lambda *own: np.concatenate(list(own), axis=1), *arrays[1:])


def where(condition: RowShards, x: Any, y: Any) -> RowShards:
    """Choose elements of `x` where a sharded condition is true, else of `y`."""
    if not isinstance(condition, RowShards):
        refuse("numpy.where with a condition that is not sharded")
    return condition.map_blocks(np.where, x, y)


FUNCTIONS |= {
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.copy: lambda x, order="K", subok=False: x.copy(),
    np.transpose: transpose,
    np.dot: dot,
    np.sum: sum_rows,
    np.max: partial(_find_extreme, np.max, np.maximum),
    np.min: partial(_find_extreme, np.min, np.minimum),
    np.clip: clip,
    np.concatenate: concatenate,
    np.where: where,
    np.linalg.solve: solve,
    np.linalg.norm: norm,
    np.linalg.qr: qr,
}

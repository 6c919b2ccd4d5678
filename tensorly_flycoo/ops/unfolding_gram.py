"""The Gram matrix of an unfolding, which is never formed if it is large.

Nearly every column of a hypersparse unfolding has a single nonzero. Such a column adds its square
to the diagonal of the Gram matrix, and nothing else. A row with no other columns is an eigenvector
of its own. What remains, the shared columns and the coupled rows, is often a small part of the
tensor; it is a sparse tensor of two modes, and multiplying by it is MTTKRP.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from ..array_modules import Array, move
from ..linalg.eigen import (
    bound_shortfall,
    choose_width,
    find_leading_eigenpairs,
    gram_of,
    multiply_block,
    orthonormalize,
)
from ..linalg.leading_pairs import MAX_DIRECT_SIZE, MAX_GRAM_SIZE
from ..linalg.tall_skinny import transposed_product
from .shared_columns import Entries, SharedColumns, build_matrix

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.layout import Layout
    from ..format.slab_layout import AnyLayout

#: The largest basis for iterations that end early, and the fewest blocks in one.
_MAX_BASIS_NBYTES = 2**34
_MIN_BLOCKS = 4

#: A sketch of up to this many numbers is drawn on the host, as TensorLy's.
_MAX_DRAWN = 2**22

#: How far the squares of singular values above a size of 8192 may fall short, relative to them.
MAX_SHORTFALL = 0.2


class UnfoldingGram:
    """``A @ A.T`` of an unfolding A: a diagonal matrix plus the Gram matrix of the shared columns.

    `entries` are those of A times `scale`, a power of two; the sum of the squares of A is at most
    1. With `is_exact`, iterations go on until rounding ends them, whatever the size. `rows` (size,)
    are the coupled rows: those with a nonzero in a shared column. `squares` (2, num_rows) are the
    sums of squares of positive and of negative values alone in their columns. `dtype`, that of
    products, is float64 up to a size of 8192. `columns` is the transposed matrix, if it has at most
    8192 columns and more rows.
    """

    def __init__(
        self,
        entries: Entries,
        scale: float,
        num_rows: int,
        dtype: DTypeLike,
        engine: Engine,
        is_exact: bool,
    ) -> None:
        self._engine, self._is_exact = engine, is_exact
        self.total = float(entries.values.sum()) / scale
        self.squares = engine.sum_single_squares(*entries, num_rows, scale)
        self._shared = SharedColumns(entries, scale, num_rows, engine)
        self.rows, self.size = self._shared.rows, int(self._shared.rows.size)
        self.dtype = choose_dtype(self.size, dtype)
        self._shared.dtype = self.dtype
        self._diagonal = engine.add_signs(self.squares, self.rows)
        self.columns: AnyLayout | None = self._transpose(entries, scale)

    def _transpose(self, entries: Entries, scale: float) -> Layout | None:
        xp, num_rows = self._engine.xp, self.squares.shape[1]
        is_first, rows, values = entries
        num_columns = values.size - self._shared.num_nonzeros + self._shared.num_columns
        if not 0 < num_columns <= MAX_GRAM_SIZE:
            return None
        is_used = xp.zeros(num_rows, bool)
        is_used[rows] = True
        if num_columns >= xp.flatnonzero(is_used).size:
            return None
        coords = xp.stack([xp.cumsum(is_first[:-1]) - 1, rows.astype(np.int64)])
        return build_matrix(coords, values / scale, (num_columns, num_rows), self._engine)

    def add_free_squares(self, coupled: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Merge eigenvalues of the coupled rows with those of the free ones, which are not coupled.

        Both are descending. Returns up to `rank` eigenvalues, and their numbers in `coupled`, or
        ``~row`` for that of a free row, whose eigenvector is its unit vector.
        """
        sources, num_rows = np.arange(coupled.size), self.squares.shape[1]
        if self.size == num_rows:
            return coupled, sources
        arguments = (self.squares, self.rows, min(rank, num_rows))
        free_rows, free = self._engine.find_largest_sums(*arguments)
        squares, sources = np.append(coupled, free), np.append(sources, ~free_rows)
        order = np.argsort(-squares, kind="stable")[:rank]
        return squares[order], sources[order]

    def sketch_coupled_pairs(
        self, rank: int, num_vectors: int, num_iterations: int, random: Any
    ) -> tuple[np.ndarray, Array]:
        """Approximate the leading eigenpairs of the coupled rows from a random sketch.

        The vectors are left singular vectors of ``A @ Q``, where Q is an orthonormal basis of
        ``A.T @ sketch``. It is not formed: with ``gram = sketch.T @ A @ A.T @ sketch``, the product
        is ``A @ A.T @ sketch`` times an inverse square root of `gram`.
        """
        sketch = self._draw_normal(num_vectors, random)
        for _ in range(num_iterations):
            sketch = orthonormalize(self.multiply(sketch))
        image = self.multiply(sketch)
        gram = move(transposed_product(sketch, image), np).astype(np.float64)
        values, vectors = np.linalg.eigh((gram + gram.T) / 2)
        is_known = values > gram.shape[0] * np.finfo(self.dtype).eps * values[-1]
        inverse_root = vectors[:, is_known] / np.sqrt(values[is_known])
        squares, rotation = np.linalg.eigh(inverse_root.T @ gram_of(image) @ inverse_root)
        transform = inverse_root @ (rotation / np.sqrt(np.maximum(squares, squares[-1] * 1e-300)))
        transform = transform[:, ::-1][:, :rank]
        return squares[::-1][:rank], multiply_block(image, transform)

    def _draw_normal(self, num_vectors: int, random: Any) -> Array:
        """Draw normal numbers (size, num_vectors): TensorLy's, unless these are too many."""
        xp, num_rows = self._engine.xp, self.squares.shape[1]
        if isinstance(random, np.random.RandomState) and num_rows * num_vectors <= _MAX_DRAWN:
            drawn = random.normal(size=(num_rows, num_vectors))[move(self.rows, np)]
            return xp.asarray(drawn, self.dtype)
        seed = int(2**31 * float(random.random_sample(1)[0]))
        drawn = xp.random.RandomState(seed).standard_normal((self.size, num_vectors))
        return drawn.astype(self.dtype)

    # Of the coupled rows

    def is_cheap_to_form(self) -> bool:
        return is_cheap_to_form(self._engine, self.size, self._shared.num_columns)

    def form(self) -> Array:
        """Return the matrix (size, size), float64; on the host only its lower triangle counts."""
        return self._shared.form_gram(self._diagonal)

    def iterate(self, rank: int) -> tuple[np.ndarray, Array]:
        """Compute the leading eigenpairs by block Lanczos iteration.

        Above a size of 8192 it ends when `bound_shortfall` is below `MAX_SHORTFALL`.
        """
        xp = self._engine.xp
        if self.size <= MAX_GRAM_SIZE or self._is_exact:
            _, vectors = find_leading_eigenpairs(self.multiply, self.size, rank, xp)
        else:
            max_blocks = choose_max_blocks(self.size, rank, self.dtype)
            _, vectors = find_leading_eigenpairs(
                self.multiply, self.size, rank, xp,
                dtype=self.dtype, max_rounds=count_rounds(self.size, rank), max_blocks=max_blocks,
            )  # fmt: skip
        squares, rotation = np.linalg.eigh(self.project(vectors))
        return squares[::-1], multiply_block(vectors, rotation[:, ::-1])

    def multiply(self, block: Array) -> Array:
        """Multiply a block (size, k) of `dtype`."""
        total = block * self._diagonal.astype(self.dtype)[:, None]
        self._shared.add_gram_product(total, block)
        return total

    def project(self, block: Array) -> np.ndarray:
        """Compute ``block.T @ (A @ A.T) @ block`` (k, k) in float64 on the host.

        The Gram matrix of ``A.T @ block`` loses less to rounding than a product with ``A @ A.T``.
        """
        weighted = block * np.sqrt(self._diagonal).astype(self.dtype)[:, None]
        parts = self.reduce_right_products(block, gram_of)
        return np.sum([gram_of(weighted), *parts], axis=0)

    def reduce_right_products(
        self, block: Array, function: Callable[[Array], Array]
    ) -> Iterator[Array]:
        """Yield ``function(A.T @ block)``, of (num_columns, k), for some shared columns at a time.

        `function` runs on the device of these columns; a result on a device is brought to the first
        one.
        """
        for number in range(self._shared.num_parts):
            yield self._shared.reduce_right_product(number, block, function)


def choose_dtype(size: int, dtype: DTypeLike) -> np.dtype:
    """Return the dtype of products with a Gram matrix of `size`: float64 if it is to be exact."""
    return np.dtype(np.float64 if size <= MAX_GRAM_SIZE else dtype)


def is_cheap_to_form(engine: Engine, size: int, num_columns: int) -> bool:
    """Say whether a Gram matrix costs less to form than to multiply by in an iteration."""
    fits = size <= MAX_GRAM_SIZE and engine.is_gram_cheap(size, num_columns)
    return size <= MAX_DIRECT_SIZE or fits


def choose_max_blocks(size: int, rank: int, dtype: np.dtype) -> int:
    """Return the blocks in the basis of iterations that end early."""
    block_nbytes = size * choose_width(rank, size) * dtype.itemsize
    return min(count_rounds(size, rank), max(_MIN_BLOCKS, _MAX_BASIS_NBYTES // block_nbytes))


def count_rounds(size: int, rank: int) -> int:
    """Return the least number of rounds for which `bound_shortfall` is below `MAX_SHORTFALL`."""
    counts = itertools.count(2)
    return next(n for n in counts if bound_shortfall(size, rank, n) <= MAX_SHORTFALL)

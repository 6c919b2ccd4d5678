"""The Gram matrix of an unfolding, which is never formed if it is large.

Nearly every column of a hypersparse unfolding has a single nonzero. Such a column adds its square
to the diagonal of the Gram matrix, and nothing else. A row with no other columns is an eigenvector
of its own. What remains, the shared columns and the coupled rows, is often a small part of the
tensor; it is a sparse tensor of two modes, and multiplying by it is MTTKRP.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

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
from ..tensor.tensor import FlycooTensor

if TYPE_CHECKING:
    from ..engines.protocol import Engine

#: Shared columns to multiply at a time, or as many as there are coupled rows if that is more:
#: the product of all of them could be much larger than a factor.
_COLUMNS_AT_ONCE = 2**22

#: The largest basis for iterations that end early, and the fewest blocks in one.
_MAX_BASIS_NBYTES = 2**34
_MIN_BLOCKS = 4

#: A sketch of up to this many numbers is drawn on the host, as TensorLy's.
_MAX_DRAWN = 2**22

#: How far the squares of singular values above a size of 8192 may fall short, relative to them.
MAX_SHORTFALL = 0.2


class Entries(NamedTuple):
    """The nonzeros of an unfolding, column by column with ascending rows.

    Attributes
    ----------
    is_first : bool array (nnz + 1,)
        Whether a nonzero is the first of its column; the last item is true.
    rows : unsigned integer array (nnz,)
    values : float64 array (nnz,)
    """

    is_first: Array
    rows: Array
    values: Array


class UnfoldingGram:
    """``A @ A.T`` of an unfolding A: a diagonal matrix plus the Gram matrix of the shared columns.

    Parameters
    ----------
    entries : Entries
        Of A times `scale`.
    scale : float
        A power of two. The sum of the squares of A is at most 1.
    num_rows : int
    dtype : numpy.dtype
        Of products, if the Gram matrix is too large to be exact.
    engine : Engine
    is_exact : bool
        Whether iterations go on until rounding ends them, whatever the size.

    Attributes
    ----------
    squares : float64 array (2, num_rows)
        The sums of squares of positive and of negative values alone in their columns.
    total : float
        The sum of all values.
    rows : integer array (size,)
        The coupled rows: those with a nonzero in a shared column.
    size : int
    dtype : numpy.dtype
        float64 up to a size of 8192.
    columns : FlycooTensor or None
        The transposed matrix, if it has at most 8192 columns and more rows.
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
        self.rows, coords, values = engine.list_shared(*entries, num_rows, scale)
        self._shared, self.size = (coords, values), int(self.rows.size)
        self._num_columns = int(coords[0, -1]) + 1 if values.size else 0
        self.dtype = np.dtype(np.float64 if self.size <= MAX_GRAM_SIZE else dtype)
        self._diagonal = engine.add_signs(self.squares, self.rows)
        self.columns = self._transpose(entries, scale)

    def _transpose(self, entries: Entries, scale: float) -> FlycooTensor | None:
        xp, num_rows = self._engine.xp, self.squares.shape[1]
        is_first, rows, values = entries
        num_columns = values.size - self._shared[1].size + self._num_columns
        if not 0 < num_columns <= MAX_GRAM_SIZE:
            return None
        is_used = xp.zeros(num_rows, bool)
        is_used[rows] = True
        if num_columns >= xp.flatnonzero(is_used).size:
            return None
        coords = xp.stack([xp.cumsum(is_first[:-1]) - 1, rows.astype(np.int64)])
        return self._make_tensor(coords, values / scale, (num_columns, num_rows))

    def _make_tensor(self, coords: Array, values: Array, shape: tuple[int, int]) -> FlycooTensor:
        options: dict[str, Any] = {"layout": "replicated", "device": self._engine.name}
        return FlycooTensor(coords, values, shape, **options)

    def add_free_squares(self, coupled: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Merge eigenvalues of the coupled rows with those of the free ones, which are not coupled.

        Parameters
        ----------
        coupled : float64 NumPy array (K,)
            The largest eigenvalues of the coupled rows, descending.
        rank : int

        Returns
        -------
        squares : float64 NumPy array (R,)
            Descending; R is at most `rank`.
        sources : int64 NumPy array (R,)
            Their numbers in `coupled`, or ``~row`` for that of a free row, whose eigenvector is its
            unit vector.
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
        return is_cheap_to_form(self._engine, self.size, self._num_columns)

    def form(self) -> Array:
        """Return the matrix (size, size), float64; on the host only its lower triangle counts."""
        coords, values = self._shared
        return self._engine.gram(coords, values, self._diagonal)

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
        for columns in self._columns:
            total += self._multiply(columns, self._multiply(columns, block, 0), 1)
        return total

    def project(self, block: Array) -> np.ndarray:
        """Compute ``block.T @ (A @ A.T) @ block`` (k, k) in float64 on the host.

        It is the Gram matrix of ``A.T @ block``, which loses less to rounding than a product with
        ``A @ A.T`` would.
        """
        weighted = block * np.sqrt(self._diagonal).astype(self.dtype)[:, None]
        parts = (weighted, *self.iterate_right_products(block))
        return np.sum([gram_of(part) for part in parts], axis=0)

    def iterate_right_products(self, block: Array) -> Iterator[Array]:
        """Yield ``A.T @ block`` for some of the shared columns at a time: (num_columns, k)."""
        return (self._multiply(columns, block, 0) for columns in self._columns)

    def _multiply(self, columns: FlycooTensor, block: Array, mode: int) -> Array:
        """Multiply shared columns by a block with a row for each coupled row (mode 0), or back."""
        out = self._engine.xp.empty((columns.shape[mode], block.shape[1]), self.dtype)
        factors = [out, block] if mode == 0 else [block, out]
        self._engine.mttkrp(columns._layout, factors, mode, out)
        return out

    @cached_property
    def _columns(self) -> list[FlycooTensor]:
        """The shared columns, some at a time, as tensors (num_columns, size)."""
        (coords, values), xp = self._shared, self._engine.xp
        step = max(_COLUMNS_AT_ONCE, self.size)
        firsts, places, tensors = range(0, self._num_columns, step), [0], []
        if len(firsts) > 1:
            places = xp.searchsorted(coords[0], xp.asarray(firsts)).tolist()
        for first, place, end in zip(firsts, places, [*places[1:], values.size], strict=False):
            own, own_values = coords[:, place:end], values[place:end]
            if first > 0:
                own = own - xp.asarray([[first], [0]])
            shape = (min(step, self._num_columns - first), self.size)
            own_values = own_values.astype(self.dtype, copy=False)
            tensors.append(self._make_tensor(own, own_values, shape))
        return tensors


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

"""The Gram matrix of an unfolding, which is never formed if it is large.

Nearly every column of a hypersparse unfolding has a single nonzero. Such a column adds its square
to the diagonal of the Gram matrix, and nothing else. A row with no other columns is an eigenvector
of its own. What remains, the shared columns and the coupled rows, is often a small part of the
tensor; it is a sparse tensor of two modes, and multiplying by it is MTTKRP.

All of this adds over the groups of columns. Their parts are added on the first device, one group
after the other, so that results depend on the number of slabs only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array, move
from ..engines.tall import eigh, transposed_product
from ..format.primitives import Entries
from . import eigen
from .columns import Columns, SharedColumns
from .eigen import MAX_DIRECT_SIZE, MAX_GRAM_SIZE

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..spread.slab_layout import AnyLayout

#: A sketch of up to this many numbers is drawn on the host, as TensorLy's.
_MAX_DRAWN = 2**22

#: Rows of Gram matrices that are added at a time: each addition copies them.
_ROWS_AT_ONCE = 256


class _Group(NamedTuple):
    """Shared columns on one device."""

    home: int
    shared: Any  # SharedColumns, or a stand-in for those in another process
    num_parts: int
    places: Any  # int64 (n,) of their rows: in the unfolding, then among all coupled rows


class UnfoldingGram:
    """``A @ A.T`` of an unfolding A: a diagonal matrix plus the Gram matrix of the shared columns.

    `columns` are those of A times `scale`, a power of two such that the sum of the squares of A is
    at most 1. `rows` (size,) are the coupled rows: those with a nonzero in a shared column.
    `squares` (2, num_rows) are the sums of squares of positive and of negative values alone in
    their columns. `dtype`, that of products, is float64 up to a size of 8192. `transposed` is the
    transposed matrix, if A has at most 8192 columns and more rows.

    The shared columns are kept on their devices, or, for a tensor in slabs with up to 8192 rows,
    only the sum of the groups' Gram matrices, if that is cheap.
    """

    def __init__(self, columns: Columns, scale: float, dtype: DTypeLike) -> None:
        engine = columns.engine
        xp = columns.engine.xp
        num_rows = columns.num_rows
        self._engine = engine
        self._devices = columns.devices
        self._scale = scale
        is_piece = columns.entries is not None
        # Of n nonzeros at most n // 2 are the first ones of shared columns.
        forms_at_once = not is_piece and is_cheap_to_form(engine, num_rows, columns.layout.nnz // 2)
        self._formed = xp.zeros((num_rows, num_rows)) if forms_at_once else None
        self._columns = columns if forms_at_once else None
        kept: list[_Group] = []
        counts: list[tuple[int, int]] = []
        rows: list[Array] = []
        self.squares: Array = None
        for group, squares, num_columns, num_shared in self._list_groups(columns):
            self.squares = squares if self.squares is None else self.squares + squares
            counts.append((num_columns, num_shared))
            rows.append(group.places)
            if self._formed is None:
                kept.append(group)
            else:
                self._add_gram(self._formed, group)
            del group, squares
        self._piece: SharedColumns | None = kept[0].shared if is_piece else None
        self.rows = rows[0]
        if len(rows) > 1:
            is_coupled = xp.zeros(num_rows, bool)
            for own in rows:
                is_coupled[own] = True
            self.rows = xp.flatnonzero(is_coupled)
        self.size = int(self.rows.size)
        self.dtype = np.dtype(np.float64 if self.size <= MAX_GRAM_SIZE else dtype)
        self._diagonal = engine.add_signs(self.squares, self.rows)
        self._groups = [self._number_rows(group) for group in kept]
        num_columns, self._num_shared = (sum(own) for own in zip(*counts, strict=True))
        if self._formed is not None and self.size < num_rows:
            self._formed = self._formed[self.rows[:, None], self.rows]
        self._ends_early = self.size > MAX_GRAM_SIZE
        #: How many columns there are to iterate on if they are fewer than the rows, else None.
        self._num_columns = self._fold_columns() if is_piece and self._ends_early else None
        self.transposed: AnyLayout | None = None
        num_used = num_rows - columns.layout.find_empty_rows(columns.mode).size
        if 0 < num_columns <= MAX_GRAM_SIZE and num_columns < num_used:
            self.transposed = columns.transpose([own[0] for own in counts], scale)

    def _fold_columns(self) -> int | None:
        """Merge single nonzeros by row; if the columns then are fewer than the rows, count them."""
        assert self._piece is not None
        num_columns = self._num_shared + int((self._diagonal > 0).astype(np.int64).sum())
        if not max(MAX_GRAM_SIZE, MAX_DIRECT_SIZE) < num_columns < self.size:
            return None
        self._piece.add_singles(self._diagonal, self.dtype)
        self._groups = [group._replace(num_parts=1) for group in self._groups]
        return num_columns

    def _list_groups(self, columns: Columns) -> Iterator[tuple[_Group, Array, int, int]]:
        """Yield each group, its `squares`, and the numbers of its columns, all and shared."""
        devices = columns.devices
        engine = columns.engine
        num_rows = columns.num_rows
        scale = self._scale

        def start() -> Iterator[tuple[int, Any, list[Array]]]:
            for home, entries in columns:
                run = functools.partial(devices.run, home)
                squares = run(_sum_squares, engine, entries, num_rows, scale)
                shared = run(SharedColumns, entries, scale, num_rows, engine)
                counts = run(SharedColumns.count, shared)
                rows = run(getattr, shared, "rows")
                del entries
                yield home, shared, [squares, rows, counts]
                del shared, squares

        for home, shared, parts in devices.launch(start()):
            squares, rows, counts = devices.collect(parts)
            num_columns, num_shared, num_parts = counts.tolist()
            group = _Group(home, shared, num_parts, rows)
            yield group, squares, num_columns, num_shared
            del group, shared, parts, squares

    def _number_rows(self, group: _Group) -> _Group:
        places = group.places
        xp = self._engine.xp
        has_all = places.size == self.size
        return group._replace(places=slice(None) if has_all else xp.searchsorted(self.rows, places))

    def add_free_squares(self, coupled: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Merge eigenvalues of the coupled rows, descending, with those of the other, free ones.

        Returns up to `rank`, and their numbers in `coupled`, or ``~row`` for that of a free row.
        """
        sources = np.arange(coupled.size)
        num_rows = self.squares.shape[1]
        if self.size == num_rows:
            return coupled, sources
        arguments = (self.squares, self.rows, min(rank, num_rows))
        free_rows, free = self._engine.find_largest_sums(*arguments)
        squares = np.append(coupled, free)
        sources = np.append(sources, ~free_rows)
        order = np.argsort(-squares, kind="stable")[:rank]
        return squares[order], sources[order]

    def find_leading_pairs(self, rank: int) -> tuple[np.ndarray, Array]:
        """Compute the largest eigenvalues, descending, and orthonormal vectors."""
        if self.is_cheap_to_form() or eigen.wants_most(rank, self.size):
            return eigen.decompose(self.form(), rank)
        return self.iterate(rank)

    def sketch_leading_pairs(
        self, rank: int, num_vectors: int, num_iterations: int, random: Any
    ) -> tuple[np.ndarray, Array]:
        """Approximate the leading eigenpairs from a random sketch.

        The vectors are left singular vectors of ``A @ Q``, where Q is an orthonormal basis of
        ``A.T @ sketch``. It is not formed: with ``gram = sketch.T @ A @ A.T @ sketch``, the product
        is ``A @ A.T @ sketch`` times an inverse square root of `gram`.
        """
        sketch = self._draw_normal(num_vectors, random)
        for _ in range(num_iterations):
            sketch = eigen.orthonormalize(self.multiply(sketch))
        image = self.multiply(sketch)
        gram = move(transposed_product(sketch, image), np).astype(np.float64)
        values, vectors = eigh((gram + gram.T) / 2)
        is_known = values > gram.shape[0] * np.finfo(self.dtype).eps * values[-1]
        inverse_root = vectors[:, is_known] / np.sqrt(values[is_known])
        squares, rotation = eigh(inverse_root.T @ eigen.gram_of(image) @ inverse_root)
        transform = inverse_root @ (rotation / np.sqrt(np.maximum(squares, squares[-1] * 1e-300)))
        transform = transform[:, ::-1][:, :rank]
        return squares[::-1][:rank], eigen.multiply_block(image, transform)

    def _draw_normal(self, num_vectors: int, random: Any) -> Array:
        """Draw normal numbers (size, num_vectors): TensorLy's, unless these are too many."""
        xp = self._engine.xp
        num_rows = self.squares.shape[1]
        if num_rows * num_vectors <= _MAX_DRAWN:
            drawn = random.normal(size=(num_rows, num_vectors))[move(self.rows, np)]
            return xp.asarray(drawn, self.dtype)
        seed = int(2**31 * float(random.random_sample(1)[0]))
        drawn = xp.random.RandomState(seed).standard_normal((self.size, num_vectors))
        return drawn.astype(self.dtype)

    def iterate(self, rank: int) -> tuple[np.ndarray, Array]:
        """Iterate for the leading eigenpairs, on the columns if these are fewer than the rows."""
        if self._num_columns is not None and not eigen.wants_most(rank, self._num_columns):
            assert self._piece is not None
            multiply = functools.partial(self._piece.multiply_gram, mode=1)
            sizes = (self._num_columns, rank, self._engine.xp, self.dtype)
            vectors = eigen.filter_leading_vectors(multiply, *sizes)
            gram = eigen.gram_of(self._piece.multiply(vectors))
            squares, rotation = eigen.sort_pairs(gram, rank)
            is_known = squares > rotation.shape[0] * np.finfo(self.dtype).eps * squares[0]
            squares = squares[is_known]
            rotation = rotation[:, is_known]
            # Multiplied once more: two blocks with a row for each of `rows` would be too large.
            vectors = eigen.multiply_block(vectors, rotation / np.sqrt(squares))
            return squares, eigen.correct_orthonormal(self._piece.multiply(vectors))
        operator = (self.multiply, self.size, rank, self._engine.xp)
        if self._ends_early:
            vectors = eigen.filter_leading_vectors(*operator, self.dtype)
        else:
            _, vectors = eigen.find_leading_eigenpairs(*operator)
        squares, rotation = eigen.sort_pairs(self.project(vectors), rank)
        return squares, eigen.multiply_block(vectors, rotation)

    def is_cheap_to_form(self) -> bool:
        cheap = is_cheap_to_form(self._engine, self.size, self._num_shared)
        return self._formed is not None or cheap

    def form(self) -> Array:
        """Return the matrix (size, size), float64; on the host only its lower triangle counts."""
        if self._piece is not None:
            return self._piece.form_gram(self._diagonal)
        xp = self._engine.xp
        gram = xp.zeros((self.size, self.size)) if self._formed is None else self._formed.copy()
        places = xp.arange(self.size)
        for group in self._groups:
            self._add_gram(gram, group._replace(places=places[group.places]))
        gram[places, places] += self._diagonal
        return gram

    def _add_gram(self, gram: Array, group: _Group) -> None:
        """Add the Gram matrix of a group at the places of its rows, in place."""
        places = group.places
        devices = self._devices
        if places.size == 0:
            return
        (part,) = devices.collect([devices.run(group.home, SharedColumns.form_gram, group.shared)])
        for start in range(0, part.shape[0], _ROWS_AT_ONCE):
            block = slice(start, start + _ROWS_AT_ONCE)
            gram[places[block, None], places] += part[block]

    def multiply(self, block: Array) -> Array:
        """Multiply a block (size, k) of `dtype`."""
        xp = self._engine.xp
        devices = self._devices
        if self._piece is not None and self._num_columns is not None:
            return self._piece.multiply_gram(block)
        total = block * self._diagonal.astype(self.dtype)[:, None]
        if self._piece is not None:
            return self._piece.multiply_gram(block, total=total)
        if self._formed is not None:
            lower = xp.tril(self._formed)
            total += lower @ block + xp.tril(lower, -1).T @ block

        def start() -> Iterator[Array]:
            for group in self._groups:
                arguments = (group.shared, self._bring_rows(group, block))
                yield devices.run(group.home, SharedColumns.multiply_gram, *arguments)

        for group, product in zip(self._groups, devices.launch(start()), strict=True):
            total[group.places] += devices.collect([product])[0]
        return total

    def _bring_rows(self, group: _Group, block: Array) -> Array:
        """Return the rows of a group, on its device."""
        rows = self._engine.xp.ascontiguousarray(block[group.places])
        return self._devices.bring(rows, group.home)

    def project(self, block: Array) -> np.ndarray:
        """Compute ``block.T @ (A @ A.T) @ block`` (k, k) in float64 on the host.

        The Gram matrix of ``A.T @ block`` loses less to rounding than a product with ``A @ A.T``.
        """
        weighted = block * np.sqrt(self._diagonal).astype(self.dtype)[:, None]
        parts = self.reduce_right_products(block, eigen.gram_of)
        return np.sum([eigen.gram_of(weighted), *parts], axis=0)

    def reduce_right_products(
        self, block: Array, function: Callable[[Array], Array]
    ) -> Iterator[Array]:
        """Yield ``function(A.T @ block)``, of (num_columns, k), for some shared columns at a time.

        `function` runs on the device of these columns; results are brought to the first one.
        """
        devices = self._devices

        def start() -> Iterator[Array]:
            for group in self._iterate_groups():
                own_block = self._bring_rows(group, block)
                for number in range(group.num_parts):
                    arguments = (group.shared, number, own_block, function)
                    yield devices.run(group.home, SharedColumns.reduce_right_product, *arguments)

        for part in devices.launch(start()):
            yield devices.collect([part])[0]

    def _iterate_groups(self) -> Iterator[_Group]:
        """Yield the groups; list them again if they are not kept."""
        yield from self._groups
        if self._columns is not None:
            for group, *_ in self._list_groups(self._columns):
                yield self._number_rows(group)
                del group


def is_cheap_to_form(engine: Engine, size: int, num_columns: int) -> bool:
    """Say whether a Gram matrix costs less to form than to multiply by in an iteration."""
    fits = size <= MAX_GRAM_SIZE and engine.is_gram_cheap(size, num_columns)
    return size <= MAX_DIRECT_SIZE or fits


# On the device of a group


def _sum_squares(engine: Engine, entries: Entries, num_rows: int, scale: float) -> Array:
    return engine.sum_single_squares(entries, num_rows, scale)

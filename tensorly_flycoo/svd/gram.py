"""The Gram matrix of an unfolding, which is never formed if it is large.

Nearly every column of a hypersparse unfolding has a single nonzero. Such a column adds its square
to the diagonal of the Gram matrix, and nothing else. A row with no other columns is an eigenvector
of its own: a free row. What remains, the shared columns and the coupled rows, is often a small part
of the tensor; it is a sparse tensor of two modes, and multiplying by it is MTTKRP.

`UnfoldingGram` has the rows, and one of four matrices of the coupled rows, which
`_make_coupled_gram` chooses:

- `FormedGram`: the sum of the groups' Gram matrices, formed while the columns were counted;
- `GroupedGram`: the shared columns of each group, kept on their devices;
- `PieceGram`: the shared columns of a tensor in one piece;
- `FoldedGram`: those, with the diagonal as columns of their own, if few columns remain.

All of this adds over the groups of columns. Their parts are added on the first device, one group
after the other, so that results depend on the number of slabs only.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array, array_module, move
from ..base.devices import Devices
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
        self._engine = columns.engine
        groups: list[_Group] = []
        formed = _allocate_if_cheap(columns)
        receive = groups.append
        if formed is not None:
            receive = functools.partial(_add_gram, formed, columns.devices)
        survey = _survey_groups(columns, scale, receive)

        self.squares = survey.squares
        self.rows = survey.rows
        self.size = int(self.rows.size)
        self._num_shared = survey.num_shared
        self._ends_early = self.size > MAX_GRAM_SIZE
        self.dtype: np.dtype = np.dtype(dtype)
        if not self._ends_early:
            self.dtype = np.dtype(np.float64)
        self._coupled = _make_coupled_gram(columns, scale, survey, groups, formed, self.dtype)
        del formed, receive  # frees memory, if only a part of the rows is coupled
        self.transposed = _transpose_if_few(columns, survey.column_counts, scale)

    def add_free_squares(self, coupled: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Merge eigenvalues of the coupled rows, descending, with those of the free ones.

        Returns up to `rank`, and their numbers in `coupled`, or ``~row`` for that of a free row.
        """
        sources = np.arange(coupled.size)
        num_rows = self.squares.shape[1]
        if self.size == num_rows:
            return coupled, sources
        num_wanted = min(rank, num_rows)
        free_rows, free = self._engine.find_largest_sums(self.squares, self.rows, num_wanted)
        squares = np.append(coupled, free)
        sources = np.append(sources, ~free_rows)
        descending = np.argsort(-squares, kind="stable")
        largest = descending[:rank]
        return squares[largest], sources[largest]

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
        # 1. The inverse square root, of directions that are no rounding error.
        gram = move(transposed_product(sketch, image), np).astype(np.float64)
        values, vectors = eigh((gram + gram.T) / 2)
        is_certain = values > num_vectors * np.finfo(self.dtype).eps * values[-1]
        inverse_root = vectors[:, is_certain] / np.sqrt(values[is_certain])
        # 2. The left singular vectors of the product, from its Gram matrix.
        squares, rotation = eigh(inverse_root.T @ eigen.gram_of(image) @ inverse_root)
        lengths = np.sqrt(np.maximum(squares, squares[-1] * 1e-300))  # not zero: it divides
        transform = inverse_root @ (rotation / lengths)
        descending = transform[:, ::-1]
        return squares[::-1][:rank], eigen.multiply_block(image, descending[:, :rank])

    def _draw_normal(self, num_vectors: int, random: Any) -> Array:
        """Draw normal numbers (size, num_vectors): TensorLy's, unless these are too many."""
        xp = self._engine.xp
        num_rows = self.squares.shape[1]
        if num_rows * num_vectors <= _MAX_DRAWN:
            # TensorLy draws a row for each row of the unfolding, of which the coupled ones serve.
            numbers_of_all_rows = random.normal(size=(num_rows, num_vectors))
            numbers = numbers_of_all_rows[move(self.rows, np)]
            return xp.asarray(numbers, self.dtype)
        seed = int(2**31 * float(random.random_sample(1)[0]))
        numbers = xp.random.RandomState(seed).standard_normal((self.size, num_vectors))
        return numbers.astype(self.dtype)

    def iterate(self, rank: int) -> tuple[np.ndarray, Array]:
        """Iterate for the leading eigenpairs, on the columns if these are fewer than the rows."""
        coupled = self._coupled
        xp = self._engine.xp
        if isinstance(coupled, FoldedGram) and not eigen.wants_most(rank, coupled.num_columns):
            return coupled.iterate_on_columns(rank, xp)
        if self._ends_early:
            vectors = eigen.filter_leading_vectors(self.multiply, self.size, rank, xp, self.dtype)
        else:
            _, vectors = eigen.find_leading_eigenpairs(self.multiply, self.size, rank, xp)
        squares, rotation = eigen.sort_pairs(self.project(vectors), rank)
        return squares, eigen.multiply_block(vectors, rotation)

    def is_cheap_to_form(self) -> bool:
        """Say whether the matrix costs less to form than to iterate with; a `FormedGram` does."""
        return is_cheap_to_form(self._engine, self.size, self._num_shared)

    def form(self) -> Array:
        """Return the matrix (size, size), float64; on the host only its lower triangle counts."""
        return self._coupled.form()

    def multiply(self, block: Array) -> Array:
        """Multiply a block (size, k) of `dtype`."""
        return self._coupled.multiply(block)

    def project(self, block: Array) -> np.ndarray:
        """Compute ``block.T @ (A @ A.T) @ block`` (k, k) in float64 on the host.

        The Gram matrix of ``A.T @ block`` loses less to rounding than a product with ``A @ A.T``.
        """
        # The diagonal counts as further columns: unit vectors times its roots.
        roots = np.sqrt(self._coupled.diagonal).astype(self.dtype)
        weighted = block * roots[:, None]
        parts = self.reduce_right_products(block, eigen.gram_of)
        return np.sum([eigen.gram_of(weighted), *parts], axis=0)

    def reduce_right_products(
        self, block: Array, function: Callable[[Array], Array]
    ) -> Iterator[Array]:
        """Yield ``function(A.T @ block)``, of (num_columns, k), for some shared columns at a time.

        `function` runs on the device of these columns; results are brought to the first one.
        """
        devices = self._coupled.devices

        def start() -> Iterator[Array]:
            for group in self._coupled.list_groups():
                rows = _bring_rows(devices, group, block)
                for number in range(group.num_parts):
                    reduce = SharedColumns.reduce_right_product
                    yield devices.run(group.home, reduce, group.shared, number, rows, function)

        for part in devices.launch(start()):
            yield devices.collect([part])[0]


# One pass over the groups of columns


@dataclass(frozen=True)
class _Survey:
    """The rows of an unfolding, and how many columns it has."""

    squares: Array  # (2, num_rows), of positive and of negative values alone in their columns
    rows: Array  # the coupled rows, ascending
    column_counts: list[int]  # of each group, shared or not
    num_shared: int


def _survey_groups(columns: Columns, scale: float, receive: Callable[[_Group], object]) -> _Survey:
    """Look at each group once, and hand it to `receive`, which keeps it or adds it up."""
    squares: Array = None
    column_counts = []
    num_shared = 0
    rows_of_groups = []
    for group, group_squares, num_columns, num_shared_columns in _list_groups(columns, scale):
        squares = group_squares if squares is None else squares + group_squares
        column_counts.append(num_columns)
        num_shared += num_shared_columns
        rows_of_groups.append(group.places)
        receive(group)
        del group, group_squares  # frees memory before the next group is made
    rows = _unite_rows(rows_of_groups, columns.num_rows, columns.engine.xp)
    return _Survey(squares, rows, column_counts, num_shared)


def _unite_rows(rows_of_groups: list[Array], num_rows: int, xp: Any) -> Array:
    """Unite sets of rows, each ascending.

    >>> _unite_rows([np.array([0, 3]), np.array([1, 3])], 5, np)
    array([0, 1, 3])
    """
    if len(rows_of_groups) == 1:
        return rows_of_groups[0]
    is_coupled = xp.zeros(num_rows, bool)
    for rows in rows_of_groups:
        is_coupled[rows] = True
    return xp.flatnonzero(is_coupled)


def _list_groups(columns: Columns, scale: float) -> Iterator[tuple[_Group, Array, int, int]]:
    """Yield each group, its `squares`, and the numbers of its columns, all and shared."""
    devices = columns.devices
    engine = columns.engine
    num_rows = columns.num_rows

    # Whatever is not needed any more is deleted at once: groups may fill a device.
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


def _number_rows(group: _Group, rows: Array, xp: Any) -> _Group:
    """Return a group whose places are among the coupled rows; a slice if it has all of them."""
    if group.places.size == rows.size:
        return group._replace(places=slice(None))
    return group._replace(places=xp.searchsorted(rows, group.places))


def _allocate_if_cheap(columns: Columns) -> Array | None:
    """Return zeros (num_rows, num_rows) if the groups' Gram matrices shall be added up at once."""
    num_rows = columns.num_rows
    is_piece = columns.entries is not None
    # Of n nonzeros at most n // 2 are the first ones of shared columns.
    most_shared = columns.layout.nnz // 2
    if is_piece or not is_cheap_to_form(columns.engine, num_rows, most_shared):
        return None
    return columns.engine.xp.zeros((num_rows, num_rows))


def is_cheap_to_form(engine: Engine, size: int, num_columns: int) -> bool:
    """Say whether a Gram matrix costs less to form than to multiply by in an iteration."""
    if size <= MAX_DIRECT_SIZE:
        return True
    return size <= MAX_GRAM_SIZE and engine.is_gram_cheap(size, num_columns)


def _transpose_if_few(columns: Columns, counts: list[int], scale: float) -> AnyLayout | None:
    """Build the transposed matrix if it has few rows, and fewer than the unfolding uses."""
    num_columns = sum(counts)
    empty_rows = columns.layout.find_empty_rows(columns.mode)
    num_used_rows = columns.num_rows - empty_rows.size
    if 0 < num_columns <= MAX_GRAM_SIZE and num_columns < num_used_rows:
        return columns.transpose(counts, scale)
    return None


# The Gram matrix of the coupled rows


class CoupledGram(ABC):
    """The Gram matrix of the coupled rows: of the shared columns, plus `diagonal` (size,).

    Its groups may be on several devices, its products are on the first one.
    """

    def __init__(self, devices: Devices, diagonal: Array) -> None:
        self.devices = devices
        self.diagonal = diagonal

    @abstractmethod
    def form(self) -> Array:
        """Return the matrix (size, size), float64; on the host only its lower triangle counts."""

    @abstractmethod
    def multiply(self, block: Array) -> Array:
        """Multiply a block (size, k), in its dtype."""

    @abstractmethod
    def list_groups(self) -> Iterable[_Group]:
        """List the groups of shared columns, with the places of their rows among the coupled."""


def _make_coupled_gram(
    columns: Columns,
    scale: float,
    survey: _Survey,
    groups: list[_Group],
    formed: Array | None,
    dtype: np.dtype,
) -> CoupledGram:
    """Choose how the Gram matrix of the coupled rows is held; `groups` are empty if `formed`."""
    xp = columns.engine.xp
    rows = survey.rows
    diagonal = columns.engine.add_signs(survey.squares, rows)
    if formed is not None:
        if rows.size < columns.num_rows:
            formed = formed[rows[:, None], rows]
        return FormedGram(columns, scale, rows, formed, diagonal)
    groups = [_number_rows(group, rows, xp) for group in groups]
    if columns.entries is None:  # a tensor in slabs
        return GroupedGram(columns.devices, groups, diagonal)
    (group,) = groups
    if rows.size > MAX_GRAM_SIZE:
        # A single nonzero is a column of its own; merged by row, they are the diagonal's elements.
        num_singles = int((diagonal > 0).astype(np.int64).sum())
        num_columns = survey.num_shared + num_singles
        if max(MAX_GRAM_SIZE, MAX_DIRECT_SIZE) < num_columns < rows.size:
            return FoldedGram(columns.devices, group, diagonal, num_columns, dtype)
    return PieceGram(columns.devices, group, diagonal)


class FormedGram(CoupledGram):
    """A sum of Gram matrices that is held; the groups are listed again where they are needed."""

    def __init__(
        self, columns: Columns, scale: float, rows: Array, formed: Array, diagonal: Array
    ) -> None:
        super().__init__(columns.devices, diagonal)
        self._columns = columns
        self._scale = scale
        self._rows = rows
        self._formed = formed  # (size, size), without the diagonal

    def form(self) -> Array:
        gram = self._formed.copy()
        _add_diagonal(gram, self.diagonal)
        return gram

    def multiply(self, block: Array) -> Array:
        xp = self._columns.engine.xp
        total = block * self.diagonal.astype(block.dtype)[:, None]
        # On the host only the lower triangle counts.
        lower = xp.tril(self._formed)
        total += lower @ block + xp.tril(lower, -1).T @ block
        return total

    def list_groups(self) -> Iterator[_Group]:
        for group, *_ in _list_groups(self._columns, self._scale):
            yield _number_rows(group, self._rows, self._columns.engine.xp)
            del group


class GroupedGram(CoupledGram):
    """The shared columns of each group, multiplied on their devices."""

    def __init__(self, devices: Devices, groups: list[_Group], diagonal: Array) -> None:
        super().__init__(devices, diagonal)
        self._groups = groups

    def form(self) -> Array:
        xp = array_module(self.diagonal)
        size = self.diagonal.size
        gram = xp.zeros((size, size))
        places = xp.arange(size)
        for group in self._groups:
            _add_gram(gram, self.devices, group._replace(places=places[group.places]))
        _add_diagonal(gram, self.diagonal)
        return gram

    def multiply(self, block: Array) -> Array:
        devices = self.devices
        total = block * self.diagonal.astype(block.dtype)[:, None]

        def start() -> Iterator[Array]:
            for group in self._groups:
                rows = _bring_rows(devices, group, block)
                yield devices.run(group.home, SharedColumns.multiply_gram, group.shared, rows)

        for group, product in zip(self._groups, devices.launch(start()), strict=True):
            total[group.places] += devices.collect([product])[0]
        return total

    def list_groups(self) -> Iterable[_Group]:
        return self._groups


class PieceGram(CoupledGram):
    """The shared columns of a tensor in one piece, whose device is the first."""

    def __init__(self, devices: Devices, group: _Group, diagonal: Array) -> None:
        super().__init__(devices, diagonal)
        self._group = group
        self.shared: SharedColumns = group.shared

    def form(self) -> Array:
        return self.shared.form_gram(self.diagonal)

    def multiply(self, block: Array) -> Array:
        total = block * self.diagonal.astype(block.dtype)[:, None]
        return self.shared.multiply_gram(block, total=total)

    def list_groups(self) -> Iterable[_Group]:
        return [self._group]


class FoldedGram(CoupledGram):
    """Shared columns with the diagonal as further ones: `num_columns`, fewer than the rows."""

    def __init__(
        self, devices: Devices, group: _Group, diagonal: Array, num_columns: int, dtype: np.dtype
    ) -> None:
        super().__init__(devices, diagonal)
        self.shared: SharedColumns = group.shared
        self.shared.add_singles(diagonal, dtype)
        self.num_columns = num_columns
        self._group = group._replace(num_parts=1)
        self._dtype = dtype

    def form(self) -> Array:
        return self.shared.form_gram()

    def multiply(self, block: Array) -> Array:
        return self.shared.multiply_gram(block)

    def list_groups(self) -> Iterable[_Group]:
        return [self._group]

    def iterate_on_columns(self, rank: int, xp: Any) -> tuple[np.ndarray, Array]:
        """Find leading eigenpairs by way of right singular vectors, which are shorter."""
        multiply = functools.partial(self.shared.multiply_gram, mode=1)
        vectors = eigen.filter_leading_vectors(multiply, self.num_columns, rank, xp, self._dtype)
        gram = eigen.gram_of(self.shared.multiply(vectors))
        squares, rotation = eigen.sort_pairs(gram, rank)
        limit = rotation.shape[0] * np.finfo(self._dtype).eps * squares[0]
        is_certain = squares > limit
        squares = squares[is_certain]
        rotation = rotation[:, is_certain]
        # Multiplied once more: two blocks with a row for each coupled row would be too large.
        right = eigen.multiply_block(vectors, rotation / np.sqrt(squares))
        left = self.shared.multiply(right)
        return squares, eigen.correct_orthonormal(left)


def _add_diagonal(gram: Array, diagonal: Array) -> None:
    """Add to the diagonal of a Gram matrix, in place."""
    places = array_module(gram).arange(diagonal.size)
    gram[places, places] += diagonal


def _add_gram(gram: Array, devices: Devices, group: _Group) -> None:
    """Add the Gram matrix of a group at the places of its rows, in place."""
    places = group.places
    if places.size == 0:
        return
    on_device = devices.run(group.home, SharedColumns.form_gram, group.shared)
    (part,) = devices.collect([on_device])
    del on_device  # which is as large as the part
    for start in range(0, part.shape[0], _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        row_places = places[block, None]
        gram[row_places, places] += part[block]


def _bring_rows(devices: Devices, group: _Group, block: Array) -> Array:
    """Return the rows of a group, on its device."""
    rows = array_module(block).ascontiguousarray(block[group.places])
    return devices.bring(rows, group.home)


# On the device of a group


def _sum_squares(engine: Engine, entries: Entries, num_rows: int, scale: float) -> Array:
    """Sum the squares of the values alone in their columns, by sign and row."""
    return engine.sum_single_squares(entries, num_rows, scale)

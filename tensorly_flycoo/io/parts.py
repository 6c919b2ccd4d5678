"""Nonzeros that come in parts: read from files, or given as arrays."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..base.array_modules import Array, is_cupy, move
from ..base.checks import (
    MAX_MODE_SIZE,
    check_choice,
    check_coords,
    check_dtype,
    check_finite,
    check_inside,
    check_place,
    check_shape,
    check_values,
)
from ..tensor.coo_cache import SparseData, as_flycoo
from ..tensor.entrance import is_sparse
from ..tensor.pieces import list_pieces
from .files import name_errors
from .places import FilePath, count_nbytes, list_files, open_parquet
from .table_parts import scan
from .table_rows import is_table, read_indices, read_values

#: Nonzeros handed on at a time.
BLOCK_NNZ = 2**20

#: A tensor, a file, or several files and pairs of the coords (ndim, n) and values (n,) of nonzeros.
Parts: TypeAlias = "SparseData | FilePath | Iterable[FilePath | tuple]"


#: Called with the bytes of some files that have been read, and the size of all.
ShowProgress: TypeAlias = Callable[[int, int], object]


class Block(NamedTuple):
    """Some nonzeros, checked, with the given shape or one that holds these indices."""

    coords: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]


def unite_shapes(shapes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the smallest shape that holds all; refuse different numbers of modes.

    Examples
    --------
    >>> unite_shapes([(2, 5), (3, 4)])
    (3, 5)
    """
    shapes = list(shapes)
    ndims = {*map(len, shapes)}
    if len(ndims) > 1:
        raise ValueError(f"parts have {sorted(ndims)} modes, expected one number")
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


@dataclass
class Reading:
    """Options of reading parts, checked."""

    shape: Any = None  # by default the smallest that holds the nonzeros
    dtype: Any = None  # by default that of each part
    columns: Sequence[str] | None = None  # of .parquet files: of modes, then of values
    index_base: int = 1  # of .tns files

    def __post_init__(self) -> None:
        if self.shape is not None:
            self.shape = check_shape(self.shape)
        if self.dtype is not None:
            self.dtype = check_dtype(self.dtype)
        check_choice(self.index_base, "index_base", (1, 0))

    def iterate(self, parts: Parts) -> Iterator[Block]:
        """Yield the nonzeros of all parts, in their order."""
        if is_sparse(parts):
            x = as_flycoo(parts, check_coords=True)
            for piece in list_pieces(x._layout, x._engine.xp):
                for coords, values in piece.iterate_nonzeros(BLOCK_NNZ):
                    yield self._check(coords, values, self.shape or x.shape)
            return
        if isinstance(parts, str | os.PathLike):
            parts = [parts]
        elif is_table(parts) or not isinstance(parts, Iterable):
            raise TypeError(
                f"parts is a {_describe(parts)}, expected sparse data, paths or (coords, values)"
            )
        for number, part in enumerate(parts):
            with name_errors(f"parts[{number}]"):
                yield from self._iterate_part(part)

    def _iterate_part(self, part: Any) -> Iterator[Block]:
        """Yield the nonzeros of one part: a pair of arrays, or the files that a path names."""
        if isinstance(part, tuple) and len(part) == 2:
            yield from self._iterate_arrays(*part)
        elif isinstance(part, str | os.PathLike):
            for path in list_files(part):
                if path.endswith((".parquet", ".pq")):
                    yield from self._iterate_parquet(path)
                else:
                    yield from self._iterate_tns(path)
        else:
            raise TypeError(f"a {_describe(part)}, expected a path or a tuple (coords, values)")

    def _iterate_arrays(self, coords: Any, values: Any) -> Iterator[Block]:
        """Yield blocks of the nonzeros that arrays hold, an empty one if there are none."""
        coords = check_coords(coords, self.shape or [0] * len(coords))
        values = check_values(values, coords.shape[1], self.dtype)
        check_place(values, "values", is_cupy(coords), "coords")
        for start in range(0, max(1, values.size), BLOCK_NNZ):
            block = slice(start, start + BLOCK_NNZ)
            yield self._check(coords[:, block], values[block], self.shape)

    def read_tns(self, paths: Sequence[str], progress: ShowProgress | None = None) -> Block:
        """Return the nonzeros of all of some .tns files as one block."""
        blocks: list[Block] = []
        position = _Position(paths, progress)
        for path in paths:
            blocks += self._iterate_tns(path, position.show)
            position.end_file(path)
        shape = self.shape or unite_shapes(block.shape for block in blocks)
        # The empty arrays are for files without nonzeros; in Fortran order, as those of blocks.
        coords = [np.empty((0, len(shape)), np.int64).T, *(block.coords for block in blocks)]
        values = [np.empty(0), *(block.values for block in blocks)]
        return Block(np.concatenate(coords, axis=1), np.concatenate(values), shape)

    def _iterate_tns(
        self, path: str, show_position: Callable[[int], object] | None = None
    ) -> Iterator[Block]:
        """Yield the nonzeros of a .tns file, if it has some or says its shape."""
        from .tns_parsing import TnsParser

        parser = TnsParser(path, self.shape, self.index_base)
        for coords, values in parser.iterate(show_position):
            if parser.shape is not None:  # there was more than comments
                checked = check_values(values, values.size, self.dtype)
                yield Block(coords.reshape(-1, len(parser.shape)).T, checked, parser.shape)

    def _iterate_parquet(self, path: str) -> Iterator[Block]:
        """Yield the nonzeros of a .parquet file; by default all of its columns are read."""
        dataset = open_parquet(path)
        file = next(dataset.get_fragments())
        names = list(self.columns or file.physical_schema.names)
        if len(names) < 2:
            raise ValueError(f"columns is {names}, expected those of modes, and of values")
        *mode_names, values_name = names
        for table in scan(dataset, names, path):
            for batch in table.to_batches(max_chunksize=BLOCK_NNZ):
                coords = np.stack([read_indices(batch.column(name), name) for name in mode_names])
                values = read_values(batch.column(values_name), values_name)
                yield self._check(coords, values, self.shape)

    def _check(self, coords: Array, values: Array, shape: tuple[int, ...] | None) -> Block:
        """Bring a block to the host; refuse indices outside of its shape, and nan."""
        ndim = coords.shape[0]
        coords = check_coords(move(coords, np), shape or [0] * ndim)
        values = check_values(move(values, np), coords.shape[1], self.dtype)
        check_inside(coords, shape or (MAX_MODE_SIZE,) * ndim)
        check_finite(values)
        if shape is None:
            shape = check_shape(find_least_shape(coords))
        return Block(coords, values, shape)


def _describe(part: Any) -> str:
    """Name the type of a part that is refused; of a table, say what is missing."""
    kind = type(part).__name__
    if is_table(part):
        return f"{kind} and modes is not given, the columns of a table"
    return kind


def find_least_shape(coords: Iterable[np.ndarray]) -> tuple[int, ...]:
    """Return the smallest shape that has all indices.

    >>> find_least_shape(np.array([[0, 2], [1, 0]]))
    (3, 2)
    """
    return tuple(int(indices.max(initial=0)) + 1 for indices in coords)


class _Position:
    """How many bytes of some files have been read, one file after the other, for `progress`."""

    def __init__(self, paths: Iterable[str], progress: ShowProgress | None) -> None:
        self._progress = progress
        self._nbytes = 0  # of the files that have been read
        self._total_nbytes = 0
        if progress is not None:
            self._total_nbytes = sum(map(count_nbytes, paths))

    def show(self, nbytes: int) -> None:
        """Show that so many bytes of the present file have been read."""
        if self._progress is not None:
            self._progress(self._nbytes + nbytes, self._total_nbytes)

    def end_file(self, path: str) -> None:
        """Show that all of a file has been read, and go on to the next."""
        if self._progress is not None:
            self._nbytes += count_nbytes(path)
            self.show(0)

"""Nonzeros that come in parts: read from files, or given as arrays."""

import os
from collections.abc import Iterable, Iterator, Sequence
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
from .dataframe import check_columns, read_indices, read_values
from .files import FilePath, name_errors
from .places import list_files, open_parquet

#: Nonzeros handed on at a time.
BLOCK_NNZ = 2**20

#: A tensor, a file, or several files and pairs of the coords (ndim, n) and values (n,) of nonzeros.
Parts: TypeAlias = "SparseData | FilePath | Iterable[FilePath | tuple]"


class Block(NamedTuple):
    """Some nonzeros, checked, with the given shape or one that holds these indices."""

    coords: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]


def unite_shapes(shapes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the smallest shape that holds all; refuse other numbers of modes."""
    shapes = list(shapes)
    if len(ndims := {*map(len, shapes)}) > 1:
        raise ValueError(f"parts have {sorted(ndims)} modes, expected one number")
    return tuple(map(max, zip(*shapes, strict=True)))


@dataclass
class Reading:
    """Options of reading parts: `columns` of .parquet files, `index_base` of .tns files."""

    shape: Any = None
    dtype: Any = None
    columns: Sequence[str] | None = None
    index_base: int = 1

    def __post_init__(self) -> None:
        self.shape = None if self.shape is None else check_shape(self.shape)
        self.dtype = None if self.dtype is None else check_dtype(self.dtype)
        check_choice(self.index_base, "index_base", (1, 0))

    def iterate(self, parts: Parts) -> Iterator[Block]:
        """Yield the nonzeros of all parts, in their order."""
        if is_sparse(parts):
            x = as_flycoo(parts)
            for piece in list_pieces(x._layout, x._engine.xp):
                for coords, values in piece.iterate_nonzeros(BLOCK_NNZ):
                    yield self._check(coords, values, self.shape or x.shape)
            return
        if isinstance(parts, str | os.PathLike):
            parts = [parts]
        elif not isinstance(parts, Iterable):
            name = type(parts).__name__
            raise TypeError(f"parts is a {name}, expected sparse data, paths or (coords, values)")
        for number, part in enumerate(parts):
            with name_errors(f"parts[{number}]"):
                yield from self._iterate_part(part)

    def _iterate_part(self, part: Any) -> Iterator[Block]:
        if isinstance(part, tuple) and len(part) == 2:
            coords = check_coords(part[0], self.shape or [0] * len(part[0]))
            values = check_values(part[1], coords.shape[1], self.dtype)
            check_place(values, "values", is_cupy(coords), "coords")
            for start in range(0, max(1, values.size), BLOCK_NNZ):
                block = slice(start, start + BLOCK_NNZ)
                yield self._check(coords[:, block], values[block], self.shape)
            return
        if not isinstance(part, str | os.PathLike):
            kind = type(part).__name__
            raise TypeError(f"a {kind}, expected a path or a tuple (coords, values)")
        for path in list_files(part):
            is_parquet = path.endswith((".parquet", ".pq"))
            yield from self._iterate_parquet(path) if is_parquet else self._iterate_tns(path)

    def read_tns(self, paths: Iterable[str]) -> Block:
        """Return the nonzeros of all of some .tns files as one block."""
        blocks = [own for path in paths for own in self._iterate_tns(path)]
        shape = self.shape or unite_shapes(block.shape for block in blocks)
        coords = [np.empty((0, len(shape)), np.int64).T, *(block.coords for block in blocks)]
        values = [np.empty(0), *(block.values for block in blocks)]
        return Block(np.concatenate(coords, axis=1), np.concatenate(values), shape)

    def _iterate_tns(self, path: str) -> Iterator[Block]:
        """Yield the nonzeros of a .tns file, if it has some or says its shape."""
        from .tns_parsing import TnsParser

        parser = TnsParser(path, self.shape, self.index_base)
        for coords, values in parser.iterate():
            if parser.shape is not None:  # there was more than comments
                values = check_values(values, values.size, self.dtype)
                yield Block(coords.reshape(-1, len(parser.shape)).T, values, parser.shape)

    def _iterate_parquet(self, path: str) -> Iterator[Block]:
        data = open_parquet(path)
        names = list(self.columns or next(data.get_fragments()).physical_schema.names)
        check_columns(names, data.schema.names, path)
        if len(names) < 2:
            raise ValueError(f"columns is {names}, expected those of modes, and of values")
        for batch in data.to_batches(columns=names, batch_size=BLOCK_NNZ, batch_readahead=1):
            *modes, numbers = (batch.column(name) for name in names)
            pairs = zip(modes, names, strict=False)
            coords = np.stack([read_indices(mode, name) for mode, name in pairs])
            yield self._check(coords, read_values(numbers, names[-1]), self.shape)

    def _check(self, coords: Array, values: Array, shape: tuple[int, ...] | None) -> Block:
        coords = check_coords(move(coords, np), shape or [0] * coords.shape[0])
        values = check_values(move(values, np), coords.shape[1], self.dtype)
        check_inside(coords, shape or (MAX_MODE_SIZE,) * coords.shape[0])
        check_finite(values)
        if shape is None:
            shape = check_shape([int(rows.max(initial=0)) + 1 for rows in coords])
        return Block(coords, values, shape)

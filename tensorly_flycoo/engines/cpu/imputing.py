"""Missing entries that many models impute at once, each its own values; compiled by numba.

The columns of all models are side by side: ``columns[:, s * R : (s + 1) * R]`` belong to model s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba.cpython.unsafe.tuple import tuple_setitem
from numpy import ndarray as Array

from ..entries import PieceEntries
from . import threads
from .compiling import kernel
from .mttkrp import add_product, count_lanes, fill_row, new_row_of_zeros

#: Entries whose squares are added up together.
_BLOCK_SIZE = 2048


class CpuEntries(PieceEntries):
    """Entries that kernels compute, without a matrix of a row for each entry."""

    def __init__(self, engine: Any, coords: Array, shape: Sequence[int], dtype: np.dtype) -> None:
        self._coords = coords
        # By mode: where each of its rows' entries begin, and the last one's end; the coords, those
        # of the mode first; and the places of the entries, sorted by its rows.
        self._orders: list[tuple[Array, Array, Array]] = []
        zeros = np.zeros_like(coords[:1])  # rows of ones, if there is no other mode
        for mode, rows in enumerate(coords):
            places = np.argsort(rows, kind="stable")
            mode_first = np.concatenate([rows[None], np.delete(coords, mode, axis=0), zeros])
            ids = mode_first[:, places]
            starts = np.flatnonzero(np.diff(ids[0], prepend=-1, append=-1))
            self._orders.append((starts, np.ascontiguousarray(ids), places))

    def add_mttkrp(
        self, columns: Mapping[int, Array], values: Array, mode: int, out: Array
    ) -> None:
        """Implement `PieceEntries.add_mttkrp`: the entries of each row, in order, by one thread."""
        starts, ids, places = self._orders[mode]
        num_columns = out.shape[1]
        rank = num_columns // values.shape[1]
        modes = [n for n in range(len(self._orders)) if n != mode]
        factors: Any = tuple([np.ascontiguousarray(columns[n]) for n in modes])
        factors = factors or (np.ones((1, num_columns), out.dtype),)
        lanes = (0,) * count_lanes(out[:, :rank])
        indices = (np.uint64(0),) * len(factors)  # memory for those of an entry
        threads.launch(
            _add,
            starts.size - 1,
            starts,
            ids,
            places,
            values,
            factors,
            out,
            indices,
            lanes,
            work_ns=places.size * num_columns * len(factors) / 4,
        )

    def evaluate(self, columns: Mapping[int, Array], values: Array) -> tuple[Array, Array]:
        num_blocks = -(-len(values) // _BLOCK_SIZE)
        values = values.copy()
        sums = np.zeros((num_blocks, 2, values.shape[1]))
        matrices = tuple(columns[n] for n in range(len(self._coords)))
        work_ns = len(values) * matrices[0].shape[1] * len(matrices)
        threads.launch(_evaluate, num_blocks, self._coords, matrices, values, sums, work_ns=work_ns)
        return values, sums.sum(axis=0)


@kernel
def _evaluate(
    first: int, last: int, ids: Array, columns: tuple[Array, ...], values: Array, sums: Array
) -> None:
    """Replace the values of some blocks of entries by those of each model.

    `sums` receive each block's squares of the new values, and their products with the changes.
    """
    count = np.uint64(len(values))
    num_models = np.uint64(values.shape[1])
    one = np.uint64(1)
    rank = np.uint64(columns[0].shape[1]) // num_models
    size = np.uint64(_BLOCK_SIZE)
    for block in range(np.uint64(first), np.uint64(last)):
        for k in range(block * size, min((block + one) * size, count)):
            for s in range(num_models):
                total = values.dtype.type(0)
                for r in range(s * rank, (s + one) * rank):
                    product = columns[0][np.uint64(ids[0, k]), r]
                    for n in range(1, len(columns)):
                        product *= columns[n][np.uint64(ids[n, k]), r]
                    total += product
                value = np.float64(total)
                sums[block, 0, s] += value * value
                sums[block, 1, s] += value * (value - values[k, s])
                values[k, s] = total


@kernel
def _add(
    first: int,
    last: int,
    starts: Array,
    ids: Array,
    places: Array,
    values: Array,
    columns: tuple[Array, ...],
    out: Array,
    indices: Any,
    lanes: tuple[int, ...],
) -> None:
    """Add the MTTKRP of the entries of some rows to `out`, model by model."""
    num_models = np.uint64(values.shape[1])
    num_lanes = np.uint64(len(lanes))
    rank: Any = np.uint64(out.shape[1]) // num_models
    total = new_row_of_zeros(values.dtype.type(0), lanes)
    for run in range(np.uint64(first), np.uint64(last)):
        begin = np.uint64(starts[run])
        end = np.uint64(starts[run + np.uint64(1)])
        row = np.uint64(ids[0, begin])
        for s in range(num_models):
            for step in range(np.uint64(0), rank, num_lanes):
                # The last step may overlap the one before, and then adds only what is new.
                column = min(step, rank - num_lanes)
                fill_row(total, 0.0, lanes)
                for k in range(begin, end):
                    for n in range(len(columns)):
                        row_id = np.uint64(ids[n + 1, k])
                        indices = tuple_setitem(indices, n, row_id)  # type: ignore[call-arg]
                    value = values[np.uint64(places[k]), s]
                    add_product(total, value, columns, indices, s * rank + column, lanes)
                for lane in range(step - column, num_lanes):
                    out[row, s * rank + column + lane] += total[lane]

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
        # By mode: where each of its rows' entries begin, and the last one's end; the coords, its
        # own first; and the places of the entries, sorted by its rows.
        self._orders: list[tuple[Array, Array, Array]] = []
        zeros = np.zeros_like(coords[:1])  # rows of ones, if there is no other mode
        for mode, own in enumerate(coords):
            places = np.argsort(own, kind="stable")
            ids = np.concatenate([own[None], np.delete(coords, mode, axis=0), zeros])[:, places]
            starts = np.flatnonzero(np.diff(ids[0], prepend=-1, append=-1))
            self._orders.append((starts, np.ascontiguousarray(ids), places))

    def add_mttkrp(
        self, columns: Mapping[int, Array], values: Array, mode: int, out: Array
    ) -> None:
        starts, ids, places = self._orders[mode]
        modes = [n for n in range(len(self._orders)) if n != mode]
        others: Any = tuple([np.ascontiguousarray(columns[n]) for n in modes])
        others = others or (np.ones((1, out.shape[1]), out.dtype),)
        lanes = (0,) * count_lanes(out[:, : out.shape[1] // values.shape[1]])
        zeros = (np.uint64(0),) * len(others)
        arguments = (starts, ids, places, values, others, out, zeros, lanes)
        work_ns = places.size * out.shape[1] * len(others) / 4
        threads.launch(_add, starts.size - 1, *arguments, work_ns=work_ns)

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
                own = min(step, rank - num_lanes)
                fill_row(total, 0.0, lanes)
                for k in range(begin, end):
                    for n in range(len(columns)):
                        row_id = np.uint64(ids[n + 1, k])
                        indices = tuple_setitem(indices, n, row_id)  # type: ignore[call-arg]
                    value = values[np.uint64(places[k]), s]
                    add_product(total, value, columns, indices, s * rank + own, lanes)
                for lane in range(step - own, num_lanes):
                    out[row, s * rank + own + lane] += total[lane]

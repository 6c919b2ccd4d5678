"""Missing entries that many models impute at once, each its own values; compiled by numba.

The columns of all models are side by side: ``columns[:, s * R : (s + 1) * R]`` belong to model s.
"""

import numpy as np

from ...base.array_modules import Array
from . import threads
from .compiling import kernel

#: Entries whose squares are added up together.
_BLOCK_SIZE = 2048


def evaluate_models(ids: Array, columns: tuple[Array, ...], values: Array) -> Array:
    """Write the values of all models at the entries to `values` (count, n).

    `ids` (N, count) are the rows of the N matrices `columns`, (I_n, n * R) each. Return, in float64
    (2, n), the sums of the squares of the values and of their products with their changes.
    """
    num_blocks = -(-len(values) // _BLOCK_SIZE)
    sums = np.zeros((num_blocks, 2, values.shape[1]))
    work_ns = len(values) * columns[0].shape[1] * len(columns)
    threads.launch(_evaluate, num_blocks, ids, columns, values, sums, work_ns=work_ns)
    return sums.sum(axis=0)


def add_entries(
    starts: Array, ids: Array, places: Array, values: Array, columns: tuple[Array, ...], out: Array
) -> None:
    """Add the MTTKRP of entries, with the values of all models, to `out` (I, n * R).

    Row ``ids[0, k]`` of `out` gets entry k, whose values are ``values[places[k]]`` (n,), times rows
    ``ids[1:, k]`` of `columns`. Each row's entries are neighbours; `starts` says where they begin.
    """
    arguments = (starts, ids, places, values, columns, out)
    work_ns = places.size * out.shape[1] * len(columns)
    threads.launch(_add, starts.size - 1, *arguments, work_ns=work_ns)


@kernel
def _evaluate(
    first: int, last: int, ids: Array, columns: tuple[Array, ...], values: Array, sums: Array
) -> None:
    count, num_models = values.shape
    rank = columns[0].shape[1] // num_models
    for block in range(first, last):
        for k in range(block * _BLOCK_SIZE, min((block + 1) * _BLOCK_SIZE, count)):
            for s in range(num_models):
                total = values.dtype.type(0)
                for r in range(s * rank, (s + 1) * rank):
                    product = columns[0][ids[0, k], r]
                    for n in range(1, len(columns)):
                        product *= columns[n][ids[n, k], r]
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
) -> None:
    num_models = values.shape[1]
    rank = out.shape[1] // num_models
    for run in range(first, last):
        row = out[ids[0, starts[run]]]
        for k in range(starts[run], starts[run + 1]):
            for s in range(num_models):
                value = values[places[k], s]
                for r in range(s * rank, (s + 1) * rank):
                    product = value
                    for n in range(len(columns)):
                        product *= columns[n][ids[n + 1, k], r]
                    row[r] += product

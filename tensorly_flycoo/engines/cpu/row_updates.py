"""Updates that are separable by rows, compiled by numba: all steps while some rows are cached.

A block of rows is what a thread takes, and what measures are added up over. It is computed in
chunks of a few rows, which stay in the nearest cache from the first step to the last. Subnormal
numbers are taken as 0, as on a GPU.
"""

from typing import Any

import numpy as np
from numpy import ndarray as Array

from ..row_rules import NUM_MEASURES, Method, Operator, RowRule
from . import threads
from .compiling import allocating_kernel, fast_sum, subroutine
from .mttkrp import (
    ROW_NBYTES,
    add_multiple,
    add_product,
    count_lanes,
    fill_row,
    new_row_of_zeros,
    point_at_row,
    store_row,
)
from .products import make_readable
from .subnormals import begin_flushing, end_flushing

#: Bytes of a chunk of a matrix: six of them fit a core's nearest cache of 32 KB.
_CHUNK_NBYTES = 4096

#: Rows of a chunk, at least and at most; HALS has as many as fit a vector.
_MIN_CHUNK_ROWS = 8
_MAX_CHUNK_ROWS = 64

#: Blocks of a factor, at most: each has measures of its own.
_MAX_BLOCKS = 4096

#: Numbers for numba, which knows no members of an enumeration.
_NON_NEGATIVE = int(Operator.NON_NEGATIVE)
_L1 = int(Operator.L1)
_L2_SQUARE = int(Operator.L2_SQUARE)
_GROUP_LASSO = int(Operator.GROUP_LASSO)


def update_rows(
    rule: RowRule,
    targets: Array,
    rows: Array,
    dual: Array | None,
    num_steps: int,
    penalty: Array | None,
    matrix: Array,
) -> tuple[Array, Array | None, Array]:
    """Implement `Engine.update_rows`."""
    num_rows, rank = rows.shape
    dtype = rows.dtype
    updated = np.empty((num_rows, rank), dtype)
    sizes = _choose_sizes(num_rows, rank, dtype.itemsize, rule.method)
    num_blocks = -(-num_rows // sizes[1])
    measures = np.zeros((num_blocks, num_steps, NUM_MEASURES[rule.method]))
    system = (
        make_readable(targets),
        np.ascontiguousarray(matrix, dtype),
        dtype.type(rule.strength),
    )
    before = make_readable(rows)
    lanes = (0,) * count_lanes(updated)
    work_ns = rows.size * num_steps * (rank + 8) / 8
    updated_dual = None
    if rule.method is Method.ADMM:
        assert dual is not None
        assert penalty is not None
        updated_dual = np.empty((num_rows, rank), dtype)
        threads.launch(
            _run_admm,
            num_blocks,
            sizes,
            system,
            (int(rule.operator), dtype.type(penalty)),
            (before, make_readable(dual)),
            (updated, updated_dual),
            measures,
            lanes,
            work_ns=work_ns,
        )
    elif rule.method is Method.HALS:
        threads.launch(
            _run_hals,
            num_blocks,
            sizes,
            system,
            before,
            updated,
            measures,
            (0,) * sizes[0],
            work_ns=work_ns,
        )
    else:
        threads.launch(
            _multiply,
            num_blocks,
            sizes,
            system,
            before,
            updated,
            num_steps,
            lanes,
            work_ns=work_ns,
        )
    return updated, updated_dual, measures.sum(axis=0)


def _choose_sizes(num_rows: int, rank: int, itemsize: int, method: Method) -> tuple[int, int]:
    """Return the rows of a chunk and those of a block, which are whole chunks.

    They depend on the shape alone, and so do sums over them.

    >>> _choose_sizes(1_000_000, rank=32, itemsize=4, method=Method.ADMM)
    (32, 256)
    """
    if method is Method.HALS:
        chunk_rows = ROW_NBYTES // itemsize
    else:
        row_nbytes = max(rank * itemsize, 1)
        chunk_rows = min(max(_CHUNK_NBYTES // row_nbytes, _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS)
    num_chunks = -(-num_rows // (_MAX_BLOCKS * chunk_rows))
    return chunk_rows, chunk_rows * max(num_chunks, 1)


@subroutine
def _multiply_chunk(rows: Array, matrix: Array, product: Array, size: int, lanes: Any) -> None:
    """Compute ``product = rows @ matrix`` for the first `size` rows."""
    rank = matrix.shape[1]
    total = new_row_of_zeros(matrix.dtype.type(0), lanes)
    for step in range(0, rank, len(lanes)):
        # The last step may overlap the one before: some columns get the same bits twice.
        column = np.uint64(min(step, rank - len(lanes)))
        for i in range(np.uint64(size)):
            fill_row(total, 0.0, lanes)
            for j in range(np.uint64(rank)):
                add_product(total, rows[i, j], (matrix,), (j,), column, lanes)
            store_row(total, product, i, column, lanes)


@subroutine
def _copy_rows(
    target: Array, target_start: int, source: Array, source_start: int, size: int
) -> None:
    """Copy `size` rows of a matrix to another one, which a chunk may be."""
    for i in range(np.uint64(size)):
        for r in range(np.uint64(source.shape[1])):
            target[np.uint64(target_start) + i, r] = source[np.uint64(source_start) + i, r]


@subroutine
def _project(rows: Array, numbers: Array, size: int, operator: int, strength: Any) -> None:
    """Apply a proximal operator to the first `size` rows; `numbers` are all of them, flat."""
    rank = rows.shape[1]
    count = np.uint64(size * rank)
    zero = numbers.dtype.type(0)
    one = numbers.dtype.type(1)
    if operator == _NON_NEGATIVE:
        for e in range(count):
            numbers[e] = zero if numbers[e] < zero else numbers[e]  # nan stays nan
    elif operator == _L1:
        for e in range(count):
            number = numbers[e]
            above = number - strength if number > strength else zero
            below = number + strength if number < -strength else zero
            numbers[e] = above + below if number == number else number
    elif operator == _L2_SQUARE:
        divisor = one + strength + strength
        for e in range(count):
            numbers[e] = numbers[e] / divisor
    elif operator == _GROUP_LASSO:
        for i in range(np.uint64(size)):
            square = zero
            for r in range(np.uint64(rank)):
                square += rows[i, r] * rows[i, r]
            norm = np.sqrt(square)
            scale = one
            if norm > zero:
                scale = max(one - strength / norm, zero)
            for r in range(np.uint64(rank)):
                rows[i, r] *= scale


@fast_sum
def _measure_step(
    after: Array, split: Array, before: Array, dual: Array, count: int, sums: Array
) -> None:
    """Add the squared norms that ADMM looks at, of the first `count` numbers."""
    zero = after.dtype.type(0)
    gap = zero
    size = zero
    change = zero
    dual_size = zero
    for e in range(np.uint64(count)):
        gap += (after[e] - split[e]) * (after[e] - split[e])
        size += after[e] * after[e]
        change += (after[e] - before[e]) * (after[e] - before[e])
        dual_size += dual[e] * dual[e]
    sums[0] += gap
    sums[1] += size
    sums[2] += change
    sums[3] += dual_size


@allocating_kernel
def _run_admm(
    first: int,
    last: int,
    sizes: Any,
    system: Any,
    scales: Any,
    before: Any,
    after: Any,
    measures: Array,
    lanes: Any,
) -> None:
    """Run all steps of ADMM on some blocks of rows."""
    chunk_rows, block_rows = sizes
    targets, inverse, strength = system
    operator, penalty = scales
    rows_before, dual_before = before
    rows_after, dual_after = after
    num_rows, rank = targets.shape
    shape = (chunk_rows, rank)
    target = np.empty(shape, targets.dtype)
    dual = np.empty(shape, targets.dtype)
    rows = np.empty(shape, targets.dtype)
    projected = np.empty(shape, targets.dtype)
    right = np.empty(shape, targets.dtype)
    split = np.empty(shape, targets.dtype)
    control = begin_flushing()
    for block in range(first, last):
        end = min((block + 1) * block_rows, num_rows)
        for start in range(block * block_rows, end, chunk_rows):
            size = min(chunk_rows, end - start)
            count = np.uint64(size * rank)
            _copy_rows(target, 0, targets, start, size)
            _copy_rows(rows, 0, rows_before, start, size)
            _copy_rows(dual, 0, dual_before, start, size)
            for step in range(measures.shape[1]):
                # Flat, for loops over few columns would not become vector instructions.
                m = target.reshape(-1)
                x = rows.reshape(-1)
                d = dual.reshape(-1)
                y = split.reshape(-1)
                new = projected.reshape(-1)
                sum_ = right.reshape(-1)
                for e in range(count):
                    sum_[e] = m[e] + penalty * (x[e] + d[e])
                _multiply_chunk(right, inverse, split, size, lanes)
                for e in range(count):
                    new[e] = y[e] - d[e]
                _project(projected, new, size, operator, strength)
                for e in range(count):
                    d[e] += new[e] - y[e]
                _measure_step(new, y, x, d, count, measures[block, step])
                rows, projected = projected, rows
            _copy_rows(rows_after, start, rows, 0, size)
            _copy_rows(dual_after, start, dual, 0, size)
    end_flushing(control)


@allocating_kernel
def _multiply(
    first: int,
    last: int,
    sizes: Any,
    system: Any,
    before: Array,
    after: Array,
    num_steps: int,
    lanes: Any,
) -> None:
    """Run multiplicative updates on some blocks of rows."""
    chunk_rows, block_rows = sizes
    targets, gram, least = system
    num_rows, rank = targets.shape
    target = np.empty((chunk_rows, rank), targets.dtype)
    rows = np.empty((chunk_rows, rank), targets.dtype)
    product = np.empty((chunk_rows, rank), targets.dtype)
    m = target.reshape(-1)
    x = rows.reshape(-1)
    y = product.reshape(-1)
    control = begin_flushing()
    for block in range(first, last):
        end = min((block + 1) * block_rows, num_rows)
        for start in range(block * block_rows, end, chunk_rows):
            size = min(chunk_rows, end - start)
            _copy_rows(target, 0, targets, start, size)
            _copy_rows(rows, 0, before, start, size)
            for _ in range(num_steps):
                _multiply_chunk(rows, gram, product, size, lanes)
                for e in range(np.uint64(size * rank)):
                    wanted = least if m[e] < least else m[e]  # nan stays nan
                    reached = least if y[e] < least else y[e]
                    x[e] = x[e] * wanted / reached
            _copy_rows(after, start, rows, 0, size)
    end_flushing(control)


@subroutine
def _transpose(columns: Array, matrix: Array, start: int, size: int) -> None:
    """Copy rows of a matrix to the columns of a chunk; fill the chunk up with zeros."""
    for b in range(np.uint64(size)):
        for r in range(np.uint64(matrix.shape[1])):
            columns[r, b] = matrix[np.uint64(start) + b, r]
    columns[:, size:] = 0


@subroutine
def _subtract_explained(
    unexplained: Array, target: Array, rows: Array, gram: Array, k: Any, shift: Any, lanes: Any
) -> None:
    """Subtract from the targets of element k, of all rows, what the other elements explain."""
    total = new_row_of_zeros(shift, lanes)
    fill_row(total, -shift, lanes)
    one = gram.dtype.type(1)
    add_multiple(total, one, point_at_row(target, k), lanes)
    for j in range(np.uint64(rows.shape[0])):
        weight = gram.dtype.type(0) if j == k else -gram[k, j]
        add_multiple(total, weight, point_at_row(rows, j), lanes)
    store_row(total, unexplained, np.uint64(0), np.uint64(0), lanes)


@subroutine
def _sweep_chunk(
    target: Array,
    rows: Array,
    gram: Array,
    shift: Any,
    sums: Array,
    squares: Array,
    distances: Array,
    changes: Array,
    unexplained: Array,
    lanes: Any,
) -> None:
    """Set each element of all rows, one after the other, to its best value.

    `rows` are transposed, (R, num_rows). `distances` receives the squared distances of all elements
    from each new one, and `changes` the number of elements that changed. Each row has sums of its
    elements and of their squares: with them the distances take no loop over the elements.
    """
    rank = np.uint64(rows.shape[0])
    width = np.uint64(len(lanes))
    zero = gram.dtype.type(0)
    one = gram.dtype.type(1)
    num_others = gram.dtype.type(rows.shape[0] - 1)
    sums[:] = zero
    squares[:] = zero
    distances[:] = zero
    changes[:] = zero
    for j in range(rank):
        for b in range(width):
            sums[b] += rows[j, b]
            squares[b] += rows[j, b] * rows[j, b]
    for k in range(rank):
        if gram[k, k] == zero:
            continue
        _subtract_explained(unexplained, target, rows, gram, k, shift, lanes)
        scale = one / gram[k, k]
        for b in range(width):
            best = unexplained[0, b] * scale
            best = zero if best < zero else best  # nan stays nan
            old = rows[k, b]
            change = best - old
            # TensorLy compares all elements with the new one, not only the old one.
            sum_of_others = sums[b] - old
            square_of_others = squares[b] - old * old
            distance = square_of_others + best * (num_others * best - 2 * sum_of_others)
            distances[b] += change * change + max(distance, zero)
            sums[b] = sum_of_others + best
            squares[b] = square_of_others + best * best
            changes[b] += one if change != zero else zero
            rows[k, b] = best


@allocating_kernel
def _run_hals(
    first: int,
    last: int,
    sizes: Any,
    system: Any,
    before: Array,
    after: Array,
    measures: Array,
    lanes: Any,
) -> None:
    """Run all sweeps of HALS on some blocks of rows.

    A chunk is transposed, so that its rows are computed side by side.
    """
    chunk_rows, block_rows = sizes
    targets, gram, shift = system
    num_rows, rank = targets.shape
    target = np.empty((rank, chunk_rows), targets.dtype)
    rows = np.empty((rank, chunk_rows), targets.dtype)
    unexplained = np.empty((1, chunk_rows), targets.dtype)
    sums = np.empty(chunk_rows, targets.dtype)
    squares = np.empty(chunk_rows, targets.dtype)
    distances = np.empty(chunk_rows, targets.dtype)
    changes = np.empty(chunk_rows, targets.dtype)
    control = begin_flushing()
    for block in range(first, last):
        end = min((block + 1) * block_rows, num_rows)
        for start in range(block * block_rows, end, chunk_rows):
            size = min(chunk_rows, end - start)
            _transpose(target, targets, start, size)
            _transpose(rows, before, start, size)
            error = np.float64(0)
            num_changes = np.float64(1)
            for sweep in range(measures.shape[1]):
                if num_changes > 0:  # else no later sweep changes anything
                    _sweep_chunk(
                        target,
                        rows,
                        gram,
                        shift,
                        sums,
                        squares,
                        distances,
                        changes,
                        unexplained,
                        lanes,
                    )
                    error = np.float64(0)
                    num_changes = np.float64(0)
                    for b in range(np.uint64(size)):
                        error += distances[b]
                        num_changes += changes[b]
                measures[block, sweep, 0] += error
                measures[block, sweep, 1] += num_changes
            for b in range(np.uint64(size)):
                for r in range(np.uint64(rank)):
                    after[np.uint64(start) + b, r] = rows[r, b]
    end_flushing(control)

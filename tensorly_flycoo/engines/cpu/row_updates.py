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
from .compiling import allocating_kernel, hot_loop
from .mttkrp import count_lanes
from .records import make_readable
from .subnormals import begin_flushing, end_flushing
from .vectors import (
    VECTOR_NBYTES,
    add_lanes,
    fused,
    load,
    multiply_block,
    spread,
    store,
    where_different,
    where_less,
)

#: Bytes of a chunk of a matrix: six of them fit a core's nearest cache of 32 KB.
_CHUNK_NBYTES = 4096

#: Rows of a chunk, at least and at most.
_MIN_CHUNK_ROWS = 8
_MAX_CHUNK_ROWS = 64

#: A chunk has rows of zeros after its last one, up to a multiple of so many, lest a loop has rests.
_PADDING_ROWS = 16

#: Bytes of a chunk's rows that HALS computes side by side, and columns whose products with the
#: others it computes together.
_SIDE_NBYTES = 128
_COLUMN_BLOCK = 4

#: Bytes of products that are computed together in registers.
_BLOCK_NBYTES = 512

#: Blocks of a factor, at most: each has measures of its own.
_MAX_BLOCKS = 4096

#: Numbers for numba, which knows no members of an enumeration.
_NON_NEGATIVE = int(Operator.NON_NEGATIVE)
_L1 = int(Operator.L1)
_L2_SQUARE = int(Operator.L2_SQUARE)
_GROUP_LASSO = int(Operator.GROUP_LASSO)
_LEVEL = len(Operator)  # of this file alone: all elements become the strength


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
    if rule.method is Method.ADMM:
        assert dual is not None
        assert penalty is not None
        after = (np.empty(rows.shape, rows.dtype), np.empty(rows.shape, rows.dtype))
        measures, _ = _launch_admm(
            rule, targets, (rows, dual), after, num_steps, penalty, matrix, num_peaks=0
        )
        return *after, measures
    dtype = rows.dtype
    num_rows, rank = rows.shape
    sizes = _choose_sizes(num_rows, rank, dtype.itemsize, rule.method)
    num_blocks = -(-num_rows // sizes[1])
    measures = np.zeros((num_blocks, num_steps, NUM_MEASURES[rule.method]))
    updated = np.empty(rows.shape, dtype)
    before = make_readable(rows)
    system = (make_readable(targets), np.ascontiguousarray(matrix, dtype))
    strength = dtype.type(rule.strength)
    work_ns = _estimate_ns(rows, num_steps)
    if rule.method is Method.HALS:
        threads.launch(
            _run_hals,
            num_blocks,
            sizes,
            system,
            strength,
            _split_gram(system[1]),
            before,
            updated,
            measures,
            (0,) * sizes[0],
            (0,) * _COLUMN_BLOCK,
            work_ns=work_ns,
        )
    else:
        threads.launch(
            _multiply,
            num_blocks,
            sizes,
            system,
            strength,
            before,
            updated,
            num_steps,
            _choose_lanes(updated),
            work_ns=work_ns,
        )
    return updated, None, measures.sum(axis=0)


def find_peaks(
    rule: RowRule, targets: Array, rows: Array, dual: Array, penalty: Array, matrix: Array
) -> Array:
    """Implement `Engine.find_peaks`."""
    num_steps = len(rule.levels)
    no_rows = np.empty((0, rows.shape[1]), rows.dtype)
    after = (no_rows, no_rows)
    measures, peaks = _launch_admm(
        rule, targets, (rows, dual), after, num_steps, penalty, matrix, num_peaks=num_steps
    )
    has_nan = np.isnan(measures).any(axis=1)  # comparisons leave them out
    peaks[has_nan] = np.nan
    return peaks


def _launch_admm(
    rule: RowRule,
    targets: Array,
    before: tuple[Array, Array],
    after: tuple[Array, Array],
    num_steps: int,
    penalty: Array,
    matrix: Array,
    num_peaks: int,
) -> tuple[Array, Array]:
    """Take steps of ADMM from rows and their dual variable; write both, unless `after` is empty.

    Return what the steps measured, and the peaks of the first `num_peaks` ones, which may be all.
    """
    rows, dual = before
    num_rows, rank = rows.shape
    dtype = rows.dtype
    sizes = _choose_sizes(num_rows, rank, dtype.itemsize, rule.method)
    num_blocks = -(-num_rows // sizes[1])
    measures = np.zeros((num_blocks, num_steps, NUM_MEASURES[rule.method]))
    peaks = np.full((num_blocks, num_peaks, rank), -np.inf, dtype)
    threads.launch(
        _run_admm,
        num_blocks,
        sizes,
        (make_readable(targets), np.ascontiguousarray(matrix, dtype)),
        dtype.type(penalty),
        _list_operators(rule, num_steps, dtype),
        (make_readable(rows), make_readable(dual)),
        after,
        measures,
        peaks,
        _choose_lanes(rows),
        work_ns=_estimate_ns(rows, num_steps),
    )
    largest = peaks.max(axis=0, initial=-np.inf).astype(np.float64)
    return measures.sum(axis=0), largest


def _estimate_ns(rows: Array, num_steps: int) -> float:
    """Estimate the time that one thread would take."""
    return rows.size * num_steps * (rows.shape[1] + 8) / 16


def _list_operators(rule: RowRule, num_steps: int, dtype: np.dtype) -> tuple[Array, Array]:
    """Return the operator of each step of ADMM, and its strength."""
    operators = np.full(num_steps, int(rule.operator))
    strengths = np.full(num_steps, rule.strength, dtype)
    if rule.levels:
        levels = np.array(rule.levels[:num_steps], dtype)
        has_level = ~np.isnan(levels)
        operators[has_level] = _LEVEL
        strengths[has_level] = levels[has_level]
    return operators, strengths


def _choose_lanes(rows: Array) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the columns and the rows of a block of products, and the lanes of other vectors.

    >>> [len(lanes) for lanes in _choose_lanes(np.empty((1000, 33), np.float32))]
    [32, 4, 16]
    """
    num_columns = count_lanes(rows)
    num_rows = min(_BLOCK_NBYTES // (num_columns * rows.itemsize), _PADDING_ROWS // 2)
    return (0,) * num_columns, (0,) * num_rows, (0,) * (VECTOR_NBYTES // rows.itemsize)


def _choose_sizes(num_rows: int, rank: int, itemsize: int, method: Method) -> tuple[int, int]:
    """Return the rows of a chunk and those of a block, which are whole chunks.

    They depend on the shape alone, and so do sums over them.

    >>> _choose_sizes(1_000_000, rank=32, itemsize=4, method=Method.ADMM)
    (32, 256)
    """
    if method is Method.HALS:
        chunk_rows = _SIDE_NBYTES // itemsize
    else:
        row_nbytes = max(rank * itemsize, 1)
        chunk_rows = min(max(_CHUNK_NBYTES // row_nbytes, _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS)
    num_chunks = -(-num_rows // (_MAX_BLOCKS * chunk_rows))
    return chunk_rows, chunk_rows * max(num_chunks, 1)


@hot_loop
def _pad(num_rows: int) -> int:
    """Return the rows of a chunk with its padding."""
    return -(-num_rows // _PADDING_ROWS) * _PADDING_ROWS


@hot_loop
def _multiply_chunk(rows: Array, matrix: Array, product: Array, size: int, lanes: Any) -> None:
    """Compute ``product = rows @ matrix`` for the first `size` rows."""
    columns, block, _ = lanes
    rank = matrix.shape[1]
    terms = (np.uint64(0), np.uint64(len(matrix)))
    for step in range(0, rank, len(columns)):
        # The last step may overlap the one before: some columns get the same bits twice.
        column = np.uint64(min(step, rank - len(columns)))
        for row in range(0, size, len(block)):
            first = np.uint64(row)
            multiply_block(rows, first, matrix, column, terms, product, first, block, columns)


@hot_loop
def _copy_rows(
    target: Array, target_start: int, source: Array, source_start: int, size: int
) -> None:
    """Copy `size` rows of a matrix to another one, which a chunk may be."""
    for i in range(np.uint64(size)):
        for r in range(np.uint64(source.shape[1])):
            target[np.uint64(target_start) + i, r] = source[np.uint64(source_start) + i, r]


@hot_loop
def _fill_chunk(chunk: Array, source: Array, start: int, size: int) -> None:
    """Copy `size` rows to a chunk, and fill it up with zeros."""
    _copy_rows(chunk, 0, source, start, size)
    chunk[size:] = 0


@hot_loop
def _shorten_rows(projected: Array, split: Array, dual: Array, size: int, strength: Any) -> None:
    """Apply the proximal operator of group lasso to the first `size` rows of ``split - dual``."""
    rank = np.uint64(dual.shape[1])
    zero = dual.dtype.type(0)
    one = dual.dtype.type(1)
    for i in range(np.uint64(size)):
        square = zero
        for r in range(rank):
            projected[i, r] = split[i, r] - dual[i, r]
            square += projected[i, r] * projected[i, r]
        norm = np.sqrt(square)
        scale = one
        if norm > zero:
            scale = max(one - strength / norm, zero)
        for r in range(rank):
            projected[i, r] *= scale


@hot_loop
def _project(numbers: Any, operator: int, strengths: Any, zeros: Any, ones: Any) -> Any:
    """Apply a proximal operator of single elements to a vector of them."""
    if operator == _NON_NEGATIVE:
        return where_less(numbers, zeros, zeros, numbers)  # nan stays nan
    if operator == _L1:
        above = where_less(strengths, numbers, numbers - strengths, zeros)
        below = where_less(numbers, zeros - strengths, numbers + strengths, zeros)
        return where_different(numbers, numbers, numbers, above + below)
    if operator == _L2_SQUARE:
        return numbers / (ones + strengths + strengths)
    return numbers


@hot_loop
def _raise_peaks(peaks: Array, split: Array, dual: Array, size: int, columns: Any) -> None:
    """Raise the largest elements of ``split - dual``, (1, R), to those of the first `size` rows."""
    line = np.uint64(0)
    rank = dual.shape[1]
    for step in range(0, rank, len(columns)):
        column = np.uint64(min(step, rank - len(columns)))
        peak = load(peaks, line, column, columns)
        for i in range(np.uint64(size)):
            numbers = load(split, i, column, columns) - load(dual, i, column, columns)
            peak = where_less(peak, numbers, numbers, peak)
        store(peak, peaks, line, column)


@hot_loop
def _finish_step(
    chunks: Any, count: int, penalty: Any, operator: int, strength: Any, sums: Array, lanes: Any
) -> None:
    """Project ``split - dual``, and find what follows from it, of the first `count` numbers.

    That is the dual variable, the next right side, and the squared norms that ADMM looks at. An
    operator of more than single elements has been applied: its result is `projected`.
    """
    target, rows, dual, right, split, projected = chunks
    zeros = spread(dual.dtype.type(0), lanes)
    ones = spread(dual.dtype.type(1), lanes)
    penalties = spread(penalty, lanes)
    strengths = spread(strength, lanes)
    gap = zeros
    size = zeros
    change = zeros
    dual_size = zeros
    line = np.uint64(0)
    for place in range(0, count, len(lanes)):
        e = np.uint64(place)
        y = load(split, line, e, lanes)
        d = load(dual, line, e, lanes)
        before = load(rows, line, e, lanes)
        if operator in (_GROUP_LASSO, _LEVEL):
            after = load(projected, line, e, lanes)
        else:
            after = _project(y - d, operator, strengths, zeros, ones)
        difference = after - y
        step = after - before
        d = d + difference
        store(after, rows, line, e)
        store(d, dual, line, e)
        store(load(target, line, e, lanes) + penalties * (after + d), right, line, e)
        gap = fused(difference, difference, gap)
        size = fused(after, after, size)
        change = fused(step, step, change)
        dual_size = fused(d, d, dual_size)
    sums[0] += add_lanes(gap)
    sums[1] += add_lanes(size)
    sums[2] += add_lanes(change)
    sums[3] += add_lanes(dual_size)


@allocating_kernel
def _run_admm(
    first: int,
    last: int,
    sizes: Any,
    system: Any,
    penalty: Any,
    steps: Any,
    before: Any,
    after: Any,
    measures: Array,
    peaks: Array,
    lanes: Any,
) -> None:
    """Run all steps of ADMM on some blocks of rows.

    `steps` are the operator of each step and its strength. Unless they have no steps, `peaks` are
    raised to the largest element of each column before it is projected. `after` may have no rows.
    """
    chunk_rows, block_rows = sizes
    targets, inverse = system
    operators, strengths = steps
    rows_before, dual_before = before
    rows_after, dual_after = after
    num_rows, rank = targets.shape
    shape = (_pad(chunk_rows), rank)
    target = np.zeros(shape, targets.dtype)
    rows = np.zeros(shape, targets.dtype)
    dual = np.zeros(shape, targets.dtype)
    right = np.zeros(shape, targets.dtype)
    split = np.zeros(shape, targets.dtype)
    projected = np.zeros(shape, targets.dtype)
    # Each as one line, for loops over few columns would not fill vectors.
    lines = (
        target.reshape(1, -1),
        rows.reshape(1, -1),
        dual.reshape(1, -1),
        right.reshape(1, -1),
        split.reshape(1, -1),
        projected.reshape(1, -1),
    )
    control = begin_flushing()
    for block in range(first, last):
        end = min((block + 1) * block_rows, num_rows)
        for start in range(block * block_rows, end, chunk_rows):
            size = min(chunk_rows, end - start)
            count = size * rank
            _fill_chunk(target, targets, start, size)
            _fill_chunk(rows, rows_before, start, size)
            _fill_chunk(dual, dual_before, start, size)
            split[size:] = 0
            projected[size:] = 0
            for i in range(np.uint64(right.shape[0])):
                for r in range(np.uint64(rank)):
                    right[i, r] = target[i, r] + penalty * (rows[i, r] + dual[i, r])
            for step in range(measures.shape[1]):
                _multiply_chunk(right, inverse, split, size, lanes)
                if peaks.shape[1] > 0:
                    _raise_peaks(peaks[block, step : step + 1], split, dual, size, lanes[0])
                operator = operators[step]
                strength = strengths[step]
                if operator == _GROUP_LASSO:
                    _shorten_rows(projected, split, dual, size, strength)
                elif operator == _LEVEL:
                    projected[:size] = strength
                sums = measures[block, step]
                _finish_step(lines, count, penalty, operator, strength, sums, lanes[2])
            if rows_after.shape[0] > 0:
                _copy_rows(rows_after, start, rows, 0, size)
                _copy_rows(dual_after, start, dual, 0, size)
    end_flushing(control)


@allocating_kernel
def _multiply(
    first: int,
    last: int,
    sizes: Any,
    system: Any,
    least: Any,
    before: Array,
    after: Array,
    num_steps: int,
    lanes: Any,
) -> None:
    """Run multiplicative updates on some blocks of rows."""
    chunk_rows, block_rows = sizes
    targets, gram = system
    num_rows, rank = targets.shape
    shape = (_pad(chunk_rows), rank)
    target = np.zeros(shape, targets.dtype)
    rows = np.zeros(shape, targets.dtype)
    product = np.zeros(shape, targets.dtype)
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


def _split_gram(gram: Array) -> tuple[Array, Array, Array]:
    """Return the weights of other elements in a new one, before and after some are new; and scales.

    Both matrices are minus the Gram matrix, with zeros for whole blocks of columns. The first one
    leaves out the weights of elements that are new when those of their block are found. Scales are
    one over the diagonal, or 0.

    >>> first, _, scales = _split_gram(np.full((5, 5), 2.0))
    >>> first[1]
    array([ 0.,  0., -2., -2., -2.,  0.,  0.,  0.])
    >>> scales
    array([0.5, 0.5, 0.5, 0.5, 0.5, 0. , 0. , 0. ])
    """
    rank = len(gram)
    num_padded = -(-rank // _COLUMN_BLOCK) * _COLUMN_BLOCK
    weights = np.zeros((num_padded, num_padded), gram.dtype)
    weights[:rank, :rank] = -gram
    scales = np.zeros(num_padded, gram.dtype)
    diagonal = gram.diagonal()
    np.divide(1, diagonal, out=scales[:rank], where=diagonal != 0)
    columns = np.arange(num_padded)
    starts = columns - columns % _COLUMN_BLOCK  # of blocks
    is_later = (columns < starts[:, None]) | (columns > columns[:, None])
    return np.where(is_later, weights, 0), weights, scales


@hot_loop
def _transpose(columns: Array, matrix: Array, start: int, size: int, shift: Any) -> None:
    """Copy rows of a matrix, less a number, to the columns of a chunk; fill it up with zeros."""
    for b in range(np.uint64(size)):
        for r in range(np.uint64(matrix.shape[1])):
            columns[r, b] = matrix[np.uint64(start) + b, r] - shift
    columns[:, size:] = 0


@hot_loop
def _sweep_chunk(
    target: Array, rows: Array, weights: Any, unexplained: Array, rank: int, block: Any, lanes: Any
) -> Any:
    """Set each element of all rows, one after the other, to its best value.

    `rows` are transposed, (R, num_rows). Returns the squared distances of all elements from each
    new one, and the number of elements that changed, both for each row. Each row has sums of its
    elements and of their squares: with them the distances take no loop over the elements.

    What other elements explain is found for a block of columns at once, and then, one by one, what
    its own new elements do.
    """
    weights_before, weights_after, scales = weights
    zero = scales.dtype.type(0)
    zeros = spread(zero, lanes)
    ones = spread(scales.dtype.type(1), lanes)
    twos = ones + ones
    num_others = spread(scales.dtype.type(rank - 1), lanes)
    line = np.uint64(0)
    terms = (line, np.uint64(len(rows)))
    sums = zeros
    squares = zeros
    distances = zeros
    changes = zeros
    for j in range(np.uint64(rank)):
        elements = load(rows, j, line, lanes)
        sums = sums + elements
        squares = fused(elements, elements, squares)
    for start in range(0, len(scales), len(block)):
        first = np.uint64(start)
        multiply_block(weights_before, first, rows, line, terms, unexplained, line, block, lanes)
        for i in range(np.uint64(len(block))):
            k = first + i
            if scales[k] == zero:
                continue
            total = load(target, k, line, lanes) + load(unexplained, i, line, lanes)
            for j in range(first, k):
                weight = spread(weights_after[k, j], lanes)
                total = fused(weight, load(rows, j, line, lanes), total)
            best = total * spread(scales[k], lanes)
            best = where_less(best, zeros, zeros, best)  # nan stays nan
            old = load(rows, k, line, lanes)
            store(best, rows, k, line)
            change = best - old
            # TensorLy compares all elements with the new one, not only the old one.
            sum_of_others = sums - old
            square_of_others = squares - old * old
            distance = fused(best, num_others * best - twos * sum_of_others, square_of_others)
            distances = fused(change, change, distances)
            distances = distances + where_less(distance, zeros, zeros, distance)
            sums = sum_of_others + best
            squares = fused(best, best, square_of_others)
            changes = changes + where_different(change, zeros, ones, zeros)
    return distances, changes


@allocating_kernel
def _run_hals(
    first: int,
    last: int,
    sizes: Any,
    system: Any,
    shift: Any,
    weights: Any,
    before: Array,
    after: Array,
    measures: Array,
    lanes: Any,
    column_block: Any,
) -> None:
    """Run all sweeps of HALS on some blocks of rows.

    A chunk is transposed, so that its rows are computed side by side.
    """
    chunk_rows, block_rows = sizes
    targets, gram = system
    num_rows, rank = targets.shape
    shape = (weights[2].shape[0], chunk_rows)
    target = np.zeros(shape, gram.dtype)
    rows = np.zeros(shape, gram.dtype)
    unexplained = np.zeros((len(column_block), chunk_rows), gram.dtype)
    zero = gram.dtype.type(0)
    control = begin_flushing()
    for block in range(first, last):
        end = min((block + 1) * block_rows, num_rows)
        for start in range(block * block_rows, end, chunk_rows):
            size = min(chunk_rows, end - start)
            _transpose(target, targets, start, size, shift)
            _transpose(rows, before, start, size, zero)
            error = np.float64(0)
            num_changes = np.float64(1)
            for sweep in range(measures.shape[1]):
                if num_changes > 0:  # else no later sweep changes anything
                    distances, changes = _sweep_chunk(
                        target, rows, weights, unexplained, rank, column_block, lanes
                    )
                    error = np.float64(add_lanes(distances))
                    num_changes = np.float64(add_lanes(changes))
                measures[block, sweep, 0] += error
                measures[block, sweep, 1] += num_changes
            for b in range(np.uint64(size)):
                for r in range(np.uint64(rank)):
                    after[np.uint64(start) + b, r] = rows[r, b]
    end_flushing(control)

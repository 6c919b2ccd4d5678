"""Recommendations by a CP model, such as films to users, and their quality."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_count, check_finite, check_mode
from ..engines.tall import find_largest, sum_columns
from ..io.entries import place_entries
from ..loop.cp_model import multiply_all
from ..loop.guarding import describe_as
from ..loop.model_uses import check_model
from ..ops.cp_entries import take_model
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.indexing import match_sorted
from ..tensor.labelled import Labels, as_labels, number_modes, take_labels
from .cp_fit import cp_fit

#: Predictions that are made together: with fewer, a BLAS is slow to multiply so few rows.
_BLOCK_NUMBERS = 2**23


@mirror
def recommend(
    cp_tensor: Any,
    mode: int | str,
    ids: Any = None,
    n: int = 10,
    *,
    of: int | str | None = None,
    exclude: "LabelledData | None" = None,
    clip: tuple[float, float] | None = None,
) -> list[dict[Any, float]]:
    """Find the labels with the highest predictions of a model, such as films for each user.

    Parameters
    ----------
    cp_tensor : LabelledCP, CPTensor or (weights, factors)
    mode : int or str
        The mode to recommend to, such as users: its number, or in a model with labels its name.
    ids : sequence, optional
        Labels of `mode`, or indices in a model without; by default all.
    n : int
        How many predictions for each.
    of : int or str, optional
        The mode to choose from, such as films; by default the first other one. Rows of any further
        mode are averaged.
    exclude : FlycooTensor, LabelledTensor or sparse.COO, optional
        Pairs with a nonzero here are left out, such as those of the tensor that was decomposed.
    clip : (float, float), optional
        The ends of the scale, such as ``(1, 5)`` stars: predictions beyond are moved to them, after
        the best were found.

    Returns
    -------
    list of dict
        For each of `ids`, the predictions of its `n` best labels, or indices, the highest first,
        equal ones by index.

    Raises
    ------
    TypeError
        If `n` is no integer, or `exclude` is not sparse.
    ValueError
        If there is no such mode, `of` is `mode`, one of `ids` is unknown, `n` is below 1, the model
        is not finite or no CP model, `exclude` has another shape, other labels or other modes, or
        `clip` is no pair of ascending numbers.

    Notes
    -----
    ``I * J * (2 * R + 10)`` operations for I ids and J indices in `of`, in blocks of ids. Results
    have the same bits in every run on one machine.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, LabelledCP, recommend
    >>> labels = {"user": ["ann", "bob"], "film": ["Alien", "Brazil", "Cube"]}
    >>> cp = LabelledCP((None, [np.eye(2), np.array([[3.0, 0], [2, 0], [1, 5]])]), labels)
    >>> recommend(cp, "user", ["ann"], 2, exclude=FlycooTensor([[0], [0]], [4.0], (2, 3)))
    [{'Brazil': 2.0, 'Cube': 1.0}]
    """
    if clip is not None:
        _check_clip(clip)
    check_model("recommend", cp_tensor, exclude)
    first, second = _find_modes(cp_tensor, mode, of)
    weights, factors = take_model(cp_tensor)
    row_labels, column_labels = _find_labels(cp_tensor, factors, first, second)
    wanted = row_labels
    if ids is not None:
        wanted = np.atleast_1d(as_labels(ids))
    rows, _ = place_entries("ids", np.arange(wanted.size), wanted, row_labels)
    columns = _average_columns(weights, factors, first, second)
    excluded = None
    if exclude is not None:
        excluded = _list_pairs(exclude, [first, second])

    def predict(block: Array) -> Array:
        """Predict all columns of some rows."""
        predicted = factors[first][block] @ columns.T
        # Their sums show what is not finite, in less time than all of them.
        if not np.isfinite(move(predicted.sum(axis=1), np)).all():
            check_finite(predicted.reshape(-1), "the model's predictions")
        return predicted

    xp = array_module(columns)
    largest = _list_largest(predict, rows, check_count(n, "n"), column_labels.size, excluded, xp)
    best = []
    for places, values, counts in largest:
        shown = values if clip is None else values.clip(*clip)
        # Lists of whole blocks: a call for each row would take longer than the predictions.
        rows_of_labels = [take_labels(column_labels, column) for column in places.T]
        for *labels, numbers, count in zip(*rows_of_labels, shown.tolist(), counts, strict=True):
            best.append(dict(zip(labels[:count], numbers[:count], strict=True)))
    return best


def _check_clip(clip: Any) -> None:
    """Refuse what are not the two ends of a scale."""
    is_pair = isinstance(clip, Sequence) and len(clip) == 2
    if not is_pair or not all(isinstance(end, Real) for end in clip) or not clip[0] < clip[1]:
        raise ValueError(f"clip is {clip!r}, expected two ascending numbers, such as (1, 5)")


def _list_largest(
    predict: Callable[[Array], Array],
    rows: np.ndarray,
    n: int,
    num_columns: int,
    excluded: Array | None,
    xp: ModuleType,
) -> Iterator[tuple[np.ndarray, np.ndarray, list[int]]]:
    """Yield the places and values of the `n` largest predictions of some rows, and their counts.

    Both are arrays (rows, n), descending. What is excluded comes last in a row, and does not count.
    Block by block, since the predictions of all rows may not fit in memory.
    """
    step = max(1, _BLOCK_NUMBERS // num_columns)
    for start in range(0, rows.size, step):
        block = xp.asarray(rows[start : start + step])
        predicted = predict(block)
        if excluded is not None:
            block_rows, pairs = match_sorted(block, excluded[0], xp)
            predicted[block_rows, excluded[1, pairs]] = -np.inf
        places = find_largest(predicted, min(n, num_columns))
        values = move(xp.take_along_axis(predicted, places, axis=1), np)
        counts = (values > -np.inf).sum(axis=1)
        yield move(places, np), values, counts.tolist()


def _find_labels(
    cp_tensor: Any, factors: list[Array], first: int, second: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of two modes; their indices in a model without labels."""
    labels = getattr(cp_tensor, "labels", None)
    if not labels:
        labels = Labels([np.arange(len(factor)) for factor in factors])
    all_labels = [*Labels(labels).values()]
    return all_labels[first], all_labels[second]


def _average_columns(weights: Array | None, factors: list[Array], first: int, second: int) -> Array:
    """Return the factor of the second mode, scaled by the weights and the means of other modes."""
    scales = [
        sum_columns(factor) / len(factor)
        for n, factor in enumerate(factors)
        if n not in (first, second)
    ]
    if weights is not None:
        scales.append(weights)
    return multiply_all([factors[second], *scales]).astype(factors[second].dtype)


@mirror
@describe_as(recommend)
def evaluate(
    cp_tensor: Any,
    x: LabelledData,
    mode: int | str = 0,
    n: int = 10,
    *,
    of: int | str | None = None,
    exclude: "LabelledData | None" = None,
) -> dict[str, float]:
    """Measure how well a model predicts held-out entries, and how many of them it recommends.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
        Its nonzeros are the entries, in the shape of the model. For recall, pass only those that
        are worth recommending, such as 4 stars or more.

    Returns
    -------
    dict of str to float
        "rmse", the root mean square of the errors; "precision", the share of all recommendations
        that are held-out entries; "recall", the share of a row's held-out entries that are
        recommended, averaged over the rows that have some. With `exclude`, the known entries, also
        "popular_recall": that of recommending to all rows what has the most known entries.

    Raises
    ------
    TypeError, ValueError
        As of `recommend`, for `x` as for `exclude`, and if `x` has no nonzeros.

    Notes
    -----
    Costs one call of `recommend` for the rows with held-out entries. Results have the same bits in
    every run on one machine.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, evaluate
    >>> model = (None, [np.eye(2), np.array([[3.0, 0], [2, 0], [1, 5]])])
    >>> evaluate(model, FlycooTensor([[0, 1], [1, 2]], [3.0, 4.0], (2, 3)), n=1)
    {'rmse': 1.0, 'precision': 0.5, 'recall': 0.5}
    """
    check_model("evaluate", cp_tensor, x)
    check_model("recommend", cp_tensor, exclude)
    first, second = _find_modes(cp_tensor, mode, of)
    coords, values = as_flycoo(x, check_coords=True)._sorted_nonzeros()
    rmse = cp_fit(x, cp_tensor, held_out=(coords, values), loss="gaussian").rmse
    held_out: dict[int, set[int]] = {}  # the columns of each row
    for row, column in move(coords[[first, second]], np).T.tolist():
        held_out.setdefault(row, set()).add(column)
    best = recommend(take_model(cp_tensor), first, [*held_out], n, of=second, exclude=exclude)
    num_hits = sum(
        len(columns & recommended.keys())
        for columns, recommended in zip(held_out.values(), best, strict=True)
    )
    num_recommended = sum(map(len, best))
    measures = {
        "rmse": rmse,
        "precision": num_hits / max(1, num_recommended),
        "recall": _find_recall(held_out, map(set, best)),
    }
    if exclude is not None:
        size = take_model(cp_tensor)[1][second].shape[0]
        popular = _list_popular(_list_pairs(exclude, [first, second]), [*held_out], n, size)
        measures["popular_recall"] = _find_recall(held_out, popular)
    return measures


def _find_recall(held_out: dict[int, set[int]], best: Iterable[set[int]]) -> float:
    """Return the share of a row's held-out columns that are among its best, averaged over rows."""
    pairs = zip(held_out.values(), best, strict=True)
    recalls = [len(columns & recommended) / len(columns) for columns, recommended in pairs]
    return sum(recalls) / len(recalls)


def _list_popular(known: Array, rows: list[int], n: int, size: int) -> Iterator[set[int]]:
    """Yield for each row the `n` columns with the most known entries, but its own known ones."""
    xp = array_module(known)
    counts = xp.bincount(known[1], minlength=size).astype(np.float64)

    def predict(block: Array) -> Array:
        return xp.tile(counts, (len(block), 1))

    for places, _, num_left in _list_largest(predict, np.asarray(rows), n, size, known, xp):
        for columns, count in zip(places.tolist(), num_left, strict=True):
            yield set(columns[:count])


def _find_modes(cp_tensor: Any, mode: int | str, of: int | str | None) -> tuple[int, int]:
    """Return the numbers of the mode to recommend to, and of the one to choose from."""
    _, factors = take_model(cp_tensor)
    ndim = len(factors)
    first = check_mode(number_modes(cp_tensor, mode), ndim)
    if of is None:
        second = 1 if first == 0 else 0
    else:
        second = check_mode(number_modes(cp_tensor, of), ndim, "of")
    if second == first:
        raise ValueError(f"of is {of!r}, expected another mode than {mode!r}")
    return first, second


def _list_pairs(exclude: LabelledData, modes: list[int]) -> Array:
    """Return the indices of the nonzeros in two modes (2, nnz), sorted by the first."""
    pairs = as_flycoo(exclude, check_coords=True)._sorted_nonzeros()[0][modes]
    return pairs[:, array_module(pairs).argsort(pairs[0], kind="stable")]

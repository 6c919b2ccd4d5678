"""What a CP model recommends, such as films to users, and how good that is."""

from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_count, check_finite, check_mode
from ..engines.tall import sum_columns
from ..io import entries
from ..loop.cp_model import multiply_all
from ..loop.guarding import describe_as
from ..ops.cp_entries import take_model
from ..ops.sampling import find_places
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.indexing import match_sorted
from ..tensor.labelled import Labels, as_labels, check_same_labels, number_modes, take_labels
from ..tensor.mirroring import mirror
from ..tensor.tensor import group_cells
from .cp_fit import cp_fit

#: Predictions that are in memory at a time.
_BLOCK_NUMBERS = 2**22


@mirror
def recommend(
    cp_tensor: Any, mode: int | str, ids: Any = None, n: int = 10, *,
    of: int | str | None = None, exclude: "LabelledData | None" = None,
) -> list[dict[Any, float]]:  # fmt: skip
    """Find the highest predictions of a model, such as films for users, without those known.

    Parameters
    ----------
    cp_tensor : LabelledCP, CPTensor or (weights, factors)
    mode : int or str
        The mode to recommend to: its number, or in a model with labels its name.
    ids : sequence, optional
        Labels of `mode`, or indices in a model without; by default all.
    n : int
        How many predictions for each.
    of : int or str, optional
        The mode of what is recommended, by default the first other one. Predictions are means over
        all further modes.
    exclude : FlycooTensor, LabelledTensor or sparse.COO, optional
        What is known, such as the tensor that was decomposed: pairs of indices in `mode` and `of`
        that have a nonzero are left out.

    Returns
    -------
    list of dict
        For each of `ids`, the labels or indices with the `n` highest predictions, or all that are
        left, and these; the highest first, equal ones by index.

    Raises
    ------
    TypeError
        If `n` is no integer, or `exclude` is not sparse.
    ValueError
        If there is no such mode, `of` is `mode`, one of `ids` is unknown, `n` is below 1, the model
        is not finite, or `exclude` has another shape or other labels.

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
    modes, labels = _find_modes(cp_tensor, mode, of)
    (name, own), (_, others) = ([*labels.items()][number] for number in modes)
    wanted = own if ids is None else np.atleast_1d(as_labels(ids))
    rows = entries.find_places(wanted, own)
    if (rows < 0).any():
        unknown, known = take_labels(wanted, rows < 0), take_labels(own, slice(3))
        raise ValueError(f"ids has {unknown[0]!r}, expected labels of {name!r}, such as {known}")
    best, values = _rank(cp_tensor, modes, rows, n, exclude)
    return [
        dict(zip(take_labels(others, row[row >= 0]), of_row.tolist(), strict=False))
        for row, of_row in zip(move(best, np), move(values, np), strict=True)
    ]


@mirror
@describe_as(recommend)
def evaluate(
    cp_tensor: Any, held_out: LabelledData, mode: int | str = 0, n: int = 10, *,
    of: int | str | None = None, exclude: "LabelledData | None" = None, least: float = -np.inf,
) -> dict[str, float]:  # fmt: skip
    """Measure how well a model predicts held-out entries, and how many of them it recommends.

    Parameters
    ----------
    held_out : FlycooTensor, LabelledTensor or sparse.COO
        Its nonzeros are the entries, in the shape of the model.
    least : float
        The least value that is worth recommending, such as 4 of 5 stars.

    Returns
    -------
    dict of str to float
        "rmse", the root mean square of the errors; "precision", the part of all recommendations
        that were held out; "recall", the part of a row's held-out entries that are recommended, on
        average over rows with some.

    Raises
    ------
    TypeError, ValueError
        As of `recommend`; of `held_out` as of `exclude`, and if it has no value of `least` or more.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, evaluate
    >>> model = (None, [np.eye(2), np.array([[3.0, 0], [2, 0], [1, 5]])])
    >>> evaluate(model, FlycooTensor([[0, 1], [1, 2]], [3.0, 4.0], (2, 3)), n=1)
    {'rmse': 1.0, 'precision': 0.5, 'recall': 0.5}
    """
    modes, _ = _find_modes(cp_tensor, mode, of)
    wanted = _list_pairs(held_out, "held_out", cp_tensor, modes, least)
    if wanted.shape[1] == 0:
        raise ValueError(f"held_out has no value of {least} or more, expected some")
    xp = array_module(wanted)
    rows, counts = xp.unique(wanted[0], return_counts=True)
    best, _ = _rank(cp_tensor, modes, rows, n, exclude)
    places, ranks = xp.nonzero(best >= 0)
    is_hit, _ = find_places(wanted, xp.stack([rows[places], best[places, ranks]]), xp)
    hits = xp.bincount(places[is_hit], minlength=rows.size)
    precision, recall = int(hits.sum()) / max(1, places.size), float((hits / counts).mean())
    known = as_flycoo(held_out)._sorted_nonzeros()
    rmse = cp_fit(held_out, cp_tensor, held_out=known).rmse
    return {"rmse": rmse, "precision": precision, "recall": recall}


def _find_modes(cp_tensor: Any, mode: int | str, of: int | str | None) -> tuple[list[int], Labels]:
    """Return both modes by number, and the labels of the model, by default indices."""
    factors = take_model(cp_tensor)[1]
    labels = getattr(cp_tensor, "labels", None) or Labels([np.arange(len(f)) for f in factors])
    first = check_mode(number_modes(cp_tensor, mode), len(factors))
    second = int(first == 0) if of is None else number_modes(cp_tensor, of)
    if check_mode(second, len(factors), "of") == first:
        raise ValueError(f"of is {of!r}, expected another mode than {mode!r}")
    return [first, second], labels


def _list_pairs(
    x: LabelledData, name: str, cp_tensor: Any, modes: list[int], least: float = -np.inf
) -> Array:
    """Return the sorted pairs (2, count) of indices in two modes that have values of `least`."""
    check_same_labels(x, cp_tensor, names=(name, "the model"))
    x, shape = as_flycoo(x, check_coords=True), tuple(map(len, take_model(cp_tensor)[1]))
    if x.shape != shape:
        raise ValueError(f"{name} has shape {x.shape}, expected {shape}, that of the model")
    coords, values = x._sorted_nonzeros()
    is_kept = values >= least
    sizes = [shape[mode] for mode in modes]
    pairs, *_ = group_cells(coords[modes][:, is_kept], values[is_kept], sizes, x._engine)
    return pairs.astype(np.int64)


def _rank(
    cp_tensor: Any, modes: list[int], rows: Any, n: int, exclude: "LabelledData | None"
) -> tuple[Array, Array]:
    """Return the best columns of some rows, -1 where none is left, and their predictions."""
    weights, factors = take_model(cp_tensor)
    of_rows, columns = (factors[mode] for mode in modes)
    xp, n, known = array_module(columns), min(check_count(n, "n"), len(columns)), None
    if exclude is not None:
        known = _list_pairs(exclude, "exclude", cp_tensor, modes)
    means = [sum_columns(f) / len(f) for mode, f in enumerate(factors) if mode not in modes]
    scaled = multiply_all([columns, *means, *([] if weights is None else [weights])])
    rows, step = xp.asarray(rows), max(1, _BLOCK_NUMBERS // len(columns))
    parts = [(xp.empty((0, n), np.int64), xp.empty((0, n), columns.dtype))]
    for start in range(0, rows.size, step):
        block = rows[start : start + step]
        predicted = of_rows[block] @ scaled.T.astype(columns.dtype)
        check_finite(predicted, "the model's predictions")
        if known is not None:
            places, pairs = match_sorted(block, known[0], xp)
            predicted[places, known[1, pairs]] = -np.inf
        least = xp.partition(predicted, len(columns) - n, axis=1)[:, -n, None]
        is_best, is_last = predicted > least, predicted == least
        num_left = n - is_best.sum(axis=1, keepdims=True)
        is_best |= is_last & (is_last.cumsum(axis=1) <= num_left)  # the first of equal ones
        ids = xp.nonzero(is_best)[1].reshape(-1, n)
        values = xp.take_along_axis(predicted, ids, axis=1)
        order = xp.argsort(-values, axis=1, kind="stable")
        ids, values = (xp.take_along_axis(of, order, axis=1) for of in (ids, values))
        parts.append((xp.where(values > -np.inf, ids, -1), values))
    best, values = map(xp.concatenate, zip(*parts, strict=True))
    return best, values

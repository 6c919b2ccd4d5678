"""What a CP model recommends, such as films to users, and how good that is."""

from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_count, check_finite, check_mode
from ..engines.tall import find_largest, sum_columns
from ..io.entries import place_entries
from ..loop.cp_model import multiply_all
from ..loop.guarding import describe_as
from ..loop.model_uses import check_model
from ..ops.cp_entries import choose_block_size, take_model
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.indexing import match_sorted
from ..tensor.labelled import Labels, as_labels, number_modes, take_labels
from .cp_fit import cp_fit


@mirror
def recommend(
    cp_tensor: Any,
    mode: int | str,
    ids: Any = None,
    n: int = 10,
    *,
    of: int | str | None = None,
    exclude: "LabelledData | None" = None,
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
        is not finite or no CP model, or `exclude` has another shape, other labels or other modes.

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
    check_model("recommend", cp_tensor, exclude)
    first, second = _find_modes(cp_tensor, mode, of)
    weights, factors = take_model(cp_tensor)
    labels = Labels(getattr(cp_tensor, "labels", None) or [np.arange(len(f)) for f in factors])
    own, others = ([*labels.values()][n] for n in (first, second))
    wanted = own if ids is None else np.atleast_1d(as_labels(ids))
    rows, _ = place_entries("ids", np.arange(wanted.size), wanted, own)
    columns = factors[second]
    xp = array_module(factors[second])
    best = []
    means = [sum_columns(f) / len(f) for n, f in enumerate(factors) if n not in (first, second)]
    scaled = multiply_all([columns, *means, *([] if weights is None else [weights])])
    scaled = scaled.astype(columns.dtype)
    if exclude is not None:
        pairs = _list_pairs(exclude, [first, second])
    step = choose_block_size(columns, others.size)
    n = min(check_count(n, "n"), others.size)
    for start in range(0, rows.size, step):
        block = xp.asarray(rows[start : start + step])
        predicted = factors[first][block] @ scaled.T
        check_finite(predicted.reshape(-1), "the model's predictions")
        if exclude is not None:
            places, known = match_sorted(block, pairs[0], xp)
            predicted[places, pairs[1, known]] = -np.inf
        found = find_largest(predicted, n)
        values = move(xp.take_along_axis(predicted, found, axis=1), np)
        for places, of_row in zip(move(found, np), values, strict=True):
            is_left = of_row > -np.inf
            names = take_labels(others, places[is_left])
            best.append(dict(zip(names, of_row[is_left].tolist(), strict=True)))
    return best


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
        recommended, averaged over the rows that have some.

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
    wanted: dict[int, set[int]] = {}
    for row, column in move(coords[[first, second]], np).T.tolist():
        wanted.setdefault(row, set()).add(column)
    best = recommend(take_model(cp_tensor), first, [*wanted], n, of=second, exclude=exclude)
    hits = [len(own & found.keys()) for own, found in zip(wanted.values(), best, strict=True)]
    recalls = [count / len(own) for count, own in zip(hits, wanted.values(), strict=True)]
    precision = sum(hits) / max(1, sum(map(len, best)))
    return {"rmse": rmse, "precision": precision, "recall": sum(recalls) / len(recalls)}


def _find_modes(cp_tensor: Any, mode: int | str, of: int | str | None) -> tuple[int, int]:
    """Return the numbers of the mode to recommend to, and of the one to choose from."""
    ndim = len(take_model(cp_tensor)[1])
    first = check_mode(number_modes(cp_tensor, mode), ndim)
    second = int(first == 0) if of is None else check_mode(number_modes(cp_tensor, of), ndim, "of")
    if second == first:
        raise ValueError(f"of is {of!r}, expected another mode than {mode!r}")
    return first, second


def _list_pairs(exclude: LabelledData, modes: list[int]) -> Array:
    """Return the indices of the nonzeros in two modes (2, nnz), sorted by the first."""
    pairs = as_flycoo(exclude, check_coords=True)._sorted_nonzeros()[0][modes]
    return pairs[:, array_module(pairs).argsort(pairs[0], kind="stable")]

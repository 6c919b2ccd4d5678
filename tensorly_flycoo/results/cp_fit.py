"""The fit of a CP model to a sparse tensor, or to entries that were held out of it."""

from typing import Any, NamedTuple, overload

import numpy as np

from ..base.array_modules import Array, array_module, as_array, move
from ..base.checks import num_cells
from ..engines import Engine
from ..engines.tall import sum_columns
from ..loop.cp_model import multiply_all, multiply_grams
from ..loop.losses import find_exact
from ..loop.masks import find_missing
from ..loop.model_uses import check_model, choose_mask
from ..loop.scaling import find_exponent
from ..ops.cp_entries import cp_to_entries, take_model
from ..ops.mttkrp import mttkrp
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.pieces import Piece, map_pieces
from .counts import CountFit, check_counts, complete_fit, sum_counts


class CPFit(NamedTuple):
    """The fit of a CP model.

    Attributes
    ----------
    fit : float
        ``1 - relative_error``, as in TensorLy. (tlviz's fit is ``1 - relative_error**2``.)
    relative_error : float
        The norm of the residual relative to the norm of the data.
    rmse : float
        The root mean square of the residual's entries.
    num_entries : int
        The number of entries that were compared.
    """

    fit: float
    relative_error: float
    rmse: float
    num_entries: int


@overload
def cp_fit(x: LabelledData, cp_tensor: Any, *, mask: Any = ..., held_out: Any = ...) -> CPFit: ...


@overload
def cp_fit(x: Any, cp_tensor: Any, *, mask: Any = ..., held_out: Any = ..., loss: str) -> Any: ...


@mirror
def cp_fit(
    x: LabelledData,
    cp_tensor: Any,
    *,
    mask: Mask = None,
    held_out: tuple[Array, Array] | None = None,
    loss: str | None = None,
) -> CPFit | CountFit:
    """Compute how well a CP model fits all cells of a sparse tensor, or only held-out entries.

    Neither the tensor nor the model is made dense.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
    cp_tensor : CPTensor or (weights, factors)
        Any model of the shape and dtype of `x`. One of `observed_parafac` is compared with the
        nonzeros of `x` alone: the other cells are unknown to it. Weights of cells do not count.
    mask : sparse.COO or array, optional
        As for `parafac`: the missing entries are left out, whatever `x` stores there. By default
        those that `x` knows (`LabelledTensor.unknown`), else those of the mask with which the model
        was fitted.
    held_out : pair of arrays, optional
        Coordinates (ndim, count) and values (count,) of entries, zeros included if they were held
        out too. Only these are compared; of `x` only the shape is used.
    loss : {"gaussian", "poisson_count"}, optional
        By default that with which the model was fitted; "gaussian" if that is not known.

    Returns
    -------
    CPFit, or CountFit with "poisson_count"

    Raises
    ------
    TypeError
        If `x` is not sparse, or an array has another dtype.
    ValueError
        If shapes do not match, the labels or modes of `x` differ from those of a `LabelledCP`,
        `cp_tensor` is no CP model, both `mask` and `held_out` are given, `held_out` is not a pair,
        no entry is left, or `loss` is none of these, nor is that of the model; or, with
        "poisson_count", a value or an entry of the model is negative.

    Notes
    -----
    All cells cost one MTTKRP, of the last mode, as do the errors of `parafac`: the squared residual
    is ``|x|^2 + |model|^2 - 2 <x, model>``, added in float64, without the model's square at missing
    entries. These terms cancel near an exact fit: a relative error below 1e-8 (float64) or 1e-3
    (float32) is rounding. Held-out entries
    cost ``count * R * ndim`` operations, and do not cancel. With "poisson_count", all cells cost
    the model's values at the nonzeros, and a few numbers for each of them.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, cp_fit
    >>> x = FlycooTensor([[0, 1], [0, 1]], [3.0, 4.0], shape=(2, 2))
    >>> model = (None, [np.array([[0.0], [4.0]]), np.array([[0.0], [1.0]])])
    >>> cp_fit(x, model)
    CPFit(fit=0.4, relative_error=0.6, rmse=1.5, num_entries=4)
    >>> cp_fit(x, model, held_out=([[1, 1], [0, 1]], [0.0, 8.0]))
    CPFit(fit=0.5, relative_error=0.5, rmse=2.82842712474619, num_entries=2)
    """
    record = check_model("cp_fit", cp_tensor, x)
    is_count = find_exact(record.loss if loss is None else loss).is_count
    if mask is not None and held_out is not None:
        raise ValueError("mask and held_out are both given, expected at most one of them")
    is_all_unknown = mask is None and isinstance(getattr(x, "unknown", None), str)
    knows_rows_only = record.absent == "unknown" or is_all_unknown
    if held_out is None and not is_all_unknown:
        mask = choose_mask(record, x, mask)
    x = as_flycoo(x, check_coords=True)
    weights, factors = take_model(cp_tensor)
    missing = None if mask is None else find_missing(x, mask)
    count = num_cells(x.shape)
    if missing is not None:
        x = missing.observed
        count = count - missing.count
        if count == 0:
            raise ValueError("mask marks all entries as missing, expected some that are not")
    if held_out is None and knows_rows_only:
        held_out = x._sorted_nonzeros()
    if held_out is not None:
        model, values = compare_entries(cp_tensor, held_out, "held_out")
        if values.size == 0:
            raise ValueError("held_out has no entries, expected at least one")
        if is_count:
            check_counts(values, model)
            return complete_fit(sum_counts(values, model), float(model.sum()), values.size)
        residual = float(np.linalg.norm(values - model))
        return _make_fit(residual, float(np.linalg.norm(values)), values.size)
    if is_count:
        arrays = [*factors, *([] if weights is None else [weights])]
        parts = map_pieces(_sum_counts, x._layout, x._engine, x._engine, arrays=arrays)
        sums = [*arrays[len(factors) :], *map(sum_columns, factors)]
        total = float(multiply_all(sums).sum())
        total -= 0.0 if missing is None else missing.sum_model(weights, factors)
        return complete_fit(sum(parts), total, count)
    norm = float(x._layout.norm)
    power = 2.0 ** find_exponent(norm, x.nnz, x.dtype)  # of values far from 1
    factors = [factors[0] * x.dtype.type(1 / power), *factors[1:]] if power != 1 else factors
    last_mttkrp = mttkrp(x, factors, x.ndim - 1, weights=weights)
    inner = (last_mttkrp * factors[-1]).sum(dtype=np.float64)
    weights = None if weights is None else weights.astype(np.float64)
    model_square = float(multiply_grams(weights, factors, dtype=np.float64).sum())
    model_square -= 0.0 if missing is None else missing.sum_model(weights, factors, square=True)
    square = (norm / power) ** 2 + model_square - 2 * float(inner) / power
    return _make_fit(power * abs(square) ** 0.5, norm, count)


def _sum_counts(piece: Piece, engine: Engine, arrays: list[Array]) -> Array:
    """Compare a piece's counts with a model, whose weights may follow its factors."""
    records = piece.sort_records(engine)
    ndim = piece.layout.record_format.ndim
    coords = piece.read_coords(records)
    values = piece.read_values(records)
    weights = arrays[ndim] if len(arrays) > ndim else None
    model, values = compare_entries((weights, arrays[:ndim]), (coords, values), "x")
    check_counts(values, model)
    return sum_counts(values, model)


def compare_entries(cp_tensor: Any, entries: Any, name: str) -> tuple[Array, Array]:
    """Return the model's values at (coords, values), and these values, checked and in float64."""
    if len(entries) != 2:
        raise ValueError(f"{name} has {len(entries)} items, expected (coords, values)")
    coords, values = entries
    model = cp_to_entries(cp_tensor, coords).astype(np.float64)
    values = move(as_array(values), array_module(model))
    if values.shape != model.shape:
        raise ValueError(f"{name}[1] has shape {values.shape}, expected {model.shape} as coords")
    return model, values.astype(np.float64, copy=False)


def _make_fit(residual: float, norm: float, count: int) -> CPFit:
    zero_error = float("inf") if residual else 0.0
    error = residual / norm if norm else zero_error
    return CPFit(1 - error, error, residual / count**0.5, count)

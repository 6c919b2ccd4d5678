"""The fit of a CP model to a sparse tensor, or to entries that were held out of it."""

import math
from typing import Any, NamedTuple

import numpy as np

from ..base.array_modules import Array, array_module, as_array, move
from ..base.checks import num_cells
from ..engines import Engine
from ..engines.tall import sum_columns
from ..loop.cp_model import multiply_all, multiply_grams
from ..loop.losses import find_exact
from ..loop.masks import MissingEntries, find_missing
from ..loop.model_uses import check_model, choose_mask
from ..loop.scaling import find_exponent
from ..ops.cp_entries import cp_to_entries, take_model
from ..ops.mttkrp import mttkrp
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.pieces import Piece, map_pieces
from ..tensor.tensor import FlycooTensor
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


@mirror
def cp_fit(
    x: LabelledData,
    cp_tensor: Any,
    *,
    mask: Mask = None,
    held_out: tuple[Array, Array] | None = None,
    loss: str | None = None,
) -> Any:  # of which kind, the model decides
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
    (float32) is rounding. Held-out entries cost ``count * R * ndim`` operations, and do not cancel.
    With "poisson_count", all cells cost the model's values at the nonzeros, and a few numbers for
    each of them.

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
    if loss is None:
        loss = record.loss
    is_count = find_exact(loss).is_count

    # Which entries are compared? Those held out, the rows alone, or all that are not missing.
    if mask is not None and held_out is not None:
        raise ValueError("mask and held_out are both given, expected at most one of them")
    has_rows_only = mask is None and isinstance(getattr(x, "unknown", None), str)
    if held_out is None and not has_rows_only:
        mask = choose_mask(record, x, mask)
    x = as_flycoo(x, check_coords=True)
    missing = find_missing(x, mask)
    num_cells_known = num_cells(x.shape)
    if missing is not None:
        x = missing.observed
        num_cells_known -= missing.count
        if num_cells_known == 0:
            raise ValueError("mask marks all entries as missing, expected some that are not")
    if held_out is None and (has_rows_only or record.absent == "unknown"):
        held_out = x._sorted_nonzeros()
    if held_out is not None:
        return _fit_entries(cp_tensor, held_out, is_count)
    weights, factors = take_model(cp_tensor)
    if is_count:
        return _fit_counts(x, weights, factors, missing, num_cells_known)
    return _fit_values(x, weights, factors, missing, num_cells_known)


def _fit_entries(cp_tensor: Any, entries: Any, is_count: bool) -> CPFit | CountFit:
    """Compare a model with some entries, (coords, values), one by one."""
    model, values = compare_entries(cp_tensor, entries, "held_out")
    if values.size == 0:
        raise ValueError("held_out has no entries, expected at least one")
    if is_count:
        check_counts(values, model)
        return complete_fit(sum_counts(values, model), float(model.sum()), values.size)
    residual = float(np.linalg.norm(values - model))
    return _make_fit(residual, float(np.linalg.norm(values)), values.size)


def _fit_counts(
    x: FlycooTensor,
    weights: Array | None,
    factors: list[Array],
    missing: MissingEntries | None,
    count: int,
) -> CountFit:
    """Compare a model with all `count` known cells: the likelihood of counts."""
    arrays = [*factors]
    sums = []
    if weights is not None:
        arrays.append(weights)
        sums.append(weights)
    parts = map_pieces(_sum_counts, x._layout, x._engine, x._engine, arrays=arrays)
    sums += [sum_columns(factor) for factor in factors]
    model_sum = float(multiply_all(sums).sum())
    if missing is not None:
        model_sum -= missing.sum_model(weights, factors)
    return complete_fit(sum(parts), model_sum, count)


def _fit_values(
    x: FlycooTensor,
    weights: Array | None,
    factors: list[Array],
    missing: MissingEntries | None,
    count: int,
) -> CPFit:
    """Compare a model with all `count` known cells: least squares, by one MTTKRP."""
    norm = float(x._layout.norm)
    # Far from 1 squares could overflow: the model of `x / power` is compared.
    power = 2.0 ** find_exponent(norm, x.nnz, x.dtype)
    if power != 1:
        factors = [factors[0] * x.dtype.type(1 / power), *factors[1:]]
    last_mttkrp = mttkrp(x, factors, x.ndim - 1, weights=weights)
    inner = (last_mttkrp * factors[-1]).sum(dtype=np.float64)
    if weights is not None:
        weights = weights.astype(np.float64)
    model_square = float(multiply_grams(weights, factors, dtype=np.float64).sum())
    if missing is not None:
        model_square -= missing.sum_model(weights, factors, square=True)
    # |x - m|^2 = |x|^2 + |m|^2 - 2 <x, m>; rounding may leave less than 0.
    residual_square = abs((norm / power) ** 2 + model_square - 2 * float(inner) / power)
    return _make_fit(power * residual_square**0.5, norm, count)


def _sum_counts(piece: Piece, engine: Engine, arrays: list[Array]) -> Array:
    """Compare a piece's counts with a model, whose weights may follow its factors."""
    records = piece.sort_records(engine)
    ndim = piece.layout.record_format.ndim
    coords = piece.read_coords(records)
    values = piece.read_values(records)
    factors = arrays[:ndim]
    weights = None
    if len(arrays) > ndim:
        weights = arrays[ndim]
    model, values = compare_entries((weights, factors), (coords, values), "x")
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
    """Make the fit from the norms of the residual and of the data; of zeros it is exact or not."""
    error = 0.0
    if norm:
        error = residual / norm
    elif residual:
        error = math.inf
    return CPFit(fit=1 - error, relative_error=error, rmse=residual / count**0.5, num_entries=count)

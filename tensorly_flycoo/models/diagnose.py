"""How far to trust a CP model: its error, gradient and condition, and the digits of components."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_factors, check_weights
from ..base.fit_record import FitRecord
from ..engines import Engine
from ..loop.cp_model import multiply_all, multiply_grams
from ..loop.losses import EXACT_LOSSES
from ..loop.masks import find_missing
from ..loop.model_uses import check_model, choose_mask
from ..loop.terracini import Tangents, count_tangents
from ..ops.cp_entries import choose_block_size, evaluate_model, take_model
from ..results.cp_fit import cp_fit
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.labelled import take_labels
from ..tensor.pieces import Piece, map_pieces
from ..tensor.tensor import FlycooTensor
from .diagnosis import Diagnosis
from .slopes import Components, KnownCells, Slopes

#: How often the residual is drawn with other signs.
_NUM_DRAWS = 8

#: So many standard deviations hold a normal number in 95 % of cases.
_NUM_DEVIATIONS = 2

#: The largest Gram matrix of tangents that is inverted: 2 GB.
_MAX_TANGENTS = 2**14


@mirror
def diagnose(x: LabelledData, cp_tensor: Any) -> Diagnosis:
    r"""Say how far to trust a CP model: its error, its gradient, and the digits of its components.

    The digits of a component say how much of it noise may be: with d digits, noise has changed it,
    in 95 % of cases, by less than :math:`10^{-d}` of its norm. What further iterations would still
    change is added to that.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO
        The data of the model, with a nonzero at least.
    cp_tensor : LabelledCP, CPTensor or (weights, factors)
        In the dtype of `x`. Its record (``cp_tensor.flycoo``) says by which loss, ridge, signs and
        unknown cells it is judged; a pair that you made is taken for a plain model of `parafac`.

    Returns
    -------
    Diagnosis
        Without digits of models with a ridge, unknown cells or the loss of counts: `uncertainty`
        finds intervals of these.

    Raises
    ------
    TypeError
        If `x` is not sparse, or weights or factors have the wrong array type or dtype.
    ValueError
        If shapes, labels or modes do not match, `x` has no nonzeros, or `cp_tensor` is no CP model,
        holds numbers that are not finite, or has a confidence, another constraint than
        non-negativity, or another loss than "gaussian" and "poisson_count", whose gradient is not
        computed here.

    Notes
    -----
    **Error.** Differences at the nonzeros are computed one by one in float64, and do not cancel.
    The model's square at the other cells is that of all cells, from Gram matrices in float64, less
    that at the nonzeros. `error_rounding` is an estimate with one unit of rounding for each of
    :math:`\sqrt{n}` in a sum of n terms (Higham and Mary, SIAM Journal on Scientific Computing 41,
    2019).

    **Gradient.** It is computed by MTTKRPs in the dtype of `x`: below 1e-6 in float32, it is
    rounding. It counts the ridge; where a factor is non-negative, an element is not moved below 0.

    **Condition.** One over the least singular value of Terracini's matrix, whose columns span the
    tangents of the components. From 1e5 or so on it counts as inf.

    **Noise.** It is taken to be like the residual, cell by cell: in each of eight draws cells keep
    their magnitudes and get random signs (a wild bootstrap: Wu, Annals of Statistics 14, 1986), so
    it may be large at nonzeros and small elsewhere. A systematic misfit counts as noise too. What
    noise changes is computed to first order, as if non-negative factors were free: where many of
    their elements are zero, there may be more digits. Where a model has nearly as many numbers as
    the data, it fits the noise, and there are too many digits.

    **Cost.** The model's values at the nonzeros for the error; the MTTKRPs of nine iterations for
    the gradient and the noise; and for the condition a Gram matrix of
    ``R * (1 + sum(min(I_n, R) - 1))`` tangents, 3,008 at rank 32 and three modes, which is inverted
    in place on the host: 3,008**2 * 8 bytes = 72 MB. From 16,385 (2 GB) on there is neither
    condition nor digits. The error takes a float64 copy of all factors, and the noise a copy with
    signs. These have a fixed seed: results have the same bits in every run on one machine.

    References
    ----------
    Vannieuwenhoven, "Condition numbers for the tensor rank decomposition", Linear Algebra and its
    Applications 535, 2017. Breiding and Vannieuwenhoven, "The condition number of join
    decompositions", SIAM Journal on Matrix Analysis and Applications 39, 2018.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo import diagnose
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((40, 30, 20), 3, nnz_per_component=900, noise=0.1, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     cp = tl.decomposition.parafac(x, 3, tol=1e-12, init="random", random_state=0)
    >>> found = diagnose(x, cp)
    >>> found.summary
    'all components: 1 digit'
    >>> round(found.condition, 2)
    1.49
    """
    record = check_model("diagnose", cp_tensor, x)
    _refuse(record)
    known = _find_known(x, record)
    weights, factors = _take_arrays(cp_tensor, known.tensor)
    if record.loss == "poisson_count":
        error, error_rounding = 1 - cp_fit(x, cp_tensor, loss=record.loss).explained, math.nan
    else:
        error, error_rounding = _measure_error(known, weights, factors)

    components = Components(weights, factors)
    slopes = Slopes(known, components, record)
    gradient, steps = slopes.measure()
    nothing = np.full(components.places.size, np.nan)
    condition, conditions = math.nan, nothing
    tangents = _make_tangents(record, known.tensor, components)
    if tangents is not None:
        condition, conditions = tangents.condition, tangents.conditions
    noise, unfinished, digits = nothing, nothing, nothing
    reason = _explain_lack(record, known, tangents)
    if tangents is not None and not reason:
        noise = _predict_noise(slopes, tangents) / components.sizes
        unfinished = tangents.find_changes(steps) / components.sizes
        digits = _count_digits(noise + unfinished, tangents, known.tensor.dtype)
    partners, congruences = _find_partners(components)
    return Diagnosis(
        error=error,
        error_rounding=error_rounding,
        gradient=gradient,
        condition=condition,
        sizes=components.spread(components.sizes, 0),
        conditions=components.spread(conditions),
        partners=components.spread(partners, -1),
        congruences=components.spread(congruences),
        noise=components.spread(noise),
        unfinished=components.spread(unfinished),
        digits=components.spread(digits),
        reason=reason,
        components=getattr(cp_tensor, "components", tuple(range(components.rank))),
        labels=_find_top_labels(cp_tensor, x, factors, slopes),
    )


def _refuse(record: FitRecord) -> None:
    """Refuse a model whose gradient is not computed here."""
    obstacle = ""
    if record.is_weighted or record.absent == "weighted":
        obstacle = "with weights of cells, which the model does not keep"
    elif record.loss not in EXACT_LOSSES:
        obstacle = f"with loss={record.loss!r}"
    for n, names in record.constraints.items():
        obstacle = f"with {', '.join(names)} in mode {n}"
    if obstacle:
        raise ValueError(
            f"cp_tensor is a model of {record.method} {obstacle}, whose gradient is not computed "
            "here: pass (cp.weights, cp.factors) to have it judged by least squares of all cells"
        )


def _find_known(x: Any, record: FitRecord) -> KnownCells:
    """Return the cells that are known by the data or by the model; refuse if all are zeros."""
    tensor = as_flycoo(x, check_coords=True)
    are_all_unknown = isinstance(getattr(x, "unknown", None), str)
    missing = None
    if not are_all_unknown:
        missing = find_missing(tensor, choose_mask(record, x, None))
    if missing is not None:
        tensor = missing.observed
    if tensor.nnz == 0:
        raise ValueError(f"x of shape {tensor.shape} has no known nonzeros, expected at least one")
    return KnownCells(tensor, missing, are_all_unknown or record.absent == "unknown")


def _take_arrays(cp_tensor: Any, x: FlycooTensor) -> tuple[Array | None, list[Array]]:
    """Return a model's weights and factors in the dtype of `x`, from which ADMM's differ."""
    weights, factors = take_model(cp_tensor)
    factors = check_factors(factors, x.shape, x.dtype, x._engine.array_type, converts=True)
    if weights is not None:
        weights = weights.astype(x.dtype, copy=False)
        check_weights(weights, factors[0].shape[1], x.dtype, x._engine.array_type)
    return weights, factors


def _measure_error(
    known: KnownCells, weights: Array | None, factors: Sequence[Array]
) -> tuple[float, float]:
    """Return the relative error of least squares, and by how much rounding may have changed it."""
    x, missing, _ = known
    norm = float(x._layout.norm)
    exact = [factor.astype(np.float64) for factor in factors]
    if weights is not None:
        exact[0] *= weights
    exact[0] /= norm  # so that nothing overflows: all that follows is relative to the data
    parts = map_pieces(_sum_squares, x._layout, x._engine, x._engine, norm, arrays=exact)
    sums = np.stack([move(part, np) for part in parts])
    square, model_square = map(math.fsum, sums.T)

    eps = float(np.finfo(np.float64).eps)
    grams = multiply_grams(None, exact)
    largest = float(np.sqrt(np.diagonal(move(grams, np))).sum())  # at least the model's norm
    rank = exact[0].shape[1]
    num_roundings: float = rank + x.ndim  # of a value of the model
    rounding = num_roundings * eps * largest
    square_rounding = 0.0
    if known.num_zeros:
        other_square = float(grams.sum()) - model_square
        num_roundings += sum(size**0.5 for size in x.shape)
        square_rounding = 2 * num_roundings * eps * largest**2
        if missing is not None:
            missing_square = missing.sum_model(None, exact, square=True)
            other_square -= missing_square
            square_rounding += 2 * float(np.finfo(x.dtype).eps) * missing_square
        square += max(0.0, other_square)
    error = square**0.5
    rounding += (square + square_rounding) ** 0.5 - error
    return error, rounding


def _sum_squares(piece: Piece, engine: Engine, norm: float, factors: list[Array]) -> Array:
    """Return the sums of the squares of the residual and of the model at a piece's nonzeros (2,).

    The values of the tensor are divided by its norm.
    """
    records = piece.sort_records(engine)
    xp = array_module(records)
    block_size = choose_block_size(factors[0], factors[0].shape[1])

    def sum_block(start: int) -> Array:
        block = records[start : start + block_size]
        model = evaluate_model(piece.read_coords(block), None, factors)
        residual = piece.read_values(block).astype(np.float64) / norm - model
        return xp.stack([residual @ residual, model @ model])

    starts = range(0, len(records), block_size)
    if xp is np:
        import numba  # the CPU engine has loaded it

        with ThreadPoolExecutor(numba.get_num_threads()) as pool:
            sums = [*pool.map(sum_block, starts)]
    else:
        sums = [*map(sum_block, starts)]
    return xp.stack([xp.zeros(2), *sums]).sum(axis=0)


def _make_tangents(record: FitRecord, x: FlycooTensor, components: Components) -> Tangents | None:
    """Return the tangents of the components; None of biases, and where there are too many."""
    rank = components.places.size
    if record.bias_modes or not 0 < count_tangents(x.shape, rank) <= _MAX_TANGENTS:
        return None
    return Tangents(components.cosines, x.shape)


def _explain_lack(record: FitRecord, known: KnownCells, tangents: Tangents | None) -> str:
    """Return why nothing is said about digits; "" if something is."""
    if record.loss != "gaussian":
        return "the model is not of least squares"
    if known.has_rows_only or known.missing is not None:
        return "cells are unknown"
    if record.l2_reg:
        return "the model has a ridge"
    if tangents is None:
        return "the rank is too high, or the model is zero"
    return ""


def _predict_noise(slopes: Slopes, tangents: Tangents) -> np.ndarray:
    """Return below which norm (R,) the change of each component by other noise stays mostly."""
    random = np.random.RandomState(0)
    draws = [tangents.find_changes(slopes.draw(random)) for _ in range(_NUM_DRAWS)]
    return _NUM_DEVIATIONS * np.sqrt(np.mean(np.square(draws), axis=0))


def _count_digits(changes: np.ndarray, tangents: Tangents, dtype: np.dtype) -> np.ndarray:
    """Return the decimal digits (R,) that relative changes leave, none if there is no condition."""
    least = float(np.finfo(dtype).eps)
    digits = np.floor(-np.log10(np.maximum(changes, least)))
    return np.where(np.isinf(tangents.conditions), 0, np.maximum(digits, 0))


def _find_partners(components: Components) -> tuple[np.ndarray, np.ndarray]:
    """Return to which component each is most nearly parallel (R,), -1 if alone, and how nearly."""
    rank = components.places.size
    if rank < 2:
        return np.full(rank, -1), np.full(rank, np.nan)
    congruences = multiply_all(components.cosines)
    np.fill_diagonal(congruences, 0)
    nearest = np.abs(congruences).argmax(axis=1)
    return components.places[nearest], congruences[np.arange(rank), nearest]


def _find_top_labels(
    cp_tensor: Any, x: Any, factors: Sequence[Array], slopes: Slopes
) -> dict[str, list[Any]]:
    """Return for each mode the label of largest magnitude of each component; none without labels.

    Components that are zero, and the constant columns of a bias, have "".
    """
    labels = getattr(cp_tensor, "labels", None) or getattr(x, "labels", None) or {}
    tops = {}
    for n, (name, labels_of_mode) in enumerate(labels.items()):
        rows = move(abs(factors[n]).argmax(axis=0), np)
        labels_of_rows = take_labels(labels_of_mode, rows)
        for r, is_shown in enumerate(slopes.components.spread(slopes.is_free[n], missing=0)):
            if not is_shown:
                labels_of_rows[r] = ""
        tops[name] = labels_of_rows
    return tops

"""Rows of a factor for new indices, such as new users, without running a decomposition again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, invert_positive, move
from ..base.checks import check_factors, check_least, check_mode, check_positive, check_real
from ..base.fit_record import FitRecord
from ..engines.tall import column_norms
from ..loop.cp_model import find_biases, multiply_all, multiply_grams
from ..loop.losses import EXACT_LOSSES, check_data, find_exact, find_loss
from ..loop.masks import (
    MissingBlocks,
    MissingEntries,
    ObservedData,
    find_missing,
    mask_slices,
    take_observed,
)
from ..loop.model_uses import check_model, choose_mask
from ..loop.observed_rows import L2_REG, ListedCells, measure_scale, scale_ridge
from ..loop.poisson import PoissonUpdates
from ..loop.row_systems import solve_row_systems
from ..loop.run import RunModel
from ..loop.unknown_cells import find_unknown, forget_unknown
from ..ops.cp_entries import evaluate_model, find_kind, take_model
from ..ops.mttkrp import mttkrp
from ..ops.ragged import RaggedTensor
from ..tensor.cells import find_places
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.entrance import map_arrays, mirror
from ..tensor.labelled import LabelledTensor, Labels, number_modes
from ..tensor.tensor import FlycooTensor
from .fold_in_coupled import NewRows, fold_in_coupled
from .fold_in_parafac2 import fold_in_parafac2
from .fold_in_tucker import fold_in_tucker

#: Updates for counts end after so many, or when F changes by less, relative to itself, or rises.
_MAX_SWEEPS = 1000
_TOLERANCE = 1e-12


@mirror
def fold_in(
    cp_tensor: Any,
    x_new: Any,  # of which kind, the model decides
    mode: int | str,
    *,
    loss: str | None = None,
    non_negative: bool | None = None,
    observed: bool | None = None,
    l2_reg: float | None = None,
    mask: Mask = None,
    confidence: "LabelledData | None" = None,
) -> Array:
    r"""Compute the factor rows of new indices of one mode; all other factors stay as they are.

    .. math:: \min_F |X_{\mathrm{new}} - [w; F_0, \ldots, F, \ldots, F_{N-1}]|

    or, with ``loss="poisson_count"``, the likeliest rows if the model gives the means of counts.
    The rows are found as the model was made, which it knows (``model.flycoo``): cells that `x_new`
    lacks are zeros or unknown, rows are non-negative or not, with the ridge of the model or none. A
    pair of arrays that a user rebuilt knows nothing: cells are zeros, and rows may be negative.

    Parameters
    ----------
    cp_tensor : CPTensor or (weights, factors); TuckerTensor, Parafac2Tensor or CoupledCP
        Weights (R,), or None for ones; factors (I_n, R), whose old rows of `mode` are not used.
    x_new : FlycooTensor, LabelledTensor or sparse.COO
        The data of the new indices, in the dtype of the factors: any size in `mode`, and the
        model's in all others. For a Parafac2Tensor new slices, or all slices with new columns, as
        `parafac2` takes them; for a CoupledCP pairs ``(data, modes)`` of some of its blocks, as
        `coupled_parafac` takes them.
    mode : int or str
        Its name, if `cp_tensor` or `x_new` has labels, or its number.
    loss : {"gaussian", "poisson_count"}, optional
        By default that of the model.
    non_negative : bool, optional
        Whether the rows are non-negative; by default, whether the model's are in `mode`. With
        "poisson_count" they always are.
    observed : bool, optional
        Whether all cells but the nonzeros are unknown; by default, whether they were to the model,
        or are in `x_new` (`LabelledTensor.unknown`).
    l2_reg : float, optional
        The ridge; by default that of the model, and for `observed` rows at least 1e-6.
    mask : sparse.COO or array, optional
        As for `parafac`: the missing cells of `x_new`. By default those that `x_new` knows, else
        those of the model's mask that are missing for all indices of `mode`.
    confidence : FlycooTensor, LabelledTensor or sparse.COO, optional
        As for `observed_parafac`: the weights of the cells of `x_new`, for a model with some.

    Returns
    -------
    array (I_new, R)
        Rows that go with the model's weights; of a Tucker model (I_new, R_mode). An index without
        nonzeros has a row of zeros, or, in a model with `biases` of `observed_parafac`, the one
        that predicts by the other biases.

    Raises
    ------
    TypeError
        If `x_new` is not sparse, `l2_reg` is not a number, or the model has another dtype.
    ValueError
        If `mode` is out of range, a shape does not match, labels or names of modes differ but for
        the labels of `mode`; if `loss` is unknown, or by default one for which there are no rows;
        if the factor of `mode` has a constraint or a penalty other than non-negativity; if the
        model was fitted with a mask of single rows of `mode`, or with a confidence, and there is
        none for `x_new`; if options exclude each other; or, with "poisson_count", if a value or an
        element of the model is negative.

    Notes
    -----
    One MTTKRP and one system of R equations for all rows if all cells are known: those of `parafac`
    with all other modes in ``fixed_modes``. Else one for each row: a missing cell, or with
    `observed` a known one, costs ``R**2`` operations, and a row an eigendecomposition of size R.
    All is solved in float64. Proportional components share what they explain. Non-negative rows are
    the minimisers, by sweeps of coordinate descent and the steps of Lawson and Hanson. A ridge is
    that of rows in a model whose columns of a component are equally long in all modes, as after ALS
    with a ridge. Results have the same bits in every run on one machine.

    With "poisson_count", up to 1000 multiplicative updates, extrapolated by SQUAREM, end when F
    changes by rounding only; each is one pass over the nonzeros, or two. Counts where all
    components of the other factors are zero, which no row can explain, are left out.

    References
    ----------
    Chi and Kolda, "On Tensors, Sparsity, and Nonnegative Factorizations", SIAM Journal on Matrix
    Analysis and Applications 33, 2012. Gillis and Glineur, "Accelerated Multiplicative Updates and
    Hierarchical ALS Algorithms for Nonnegative Matrix Factorization", Neural Computation 24, 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, fold_in
    >>> model = (None, [np.ones((5, 1)), np.array([[1.0], [2.0]]), np.array([[3.0], [0.0]])])
    >>> new_users = FlycooTensor([[0, 0], [0, 1], [0, 0]], [6.0, 12.0], shape=(2, 2, 2))
    >>> fold_in(model, new_users, mode=0)
    array([[2.],
           [0.]])
    """
    options = FoldInOptions(
        loss=loss,
        non_negative=non_negative,
        observed=observed,
        l2_reg=l2_reg,
        mask=mask,
        confidence=confidence,
    )
    find_rows = _FIND_ROWS[find_kind(cp_tensor)]
    return find_rows(cp_tensor, x_new, mode, options)


@dataclass(frozen=True)
class FoldInOptions:
    """The options of a call of `fold_in`; None where the model decides."""

    loss: str | None = None
    non_negative: bool | None = None
    observed: bool | None = None
    l2_reg: float | None = None
    mask: Any = None
    confidence: Any = None

    def refuse(self, names: Sequence[str], kind: str) -> None:
        """Refuse options that do not apply to a kind of model."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is given, expected None for {kind}")


# A function for each kind of model


def _fold_in_cp(cp_tensor: Any, x_new: Any, mode: Any, options: FoldInOptions) -> Array:
    """Find rows of a CP model, by least squares or as the likeliest of counts."""
    weights, factors = take_model(cp_tensor)
    mode = _find_mode(cp_tensor, x_new, mode, len(factors))
    record = check_model("fold_in", cp_tensor, x_new, mode)
    how = _choose(record, cp_tensor, x_new, mode, options)
    x = as_flycoo(x_new, check_coords=True)
    old = factors[mode]
    factors = list(factors)
    factors[mode] = array_module(old).zeros((x.shape[mode], old.shape[1]), old.dtype)
    check_factors(factors, x.shape, x.dtype, x._engine.array_type)
    is_listed = how.observed or options.confidence is not None
    missing = find_missing(x, how.mask, lists=is_listed)
    if how.is_count:
        return _fit_counts(x, weights, factors, mode, missing)
    problem = _RowProblem(x, weights, factors, old, mode, how, record)
    return problem.solve(missing, options.confidence).astype(old.dtype)


def _fold_in_tucker(model: Any, x_new: Any, mode: Any, options: FoldInOptions) -> Array:
    """Find rows of a Tucker model, which has neither weights of cells nor a ridge."""
    core, factors = model
    mode = _find_mode(model, x_new, mode, len(factors))
    record = check_model("fold_in", model, x_new, mode)
    options.refuse(("confidence", "l2_reg"), "a Tucker model")
    how = _choose(record, model, x_new, mode, options)
    if how.is_count:
        raise ValueError("loss is 'poisson_count', expected 'gaussian' for a Tucker model")
    x = as_flycoo(x_new, check_coords=True)
    return fold_in_tucker(
        core,
        factors,
        x,
        mode,
        missing=find_missing(x, how.mask, lists=True),
        observed=how.observed,
        non_negative=how.non_negative,
    )


def _find_mode(model: Any, x_new: Any, mode: Any, ndim: int) -> int:
    """Return the number of a mode, which may be one of the model's names, or of the data's."""
    mode = number_modes(model, mode)
    mode = number_modes(x_new, mode)
    return check_mode(mode, ndim)


def _fold_in_parafac2(model: Any, slices: Any, mode: Any, options: FoldInOptions) -> Array:
    """Find rows of new slices of a PARAFAC2 model, or of new columns of all its slices."""
    mode = _find_mode(model, slices, mode, 3)
    record = check_model("fold_in", model, slices, mode)
    options.refuse(("loss", "observed", "l2_reg", "confidence"), "a PARAFAC2 model")
    _refuse_constraint(record, mode)
    if record.is_centred:
        raise ValueError(
            "cp_tensor was fitted with center=True, and does not keep the means of the columns: "
            "expected a model of slices as they are; subtract the means before, and fit those"
        )
    x = slices
    if not isinstance(slices, RaggedTensor):
        x = RaggedTensor(forget_unknown(slices))
    mask = options.mask
    unknown = find_unknown(slices)
    if mask is None and unknown is not None:
        mask = mask_slices(unknown, x.shape[0])
    if mask is None and record.mask is not None:
        raise ValueError(
            "mask is not given, expected the missing cells of x_new, one mask for each slice, as "
            "the model was fitted with some; numpy.ones((1, 1)) for a slice without any"
        )
    non_negative = options.non_negative
    if non_negative is None:
        non_negative = mode in record.non_negative
    # Slices of other libraries go where a tensor is made; the model's arrays follow, and come back.
    weights, factors, projections = model
    xp = x.matrix._engine.xp
    there = map_arrays(lambda array: move(array, xp), (weights, factors, projections))
    folded = fold_in_parafac2(there, x, mode, mask=mask, non_negative=non_negative)
    return move(folded.rows, array_module(factors[0]))


def _fold_in_coupled(model: Any, blocks: Any, mode: Any, options: FoldInOptions) -> Array:
    return find_coupled_rows(model, blocks, mode, options).rows


def find_coupled_rows(model: Any, blocks: Any, mode: Any, options: FoldInOptions) -> NewRows:
    """Find rows of new labels of a coupled model as it was made; return them and the labels."""
    record = check_model("fold_in", model)
    options.refuse(("loss", "observed", "mask", "confidence"), "a coupled model")
    names = [*model.factors]
    if isinstance(mode, int):
        mode = names[check_mode(mode, len(names))]
    l2_reg = record.l2_reg
    if options.l2_reg is not None:
        l2_reg = options.l2_reg
    non_negative = options.non_negative
    if non_negative is None:
        non_negative = mode in names and names.index(mode) in record.non_negative
    return fold_in_coupled(
        model,
        blocks,
        mode,
        l2_reg=l2_reg,
        non_negative=non_negative,
        missing=record.absent,
    )


#: The function that finds rows, for each kind of model.
_FIND_ROWS: dict[str, Callable[..., Array]] = {
    "CP": _fold_in_cp,
    "Tucker": _fold_in_tucker,
    "PARAFAC2": _fold_in_parafac2,
    "coupled": _fold_in_coupled,
}


# How rows are found


def _refuse_constraint(record: FitRecord, mode: int) -> None:
    """Refuse to find rows of a factor that has a constraint which they would not meet."""
    constraints = record.constraints.get(mode)
    if constraints:
        raise ValueError(
            f"cp_tensor has the constraint or penalty {', '.join(constraints)} in mode {mode}, "
            "which new rows by least squares would not meet: fold in another mode, or pass the "
            "pair (cp_tensor.weights, cp_tensor.factors) to ignore it"
        )


@dataclass(frozen=True)
class _How:
    """How new rows are fitted: by options of the call, else as the model was made."""

    is_count: bool
    non_negative: bool
    observed: bool  # all cells but the nonzeros, or those of the confidence, are unknown
    unobserved: float  # the weight of these cells, if they are weighted
    l2_reg: float
    mask: Any


def _choose(
    record: FitRecord, cp_tensor: Any, x_new: Any, mode: int, options: FoldInOptions
) -> _How:
    """Choose how to find new rows; raise a ValueError if options or model do not allow any."""
    is_count = _is_count(record, options)
    _refuse_constraint(record, mode)
    has_confidence = options.confidence is not None
    has_rows_only = isinstance(getattr(x_new, "unknown", None), str) and options.mask is None

    observed = options.observed
    if observed is None:
        if record.is_weighted and not has_confidence:
            raise ValueError(
                "confidence is not given, expected the weights of the cells of x_new, as the model "
                "was fitted with some; pass observed= to fold in without: True if cells without a "
                "row are unknown, False if they are zeros"
            )
        observed = record.absent == "unknown" or has_rows_only
    if observed:
        _check_observed(is_count, options.mask)
    l2_reg = _choose_ridge(record, options.l2_reg, observed)

    mask = options.mask
    if not observed and not has_confidence:
        has_same_rows = _has_same_rows(cp_tensor, x_new, mode)
        mask = choose_mask(record, x_new, mask, mode, has_same_rows=has_same_rows)
    elif mask is None and not has_rows_only:  # what x_new may store at cells that are unknown
        mask = getattr(x_new, "unknown", None)

    unobserved = 0.0
    if has_confidence and not observed:
        unobserved = record.unobserved
    non_negative = options.non_negative
    if non_negative is None:
        non_negative = mode in record.non_negative
    return _How(
        is_count=is_count,
        non_negative=non_negative,
        observed=observed,
        unobserved=unobserved,
        l2_reg=l2_reg,
        mask=mask,
    )


def _is_count(record: FitRecord, options: FoldInOptions) -> bool:
    """Say whether rows are the likeliest of counts, by the loss of the call or the model."""
    if options.loss is None and record.loss not in EXACT_LOSSES:
        raise ValueError(
            f"loss is not given, and the model was fitted with {record.loss!r}, for which there "
            f"are no rows: expected one of {EXACT_LOSSES}"
        )
    loss = options.loss
    if loss is None:
        loss = record.loss
    is_count = find_exact(loss).is_count
    if is_count and options.confidence is not None:
        raise ValueError(
            'confidence is given, expected None with loss="poisson_count": the likelihood of '
            "counts has no weights"
        )
    return is_count


def _check_observed(is_count: bool, mask: Any) -> None:
    """Refuse options that exclude rows fitted to the nonzeros alone."""
    if is_count:
        raise ValueError(
            "observed rows, as of a model of observed_parafac, are of least squares: expected "
            'loss="gaussian", or observed=False'
        )
    if mask is not None:
        raise ValueError("mask is given, expected None with observed rows: all cells are unknown")


def _choose_ridge(record: FitRecord, l2_reg: float | None, observed: bool) -> float:
    """Return the ridge of the call, or of the model; rows of few cells need one."""
    if l2_reg is not None:
        if observed:
            check_positive(l2_reg, "l2_reg")
        check_real(l2_reg, "l2_reg", 0)
        return float(l2_reg)
    if observed:
        return max(float(record.l2_reg), L2_REG)
    return float(record.l2_reg)


def _has_same_rows(cp_tensor: Any, x_new: Any, mode: int) -> bool:
    """Return whether, by their labels, the rows of `mode` are those of the model."""
    labels = getattr(cp_tensor, "labels", None)
    if not isinstance(x_new, LabelledTensor) or not isinstance(labels, Labels):
        return False
    new_labels = [*x_new.labels.values()][mode]
    model_labels = [*labels.values()][mode]
    return bool(np.array_equal(new_labels, model_labels))


class _RowProblem:
    r"""The least-squares problem of new rows of one factor, all others fixed.

    Where other modes have biases, columns of this one are not free: they keep their one number, and
    the free columns explain what they leave. All is in float64, weights in the designs.
    """

    def __init__(
        self,
        x: FlycooTensor,
        weights: Array | None,
        factors: list[Array],  # zeros in that of `mode`
        old: Array,  # the model's factor of `mode`
        mode: int,
        how: _How,
        record: FitRecord,
    ) -> None:
        xp = array_module(old)
        rank = old.shape[1]
        self.x = x
        self.factors = factors
        self.old = old
        self.mode = mode
        self.how = how
        self.record = record
        if weights is None:
            weights = xp.ones(rank)
        self.scales = weights.astype(np.float64)
        self.exact = [factor.astype(np.float64) for factor in factors]
        bias_modes = xp.asarray(record.bias_modes or (-1,) * rank)
        self.is_own_bias = bias_modes == mode
        is_kept = xp.asarray(find_biases(record, rank)) & ~self.is_own_bias
        self.kept = xp.flatnonzero(is_kept)
        self.free = xp.flatnonzero(~is_kept)
        self.constants = old[0, self.kept].astype(np.float64)

    def solve(self, missing: MissingEntries | None, confidence: Any) -> Array:
        """Return the rows (I_new, R)."""
        xp = array_module(self.old)
        rows = xp.zeros((self.x.shape[self.mode], self.old.shape[1]))
        rows[:, self.kept] = self.constants
        if self.x.nnz == 0 and self.how.observed and confidence is None:
            return rows
        if confidence is not None:
            products, gram, cells = self._weigh_cells(missing, confidence)
        elif self.how.observed:
            products, gram, cells = self._take_nonzeros(missing)
        else:
            products, gram, cells = self._take_all_cells(missing)
        if self.kept.size:  # what the kept columns explain is no target of the others
            products = products - self.constants @ gram[self.kept]
        common = gram + xp.diag(self.find_ridges())
        free = self.free
        rows[:, free] = solve_row_systems(
            products[:, free], common[free][:, free], cells, non_negative=self.how.non_negative
        )
        return rows

    # Three ways to make the systems. Each returns the right-hand sides (I_new, R) and the Gram
    # matrix (R, R) that all rows share, and the cells that count otherwise, if any.

    def _weigh_cells(
        self, missing: MissingEntries | None, confidence: Any
    ) -> tuple[Array, Array, ListedCells | None]:
        """Make the systems of cells with weights; all others are 0, with the weight `unobserved`.

        The Gram matrix that all rows share counts each cell with `unobserved`, so listed cells add
        the rest of their weights. The right-hand sides come from listed cells alone.
        """
        x = take_observed(self.x, missing)
        coords, weights, values = _read_confidence(confidence, x)
        if missing is not None:
            coords, weights, values = _leave_out(missing, coords, weights, values)
        unobserved = self.how.unobserved
        cells = self.list_cells(coords, weights - unobserved, weights * values)
        no_products = array_module(self.old).zeros(self.factors[self.mode].shape)
        return no_products, unobserved * self.make_gram(), cells

    def _take_nonzeros(
        self, missing: MissingEntries | None
    ) -> tuple[Array, Array, ListedCells | None]:
        """Make the systems of the nonzeros: all other cells are unknown."""
        xp = array_module(self.old)
        x = take_observed(self.x, missing)
        size, rank = self.factors[self.mode].shape
        coords, values = x._sorted_nonzeros()
        values = values.astype(np.float64)
        cells = self.list_cells(coords, xp.ones_like(values), values)
        return xp.zeros((size, rank)), xp.zeros((rank, rank)), cells

    def _take_all_cells(
        self, missing: MissingEntries | None
    ) -> tuple[Array, Array, ListedCells | None]:
        """Make the systems of all cells but the missing ones."""
        xp = array_module(self.old)
        x = take_observed(self.x, missing)
        products = mttkrp(x, self.factors, self.mode).astype(np.float64) * self.scales
        gram = self.make_gram()
        if isinstance(missing, MissingBlocks):
            if self.mode not in missing.modes:
                # The same cells are missing in all rows, which go on sharing one matrix.
                return products, gram - missing.make_gram(self.scales, self.exact, self.mode), None
            missing = find_missing(self.x, self.how.mask, lists=True)
        if missing is None:
            return products, gram, None
        ones = xp.ones(missing.count)
        cells = self.list_cells(missing.coords, -ones, xp.zeros(missing.count))
        return products, gram, cells

    def make_gram(self) -> Array:
        """Return the Gram matrix of the designs of all cells of a row."""
        return multiply_grams(self.scales, self.exact, skip=self.mode)

    def list_cells(self, coords: Array, weights: Array, targets: Array) -> ListedCells:
        """List cells for fitting the free columns of the new rows.

        Kept columns are constants: their part of the model is subtracted from the targets.
        """

        def evaluate(places: Array, columns: Array) -> Array:
            """Return the designs of some columns at the cells at `places`."""
            rows = [
                factor[:, columns][coords[n][places]]
                for n, factor in enumerate(self.exact)
                if n != self.mode
            ]
            return multiply_all([self.scales[columns], *rows])

        if self.kept.size:
            all_places = array_module(coords).arange(coords.shape[1])
            targets = targets - weights * (evaluate(all_places, self.kept) @ self.constants)
        return ListedCells(
            coords[self.mode], lambda places: evaluate(places, self.free), weights, targets
        )

    def find_ridges(self) -> Array:
        """Return the ridge of each column (R,), for rows as long as they are in this model.

        A ridge makes the columns of a component equally long in all modes. It is for rows of that
        length, whatever the lengths in this model; that of a bias, for the bias itself.
        """
        xp = array_module(self.old)
        rank = self.old.shape[1]
        if not self.how.l2_reg:
            return xp.zeros(rank)
        # What a row of length 1 of this mode adds to the model, column by column.
        norms = [column_norms(factor) for factor in self.exact]
        units = multiply_all(norms, skip=self.mode) * abs(self.scales)
        sizes = units * column_norms(self.old.astype(np.float64))
        is_used = sizes > 0
        lengths = sizes ** (1 - 1 / self.x.ndim) / xp.where(is_used, units, 1)
        lengths = xp.where(is_used, lengths, 1)
        # The other factors of a bias are constant: their first rows say how long it is.
        first_rows = [factor[0] for factor in self.exact]
        constants = multiply_all(first_rows, skip=self.mode) * self.scales
        is_bias = self.is_own_bias
        lengths = xp.where(is_bias, 1 / xp.where(is_bias, constants, 1), lengths)

        ridge = self.how.l2_reg
        has_no_unit = self.how.observed and not self.record.l2_reg
        if self.record.scale is not None or has_no_unit:  # as that of observed_parafac
            ridge = scale_ridge(ridge, self.record.scale or _measure(self.x), self.x.ndim)
        return xp.where(is_bias, self.how.l2_reg, ridge) / lengths**2


def _measure(x: FlycooTensor) -> float:
    """Return the root mean square of the nonzeros, or 1 if that underflows."""
    _, values = x._sorted_nonzeros()
    return measure_scale(values.astype(np.float64)) or 1.0


def _read_confidence(confidence: Any, x: FlycooTensor) -> tuple[Array, Array, Array]:
    """Return the coordinates, weights and values of the weighted cells, in float64."""
    weighted = as_flycoo(confidence, check_coords=True)
    if weighted.shape != x.shape or weighted.device != x.device:
        raise ValueError(
            f"confidence has shape {weighted.shape} and device {weighted.device!r}, expected "
            f"{x.shape} and {x.device!r}, those of x_new"
        )
    coords, weights = weighted._sorted_nonzeros()
    data_coords, values = x._sorted_nonzeros()
    xp = array_module(values)
    is_weighted, places = find_places(coords, data_coords, xp)
    if not is_weighted.all():
        lacking = int((~is_weighted).sum())
        raise ValueError(f"confidence lacks {lacking} of the nonzeros of x_new: give each a weight")
    targets = xp.zeros(weights.size)
    targets[places] = values.astype(np.float64)
    return coords, weights.astype(np.float64), targets


def _leave_out(
    missing: MissingEntries, coords: Array, weights: Array, values: Array
) -> tuple[Array, Array, Array]:
    """Give missing cells the weight 0, whether they are listed with another one or not."""
    xp = array_module(coords)
    is_missing, _ = find_places(missing.coords, coords, xp)
    zeros = xp.zeros(missing.count)
    return (
        xp.concatenate([coords[:, ~is_missing], missing.coords], axis=1),
        xp.concatenate([weights[~is_missing], zeros]),
        xp.concatenate([values[~is_missing], zeros]),
    )


def _fit_counts(
    x: FlycooTensor,
    weights: Array | None,
    factors: list[Array],
    mode: int,
    missing: MissingEntries | None,
) -> Array:
    """Compute the likeliest rows of `mode` for counts; those in `factors` are zeros."""
    if x.nnz:
        check_data(find_loss("poisson_count"), x)
    if weights is not None:
        check_least(weights, "the weights of the model")
    for n, factor in enumerate(factors):
        check_least(factor, f"factors[{n}] of the model")
    xp = array_module(factors[mode])
    zeros = factors[mode]
    # Meanwhile the weights are part of the rows.
    scale = weights
    if scale is None:
        scale = xp.ones(zeros.shape[1], zeros.dtype)
    factors[mode] = xp.ones_like(zeros) * scale
    observed = _drop_impossible(take_observed(x, missing), factors)
    if observed.nnz == 0:
        return zeros
    if missing is not None:
        missing = missing.of(observed)
    updates = PoissonUpdates(ObservedData(observed, missing), RunModel(None, factors), [mode])
    for iteration in range(_MAX_SWEEPS):
        last_loss = updates.loss
        loss = updates.update(iteration)
        if not last_loss - loss > _TOLERANCE * abs(loss):  # also if it rises
            break
    return factors[mode] * invert_positive(scale, 0)


def _drop_impossible(x: FlycooTensor, factors: Sequence[Array]) -> FlycooTensor:
    """Leave out counts where all components of the other factors are zero: no row explains them."""
    coords, values = x._sorted_nonzeros()
    is_possible = evaluate_model(coords, None, factors) > 0
    if is_possible.all():
        return x
    return x._rebuild(coords[:, is_possible], values[is_possible])

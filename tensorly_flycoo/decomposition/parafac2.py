"""PARAFAC2 of sparse slices, which may have different numbers of rows."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import Parafac2Tensor

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_rank, warn
from ..base.reporting import span
from ..engines.row_rules import Operator
from ..engines.tall import qr, solve, sum_columns
from ..format.primitives import LeadingPairs
from ..io.checkpoint import Resumed
from ..loop.cp_model import make_cp_tensor, multiply_grams, normalize
from ..loop.guarding import describe_as
from ..loop.hals import improve
from ..loop.initial_guess import check_svd, draw_factors, take_guess, take_left_vectors
from ..loop.line_search import LineSearch
from ..loop.projected_slices import ProjectedSlices, absorb
from ..loop.run import Callback, Run, RunModel, Sweep, find_state
from ..loop.smoothness import Smoothness, add_differences, read_smoothness, smooth
from ..loop.starting import restore
from ..loop.stopping import Converged
from ..ops.contraction import multiply_matricized
from ..ops.ragged import RaggedTensor
from ..svd.eigen import MAX_DIRECT_SIZE, find_singular_pairs, multiply_by_gram
from ..svd.unfolding import LazyMatrix, Unfolding
from .non_negative_parafac_hals import find_constrained, spread_penalties
from .parafac import parafac
from .row_penalties import (
    RowPenalty,
    RowStrengths,
    add_ridge,
    read_row_penalties,
    update_rows,
    warn_if_zero,
)


@describe_as(parafac)
def parafac2(
    tensor_slices: Any,
    rank: int,
    n_iter_max: int = 2000,
    init: Any = "random",
    svd: str = "truncated_svd",
    normalize_factors: bool = False,
    tol: float = 1e-8,
    nn_modes: Any = None,
    random_state: Any = None,
    verbose: bool | int = False,
    return_errors: bool = False,
    n_iter_parafac: int = 5,
    linesearch: bool = True,
    mask: Any = None,
    center: bool = False,
    sparsity_coefficients: float | Sequence[float | None] | None = None,
    callback: Callback | None = None,
    smoothness: Smoothness = None,
    l1_reg: RowStrengths = None,
    group_lasso: RowStrengths = None,
) -> Any:
    r"""Decompose sparse slices that share all but one of their factors (PARAFAC2).

    .. math:: X_k \approx P_k B \, \mathrm{diag}(a_k) \, C^T, \quad P_k^T P_k = I

    The projected slices :math:`P_k^T X_k`, a dense tensor in TensorLy, are not formed. With
    `l1_reg` or `group_lasso` it minimises

    .. math:: \tfrac12 \sum_k \|X_k - P_k B \, \mathrm{diag}(a_k) \, C^T\|^2 + p(A) + \|B\|^2 + q(C)

    where a penalty of A or C that is not given is :math:`\|A\|^2` or :math:`\|C\|^2`.

    Parameters
    ----------
    tensor_slices : RaggedTensor, sequence of sparse matrix, or tensor of three modes
        Slices (I_k, J) of SciPy, `sparse.COO` or FlycooTensor; a tensor (K, I, J) is K of them.
    rank : int
        R, the number of components, at most J.
    init : {"random", "svd", CPTensor, Parafac2Tensor, ResumedCP}
        The initial guess, in the dtype of the slices, or a checkpoint. "svd"
        takes the leading right singular vectors of all slices, centred if they are.
    nn_modes : "all" or sequence of int, optional
        Modes whose factors are non-negative, by HALS. That of mode 1 is B, not :math:`P_k B`.
    n_iter_parafac : int
        Updates of the factors for each update of the projections.
    linesearch : bool
        Whether to use Bro's line search, which extrapolates every other iteration.
    mask : sequence of sparse.COO or array, or one of three modes, optional
        One for each slice (I_k, J), as for `parafac`; its size may be 1 in a mode. Missing entries
        begin as the mean of their slice, and are imputed from the model after each iteration.
    center : bool
        Whether to decompose the slices less the mean of each column over the rows of all slices,
        zeros included, without forming that dense difference.
    sparsity_coefficients : float or sequence of float, optional
        Weights of a penalty on the sum of each factor's elements, in the modes of `nn_modes`. Pass
        ``normalize_factors=True`` too: without it the penalised factors only shrink, and B grows. A
        penalty turns off `linesearch`, which compares errors alone.
    smoothness : dict of int to float, optional
        As for `parafac`, in modes 0 and 2 (rows are in projections); turns off `linesearch` too.
    l1_reg, group_lasso : dict of int to float, optional
        Strengths of penalties of A (mode 0) or C (mode 2), one for a mode: the sum of the absolute
        values of the factor's elements, or of the norms of its rows, so that whole slices or
        columns drop out. B has no other than its ridge, since :math:`P_k B` has the same norm, but
        not the same zeros. They turn off `linesearch`. Non-negative modes may have `l1_reg`.

    Returns
    -------
    Parafac2Tensor
        Weights (R,), factors A (K, R), B (R, R) and C (J, R), and a projection (I_k, R) for each
        slice, in the dtype and on the device of the slices.
    errors : list of float
        The relative error after each iteration that makes no line search; only with
        `return_errors`.

    Raises
    ------
    DensifyError
        If a mask stores what is observed, or `svd` is any other method.
    TypeError
        If `rank` is no integer, a slice is not sparse, or `init` or a mask is of the wrong type.
    ValueError
        If `rank` is below 1 or above J, `RaggedTensor` refuses the slices, they have no nonzeros or
        centring or a mask leaves none, `init`, `nn_modes` or a mask does not fit, `center` comes
        with a mask, `sparsity_coefficients` are not one for each mode or no mode is non-negative
        for them, `smoothness` is negative or of mode 1, or `linesearch` is to resume a checkpoint;
        if a strength of `l1_reg` or `group_lasso` is negative or of mode 1, a mode has both, one of
        them comes with `normalize_factors`, `sparsity_coefficients` or `smoothness`, or
        `group_lasso` is of a non-negative mode.

    Warns
    -----
    UserWarning
        If the model is all zeros: a penalty was too strong.

    Notes
    -----
    An iteration takes ``2 * n_iter_parafac`` products of all slices, as one sparse matrix, and a
    dense one: ``nnz * R`` operations each. The workspace is four matrices (sum of I_k, R), with
    `linesearch` seven. Slices with the same number of rows are multiplied together.

    Projections are orthonormal to rounding. A slice with too few dimensions for them (singular
    values below about 1e-7 of the largest, 8e-6 in float32; also where a non-negative A has zeros)
    gets fixed directions in addition, where TensorLy's come from LAPACK: results may then differ.
    Bits are the same in every run on one machine.

    With `l1_reg` or `group_lasso` all rows of a factor take ten steps of ADMM in one pass, as those
    of `constrained_parafac` do, and the objective never rises by more than rounding.

    References
    ----------
    Kiers, ten Berge and Bro, "PARAFAC2 - Part I. A direct fitting algorithm for the PARAFAC2
    model", Journal of Chemometrics 13, 1999. Perros et al., "SPARTan: Scalable PARAFAC2 for Large &
    Sparse Data", KDD 2017, does not form projected slices either.

    Examples
    --------
    >>> import scipy.sparse
    >>> from tensorly_flycoo.decomposition import parafac2
    >>> slices = [scipy.sparse.random_array((n, 10), density=0.5, rng=n) for n in (8, 9, 12)]
    >>> [projection.shape for projection in parafac2(slices, 2, n_iter_max=5).projections]
    [(8, 2), (9, 2), (12, 2)]

    A penalty of columns drops those of which no component needs much:

    >>> model = parafac2(slices, 2, n_iter_max=50, random_state=0, group_lasso={2: 2.0})
    >>> 0 < int((model.factors[2] == 0).all(axis=1).sum()) < 10
    True
    """
    # Check the options, and take the data.
    num_components = check_rank(rank)
    slices: RaggedTensor = tensor_slices
    num_columns = slices.shape[2]
    if num_components > num_columns:
        raise ValueError(f"rank is {rank}, expected at most {num_columns}, the number of columns")
    if isinstance(init, Resumed) and linesearch:
        raise ValueError("linesearch= cannot resume a checkpoint: start anew, or pass False")
    if center and mask is not None:
        raise ValueError("center is True, expected False with a mask: columns have unknown means")
    data = ProjectedSlices(slices, num_components, center, mask)
    if data.nnz == 0:
        raise ValueError("tensor_slices have no nonzeros, expected at least one that is observed")
    strengths = read_smoothness(smoothness, 3)
    if strengths[1]:
        raise ValueError(f"smoothness is {smoothness!r}, expected modes 0 or 2, not rows of slices")
    constrained = _find_non_negative(nn_modes, sparsity_coefficients)
    row_options = {"l1_reg": l1_reg, "group_lasso": group_lasso}
    row_penalties = _read_row_penalties(row_options, constrained)
    has_row_penalties = any(row_penalties)
    if has_row_penalties:
        _refuse_beside_row_penalties(
            normalize_factors=normalize_factors,
            sparsity_coefficients=sparsity_coefficients,
            smoothness=smoothness,
        )

    # Begin.
    with span("start"):
        model = _start(data, num_components, init, svd, random_state)
    # The line search compares errors alone, not what penalties add to them.
    is_penalised = sparsity_coefficients is not None or any(strengths) or has_row_penalties
    search = None
    if linesearch and not is_penalised:
        search = LineSearch(verbose)
    sweep = Parafac2Sweep(
        data=data,
        slices=slices,
        model=model,
        n_iter_parafac=n_iter_parafac,
        constrained=constrained,
        penalties=spread_penalties(sparsity_coefficients, 3, constrained),
        smoothness=strengths,
        row_penalties=row_penalties,
        normalize_factors=normalize_factors,
        search=search,
        state=find_state(init),
    )
    result = Run(
        sweep=sweep,
        tensor=data,
        n_iter_max=n_iter_max,
        stop=Converged(tol),
        callback=callback,
        verbose=int(verbose),
        return_errors=return_errors,
        finish=sweep.make_result,
    ).iterate()
    if has_row_penalties:
        warn_if_zero("parafac2", model.factors[2], row_options)
    return result


def _find_non_negative(nn_modes: Any, sparsity_coefficients: Any) -> set[int]:
    """Return the numbers of the non-negative modes; refuse penalties without any."""
    constrained = find_constrained(nn_modes, range(3))
    if sparsity_coefficients is not None and not constrained:
        raise ValueError("sparsity_coefficients is given, expected non-negative modes: nn_modes=")
    if 1 in constrained:
        warn("nn_modes has mode 1: B will be non-negative, but not P_k B")
    return constrained


def _read_row_penalties(
    options: Mapping[str, Any], constrained: set[int]
) -> list[RowPenalty | None]:
    """Return the penalty of the rows of each mode; refuse one of B, or that no solver has."""
    penalties = read_row_penalties(options, 3)
    given = {name: strength for name, strength in options.items() if strength is not None}
    if penalties[1] is not None:
        raise ValueError(
            f"{given} has mode 1, expected modes 0 or 2, as in l1_reg={{2: 0.1}}: slices have the "
            "factors P_k B, and zeros of B are none of theirs"
        )
    for mode in constrained:
        penalty = penalties[mode]
        if penalty is not None and penalty.operator is not Operator.L1:
            raise ValueError(
                f"group_lasso has mode {mode} of nn_modes, expected modes that may be negative: "
                "pass l1_reg for it, or leave it out of nn_modes"
            )
    return penalties


def _refuse_beside_row_penalties(**options: Any) -> None:
    """Refuse what would change an objective with penalties of rows, or penalise in other ways."""
    for name, option in options.items():
        if option is not None and option is not False:
            raise ValueError(
                f"{name} is {option!r}, expected its default with l1_reg or group_lasso, whose "
                "objective has no place for it: leave one of them out"
            )


def _start(data: Any, rank: int, init: Any, svd: str, random_state: Any) -> RunModel:
    """Make the initial guess that TensorLy makes, or restore a checkpoint."""
    matrix = data.matrix
    dtype = matrix.dtype
    if isinstance(init, Resumed):
        return restore(init, data, rank, "parafac2", dtype)
    engine = data._engine
    random = tl.check_random_state(random_state)
    if isinstance(init, str) and init == "random":
        # TensorLy begins with random projections, which it does not use.
        engine.draw_uniform(random, (data.num_rows, rank), dtype)
        return RunModel(None, draw_factors(data, rank, random))
    if isinstance(init, str) and init == "svd":
        check_svd(svd, "init='svd'", matrix.shape)
        unfolding: LazyMatrix = Unfolding(matrix, 1)
        if data.is_centred:
            unfolding = _CentredColumns(data)
        a = engine.xp.ones((data.shape[0], rank), dtype)
        b = engine.xp.eye(rank, dtype=dtype)
        return RunModel(None, [a, b, take_left_vectors(matrix, unfolding, rank, svd, random)])
    if not isinstance(init, str):
        init = _read_guess(init)
    return RunModel(None, take_guess(data, rank, init))


def _read_guess(init: Any) -> tuple[Any, list[Array]]:
    """Return the weights and A, B, C of a user's CPTensor or Parafac2Tensor."""
    if len(init[1]) != 3:
        raise ValueError(f"init has {len(init[1])} factors, expected 3: those of a model")
    a, b, c = init[1]
    if len(init) == 2:  # a CPTensor, whose second factor is P B, of any slice
        b = qr(b)[1]
    return init[0], [a, b, c]


class _CentredColumns(LazyMatrix):
    """The transpose (J, rows) of all slices less the means of their columns."""

    shape: tuple[int, int]
    mode = 1

    def __init__(self, data: ProjectedSlices) -> None:
        self._data = data
        self.tensor = data.matrix
        self.dtype = data.dtype
        self.shape = (data.matrix.shape[1], data.matrix.shape[0])

    def multiply(self, block: Array) -> Array:
        rows = self._data.center_columns((block * self._data.is_row).astype(self.dtype, order="C"))
        return multiply_matricized(self.tensor, 1, (0,), rows).astype(np.float64)

    def multiply_transposed(self, block: Array) -> Array:
        rows = multiply_matricized(self.tensor, 0, (1,), block.astype(self.dtype, order="C"))
        return self._data.center_columns(rows).astype(np.float64)

    def is_gram_cheap(self, rank: int) -> bool:
        return min(self.shape) <= MAX_DIRECT_SIZE

    def gram(self, of_rows: bool) -> Array:
        return multiply_by_gram(self, self._data.xp.eye(min(self.shape)), of_rows)

    def _find_leading_pairs(self, rank: int) -> LeadingPairs:
        vectors, values = find_singular_pairs(self, rank, self._data.xp)
        values = values[values > 0]
        return LeadingPairs(vectors[:, : values.size], values, None, np.arange(values.size))


def _balance(factors: list[Array]) -> list[Array]:
    """Even out, by powers of two, scales that singular systems leave open, lest they overflow."""
    xp = array_module(factors[0])
    stacked = xp.stack([sum_columns(abs(factor)) for factor in factors])
    sums = move(stacked, np).astype(np.float64)  # (3, R)
    # A component with a column of zeros has no scale to share.
    is_nonzero = np.all(sums > 0, axis=0)
    _, exponents = np.frexp(np.where(is_nonzero, sums, 1.0))
    is_far = np.ptp(exponents, axis=0) > np.finfo(factors[0].dtype).maxexp // 8
    means = exponents.sum(axis=0) // 3
    shifts = np.where(is_far, means - exponents, 0)
    shifts[1] -= shifts.sum(axis=0)  # so that the product stays
    if not shifts.any():
        return factors
    return [xp.ldexp(f, xp.asarray(shift)) for f, shift in zip(factors, shifts, strict=True)]


@final
class Parafac2Sweep(Sweep):
    """One iteration: new projections, then factors, which Bro's line search may extrapolate."""

    solver = "parafac2"

    def __init__(
        self,
        *,
        data: ProjectedSlices,
        slices: RaggedTensor,
        model: RunModel,
        n_iter_parafac: int,
        constrained: set[int],  # the non-negative modes
        penalties: list[float | None],  # of each mode, on the sum of the factor's elements
        smoothness: list[float],  # of each mode
        row_penalties: list[RowPenalty | None],  # of each mode; with any, other modes have a ridge
        normalize_factors: bool,
        search: LineSearch | None,
        state: Mapping[str, np.ndarray],  # of a checkpoint; else empty
    ) -> None:
        self.model = model
        self._data = data
        self._slices = slices
        self._n_iter_parafac = n_iter_parafac
        self._constrained = constrained
        self._penalties = penalties
        self._smoothness = smoothness
        self._row_penalties = row_penalties
        self._has_row_penalties = any(row_penalties)
        self._normalize_factors = normalize_factors
        self._search = search
        if "imputed" in state:
            data.values = data.xp.asarray(state["imputed"])

    def update(self, iteration: int) -> float | None:
        """Update the model and return its error, None after a line search."""
        data = self._data
        model = self.model
        before = absorb(model.weights, model.factors)
        data.project(before)
        factors = self._update_factors(before)
        is_searched = self._search is not None and self._search.is_due(iteration)
        if self._search is not None and is_searched:
            factors = self._extrapolate(self._search, iteration, before, factors)
        model.weights = None
        if self._normalize_factors:
            # Here, since the error is that of these factors.
            model.weights, factors = normalize(None, factors)
        model.factors[:] = factors
        error = None
        if not is_searched:
            error = data.measure(absorb(model.weights, model.factors))
        data.impute(absorb(model.weights, model.factors))
        return error

    def _update_factors(self, factors: Sequence[Array]) -> list[Array]:
        """Update each factor, `n_iter_parafac` times."""
        updated = list(factors)
        for mode in self._n_iter_parafac * (0, 1, 2):
            product = self._data.mttkrp(None, updated, mode)
            longer = add_differences(updated, self._smoothness, mode)
            gram = multiply_grams(None, longer, skip=mode)
            updated[mode] = self._update_factor(updated[mode], product, gram, mode)
            if not self._has_row_penalties:  # which a change of scales would change
                # At once: where a column is zero but for rounding, the next one may overflow.
                updated = _balance(updated)
        return updated

    def _update_factor(self, factor: Array, product: Array, gram: Array, mode: int) -> Array:
        """Return a factor updated by least squares, one sweep of HALS, or steps of ADMM."""
        strength = self._smoothness[mode]
        row_penalty = self._row_penalties[mode]
        if self._has_row_penalties and row_penalty is None:
            gram = add_ridge(gram)
        if mode in self._constrained:
            sparsity = self._penalties[mode]
            if row_penalty is not None:
                sparsity = row_penalty.strength
            return improve(product, gram, factor, sparsity, smoothness=strength)
        if row_penalty is not None:
            return update_rows(row_penalty, factor, product, gram)
        return solve(gram, smooth(product, strength).T).T

    def _extrapolate(
        self, search: LineSearch, iteration: int, before: list[Array], after: list[Array]
    ) -> list[Array]:
        """Return extrapolated factors, and replace the last error, if they lower it; else `after`.

        To measure them changes the projections of the data: they are restored if it was in vain.
        """
        state = vars(self._data).copy()
        errors = self.model.errors
        factors, measured = search.extrapolate(
            iteration, before, after, errors[-1], self._measure_further
        )
        if measured is None:
            vars(self._data).update(state)
        else:
            (errors[-1],) = measured
        return factors

    def _measure_further(self, factors: list[Array]) -> tuple[float]:
        """Return the error of extrapolated factors, without the negative elements of A and C."""
        for mode in self._constrained & {0, 2}:
            factors[mode] = factors[mode].clip(0)
        return (self._data.fit(None, factors),)

    def save_state(self) -> dict[str, Array]:
        if self._data.values is None:
            return {}
        return {"imputed": self._data.values}

    def measure_start(self) -> float:
        return self._data.fit(self.model.weights, self.model.factors)

    def make(self) -> CPTensor:
        return make_cp_tensor(self.model.weights, self.model.factors)

    def make_result(self) -> Parafac2Tensor:
        """Make the model with its projections."""
        if self._data.projections is None:  # there was no iteration
            self.measure_start()
        projections: Any = self._data.projections
        slices = self._slices
        bounds = list(zip(slices.starts.tolist(), slices.row_counts.tolist(), strict=True))
        cp_tensor = self.make()
        result = Parafac2Tensor.__new__(Parafac2Tensor)  # its check takes long for many projections
        result.weights = cp_tensor.weights
        result.factors = cp_tensor.factors
        result.rank = self._data.shape[1]
        result.projections = [projections[start : start + size] for start, size in bounds]
        result.shape = tuple((size, slices.shape[2]) for _, size in bounds)
        return result

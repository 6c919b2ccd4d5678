"""PARAFAC2 of sparse slices, which may have different numbers of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorly as tl
from tensorly.parafac2_tensor import Parafac2Tensor

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_rank, warn
from ..base.reporting import span
from ..engines.tall import qr, solve, sum_columns
from ..format.primitives import LeadingPairs
from ..io.checkpoint import Resumed
from ..loop.cp_loop import Callback, Model, Run, restore
from ..loop.cp_model import multiply_grams, normalize
from ..loop.guarding import describe_as
from ..loop.hals import improve
from ..loop.initial_guess import check_svd, draw_factors, take_guess, take_left_vectors
from ..loop.projected_slices import ProjectedSlices, absorb
from ..loop.smoothness import Smoothness, add_differences, read_smoothness, smooth
from ..ops.contraction import multiply_matricized
from ..ops.ragged import RaggedTensor
from ..svd.eigen import MAX_DIRECT_SIZE, find_singular_pairs, multiply_by_gram
from ..svd.unfolding import LazyMatrix, Unfolding
from .non_negative_parafac_hals import find_constrained, spread_penalties
from .parafac import LineSearch, parafac


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
) -> Any:
    r"""Decompose sparse slices that share all but one of their factors (PARAFAC2).

    .. math:: X_k \approx P_k B \, \mathrm{diag}(a_k) \, C^T, \quad P_k^T P_k = I

    The projected slices :math:`P_k^T X_k`, a dense tensor in TensorLy, are not formed.

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
        for them, `smoothness` is negative or of mode 1, or `linesearch` is to resume a checkpoint.

    Notes
    -----
    An iteration takes ``2 * n_iter_parafac`` products of all slices, as one sparse matrix, and a
    dense one: ``nnz * R`` operations each. The workspace is four matrices (sum of I_k, R), with
    `linesearch` seven. Slices with the same number of rows are multiplied together.

    Projections are orthonormal to rounding. A slice with too few dimensions for them (singular
    values below about 1e-7 of the largest, 8e-6 in float32; also where a non-negative A has zeros)
    gets fixed directions in addition, where TensorLy's come from LAPACK: results may then differ.
    Bits are the same in every run on one machine.

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
    """
    rank = check_rank(rank)
    x: RaggedTensor = tensor_slices
    if rank > x.shape[2]:
        raise ValueError(f"rank is {rank}, expected at most {x.shape[2]}, the number of columns")
    if isinstance(init, Resumed) and linesearch:
        raise ValueError("linesearch= cannot resume a checkpoint: start anew, or pass False")
    if center and mask is not None:
        raise ValueError("center is True, expected False with a mask: columns have unknown means")
    data: Any = ProjectedSlices(x, rank, center, mask)
    if data.nnz == 0:
        raise ValueError("tensor_slices have no nonzeros, expected at least one that is observed")
    strengths = read_smoothness(smoothness, 3)
    if strengths[1]:
        raise ValueError(f"smoothness is {smoothness!r}, expected modes 0 or 2, not rows of slices")
    with span("start"):
        model = _start(data, rank, init, svd, random_state)
    constrained = find_constrained(nn_modes, range(3))
    if sparsity_coefficients is not None and not constrained:
        raise ValueError("sparsity_coefficients is given, expected non-negative modes: nn_modes=")
    if 1 in constrained:
        warn("nn_modes has mode 1: B will be non-negative, but not P_k B")
    penalties = spread_penalties(sparsity_coefficients, 3, constrained)
    is_penalised = sparsity_coefficients is not None or any(strengths)
    search = LineSearch(verbose) if linesearch and not is_penalised else None
    return _Alternation(
        data,
        x,
        n_iter_parafac,
        constrained,
        penalties,
        strengths,
        search,
        tensor=data,
        model=model,
        n_iter_max=n_iter_max,
        init=init,
        callback=callback,
        tol=tol,
        verbose=int(verbose),
        normalize_factors=normalize_factors,
        return_errors=return_errors,
    ).iterate()


def _start(data: Any, rank: int, init: Any, svd: str, random_state: Any) -> Model:
    """Make the initial guess that TensorLy makes, or restore a checkpoint."""
    matrix = data.matrix
    engine = data._engine
    if isinstance(init, Resumed):
        return restore(init, data, rank, "parafac2", matrix.dtype)
    random = tl.check_random_state(random_state)
    xp = engine.xp
    dtype = matrix.dtype
    if isinstance(init, str) and init == "random":
        # TensorLy begins with random projections, which it does not use.
        engine.draw_uniform(random, (data.num_rows, rank), dtype)
        return None, draw_factors(data, rank, random)
    if isinstance(init, str) and init == "svd":
        check_svd(svd, "init='svd'", matrix.shape)
        unfolding = _CentredColumns(data) if data.is_centred else Unfolding(matrix, 1)
        columns = take_left_vectors(matrix, unfolding, rank, svd, random)
        return None, [xp.ones((data.shape[0], rank), dtype), xp.eye(rank, dtype=dtype), columns]
    if not isinstance(init, str):
        if len(init[1]) != 3:
            raise ValueError(f"init has {len(init[1])} factors, expected 3: those of a model")
        a, b, c = init[1]
        # The second factor of a CPTensor is P B, of any slice.
        init = (init[0], [a, qr(b)[1] if len(init) == 2 else b, c])
    return None, take_guess(data, rank, init)


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
    sums = move(xp.stack([sum_columns(abs(factor)) for factor in factors]), np).astype(np.float64)
    exponents = np.frexp(np.where(np.all(sums > 0, axis=0), sums, 1.0))[1]
    is_far = np.ptp(exponents, axis=0) > np.finfo(factors[0].dtype).maxexp // 8
    shifts = np.where(is_far, exponents.sum(axis=0) // 3 - exponents, 0)
    shifts[1] -= shifts.sum(axis=0)
    if not shifts.any():
        return factors
    return [xp.ldexp(f, xp.asarray(shift)) for f, shift in zip(factors, shifts, strict=True)]


@dataclass
class _Alternation(Run):
    """One iteration: new projections, then factors, which Bro's line search may extrapolate."""

    solver = "parafac2"
    data: ProjectedSlices
    slices: RaggedTensor
    n_iter_parafac: int
    constrained: set[int]
    penalties: list[float | None]
    smoothness: list[float]
    search: LineSearch | None

    def update(self, iteration: int) -> float | None:
        """Update the model and return its error, None after a line search."""
        data = self.data
        before = absorb(self.weights, self.factors)
        error = None
        data.project(before)
        factors = self._update(before)
        is_search = self.search is not None and self.search.is_due(iteration)
        if self.search is not None and is_search:
            state = vars(data).copy()
            arguments = (iteration, before, factors, self.errors[-1])
            factors, found = self.search.extrapolate(*arguments, self._measure_further)
            if found is None:
                vars(data).update(state)
            else:
                (self.errors[-1],) = found
        self.weights = None
        if self.normalize_factors:
            self.weights, factors = normalize(None, factors)
        self.factors[:] = factors
        if not is_search:
            error = data.measure(absorb(self.weights, self.factors))
        data.impute(absorb(self.weights, self.factors))
        return error

    def _update(self, factors: list[Array]) -> list[Array]:
        """Update each factor by least squares, or one sweep of HALS, `n_iter_parafac` times."""
        factors = list(factors)
        for mode in self.n_iter_parafac * (0, 1, 2):
            product = self.data.mttkrp(None, factors, mode)
            gram = multiply_grams(None, add_differences(factors, self.smoothness, mode), skip=mode)
            strength = self.smoothness[mode]
            penalty = self.penalties[mode]
            if mode in self.constrained:
                factors[mode] = improve(product, gram, factors[mode], penalty, smoothness=strength)
            else:
                factors[mode] = solve(gram, smooth(product, strength).T).T
            # At once: where a column is zero but for rounding, the next one may overflow.
            factors = _balance(factors)
        return factors

    def _measure_further(self, factors: list[Array]) -> tuple[float]:
        for mode in self.constrained & {0, 2}:
            factors[mode] = factors[mode].clip(0)
        return (self.data.fit(None, factors),)

    def prepare(self) -> None:
        if "imputed" in self.state:
            self.data.values = self.data.xp.asarray(self.state["imputed"])

    def save_state(self) -> dict[str, Array]:
        return {} if self.data.values is None else {"imputed": self.data.values}

    def measure_start(self) -> float:
        return self.data.fit(self.weights, self.factors)

    def normalize(self) -> None:
        """Do nothing: `update` has normalised the factors before it measured them."""

    def finish(self) -> Parafac2Tensor:
        if self.data.projections is None:  # there was no iteration
            self.measure_start()
        x = self.slices
        rank = self.data.shape[1]
        cp_tensor = self.make()
        result = Parafac2Tensor.__new__(Parafac2Tensor)  # its check takes long for many projections
        result.weights = cp_tensor.weights
        result.factors = cp_tensor.factors
        result.rank = rank
        bounds = list(zip(x.starts.tolist(), x.row_counts.tolist(), strict=True))
        projections: Any = self.data.projections
        result.projections = [projections[start : start + size] for start, size in bounds]
        result.shape = tuple((size, x.shape[2]) for _, size in bounds)
        return result

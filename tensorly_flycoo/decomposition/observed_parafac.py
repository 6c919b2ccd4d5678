"""Sparse tensor completion: a CP model fitted only to the stored entries of a tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import tensorly as tl

from ..array_modules import Array, array_module
from ..checks import check_rank
from ..io.checkpoint import Resumed
from ..ops.cp_entries import choose_block_size, evaluate_model
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .cp_loop import iterate
from .cp_model import make_cp_tensor
from .guarding import guard
from .initial_guess import draw_factors, take_guess
from .resuming import Callback, restore
from .stopping import has_converged

if TYPE_CHECKING:
    from sparse import SparseArray


@guard
def observed_parafac(
    tensor: "FlycooTensor | SparseArray",
    rank: int,
    n_iter_max: int = 100,
    init: Any = "random",
    tol: float = 1e-8,
    random_state: Any = None,
    l2_reg: float = 1e-6,
    return_errors: bool = False,
    callback: Callback | None = None,
) -> Any:
    r"""Fit a CP decomposition to the stored nonzeros only; all other entries are unknown.

    .. math:: \min \sum_k (v_k - \sum_r \prod_n F_n[c_{n,k}, r])^2 + \lambda \sum_n |F_n|^2

    over the nonzeros :math:`v_k` of `tensor`; TensorLy's `parafac` sums over all cells. Alternating
    least squares solves a system of R equations for each row of a factor.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
        With two modes or more. Zeros are not stored, so a zero cannot be observed: if your data
        have any, subtract the mean of the values first.
    rank : int
        R, the number of components.
    n_iter_max : int
    init : {"random", CPTensor, (weights, factors), ResumedCP}
        "random" gives the guess of TensorLy's `parafac` for the same `random_state`. Arrays must
        have the dtype and device of `tensor`; weights may be None. Or a checkpoint to resume
        (`Progress.resume`).
    tol : float
        Stop when the error changes by less; 0 never stops.
    random_state : int or numpy.random.RandomState, optional
    l2_reg : float
        The ridge :math:`\lambda`, above 0. It makes rows with fewer than R nonzeros unique.
    return_errors : bool
    callback : callable, optional
        Called with the CPTensor, in float64, and its error before the first and after each
        iteration; returns True to stop. For example a `Progress`.

    Returns
    -------
    CPTensor
        Weights of ones and factors (I_n, R) in the dtype and on the device of `tensor`. Rows
        without a nonzero are zero.
    errors : list of float
        After each iteration, the norm of the residual at the nonzeros relative to the norm of
        `tensor`; only with `return_errors`.

    Raises
    ------
    TypeError
        If `tensor` is not sparse, or `rank`, `l2_reg` or an array of `init` has the wrong type.
    ValueError
        If `tensor` has one mode or no nonzeros, `rank` is below 1, `l2_reg` is not above 0, `init`
        is unknown or its shapes do not match, or a checkpoint is of another tensor or
        decomposition.

    Notes
    -----
    An iteration takes ``nnz * ndim * R**2`` operations and solves, for each row, a system of R
    equations, or of as many as the row has nonzeros if that is fewer. It computes in float64,
    whatever the dtype. The workspace holds the nonzeros with coordinates of 8 bytes, a permutation
    of them for each mode, and blocks of rows of a fixed size.

    The result is a local minimum. The random guess is non-negative: for values of both signs, try
    several `random_state` and a larger `l2_reg`, and compare the predictions of held-out nonzeros.

    The order of additions is fixed: results are the same in every run on one machine, but the last
    bits can change with the number of threads of the BLAS.

    References
    ----------
    Tomasi and Bro, "PARAFAC and missing values", Chemometrics and Intelligent Laboratory Systems
    75, 2005. Zhou, Wilkinson, Schreiber and Pan, "Large-scale Parallel Collaborative Filtering for
    the Netflix Prize", AAIM 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, observed_parafac
    >>> random = np.random.RandomState(0)
    >>> factors = [random.random_sample((20, 2)) for _ in range(3)]
    >>> coords = random.randint(0, 20, (3, 1000))
    >>> coords = np.unique(coords, axis=1)  # an eighth of the 8000 entries
    >>> values = np.prod([f[c] for f, c in zip(factors, coords)], axis=0).sum(axis=1)
    >>> x = FlycooTensor(coords, values, (20, 20, 20))
    >>> cp_tensor = observed_parafac(x, rank=2, random_state=0)
    >>> whole = np.einsum("ir,jr,kr->ijk", *factors)
    >>> found = np.einsum("ir,jr,kr->ijk", *cp_tensor.factors)
    >>> bool(np.linalg.norm(found - whole) < 0.01 * np.linalg.norm(whole))
    True
    """
    x, rank = as_flycoo(tensor, check_coords=True), check_rank(rank)
    _check_problem(x, l2_reg)
    factors = _start(x, rank, init, random_state)
    coords, values = x._sorted_nonzeros()
    values = values.astype(np.float64)
    plans = [_RowPlan.of(rows, size) for rows, size in zip(coords, x.shape, strict=True)]
    norm = np.linalg.norm(values)
    wants_errors = tol or return_errors or callback is not None

    def update(
        iteration: int, weights: None, factors: list[Array], errors: list[float]
    ) -> tuple[None, list[Array], None]:
        for mode, plan in enumerate(plans):
            factors[mode] = _fit_rows(coords, values, factors, mode, plan, l2_reg)
        return None, factors, None

    def measure(factors: list[Array]) -> float:
        residual = evaluate_model(coords, None, factors) - values
        return float(np.linalg.norm(residual) / norm)

    cp_tensor, errors = iterate(
        (None, factors), update, lambda _, factors, __: measure(factors) if wants_errors else None,
        solver="observed_parafac", tensor=x, n_iter_max=n_iter_max, init=init,
        is_over=lambda errors: has_converged(errors, tol, "abs_rec_error"), callback=callback,
        start_error=lambda: measure(factors),
    )  # fmt: skip
    cp_tensor = make_cp_tensor(None, [factor.astype(x.dtype) for factor in cp_tensor.factors])
    return (cp_tensor, errors) if return_errors else cp_tensor


def _start(x: FlycooTensor, rank: int, init: Any, random_state: Any) -> list[Array]:
    """Return the factors of the initial guess, or of the checkpoint in `init`, in float64."""
    if isinstance(init, Resumed):
        return restore(init, x, rank, "observed_parafac", np.dtype(np.float64))[1]
    random = tl.check_random_state(random_state)
    is_random = isinstance(init, str) and init == "random"
    guess = draw_factors(x, rank, random) if is_random else take_guess(x, rank, init)
    return [factor.astype(np.float64) for factor in guess]


def _check_problem(x: FlycooTensor, l2_reg: float) -> None:
    if x.ndim < 2:
        raise ValueError(f"tensor has shape {x.shape}, expected two modes or more")
    if x.nnz == 0:
        raise ValueError("tensor has no nonzeros, expected some: nothing is observed")
    if not isinstance(l2_reg, Real):
        raise TypeError(f"l2_reg is {l2_reg!r}, expected a number above 0")
    if not 0 < l2_reg < np.inf:
        raise ValueError(f"l2_reg is {l2_reg}, expected a number above 0")


@dataclass(frozen=True)
class _RowPlan:
    """The nonzeros grouped by their row of one mode, and the rows by their number of nonzeros.

    Attributes
    ----------
    order : integer array (nnz,)
        The positions of the nonzeros, row by row.
    starts, ends : integer array (I,)
        Where in `order` the nonzeros of each row begin and end.
    classes : list of (int, integer array)
        Pairs of a width, a power of two, and the rows with at most that many nonzeros and more than
        half as many.
    """

    order: Array
    starts: Array
    ends: Array
    classes: list[tuple[int, Array]]

    @classmethod
    def of(cls, rows: Array, size: int) -> Self:
        xp = array_module(rows)
        counts = xp.bincount(rows, minlength=size)
        widths = 2 ** np.arange(rows.size.bit_length() + 1)
        numbers = xp.searchsorted(xp.asarray(widths), counts)
        members = [xp.flatnonzero((numbers == n) & (counts > 0)) for n in range(widths.size)]
        classes = [(int(w), ids) for w, ids in zip(widths, members, strict=True) if ids.size]
        ends = xp.cumsum(counts)
        return cls(xp.argsort(rows, kind="stable"), ends - counts, ends, classes)

    def list_blocks(self, rank: int) -> Iterator[tuple[int, Array]]:
        """Yield each width with blocks of its rows, limited in size."""
        for width, rows in self.classes:
            block_size = choose_block_size(rows, width * rank)
            for start in range(0, rows.size, block_size):
                yield width, rows[start : start + block_size]


def _fit_rows(
    coords: Array, values: Array, factors: list[Array], mode: int, plan: _RowPlan, l2_reg: float
) -> Array:
    """Fit each row of one factor to its nonzeros, with the other factors fixed."""
    xp, rank = array_module(values), factors[mode].shape[1]
    fitted = xp.zeros_like(factors[mode])

    def gather(rows: Array, first: int, last: int) -> tuple[Array, Array]:
        """Gather nonzeros `first` to `last` - 1 of each row, padded with zeros.

        Return their values (n, w), and the products of the other factors' rows there (n, w, R).
        """
        places = plan.starts[rows][:, None] + xp.arange(first, last)
        is_own = places < plan.ends[rows][:, None]
        places = plan.order[xp.where(is_own, places, 0)]
        products = is_own[:, :, None].astype(np.float64)
        for n, factor in enumerate(factors):
            if n != mode:
                products = products * factor[coords[n][places]]
        return xp.where(is_own, values[places], 0.0), products

    for width, rows in plan.list_blocks(rank):
        if width < rank:
            fitted[rows] = _solve_short(*gather(rows, 0, width), l2_reg)
            continue
        gram, target = l2_reg * xp.eye(rank), 0.0
        step = max(rank, choose_block_size(values, rank))
        for first in range(0, width, step):
            part, products = gather(rows, first, min(first + step, width))
            transposed = products.swapaxes(1, 2)
            gram, target = gram + transposed @ products, target + transposed @ part[:, :, None]
        fitted[rows] = np.linalg.solve(gram, target)[:, :, 0]
    return fitted


def _solve_short(targets: Array, products: Array, l2_reg: float) -> Array:
    """Solve ridge regressions with fewer equations than unknowns in their dual form."""
    transposed = products.swapaxes(1, 2)
    gram = products @ transposed + l2_reg * array_module(targets).eye(targets.shape[1])
    return (transposed @ np.linalg.solve(gram, targets[:, :, None]))[:, :, 0]

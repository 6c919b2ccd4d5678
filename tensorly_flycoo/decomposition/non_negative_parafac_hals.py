"""Non-negative CP decomposition by hierarchical alternating least squares (HALS)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..base.checks import check_choice, spread_numbers, warn
from ..engines.tall import solve
from ..loop.cp_loop import Callback, start
from ..loop.guarding import describe_as
from ..loop.hals import improve
from ..loop.momentum import NESTEROV, MomentumRun
from ..loop.ranks import find_cp_rank
from ..loop.smoothness import Smoothness, read_smoothness, smooth
from ..loop.whole_tensor import WholeTensor
from ..tensor.coo_cache import SparseData, as_flycoo
from .non_negative_parafac import non_negative_parafac
from .parafac import parafac


@describe_as(parafac, non_negative_parafac)
def non_negative_parafac_hals(
    tensor: SparseData,
    rank: int | str,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: str = "truncated_svd",
    tol: float = 10e-8,
    random_state: Any = None,
    sparsity_coefficients: float | Sequence[float | None] | None = None,
    fixed_modes: Sequence[int] | None = None,
    nn_modes: str | Iterable[int] | None = "all",
    exact: bool = False,
    normalize_factors: bool = False,
    verbose: bool = False,
    return_errors: bool = False,
    cvg_criterion: str = "abs_rec_error",
    callback: Callback | None = None,
    linesearch: bool | str = False,
    smoothness: Smoothness = None,
) -> Any:
    """Decompose a sparse tensor into non-negative CP factors by HALS.

    A kernel updates each factor column by column, many rows in parallel. Any backend of TensorLy
    will do.

    Parameters
    ----------
    sparsity_coefficients : float or sequence of float, optional
        Weights of a penalty on the sum of each factor's elements.
    fixed_modes : sequence of int, optional
        Modes whose factors keep their initial values.
    nn_modes : "all", iterable of int, or None
        The modes whose factors are non-negative; the others are solved by least squares.
    exact : bool
        Whether to sweep over a factor until it stops changing, instead of at most five times.
    linesearch : False or "nesterov"
        "nesterov": Nesterov's momentum as in `parafac`, where non-negative factors that would be
        negative become zero. Only for sparse tensors.

    Returns
    -------
    CPTensor, errors
        As of `non_negative_parafac`.

    Raises
    ------
    DensifyError, TypeError
        As of `non_negative_parafac`.
    ValueError
        So too, and if `nn_modes`, `sparsity_coefficients`, `linesearch` or `smoothness` is unknown
        or does not fit.

    Notes
    -----
    One MTTKRP per mode and iteration, and ``4 * I_n * R**2`` operations per sweep; those of smooth
    modes, column by column, on the host. Results are bitwise the same in every run on one machine.

    References
    ----------
    Gillis and Glineur, "Accelerated Multiplicative Updates and Hierarchical ALS Algorithms for
    Nonnegative Matrix Factorization", Neural Computation 24, 2012. Ang, Cohen, Gillis and Hien,
    "Accelerating block coordinate descent for nonnegative tensor factorization", Numerical Linear
    Algebra with Applications 28, 2021, doi 10.1002/nla.2373 (other extrapolations of HALS).

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> cp_tensor = non_negative_parafac_hals(x, 3, init="random", random_state=0, n_iter_max=5)
    >>> all((factor >= 0).all() for factor in cp_tensor.factors)
    True
    """
    x = as_flycoo(tensor, check_coords=True)
    num_components = find_cp_rank(x, rank)
    constrained = find_constrained(nn_modes, range(x.ndim))
    check_choice(linesearch, "linesearch", (False, NESTEROV))
    penalties = spread_penalties(sparsity_coefficients, x.ndim, constrained)
    strengths = read_smoothness(smoothness, x.ndim, linesearch)
    model = start(
        x,
        None,
        num_components,
        init,
        svd,
        random_state,
        solver="non_negative_parafac_hals",
        non_negative=True,
        normalize_factors=normalize_factors,
        by_blocks=True,
    )
    modes = [n for n in range(x.ndim) if n not in (fixed_modes or [])]
    return _Hals(
        WholeTensor(x),
        modes,
        constrained,
        penalties,
        exact,
        tensor=x,
        model=model,
        n_iter_max=n_iter_max,
        init=init,
        callback=callback,
        tol=tol,
        cvg_criterion=cvg_criterion,
        normalize_factors=normalize_factors,
        verbose=verbose,
        return_errors=return_errors,
        has_momentum=linesearch == NESTEROV,
        smoothness=strengths,
        wants_errors=bool(tol or linesearch) or callback is not None,
    ).iterate()


@dataclass
class _Hals(MomentumRun):
    """One sweep of HALS, or a system of equations, per mode."""

    solver = "non_negative_parafac_hals"
    constrained: set[int]
    penalties: list[float | None]
    exact: bool

    def update_factor(self, product: Array, gram: Array, mode: int) -> Array:
        if mode in self.constrained:
            factor = self.factors[mode]
            penalty = self.penalties[mode]
            return improve(product, gram, factor, penalty, self.exact, self.smoothness[mode])
        return solve(gram.T, smooth(product, self.smoothness[mode]).T).T

    def update(self, iteration: int) -> Array:
        product = super().update(iteration)
        last = len(self.factors) - 1
        return product if last in self.modes else self.data.mttkrp(self.weights, self.factors, last)

    def project(self, mode: int, factor: Array) -> Array:
        return np.maximum(factor, 0) if mode in self.constrained else factor


def find_constrained(nn_modes: Any, names: Iterable[Any]) -> set[int]:
    """Return the numbers of the non-negative modes; `names` are those of all modes."""
    numbers = {name: number for number, name in enumerate(names)}
    if isinstance(nn_modes, str) and nn_modes == "all":
        return {*numbers.values()}
    is_list = isinstance(nn_modes, Iterable) and not isinstance(nn_modes, str)
    wanted = {*nn_modes} if is_list else set()
    if not wanted <= numbers.keys() or not (is_list or nn_modes is None):
        raise ValueError(f"nn_modes is {nn_modes!r}, expected 'all', None or some of {[*numbers]}")
    return {numbers[name] for name in wanted}


def spread_penalties(
    coefficients: float | Sequence[float | None] | None, ndim: int, constrained: set[int]
) -> list[float | None]:
    """Return one sparsity coefficient per mode."""
    penalties = spread_numbers(coefficients, ndim, "sparsity_coefficients")
    is_given = isinstance(coefficients, Iterable)
    if is_given and any(penalties[n] is not None for n in range(ndim) if n not in constrained):
        warn("sparsity_coefficients are ignored in unconstrained modes")
    return penalties

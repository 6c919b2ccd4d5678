"""Non-negative CP decomposition by hierarchical alternating least squares (HALS)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ..base.array_modules import Array
from ..base.checks import check_choice, spread_numbers, warn
from ..engines.tall import solve
from ..loop.acceleration import start_momentum
from ..loop.alternating import AlternatingSweep, normalize_cp
from ..loop.cp_model import drop_ones
from ..loop.guarding import describe_as
from ..loop.hals import improve
from ..loop.momentum import NESTEROV
from ..loop.ranks import find_cp_rank
from ..loop.run import Callback, Run, only_reads
from ..loop.smoothness import Smoothness, read_smoothness, smooth
from ..loop.starting import start
from ..loop.stopping import Converged
from ..loop.whole_tensor import WholeTensor
from ..tensor.coo_cache import LabelledData, as_flycoo
from .non_negative_parafac import non_negative_parafac
from .parafac import parafac


@describe_as(parafac, non_negative_parafac)
def non_negative_parafac_hals(
    tensor: LabelledData,
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
    if not normalize_factors:
        model.weights = drop_ones(model.weights)  # which would be multiplied by
    rule = HalsCp(constrained, penalties, strengths, exact)
    sweep = AlternatingSweep(
        solver="non_negative_parafac_hals",
        model=model,
        tensor=x,
        data=WholeTensor(x),
        modes=[n for n in range(x.ndim) if n not in (fixed_modes or [])],
        update_factor=rule.update_factor,
        normalize_factors=normalize_factors,
        smoothness=strengths,
        wants_errors=bool(tol or linesearch) or callback is not None,
        factors_may_change=not only_reads(callback),
    )
    momentum = None
    if linesearch == NESTEROV:
        momentum = start_momentum(sweep, sweep.modes, init, rule.project)
    else:
        sweep.look_ahead(n_iter_max)
    if not exact:  # the host decides how often to sweep over a factor
        sweep.record(n_iter_max, has_momentum=momentum is not None)
    return Run(
        sweep=sweep,
        accelerate=momentum,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=Converged(tol, cvg_criterion),
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
        normalize=normalize_cp if normalize_factors else None,
    ).iterate()


@final
@dataclass(frozen=True)
class HalsCp:
    """Updates a factor by some sweeps of HALS, or by least squares if it may be negative."""

    constrained: set[int]  # the non-negative modes
    penalties: list[float | None]  # of each mode, on the sum of the factor's elements
    smoothness: list[float]  # of each mode
    exact: bool

    def update_factor(self, factor: Array, product: Array, gram: Array, mode: int) -> Array:
        strength = self.smoothness[mode]
        if mode not in self.constrained:
            targets = smooth(product, strength)
            return solve(gram.T.astype(targets.dtype, copy=False), targets.T).T
        return improve(product, gram, factor, self.penalties[mode], self.exact, strength)

    def project(self, mode: int, factor: Array) -> Array:
        """Set the negative elements of a non-negative factor to zero."""
        if mode not in self.constrained:
            return factor
        return np.maximum(factor, 0)


def find_constrained(nn_modes: Any, names: Iterable[Any]) -> set[int]:
    """Return the numbers of the non-negative modes; `names` are those of all modes.

    >>> find_constrained(["day"], ["user", "item", "day"])
    {2}
    """
    numbers = {name: number for number, name in enumerate(names)}
    if nn_modes is None:
        return set()
    if isinstance(nn_modes, str) and nn_modes == "all":
        return {*numbers.values()}
    is_list = isinstance(nn_modes, Iterable) and not isinstance(nn_modes, str)
    wanted = set(nn_modes) if is_list else set()
    if not is_list or not wanted <= numbers.keys():
        raise ValueError(f"nn_modes is {nn_modes!r}, expected 'all', None or some of {[*numbers]}")
    return {numbers[name] for name in wanted}


def spread_penalties(
    coefficients: float | Sequence[float | None] | None, ndim: int, constrained: set[int]
) -> list[float | None]:
    """Return one sparsity coefficient per mode."""
    penalties = spread_numbers(coefficients, ndim, "sparsity_coefficients")
    ignored = [n for n in range(ndim) if n not in constrained and penalties[n] is not None]
    # One number for all modes may be meant for the constrained ones.
    if ignored and isinstance(coefficients, Iterable):
        warn("sparsity_coefficients are ignored in unconstrained modes")
    return penalties

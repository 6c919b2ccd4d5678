"""CP decomposition by alternating least squares on sampled fibres of a sparse tensor."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorly as tl

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_choice, num_cells
from ..engines.tall import qr
from ..io.checkpoint import Resumed
from ..loop.cp_loop import Callback, Run, pack_random, start, unpack_random
from ..loop.guarding import describe_as
from ..loop.ranks import find_cp_rank
from ..loop.whole_tensor import WholeTensor
from ..ops.cp_entries import evaluate_model
from ..ops.sampling import NonzeroSampler, fit_fibres
from ..tensor.coo_cache import SparseData, as_flycoo
from ..tensor.tensor import FlycooTensor
from .parafac import parafac


@describe_as(parafac)
def randomised_parafac(
    tensor: SparseData, rank: int | str, n_samples: int, n_iter_max: int = 100,
    init: Any = "random", svd: str = "truncated_svd", tol: float = 10e-9, max_stagnation: int = 20,
    random_state: Any = None, verbose: int = 0, callback: Callback | None = None,
    sampling: str = "leverage", n_samples_fit: int | None = 2**14, return_errors: bool = False,
) -> Any:  # fmt: skip
    """Decompose a sparse tensor by alternating least squares on sampled fibres (CP).

    The samples are those that TensorLy 0.10 draws from the same `random_state`. Any backend of
    TensorLy will do.

    Parameters
    ----------
    n_samples : int
        Fibres in each least squares problem; at least R, preferably many more.
    max_stagnation : int
        Stop after more iterations than this without a new smallest error, unless both this and
        `tol` are 0.
    random_state : int or numpy.random.RandomState, optional
    callback : callable, optional
        As for `parafac`, but called without an error before the first iteration. Errors may rise.
    sampling : {"leverage", "uniform"}
        Whether to draw fibres by the leverage scores of the factors' rows, or uniformly.
    n_samples_fit : int, optional
        Entries from which the error is estimated; None for the exact error.

    Returns
    -------
    CPTensor, errors
        As of `parafac`, with weights of ones, and errors or their estimates.

    Raises
    ------
    DensifyError, TypeError
        As of `parafac`.
    ValueError
        As of `parafac`; and if `tensor` has one mode, `n_samples` is below the rank,
        `n_samples_fit` is below 1, or `sampling` is unknown.

    Notes
    -----
    On sparse tensors `parafac` was faster and fitted better wherever it was measured, on GPUs and
    CPUs: few sampled fibres have a nonzero (docs/performance.md). Looking up a sample takes
    ``log2(nnz)`` steps. The exact error costs one MTTKRP per iteration.
    `NonzeroSampler` keeps 4 bytes per nonzero and mode. A checkpoint holds the state of the random
    numbers too.

    References
    ----------
    Battaglino, Ballard and Kolda, "A Practical Randomized CP Tensor Decomposition", SIAM Journal on
    Matrix Analysis and Applications 39, 2018. Larsen and Kolda, "Practical Leverage-Based Sampling
    for Low-Rank Tensor Decomposition", SIAM Journal on Matrix Analysis and Applications 43, 2022.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> cp_tensor = randomised_parafac(x, 3, n_samples=100, n_iter_max=5, random_state=0)
    >>> [factor.shape for factor in cp_tensor.factors]
    [(10, 3), (20, 3), (30, 3)]
    """
    x = as_flycoo(tensor, check_coords=True)
    num_components = find_cp_rank(x, rank)
    if x.ndim < 2:
        raise ValueError(f"tensor has shape {x.shape}, expected two modes or more")
    if n_samples < num_components:
        raise ValueError(f"n_samples is {n_samples}, expected at least the rank, {num_components}")
    check_choice(sampling, "sampling", ("leverage", "uniform"))
    # As in TensorLy: for an int, the start and the sampling below draw the same numbers.
    model = start(x, None, num_components, init, svd, random_state, solver="randomised_parafac")
    if isinstance(init, Resumed):  # a resumed run measures the same entries
        state = init.state
        first, random = unpack_random(state, "first"), unpack_random(state)
    else:
        first = random = tl.check_random_state(random_state)
    kept = {} if callback is None else pack_random(first, "first")
    sampler = NonzeroSampler(x._layout, x._engine)
    return _SampledLeastSquares(
        sampler, n_samples, sampling, random, _choose_measure(x, sampler, n_samples_fit, first),
        max_stagnation, kept, tensor=x, model=(None, model[1]), n_iter_max=n_iter_max, init=init,
        callback=callback, tol=tol, verbose=verbose, return_errors=return_errors,
    ).iterate()  # fmt: skip


@dataclass
class _SampledLeastSquares(Run):
    """A least squares problem of sampled fibres for each mode."""

    solver = "randomised_parafac"
    sampler: NonzeroSampler
    n_samples: int
    sampling: str
    random: np.random.RandomState
    estimate: Callable[[list[Array]], float]
    max_stagnation: int
    kept: dict[str, np.ndarray]

    def update(self, iteration: int) -> None:
        for mode in range(len(self.factors)):
            others = {n: factor for n, factor in enumerate(self.factors) if n != mode}
            coords, weights = _draw_rows(others, self.n_samples, self.random, self.sampling)
            products = math.prod(others[n][rows] for n, rows in coords.items())
            self.factors[mode] = fit_fibres(products, self.sampler.fibres(mode, coords), weights)

    def measure(self, result: None) -> float | None:
        is_asked = self.callback is not None or self.return_errors
        return self.estimate(self.factors) if self.tol or self.max_stagnation or is_asked else None

    def is_over(self) -> bool:
        errors = self.errors
        if not (self.tol or self.max_stagnation) or len(errors) < 3:
            return False
        has_settled = self.tol > 0 and abs(errors[-2] - errors[-1]) < self.tol
        return has_settled or len(errors) - 1 - int(np.argmin(errors)) > self.max_stagnation

    def save_state(self) -> dict[str, Any]:
        return self.kept | pack_random(self.random)


def _draw_rows(
    factors: dict[int, Array], count: int, random: np.random.RandomState, sampling: str
) -> tuple[dict[int, Array], Array | None]:
    """Draw rows; return 1 / sqrt(expected count) of each sample too if by leverage scores."""
    coords, expected = {}, np.full(count, float(count))
    for n, factor in factors.items():
        if sampling == "uniform":
            rows = random.randint(0, factor.shape[0], size=count, dtype=int)
        else:
            basis, _ = qr(factor)
            scores = move((basis * basis).sum(axis=1), np).astype(np.float64)
            total = scores.sum()
            likelihoods = scores / total if total > 0 else np.full(scores.size, 1 / scores.size)
            rows = random.choice(scores.size, size=count, p=likelihoods)
            expected *= likelihoods[rows]
        coords[n] = array_module(factor).asarray(rows)
    if sampling == "uniform":
        return coords, None
    return coords, array_module(factor).asarray(1 / np.sqrt(expected), factor.dtype)


def _choose_measure(
    x: FlycooTensor, sampler: NonzeroSampler, n_samples_fit: int | None, random: Any
) -> Callable[[list[Array]], float]:
    """Return a function that computes the relative error of factors, or estimates it."""
    cells, whole = num_cells(x.shape), WholeTensor(x)
    if n_samples_fit is None or n_samples_fit >= cells:
        return lambda factors: float(whole.measure(None, factors)[0])
    norm = np.float64(x._layout.norm)  # NumPy's, so that an error over 0 is nan
    drawn = [random.randint(0, size, size=n_samples_fit, dtype=int) for size in x.shape]
    coords = x._engine.xp.asarray(np.stack(drawn))
    entries, scale = sampler.entries(coords), (cells / n_samples_fit) ** 0.5

    def estimate(factors: list[Array]) -> float:
        residual = entries - evaluate_model(coords, None, factors)
        return float(scale * float(np.linalg.norm(residual)) / norm)

    return estimate

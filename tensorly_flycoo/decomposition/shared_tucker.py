"""RESCAL: a Tucker decomposition of a graph's links, with one factor for both of their ends."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import tensorly as tl
from tensorly.tucker_tensor import TuckerTensor

from ..base.array_modules import Array
from ..base.checks import check_choice, check_factors, check_rank, check_real
from ..engines.tall import call_lapack, solve, transposed_product
from ..io.checkpoint import Resumed
from ..loop.gauss_newton import SLACK, multiply_pairs
from ..loop.guarding import check_iteration, describe_as
from ..loop.run import Callback, Run, RunModel, Sweep
from ..loop.shared_factors import Group, check_shared, read_groups
from ..loop.starting import restore
from ..loop.stopping import Converged
from ..loop.whole_tensor import WholeTensor
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.tensor import FlycooTensor, check_has_nonzeros
from .parafac import parafac
from .tucker_sweep import make_tucker_tensor

#: A step that raises the loss is halved so often, at most.
_MAX_HALVINGS = 20


@describe_as(parafac)
def shared_tucker(
    tensor: LabelledData,
    rank: int,
    modes: Sequence[Any] = (0, 2),
    n_iter_max: int = 100,
    init: Any = "random",
    tol: float = 1e-8,
    random_state: Any = None,
    verbose: int = 0,
    return_errors: bool = False,
    l2_reg: float = 0,
    callback: Callback | None = None,
) -> Any:
    r"""Decompose a sparse tensor of three modes by RESCAL: one factor for both ends of links.

    .. math:: \min \|x - m\|^2 + \lambda (\|A\|^2 + \|C\|^2), \quad
        m_{arb} = \sum_{kl} A_{ak} \, C_{krl} \, A_{bl}

    Each relation r has a matrix :math:`C_r` (R, R) of its own, which need not be symmetric, so that
    heads and tails may differ, as they cannot with `shared_parafac`. Any backend will do.

    Parameters
    ----------
    rank : int
        R, the number of columns of A.
    modes : (int, int) or (str, str)
        The two modes that share the factor, of one size: by number, or by name for a
        LabelledTensor, in which they must have the same labels. The third mode has no factor.
    init : {"random", TuckerTensor, ResumedTucker}
        The initial guess of A, in the dtype of `tensor`: uniform in [0, 1), or that of a model, as
        the best core follows from it; or a checkpoint to resume (`Progress.resume`).
    l2_reg : float
        :math:`\lambda`, whatever the size of the values. For links that are 1, try 0.1 to 10.

    Returns
    -------
    TuckerTensor
        A core (R, m, R), and the factors A, the identity (m, m), and A, with the axes in the order
        of the modes, in the dtype and on the device of `tensor`.
    errors : list of float
        The relative error after each iteration; only with `return_errors`.

    Raises
    ------
    TypeError
        As of `parafac`; and if `tensor` is not sparse, or `modes` no sequence of modes.
    ValueError
        As of `parafac`; and if `tensor` has not three modes, or `modes` are not two of one size and
        with the same labels.

    Notes
    -----
    An iteration solves for A as if the A on the other side of each matrix were known, by Nickel's
    update; halves that step while the loss would rise; and finds the best core. Its cost is that of
    `parafac` of rank R\ :sup:`2`: three MTTKRPs, and one more for each halving, of which the graphs
    in docs/graphs.md need none. The loss never rises by more than rounding. Memory: ``4 * R**2``
    numbers for each row.

    References
    ----------
    Nickel, Tresp and Kriegel, "A three-way model for collective learning on multi-relational data",
    ICML 2011.

    Examples
    --------
    >>> from tensorly_flycoo.decomposition import shared_tucker
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((20, 5, 20), 200, random_state=0)
    >>> core, (heads, relations, tails) = shared_tucker(x, 3, random_state=0)
    >>> core.shape, heads.shape, bool((heads == tails).all())
    ((3, 5, 3), (20, 3), True)
    """
    check_real(l2_reg, "l2_reg", 0)
    x = as_flycoo(tensor, check_coords=True)
    num_columns = check_rank(rank)
    groups = read_groups(modes, x.shape)
    if sorted(map(len, groups)) != [1, 2]:
        raise ValueError(
            f"modes is {modes!r} of {x.ndim} modes, expected two of three: for others there is "
            "shared_parafac"
        )
    check_has_nonzeros(x)
    check_iteration(x, num_columns**2)

    model = _begin(x, groups[0], num_columns, init, random_state)
    return Run(
        sweep=RescalSweep(x, model, groups, l2_reg),
        tensor=x,
        n_iter_max=n_iter_max,
        stop=Converged(tol),
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
    ).iterate()


def _begin(x: FlycooTensor, pair: Group, rank: int, init: Any, random_state: Any) -> RunModel:
    """Return a model whose shared factor is the guess or a checkpoint's; the core follows from it.

    The factors are those of `pair` alone.
    """
    if isinstance(init, str):
        check_choice(init, "init", ("random",))
        random = tl.check_random_state(random_state)
        factor = x._engine.draw_uniform(random, (x.shape[pair[0]], rank), x.dtype)
        return RunModel(None, [factor, factor])
    errors = []
    if isinstance(init, Resumed):
        ranks = [rank if mode in pair else size for mode, size in enumerate(x.shape)]
        restored = restore(init, x, tuple(ranks), "shared_tucker", x.dtype)
        guess = restored.factors
        errors = restored.errors
    else:
        if len(init) != 2 or len(init[1]) != x.ndim:
            raise ValueError(f"init has {len(init)} parts, expected a core and three factors")
        _, guess = init
    sizes = [x.shape[mode] for mode in pair]
    both = [guess[mode] for mode in pair]
    factors = check_factors(both, sizes, x.dtype, x._engine.array_type)
    if factors[0].shape[1] != rank:
        raise ValueError(f"init has factors of {factors[0].shape[1]} columns, expected {rank}")
    check_shared(guess, [pair])
    return RunModel(None, [factor.copy() for factor in factors], errors)


class _Point(NamedTuple):
    """A shared factor and the best core for it."""

    factor: Array  # (I, R)
    core: Array  # (m, R, R): a matrix for each relation
    error: float
    loss: float  # the squared error, and the ridge's share


@final
class RescalSweep(Sweep):
    """Alternating least squares, by MTTKRPs with a component for each pair of columns (k, l).

    Such a component has column k of A in one mode, column l in the other, and the elements (k, l)
    of all C_r in the third.
    """

    solver = "shared_tucker"

    def __init__(
        self, x: FlycooTensor, model: RunModel, groups: Sequence[Group], l2_reg: float
    ) -> None:
        (self._first, self._second), (self._relation,) = groups
        self._x = x
        self._data = WholeTensor(x)
        self._identity = x._engine.xp.eye(x.shape[self._relation], dtype=x.dtype)
        self._l2_reg = l2_reg
        self.model = model
        self._point = self._find_core(model.factors[0])
        self._take(self._point)

    def measure_start(self) -> float:
        return self._point.error

    def make(self) -> TuckerTensor:
        return make_tucker_tensor(self.model)

    def save_state(self) -> dict[str, Array]:
        """Return nothing: all follows from the shared factor."""
        return {}

    def update(self, iteration: int) -> float:
        """Move the shared factor so far that the loss does not rise, but for rounding."""
        start = self._point
        step = self._solve_factor(start) - start.factor
        limit = start.loss + SLACK * float(np.finfo(self._x.dtype).eps)
        for _ in range(_MAX_HALVINGS):
            point = self._find_core(start.factor + step)
            if point.loss <= limit:
                self._take(point._replace(loss=min(point.loss, start.loss)))
                return point.error
            step /= 2
        return start.error

    def _take(self, point: _Point) -> None:
        """Make a point the model."""
        factors = [point.factor] * 3
        factors[self._relation] = self._identity
        axes = np.argsort([self._relation, self._first, self._second]).tolist()
        self._point = point
        self.model.weights = point.core.transpose(axes)
        self.model.factors[:] = factors

    def _multiply(self, factor: Array, core: Array, mode: int) -> Array:
        """Return an MTTKRP of all pairs of columns: (I_mode, R, R)."""
        xp = self._x._engine.xp
        rank = factor.shape[1]
        factors = [core.reshape(-1, rank**2)] * 3
        factors[self._first] = xp.repeat(factor, rank, axis=1)
        factors[self._second] = xp.tile(factor, (1, rank))
        return self._data.mttkrp(None, factors, mode).reshape(-1, rank, rank)

    def _solve_factor(self, start: _Point) -> Array:
        """Return the best factor if that on the other side of each matrix stayed as it is."""
        factor, core, *_ = start
        targets = self._multiply(factor, core, self._first).sum(axis=2)
        targets += self._multiply(factor, core, self._second).sum(axis=1)
        gram = transposed_product(factor, factor)
        flipped = core.transpose(0, 2, 1)
        system = (core @ gram @ flipped + flipped @ gram @ core).sum(axis=0)
        system += self._l2_reg * self._x._engine.xp.eye(len(gram), dtype=gram.dtype)
        return solve(system, targets.T).T

    def _find_core(self, factor: Array) -> _Point:
        """Return a factor with the best core for it, whose system is solved in float64."""
        xp = self._x._engine.xp
        rank = factor.shape[1]
        any_core = xp.zeros((self._x.shape[self._relation], rank, rank), self._x.dtype)
        targets = self._multiply(factor, any_core, self._relation).astype(np.float64)
        [host_gram] = multiply_pairs([factor], [factor])
        values, host_vectors = call_lapack(np.linalg.eigh, host_gram)
        curvature = np.outer(values, values) + self._l2_reg
        is_large = curvature > rank * np.finfo(np.float64).eps * curvature.max()
        inverse = np.divide(1, curvature, out=np.zeros_like(curvature), where=is_large)
        gram, vectors = xp.asarray(host_gram), xp.asarray(host_vectors)
        solved = (vectors.T @ targets @ vectors) * xp.asarray(inverse)
        core = (vectors @ solved @ vectors.T).astype(self._x.dtype)

        exact = core.astype(np.float64)
        square = float(self._data.norm()) ** 2
        inner = float((targets * exact).sum())
        model_square = float((exact * (gram @ exact @ gram)).sum())
        residual = abs(square + model_square - 2 * inner) / square
        ridge = self._l2_reg * (host_gram.trace() + float((exact**2).sum())) / square
        return _Point(factor, core, residual**0.5, residual + ridge)

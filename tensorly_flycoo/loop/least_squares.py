"""The sweep of `parafac`: a system of equations for each mode, solved here or as TensorLy does."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import tensorly as tl
from tensorly.decomposition import _cp

from ..base.array_modules import Array
from ..engines.tall import qr, solve
from . import gram_products
from .alternating import CpSweep, measure_updated
from .cp_model import drop_ones, multiply_grams
from .line_search import LineSearch
from .masks import ImputedTensor
from .recorded_sweep import solve_recorded
from .run import RunModel
from .smoothness import add_differences, smooth
from .whole_tensor import WholeTensor


class FactorSolver(ABC):
    """Finds the best factor of a mode, and the error of the model."""

    @abstractmethod
    def solve_mode(self, model: RunModel, mode: int) -> Array:
        """Replace a factor by the best one for the others; return its MTTKRP."""

    @abstractmethod
    def measure(self, model: RunModel, last_mttkrp: Array) -> Any:
        """Return the error of a model whose last mode was just solved, None if not needed."""

    @abstractmethod
    def list_moved(self, modes: list[int]) -> list[int]:
        """List the modes whose factors momentum extrapolates, of those that are updated."""

    @abstractmethod
    def end_iteration(self) -> None:
        """Drop Gram matrices of factors, which a callback may change."""


@final
@dataclass(kw_only=True)
class OwnSolver(FactorSolver):
    """Solves by functions of this package; the only one for missing entries and smooth modes."""

    data: WholeTensor | ImputedTensor
    smoothness: Sequence[float]  # of each mode
    l2_reg: float
    wants_errors: bool

    def solve_mode(self, model: RunModel, mode: int) -> Array:
        product = self.data.mttkrp(model.weights, model.factors, mode)
        longer = add_differences(model.factors, self.smoothness, skip=mode)
        gram = multiply_grams(model.weights, longer, mode, self.l2_reg)
        model.factors[mode] = solve(gram, smooth(product, self.smoothness[mode]).T).T
        return product

    def measure(self, model: RunModel, last_mttkrp: Array) -> Any:
        return measure_updated(self.data, model, last_mttkrp, self.wants_errors)

    def list_moved(self, modes: list[int]) -> list[int]:
        return modes

    def end_iteration(self) -> None:
        """Do nothing: all is computed anew."""


@final
@dataclass(kw_only=True)
class TensorlyCp(FactorSolver):
    """Computes as TensorLy's own loop, to the bit, by the same functions of the backend."""

    data: WholeTensor
    l2_reg: float

    def solve_mode(self, model: RunModel, mode: int) -> Array:
        """Solve for one factor, by the calls of `tensorly.decomposition.parafac` in its order."""
        rank = model.factors[0].shape[1]
        context = tl.context(self.data)
        gram = tl.ones((rank, rank), **context)
        for n, factor in enumerate(model.factors):
            if n != mode:
                gram = gram * tl.dot(tl.transpose(factor), factor)
        if self.l2_reg:
            gram = gram + tl.eye(rank, **context) * self.l2_reg
        if model.weights is not None:
            gram = tl.reshape(model.weights, (-1, 1)) * gram * tl.reshape(model.weights, (1, -1))
        cp_tensor = (model.weights, model.factors)
        mttkrp = tl.tenalg.unfolding_dot_khatri_rao(self.data, cp_tensor, mode)
        model.factors[mode] = tl.transpose(tl.solve(tl.transpose(gram), tl.transpose(mttkrp)))
        return mttkrp

    def measure(self, model: RunModel, last_mttkrp: Array) -> Any:
        norm = self.data.norm()
        residual_norm, *_ = _cp.error_calc(
            self.data,
            norm,
            model.weights,
            model.factors,
            sparsity=None,
            mask=None,
            mttkrp=last_mttkrp,
        )
        return residual_norm / norm

    def list_moved(self, modes: list[int]) -> list[int]:
        """List all but the first mode: nothing depends on the factor that is updated first."""
        return modes[1:]

    def end_iteration(self) -> None:
        gram_products.stop()
        self.data.memory.end_iteration()


@final
@dataclass(kw_only=True)
class LeastSquares(CpSweep):
    """Alternating least squares, with Bro's line search if there is a `search`."""

    solver: str = "parafac"
    factor_solver: FactorSolver
    l2_reg: float
    orthogonalise: int = 0  # up to this iteration, first make the factors orthonormal
    search: LineSearch | None = None

    def record(self, num_iterations: int) -> None:
        """Let a GPU launch iterations at once, if they are plain and it saves time.

        The model's weights stay as they are.
        """
        is_plain = isinstance(self.factor_solver, TensorlyCp) and self.data.narrow is None
        is_special = self.l2_reg or self.orthogonalise or self.search is not None
        if is_plain and not is_special and drop_ones(self.model.weights) is None:
            self.start_recording(
                solve_recorded, num_iterations, wants_residual=True, looks_ahead=False
            )

    def update(self, iteration: int) -> Any:
        model = self.model
        done = self.iterate_recorded()
        if done is not None:
            return self.tensor.dtype.type(done.residual) / self.tensor.norm()
        if self.data.narrow is not None:
            self.data.narrow.begin(iteration)
        if self.orthogonalise and iteration <= self.orthogonalise:
            self._orthogonalise()
        before = [] if self.search is None else list(model.factors)
        for mode in self.modes:
            last_mttkrp = self.solve_mode(mode)
        if self.search is None or not self.search.is_due(iteration):
            return self.factor_solver.measure(model, last_mttkrp)
        self.impute()
        self._extrapolate(self.search, iteration, before)
        return None

    def solve_mode(self, mode: int) -> Array:
        """Replace a factor by the best one for the others; return its MTTKRP."""
        mttkrp = self.factor_solver.solve_mode(self.model, mode)
        factors = self.model.factors
        factors[mode] = self.data.round_factor(factors[mode], mode)
        return mttkrp

    def end_rounding(self) -> None:
        """Round nothing from here on."""
        if self.data.narrow is not None:
            self.data.narrow.turn()

    def _orthogonalise(self) -> None:
        """Make the columns of each factor with enough rows orthonormal."""
        rank = self.model.factors[0].shape[1]
        factors = self.model.factors
        for mode, factor in enumerate(factors):
            if factor.shape[0] >= rank:
                factors[mode], _ = qr(factor)

    def _extrapolate(self, search: LineSearch, iteration: int, before: Sequence[Array]) -> None:
        """Take up extrapolated factors if they lower the error."""
        model = self.model
        model.factors[:], measured = search.extrapolate(
            iteration,
            before,
            model.factors,
            model.errors[-1],
            partial(self.data.measure, model.weights),
        )
        if measured is not None:
            _, self.data.values = measured

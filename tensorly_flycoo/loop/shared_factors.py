r"""Damped Gauss-Newton steps of CP models in which several modes have the same factor.

Such a model is no linear function of a factor A that modes i and j share: no system of equations
has the best A. But nothing in the system of a Gauss-Newton step (`gauss_newton`) changes where i
and j are swapped, if their factors are the same and their MTTKRPs are replaced by the mean of both.
So its solution moves both factors alike: it is the step of the model that shares them.

After each step one part of the model becomes the best one for the others, and so gives the error:
the longest factor that belongs to one mode alone. Where every mode shares its factor, it is the
weights, whose signs such models need. To a step they are the factor of one more mode, of size 1.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, has_true, move
from ..base.checks import check_modes
from ..engines.tall import call_lapack, inner_product, multiply, solve, sum_columns
from ..tensor.labelled import LabelledTensor
from .cp_model import make_cp_tensor, multiply_all
from .gauss_newton import SLACK, Damping, find_step, multiply_pairs
from .run import RunModel, Sweep
from .whole_tensor import WholeTensor

#: Decompositions whose option `modes` says which modes have the same factor.
SHARING = ("shared_parafac", "shared_tucker")

#: Modes that share a factor.
Group = tuple[int, ...]


def read_groups(modes: Any, shape: Sequence[int]) -> list[Group]:
    """Return the groups of modes that share a factor: those of `modes`, and each other mode alone.

    >>> read_groups((0, 2), (5, 4, 5))
    [(0, 2), (1,)]
    >>> read_groups([(0, 2), (1, 3)], (5, 4, 5, 4))
    [(0, 2), (1, 3)]
    """
    if isinstance(modes, str) or not isinstance(modes, Iterable):
        raise TypeError(f"modes is {modes!r}, expected modes that share a factor, such as (0, 2)")
    listed = list(modes)
    if not all(isinstance(group, list | tuple) for group in listed):
        listed = [listed]
    groups: list[Group] = []
    for group in listed:
        check_modes(group, len(shape), "modes")
        groups.append(tuple(map(int, group)))
    grouped = [mode for group in groups for mode in group]
    for group in groups:
        if len(group) < 2:
            raise ValueError(f"modes is {modes!r}, expected two or more that share a factor")
        sizes = [shape[mode] for mode in group]
        if len(set(sizes)) > 1:
            raise ValueError(f"modes {group} have the sizes {sizes}, expected the same for all")
    for mode in grouped:
        if grouped.count(mode) > 1:
            raise ValueError(f"modes is {modes!r}, expected mode {mode} once")
    alone = [(mode,) for mode in range(len(shape)) if mode not in grouped]
    return groups + alone


def check_shared_labels(modes: Any, x: LabelledTensor) -> None:
    """Refuse modes that would share a factor, although their rows stand for different things."""
    names = list(x.labels)
    for first, *others in read_groups(modes, x.shape):
        for other in others:
            if not np.array_equal(x.labels[names[first]], x.labels[names[other]]):
                raise ValueError(
                    f"modes {names[first]!r} and {names[other]!r} have different labels, expected "
                    "the same, in the same order: pass those of both as labels= to from_dataframe"
                )


def share_factors(factors: Sequence[Array], groups: Sequence[Group]) -> list[Array]:
    """Return factors of which the modes of a group have the first one's."""
    shared = list(factors)
    for first, *others in groups:
        for other in others:
            shared[other] = factors[first]
    return shared


def check_shared(factors: Sequence[Array], groups: Sequence[Group]) -> None:
    """Refuse a guess whose factors differ in modes that share one."""
    for first, *others in groups:
        for other in others:
            if has_true(factors[other] != factors[first]):
                raise ValueError(
                    f"factors[{other}] of init differs from factors[{first}], expected the same: "
                    f"modes {first} and {other} share a factor"
                )


class _Point(NamedTuple):
    """A model whose best part has been found, and what the next step needs of it."""

    weights: Array | None
    factors: list[Array]
    grams: np.ndarray  # of the factors, and of the weights if there are some: (n, R, R)
    product: Array | None  # of the last mode and unit weights; None if that is not needed
    error: float
    loss: float  # the squared error, and the ridge's share


@final
class SharedSweep(Sweep):
    """Iterations that are one step of all factors, tried with more damping where the loss rises.

    One MTTKRP for each mode, and one more for each further try.
    """

    solver = "shared_parafac"

    def __init__(
        self,
        data: WholeTensor,
        model: RunModel,
        groups: Sequence[Group],
        l2_reg: float,
        state: Mapping[str, Any],
    ) -> None:
        self.model = model
        self._data = data
        self._groups = groups
        self._l2_reg = l2_reg
        self._eps = float(np.finfo(data.dtype).eps)
        self._damping = Damping(self._eps)
        alone = [group[0] for group in groups if len(group) == 1]
        self._has_alone = len(alone) > 0
        # The mode whose MTTKRP gives the best part: of its factor, or of the weights.
        self._last = max(alone, key=lambda mode: data.shape[mode], default=data.ndim - 1)
        self._moved = [group for group in groups if group != (self._last,)]
        self._point: _Point | None = None  # before the first iteration
        if "damping" in state:
            self._damping = Damping(self._eps, float(state["damping"]))
            self._point = self._restore(float(state["loss"]))

    def measure_start(self) -> Any:
        return self._data.measure(self.model.weights, self.model.factors)[0]

    def make(self) -> CPTensor:
        return make_cp_tensor(self.model.weights, self.model.factors)

    def save_state(self) -> Mapping[str, Array]:
        if self._point is None:
            return {}
        strength = np.asarray(self._damping.strength)
        return {"damping": strength, "loss": np.asarray(self._point.loss)}

    def update(self, iteration: int) -> Any:
        """Do a step that does not raise the loss, but for rounding; return the error."""
        start = self._point or self._find_best_part(self.model.factors)
        self._take(start)
        products = self._average_products(start)
        inner = self._multiply_factors(start, products)
        limit = start.loss + SLACK * self._eps
        while self._damping.may_help:
            with contextlib.suppress(np.linalg.LinAlgError):  # of a step that overflows
                point = self._find_best_part(self._move(start, products, inner))
                if point.loss <= limit:
                    self._damping.ease()
                    self._take(point._replace(loss=min(point.loss, start.loss)))
                    return point.error
            self._damping.brake()
        return start.error

    def _take(self, point: _Point) -> None:
        """Make a point the model."""
        self._point = point
        self.model.weights = point.weights
        self.model.factors[:] = point.factors

    def _restore(self, loss: float) -> _Point:
        """Return the point of a checkpoint."""
        weights, factors = self.model.weights, list(self.model.factors)
        error = self.model.errors[-1]
        grams = self._multiply_grams(factors)
        if self._has_alone:
            return _Point(None, factors, grams, None, error, loss)
        product = self._data.mttkrp(None, factors, self._last)
        return _Point(weights, factors, _append_weights(grams, weights), product, error, loss)

    def _average_products(self, start: _Point) -> dict[Group, Array]:
        """Return the mean of each moved group's MTTKRPs, which a pass in the modes' order finds."""
        modes = [*range(self._last + 1, self._data.ndim), *range(self._last)]
        products = {n: self._data.mttkrp(start.weights, start.factors, n) for n in modes}
        if start.product is not None:
            products[self._last] = start.product * start.weights
        averages = {}
        for group in self._moved:
            average = products.pop(group[0])
            for mode in group[1:]:
                average = average + products.pop(mode)
            averages[group] = average / len(group)
        return averages

    def _multiply_factors(
        self, start: _Point, products: Mapping[Group, Array]
    ) -> dict[int, np.ndarray]:
        """Return A_n^T M_n of each moved mode n, for `find_step`."""
        factors = [start.factors[first] for first, *_ in products]
        inner: dict[int, np.ndarray] = {}
        pairs = multiply_pairs(factors, list(products.values()))
        for group, product in zip(products, pairs, strict=True):
            inner |= dict.fromkeys(group, product)
        return inner

    def _move(
        self, start: _Point, products: Mapping[Group, Array], inner: Mapping[int, np.ndarray]
    ) -> list[Array]:
        """Return the factors after a step with the current damping."""
        everything = range(len(start.grams))
        strength = self._damping.strength
        step = call_lapack(find_step, start.grams, inner, everything, strength, self._l2_reg)
        of_products, of_factors = self._place(step)
        factors = list(start.factors)
        for group, product in products.items():
            first = group[0]
            factor = multiply(product, of_products[first])
            factor += multiply(start.factors[first], of_factors[first])
            for mode in group:
                factors[mode] = factor
        return factors

    def _find_best_part(self, factors: list[Array]) -> _Point:
        """Return the model of these factors with the best last factor, or the best weights."""
        product = self._data.mttkrp(None, factors, self._last)
        if self._has_alone:
            return self._find_best_factor(factors, product)
        return self._find_best_weights(factors, product)

    def _find_best_factor(self, factors: list[Array], product: Array) -> _Point:
        last = self._last
        grams = self._multiply_grams(factors, skip=last)
        gram = multiply_all(grams, skip=last) + self._l2_reg * np.eye(grams.shape[1])
        solved = solve(self._place(gram), product.T).T
        [grams[last]] = multiply_pairs([solved], [solved])
        completed = [*factors[:last], solved, *factors[last + 1 :]]
        inner = float(inner_product(product, solved))
        return self._measure(None, completed, grams, None, inner)

    def _find_best_weights(self, factors: list[Array], product: Array) -> _Point:
        of_components = move(sum_columns(product * factors[self._last]), np)
        grams = self._multiply_grams(factors)
        weights = self._place(solve(grams.prod(axis=0), of_components))
        inner = float(move(weights, np) @ of_components)
        return self._measure(weights, factors, _append_weights(grams, weights), product, inner)

    def _measure(
        self,
        weights: Array | None,
        factors: list[Array],
        grams: np.ndarray,
        product: Array | None,
        inner: float,
    ) -> _Point:
        """Return a point with its error; `inner` is the inner product of the tensor and model."""
        square = float(self._data.norm()) ** 2
        residual = abs(square + grams.prod(axis=0).sum() - 2 * inner) / square
        ridge = self._l2_reg * grams.trace(axis1=1, axis2=2).sum() / square
        return _Point(weights, factors, grams, product, residual**0.5, residual + ridge)

    def _multiply_grams(self, factors: Sequence[Array], skip: int | None = None) -> np.ndarray:
        """Return the Gram matrices (ndim, R, R) of factors; zeros for mode `skip`."""
        rank = factors[0].shape[1]
        grams = np.zeros((len(factors), rank, rank))
        groups = [group for group in self._groups if skip not in group]
        firsts = [factors[group[0]] for group in groups]
        for group, gram in zip(groups, multiply_pairs(firsts, firsts), strict=True):
            grams[list(group)] = gram
        return grams

    def _place(self, matrix: np.ndarray) -> Array:
        """Return a small matrix on the device, in the dtype of the factors."""
        return self._data.tensor._engine.xp.asarray(matrix.astype(self._data.dtype))


def _append_weights(grams: np.ndarray, weights: Array) -> np.ndarray:
    """Return Gram matrices and, after them, that of weights: a factor (1, R)."""
    exact = move(weights, np).astype(np.float64)
    return np.stack([*grams, np.outer(exact, exact)])
